//! What the number of a node tells without a listing.
//!
//! The servers number the nodes of a directory by how many were made in it before. Once a node that stood in front is
//! gone, nothing is left with its number or a lower one. So the node with the next number stands in front, as long as
//! the directory is the same one: that is watched, and servers tell of its end before they answer whatever came later.

use std::sync::Arc;
use std::task::{Context, Waker};

use dlock_core::backend::Mutex;
use dlock_core::keeper;
use zookeeper::EventType;

use crate::session::{Session, WatchPass};
use crate::wire::{Answer, event};

/// So many nodes of this process in a row, and nobody else's in between, are a reason to watch the directory.
const ROW: u32 = 3;

/// The numbers of the nodes that this process had in a directory.
#[derive(Default)]
pub(crate) struct Numbers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The last node that stood in front and is gone.
    last: Option<i64>,
    /// How many came directly one after the other.
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
    /// How often the connection had been lost when it was set.
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
    /// Notes that a creation is about to be sent. `None` when the directory is not watched.
    pub(crate) fn creating(&self, session: &Session) -> Option<Watched> {
        let mut state = self.0.lock();
        let watch = state.watch(session)?;
        Some(Watched { watch, next: state.gone.take().filter(|_| state.row >= ROW).map(|gone| gone + 1) })
    }

    /// Whether the node that got `number` certainly stands in front.
    pub(crate) fn prove(&self, session: &Session, watched: Watched, number: i64) -> bool {
        let mut state = self.0.lock();
        let in_front = state.watch(session) == Some(watched.watch)
            && watched.next == Some(number)
            && (0..i64::from(i32::MAX)).contains(&number);
        if !in_front {
            state.row = 0;
        }
        in_front
    }

    /// Notes that a node which stood in front is gone; `watched` is what was known when its creation was sent, and
    /// `at_once` whether nobody had been before it.
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
            Some(watch) if watched.is_some_and(|watched| watched.watch == watch) => {
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

    /// Watches the directory.
    fn watch(self: &Arc<Self>, session: &Session, directory: &Arc<str>, watch: u64) {
        let (client, directory) = (session.client.clone(), Arc::clone(directory));
        // Neither keeps the other.
        let numbers = Arc::downgrade(self);
        let set = async move {
            let answer = client.check_and_watch_stat(&directory).await;
            let Some(numbers) = numbers.upgrade() else { return };
            let mut state = numbers.0.lock();
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

    /// Which watch is set. One that has ended is forgotten.
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
