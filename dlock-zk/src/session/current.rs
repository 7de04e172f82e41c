//! The current session of a backend: opened when it is needed, and again when it has ended.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlock_core::backend::{by_then, guard_opening};
use dlock_core::{Clock, ErrorKind, Failure, keeper};
use tokio::sync::watch;
use tokio::time::Instant;

use super::greeting::Greeting;
use super::leftovers::Leftovers;
use super::{Session, driver, greeting};
use crate::config::Config;
use crate::error::not_opened;
use crate::queue::{Queues, lock};

/// How long a failure to open a session stands for all who ask.
const FAILURE_STANDS: Duration = Duration::from_millis(100);

/// Why no session was opened.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    Client(zookeeper::Error),
    /// No server opened a session, and this is how they meet a connection.
    Unreached(Greeting),
    /// What was found does not fit the settings.
    Settings(String),
}

impl From<zookeeper::Error> for Refusal {
    fn from(error: zookeeper::Error) -> Self {
        Self::Client(error)
    }
}

type Opened = Option<Result<Arc<Session>, Refusal>>;

/// The sessions of one backend, of which at most one is current.
pub(crate) struct Sessions {
    config: Config,
    slot: Mutex<Slot>,
    /// They outlive the sessions, so that nobody who waits in this process loses his place there.
    pub(crate) queues: Queues,
    /// What this process left in queues.
    pub(super) leftovers: Leftovers,
}

enum Slot {
    None,
    /// One is being opened; all who need it wait for the same.
    Opening(watch::Receiver<Opened>),
    Open(Arc<Session>),
    /// None could be opened, at this time.
    Failed(Refusal, Instant),
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

    fn slot(&self) -> MutexGuard<'_, Slot> {
        lock(&self.slot)
    }

    /// The session, if one is open.
    pub(crate) fn current(&self) -> Result<Option<Arc<Session>>, Failure> {
        driver::refuse_in_child()?;
        Ok(match &*self.slot() {
            Slot::Open(session) if session.ended().is_none() => Some(Arc::clone(session)),
            _ => None,
        })
    }

    /// The session, opened by `until` if need be. Opening one goes on when nobody waits for it any more.
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
                Some(Err(refusal)) => Err(not_opened(refusal, servers)),
                None => Err(Failure::unavailable("no session was opened")),
            },
            Some(Err(_)) => Err(Failure::unavailable(format!("{servers}: the session was not opened"))),
            None => Err(Failure::unavailable(format!("{servers}: no server opened a session in time"))),
        }
    }

    /// The session, or the one that is being opened.
    fn start(self: &Arc<Self>) -> Result<Result<Arc<Session>, watch::Receiver<Opened>>, Failure> {
        // What the parent has open is answered in the parent.
        driver::refuse_in_child()?;
        let mut slot = self.slot();
        match &*slot {
            Slot::Open(session) if session.ended().is_none() => return Ok(Ok(Arc::clone(session))),
            Slot::Opening(opening) if opening.has_changed().is_ok() => return Ok(Err(opening.clone())),
            Slot::Closed => return Err(Failure::new(ErrorKind::Closed, "the connection was closed")),
            // Many may ask, each again and again.
            Slot::Failed(refusal, when) if when.elapsed() < FAILURE_STANDS => {
                return Err(not_opened(refusal, &self.config.servers));
            }
            // Whoever was opening one is gone, as after a panic.
            Slot::Opening(_) | Slot::Open(_) | Slot::Failed(..) | Slot::None => {}
        }
        driver::opens_in_this_process();
        let (tell, opening) = watch::channel(None);
        let sessions = Arc::clone(self);
        keeper::runtime()?.spawn(async move {
            let sent = Clock::system().now();
            let opened = guard_opening(sessions.config.open()).await.unwrap_or_else(|panic| {
                let panic = zookeeper::Error::UnexpectedError(panic.message().to_owned());
                Err(Refusal::Client(panic))
            });
            let opened = match opened {
                Err(Refusal::Client(zookeeper::Error::NoHosts)) => {
                    Err(Refusal::Unreached(greeting::of_any(&sessions.config.servers).await))
                }
                opened => opened,
            };
            let opened = opened.map(|driven| Session::new(driven, sent, &sessions.config));
            let mut slot = sessions.slot();
            if !matches!(*slot, Slot::Closed) {
                *slot = match &opened {
                    Ok(session) => Slot::Open(Arc::clone(session)),
                    Err(refusal) => Slot::Failed(refusal.clone(), Instant::now()),
                };
            }
            drop(slot);
            tell.send_replace(Some(opened));
        });
        *slot = Slot::Opening(opening.clone());
        Ok(Err(opening))
    }

    /// Opens no session from now on. The current one is closed once no lock needs it.
    pub(crate) fn close(&self) {
        let slot = std::mem::replace(&mut *self.slot(), Slot::Closed);
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

    #[tokio::test]
    async fn a_session_whose_opener_is_gone_is_opened_anew() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let sessions = Sessions::new(ZooKeeperBuilder::new(&format!("zk://{nobody}")).check().unwrap());
        // As after a panic of whoever was opening it.
        let (opener, opening) = watch::channel(None);
        *sessions.slot() = Slot::Opening(opening);
        drop(opener);
        let Ok(Err(mut opening)) = sessions.start() else { panic!("one is being opened") };
        let opened = opening.wait_for(Option::is_some).await.expect("somebody opens it").clone();
        assert!(matches!(opened, Some(Err(Refusal::Unreached(Greeting::None)))), "nobody listens there");
    }
}
