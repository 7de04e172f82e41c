//! Finds out by the number of a node, without a listing, that the node stands in front.
//!
//! The servers number the nodes of a directory by how many were made in it before. Once a node that stood in front is
//! gone, no node is left with its number or a lower one. So the node with the next number stands in front, as long as
//! the directory is still the same one: that is watched, and servers report its end before they answer what came later.
//!
//! | the watch is | `State::watch` | what leads there |
//! |---|---|---|
//! | none | `None` | at first; the watch fired, or could not be set; the session or its connection is another one |
//! | asked for | set, without `event` | [`ROW`] nodes in a row were gone |
//! | set | set, with `event` | the servers confirmed it |

use std::sync::Arc;
use std::task::{Context, Waker};

use dlock_core::backend::Mutex;
use dlock_core::keeper;
use zookeeper::EventType;

use crate::session::{Session, WatchPass};
use crate::wire::{Answer, event};

/// The number of nodes of this process in a row, with no other client's in between, that is reason to watch the
/// directory.
const ROW: u32 = 3;

/// The numbers of the nodes that this process had in a directory.
#[derive(Default)]
pub(crate) struct Numbers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of the last node that stood in front and is gone.
    last: Option<i64>,
    /// The number of nodes that came directly one after the other.
    row: u32,
    watch: Option<Watch>,
    watches: u64,
    /// As `last`, in the directory that is watched; taken by the creation that relies on it.
    gone: Option<i64>,
}

/// The watch on the directory.
struct Watch {
    number: u64,
    session: i64,
    /// The number of losses of the connection when it was asked for.
    losses: u64,
    /// `None` until the servers have confirmed it.
    event: Option<Answer<EventType>>,
    _pass: WatchPass,
}

/// The directory as it was watched when a creation was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    watch: u64,
    /// The number with which the new node stands in front.
    next: Option<i64>,
}

impl Watched {
    pub(crate) fn is_decisive(self) -> bool {
        self.next.is_some()
    }
}

impl Numbers {
    /// Notes that a creation is about to be sent. Returns `None` if the directory is not watched.
    pub(crate) fn creating(&self, session: &Session) -> Option<Watched> {
        let mut state = self.0.lock();
        let watch = state.watch(session)?;
        // Taken, since no more than one creation can get the next number.
        Some(Watched { watch, next: state.gone.take().filter(|_| state.row >= ROW).map(|gone| gone + 1) })
    }

    /// Returns `true` if the node that got `number` certainly stands in front.
    pub(crate) fn prove(&self, session: &Session, watched: Watched, number: i64) -> bool {
        let mut state = self.0.lock();
        let in_front = state.watch(session) == Some(watched.watch)
            && watched.next == Some(number)
            // Other numbers have no order: see `recipe/order.rs`.
            && (0..i64::from(i32::MAX)).contains(&number);
        if !in_front {
            // Another client had a number in between, or the watch has ended: the row begins anew.
            state.row = 0;
        }
        in_front
    }

    /// Notes that a node that stood in front is gone. `watched` is what was known when its creation was sent, and
    /// `at_once` is `true` if no node stood before it then.
    pub(crate) fn note_gone(
        self: &Arc<Self>,
        session: &Session,
        directory: &Arc<str>,
        watched: Option<Watched>,
        number: i64,
        at_once: bool,
    ) {
        let mut state = self.0.lock();
        let follows = at_once && state.last == Some(number - 1);
        state.row = if follows { state.row.saturating_add(1) } else { 0 };
        state.last = Some(number);
        match state.watch(session) {
            // The watch is still that from before the creation: the node was in the directory that is watched.
            Some(watch) if watched.is_some_and(|watched| watched.watch == watch) => {
                // An older node may be noted after a younger one.
                state.gone = state.gone.max(Some(number));
            }
            None if state.row >= ROW && state.watch.is_none() => {
                if let Some(watch) = state.begin_watch(session, directory) {
                    drop(state);
                    self.watch(session, directory, watch);
                }
            }
            _ => {}
        }
    }

    /// Asks the servers for the watch on the directory.
    fn watch(self: &Arc<Self>, session: &Session, directory: &Arc<str>, watch: u64) {
        let (client, directory) = (session.client.clone(), Arc::clone(directory));
        // The task does not keep the numbers, nor they the task.
        let numbers = Arc::downgrade(self);
        let set = async move {
            let answer = client.check_and_watch_stat(&directory).await;
            let Some(numbers) = numbers.upgrade() else { return };
            let mut state = numbers.0.lock();
            // Another watch may have been asked for meanwhile, and this one be forgotten.
            let asked = state.watch.take_if(|asked| asked.number == watch);
            if let (Some(asked), Ok((Some(_), watcher))) = (asked, answer) {
                state.watch = Some(Watch { event: Some(event(watcher)), ..asked });
            }
        };
        if let Ok(runtime) = keeper::runtime() {
            runtime.spawn(set);
        }
    }
}

impl State {
    fn begin_watch(&mut self, session: &Session, directory: &str) -> Option<u64> {
        let (losses, pass) = (session.losses()?, session.watches.directory(directory)?);
        self.watches += 1;
        self.gone = None;
        self.watch =
            Some(Watch { number: self.watches, session: session.id, losses, event: None, _pass: pass });
        Some(self.watches)
    }

    /// Returns the number of the watch that is set. Forgets a watch that has ended.
    fn watch(&mut self, session: &Session) -> Option<u64> {
        let watch = self.watch.as_mut()?;
        let mut context = Context::from_waker(Waker::noop());
        if watch.session == session.id && session.losses() == Some(watch.losses) {
            let event = watch.event.as_mut()?;
            if event.as_mut().poll(&mut context).is_pending() {
                return Some(watch.number);
            }
        }
        (self.watch, self.gone, self.row) = (None, None, 0);
        None
    }
}
