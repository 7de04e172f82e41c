//! The current session of a backend. It is opened when it is needed, and again when it has ended.
//!
//! | `Slot` | what `get` does |
//! |---|---|
//! | `None` | starts a task that opens a session: `Opening` |
//! | `Opening` | waits for the task; starts another one if that is gone |
//! | `Open` | returns the session, or opens another one if that has ended |
//! | `Failed` | fails for the same reason for 100 ms, then opens a session |
//! | `Closed` | fails; this state is final |

mod fork;
mod leftovers;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, by_then, guard_opening};
use dlock_core::{Clock, ErrorKind, Failure, keeper};
use tokio::sync::watch;
use tokio::time::Instant;

use self::leftovers::Leftovers;
use crate::config::Config;
use crate::queue::Queues;
use crate::session::{NotOpened, Session};

/// The time for which no session is opened after a failure to open one.
const FAILURE_STANDS: Duration = Duration::from_millis(100);

type Opened = Option<Result<Arc<Session>, NotOpened>>;

/// The sessions of one backend, of which at most one is current.
pub(crate) struct Sessions {
    config: Config,
    slot: Mutex<Slot>,
    /// The queues outlive the sessions, so that waiters of this process keep their order.
    pub(crate) queues: Queues,
    /// The nodes that this process left in queues.
    leftovers: Leftovers,
}

enum Slot {
    None,
    /// A session is being opened; all callers wait for it.
    Opening(watch::Receiver<Opened>),
    Open(Arc<Session>),
    /// No session could be opened, at this time.
    Failed(NotOpened, Instant),
    Closed,
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Arc::new(Self {
            config,
            slot: Mutex::new(Slot::None),
            queues: Queues::default(),
            leftovers: Leftovers::default(),
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the session, if one is open.
    pub(crate) fn current(&self) -> Result<Option<Arc<Session>>, Failure> {
        fork::refuse_in_child()?;
        // Opens none, for callers that would rather do without: what a session kept has ended with it.
        Ok(match &*self.slot.lock() {
            Slot::Open(session) if session.ended().is_none() => Some(Arc::clone(session)),
            _ => None,
        })
    }

    /// Returns the session, opened by `until` if need be. The opening goes on if all its callers are gone.
    pub(crate) async fn get(self: &Arc<Self>, until: Instant) -> Result<Arc<Session>, Failure> {
        match self.start()? {
            Ok(session) => Ok(session),
            Err(opening) => Box::pin(self.opened(opening, until)).await,
        }
    }

    async fn opened(
        &self,
        mut opening: watch::Receiver<Opened>,
        until: Instant,
    ) -> Result<Arc<Session>, Failure> {
        let opened = by_then(until, opening.wait_for(Option::is_some)).await;
        let servers = &self.config.servers;
        match opened {
            Some(Ok(opened)) => match opened.as_ref() {
                Some(Ok(session)) => Ok(Arc::clone(session)),
                Some(Err(reason)) => Err(reason.failure(servers)),
                None => Err(Failure::unavailable("no session was opened")),
            },
            Some(Err(_)) => Err(Failure::unavailable(format!("{servers}: the session was not opened"))),
            None => Err(Failure::unavailable(format!("{servers}: no server opened a session in time"))),
        }
    }

    /// Returns the session, or the one that is being opened.
    fn start(self: &Arc<Self>) -> Result<Result<Arc<Session>, watch::Receiver<Opened>>, Failure> {
        // A child made by `fork` cannot use the session of its parent, whose answers arrive in the parent.
        fork::refuse_in_child()?;
        let mut slot = self.slot.lock();
        match &*slot {
            Slot::Open(session) if session.ended().is_none() => return Ok(Ok(Arc::clone(session))),
            Slot::Opening(opening) if opening.has_changed().is_ok() => return Ok(Err(opening.clone())),
            Slot::Closed => return Err(Failure::new(ErrorKind::Closed, "the connection was closed")),
            // Many claims may ask, each again and again.
            Slot::Failed(reason, when) if when.elapsed() < FAILURE_STANDS => {
                return Err(reason.failure(&self.config.servers));
            }
            // An opening whose task is gone, as after a panic, is begun anew.
            Slot::Opening(_) | Slot::Open(_) | Slot::Failed(..) | Slot::None => {}
        }
        // Noted before the first session, so that a child made while it is opened is refused too.
        fork::opens_in_this_process();
        let (sender, opening) = watch::channel(None);
        let sessions = Arc::clone(self);
        keeper::runtime()?.spawn(async move {
            // Before the first request, since it counts as the first proof of life: the servers count from a later
            // moment.
            let sent = Clock::system().now();
            let opened = guard_opening(sessions.config.open_session()).await.unwrap_or_else(|panic| {
                let panic = zookeeper::Error::UnexpectedError(panic.message().to_owned());
                Err(NotOpened::Client(panic))
            });
            let opened = opened.map(|driven| Session::start(driven, sent, &sessions.config));
            let mut slot = sessions.slot.lock();
            // A backend that was closed meanwhile stays so; the session ends with the last caller that waits for it.
            if !matches!(*slot, Slot::Closed) {
                *slot = match &opened {
                    Ok(session) => Slot::Open(Arc::clone(session)),
                    Err(reason) => Slot::Failed(reason.clone(), Instant::now()),
                };
            }
            drop(slot);
            // After the slot is set: a caller that fails by this and comes again finds `Failed`, and not the opening.
            sender.send_replace(Some(opened));
        });
        // Still under the mutex: the task cannot store its outcome before this.
        *slot = Slot::Opening(opening.clone());
        Ok(Err(opening))
    }

    /// Closes the backend: no session is opened from now on. The current one ends once no lock needs it.
    pub(crate) fn close(&self) {
        // Dropped without the mutex, since the last reference to a session closes it.
        let slot = std::mem::replace(&mut *self.slot.lock(), Slot::Closed);
        drop(slot);
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("servers", &self.config.servers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ZooKeeperBuilder;
    use crate::session::Greeting;

    #[tokio::test]
    async fn a_session_whose_opener_is_gone_is_opened_anew() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let sessions = Sessions::new(ZooKeeperBuilder::new(&format!("zk://{nobody}")).check().unwrap());
        // As after a panic of the task that was opening it.
        let (opener, opening) = watch::channel(None);
        *sessions.slot.lock() = Slot::Opening(opening);
        drop(opener);
        let Ok(Err(mut opening)) = sessions.start() else { panic!("one is being opened") };
        let opened = opening.wait_for(Option::is_some).await.expect("somebody opens it").clone();
        assert!(matches!(opened, Some(Err(NotOpened::Unreached(Greeting::None)))), "nobody listens there");
    }
}
