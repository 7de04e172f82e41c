//! The current session of a backend: opened when it is needed, and again when it has ended.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::{ErrorKind, Failure, keeper};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::config::Config;
use crate::error::not_opened;
use crate::session::Session;

type Opened = Option<Result<Arc<Session>, zookeeper::Error>>;

/// The sessions of one backend, of which at most one is current.
pub(crate) struct Sessions {
    config: Config,
    slot: Mutex<Slot>,
}

enum Slot {
    None,
    /// One is being opened; all who need it wait for the same.
    Opening(watch::Receiver<Opened>),
    Open(Arc<Session>),
    Closed,
}

impl Sessions {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Arc::new(Self { config, slot: Mutex::new(Slot::None) })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session, if one is open.
    pub(crate) fn current(&self) -> Option<Arc<Session>> {
        match &*self.slot() {
            Slot::Open(session) if session.ended().is_none() => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// The session, opened by `until` if need be. Opening one goes on when nobody waits for it any more.
    pub(crate) async fn get(self: &Arc<Self>, until: Instant) -> Result<Arc<Session>, Failure> {
        let mut opening = match self.start()? {
            Ok(session) => return Ok(session),
            Err(opening) => opening,
        };
        let opened = tokio::time::timeout_at(until, opening.wait_for(Option::is_some)).await;
        let servers = &self.config.servers;
        match opened {
            Ok(Ok(opened)) => match opened.as_ref() {
                Some(Ok(session)) => Ok(Arc::clone(session)),
                Some(Err(error)) => Err(not_opened(error, servers)),
                None => Err(Failure::unavailable("no session was opened")),
            },
            Ok(Err(_)) => Err(Failure::unavailable(format!("{servers}: the session was not opened"))),
            Err(_) => Err(Failure::unavailable(format!("{servers}: no server opened a session in time"))),
        }
    }

    /// The session, or the one that is being opened.
    fn start(self: &Arc<Self>) -> Result<Result<Arc<Session>, watch::Receiver<Opened>>, Failure> {
        let mut slot = self.slot();
        match &*slot {
            Slot::Open(session) if session.ended().is_none() => return Ok(Ok(Arc::clone(session))),
            Slot::Opening(opening) => return Ok(Err(opening.clone())),
            Slot::Closed => return Err(Failure::new(ErrorKind::Closed, "the connection was closed")),
            Slot::Open(_) | Slot::None => {}
        }
        let (tell, opening) = watch::channel(None);
        let sessions = Arc::clone(self);
        keeper::runtime()?.spawn(async move {
            let opened = sessions.config.open().await.map(Session::new);
            let mut slot = sessions.slot();
            if !matches!(*slot, Slot::Closed) {
                *slot = opened.as_ref().map_or(Slot::None, |session| Slot::Open(Arc::clone(session)));
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
