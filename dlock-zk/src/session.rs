//! One session with the servers, and the locks that it keeps.
//!
//! A session is driven on dlock's own thread, so that a blocked or finished runtime of the user's does not let it
//! expire. The local deadline of a lock counts from the last [proof of life](proof): the send of a write that a
//! majority has.
//!
//! The [`Connection`] of a session:
//!
//! | state | entered when | its locks then |
//! |---|---|---|
//! | `Up` | the client library is connected to a server that can write | are as before; those for which the last loss was not noted become suspect |
//! | `Down` | the client library is connected to no such server | become suspect |
//! | `Ended` | the session expired or was closed, the server refused the credentials, or the client library failed | are lost; this state is final |
//!
//! A [`KeptLock`](kept::KeptLock), from [`Session::enter`] until its [`LockEntry`] is dropped:
//!
//! ```text
//!                        the connection is lost
//!               ┌───────────────────────────────────────┐
//!               │                                       ▼
//!  enter ──► trusted                                 suspect ◄── enter, while the connection is lost
//!               ▲                                       │
//!               └───────────────────────────────────────┘
//!             its node is seen, after a proof of life over a connection
//!             that was not lost since the proof was sent
//!
//!  trusted or suspect ──► lost: its node was deleted, its last proof of life is too old, or the session has ended
//! ```
//!
//! A proof of life extends the deadline of all trusted locks, and of no suspect one.

mod attend;
mod driver;
mod entry;
mod greeting;
mod kept;
mod opening;
mod proof;
mod proving;
mod requests;
mod watches;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, by_then};
use dlock_core::{Clock, Failure, Timestamp};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use zookeeper::{Client, Error, SessionState};

pub(crate) use self::driver::together;
use self::driver::{Driven, Driver};
pub(crate) use self::entry::{LockEntry, WaitEntry};
#[cfg(test)]
pub(crate) use self::greeting::Greeting;
use self::kept::{Connection, Kept};
pub(crate) use self::opening::NotOpened;
use self::proof::{ProofNode, Proven};
pub(crate) use self::requests::Pass;
use self::requests::Requests;
pub(crate) use self::watches::WatchPass;
use self::watches::Watches;
use crate::config::Config;
use crate::error::of_write;
use crate::wire::read;

/// Why a session is over that its client library did not end.
const FAILED: &str = "the client library failed";

/// A session that was opened. It is closed when the last share of it is dropped.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) driver: Arc<Driver>,
    /// What the server calls it.
    pub(crate) id: i64,
    pub(crate) clock: Clock,
    pub(crate) requests: Requests,
    pub(crate) watches: Watches,
    timeout: Duration,
    proof: ProofNode,
    /// A proof of life that is under way, for whoever wants one.
    proving: Mutex<Option<watch::Receiver<Proven>>>,
    kept: Mutex<Kept>,
    /// Held while signals are given, so that they are given in the order of their causes.
    signalling: Mutex<()>,
    wake: Arc<Notify>,
    /// Ends the task that attends to the session.
    _attended: oneshot::Sender<()>,
}

impl Session {
    /// Takes over the client of a session that was asked for at `opened`; it is attended to until `attended` is
    /// dropped.
    fn new(driven: Driven, opened: Timestamp, config: &Config, attended: oneshot::Sender<()>) -> Self {
        let Driven { client, driver } = driven;
        let id = client.session_id().0;
        Self {
            id,
            timeout: client.session_timeout(),
            clock: Clock::system(),
            requests: Requests::new(client.clone(), Arc::clone(&driver)),
            watches: Watches::new(),
            proof: ProofNode::new(config, id),
            proving: Mutex::default(),
            kept: Mutex::new(Kept::new(opened)),
            signalling: Mutex::default(),
            wake: Arc::default(),
            _attended: attended,
            client,
            driver,
        }
    }

    /// What the servers granted.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How long a lock counts as held after a proof of life.
    ///
    /// The servers let the session live for its whole timeout after they last heard of it. The third between is for
    /// what a leader hears late of a session on another server, which is half a tick, a quarter of the timeout at the
    /// most, and for clocks that run at unlike rates.
    pub(crate) fn trusted_for(&self) -> Duration {
        self.timeout * 2 / 3
    }

    /// Why the session is over, if it is.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        if let Connection::Ended(cause) = self.kept.lock().state {
            return Some(cause);
        }
        cause_of_end(self.client.state()).or_else(|| self.driver.has_ended().then_some(FAILED))
    }

    /// How often the connection was lost; `None` while it is.
    pub(crate) fn losses(&self) -> Option<u64> {
        let kept = self.kept.lock();
        (kept.state == Connection::Up).then(|| self.driver.losses())
    }

    /// Waits until a request would be sent at once. The client library queues requests while it has no connection, and
    /// nobody could tell then whether they will be carried out.
    pub(crate) async fn connected(&self, until: Instant) -> Result<(), Failure> {
        if self.client.state() == SessionState::SyncConnected {
            self.note_connection();
            return Ok(());
        }
        Box::pin(self.connected_again(until)).await
    }

    async fn connected_again(&self, until: Instant) -> Result<(), Failure> {
        let mut states = self.client.state_watcher();
        let mut state = self.client.state();
        loop {
            if state == SessionState::SyncConnected {
                self.note_connection();
                return Ok(());
            }
            if let Some(cause) = cause_of_end(state) {
                return Err(Failure::unavailable(cause));
            }
            let changed = async {
                tokio::select! {
                    state = states.changed() => Ok(state),
                    () = self.driver.until_ended() => Err(Failure::unavailable(FAILED)),
                }
            };
            state = match by_then(until, changed).await {
                Some(state) => state?,
                None => return Err(Failure::unavailable("the connection is lost, and no server answers")),
            };
        }
    }

    /// The names in `directory`, by way of the leader, so that they are no older than the call. `None` when it is
    /// missing.
    pub(crate) async fn list(&self, directory: &str, until: Instant) -> Result<Option<Vec<String>>, Failure> {
        // Sent together; the session keeps their order.
        let (synced, listed) = (self.client.sync(directory), self.client.list_children(directory));
        read(directory, until, async {
            match synced.await {
                Ok(()) | Err(Error::NoNode) => listed.await,
                Err(error) => {
                    self.end_if_failed(&error);
                    Err(error)
                }
            }
        })
        .await
    }

    /// Deletes a node that may be there.
    pub(crate) async fn delete(&self, path: &Arc<str>, until: Instant) -> Result<(), Failure> {
        match by_then(until, self.requests.delete(path)).await {
            Some(Ok(()) | Err(Error::NoNode)) => Ok(()),
            Some(Err(error)) => Err(of_write(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to the deletion of {path:?}"))),
        }
    }

    /// Notes what became of the connection.
    fn note(&self, state: SessionState) {
        self.change_to(match (cause_of_end(state), state) {
            (Some(cause), _) => Connection::Ended(cause),
            (None, SessionState::SyncConnected) => Connection::Up,
            (None, _) => Connection::Down,
        });
    }

    /// Notes that the connection is back before whoever attends to the session does: a lock that is had over it is not
    /// suspect.
    fn note_connection(&self) {
        let mut kept = self.kept.lock();
        // Asked here, so that no later loss is noted already.
        if kept.state == Connection::Down && self.client.state() == SessionState::SyncConnected {
            kept.state = Connection::Up;
        }
    }

    fn change_to(&self, now: Connection) {
        let signalling = self.signalling.lock();
        let mut kept = self.kept.lock();
        if matches!(kept.state, Connection::Ended(_)) {
            return;
        }
        kept.state = now;
        let losses = self.driver.losses();
        let mut signals = Vec::new();
        // A connection that is back at once was lost all the same.
        for lock in kept.locks.values_mut().filter(|lock| now != Connection::Up || lock.losses < losses) {
            (lock.losses, lock.suspect) = (losses, true);
            signals.push(lock.signal.clone());
        }
        drop(kept);
        for signal in signals {
            match now {
                Connection::Ended(cause) => signal.lost(cause),
                _ => signal.suspect(),
            }
        }
        drop(signalling);
    }

    /// Ends the session when the client library has failed: nothing that is asked of it would be answered.
    pub(crate) fn end_if_failed(&self, error: &Error) {
        if let Error::UnexpectedError(_) = error {
            self.change_to(Connection::Ended(FAILED));
        }
    }

    /// Notes that nothing drives the session any more.
    fn note_end(&self) {
        self.change_to(Connection::Ended(self.ended().unwrap_or(FAILED)));
    }

    /// Somebody wants the lock.
    fn release_requested(&self, number: u64) {
        let signal = self.kept.lock().locks.get(&number).map(|lock| lock.signal.clone());
        if let Some(signal) = signal {
            signal.release_requested();
        }
    }

    /// The node of a lock is gone.
    fn lose_deleted(&self, number: u64, path: &str) {
        match self.kept.lock().locks.get_mut(&number) {
            // It has another one, or is about to.
            Some(lock) if lock.moves.is_some() || *lock.path != *path => return,
            Some(lock) => lock.gone = true,
            None => {}
        }
        self.lose(number, "its node was deleted");
    }

    fn lose(&self, number: u64, cause: &'static str) {
        let signal = self.kept.lock().locks.get(&number).map(|lock| lock.signal.clone());
        if let Some(signal) = signal {
            signal.lost(cause);
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.client.session_id()).finish_non_exhaustive()
    }
}

fn cause_of_end(state: SessionState) -> Option<&'static str> {
    match state {
        SessionState::Expired => Some("the session with ZooKeeper expired"),
        SessionState::AuthFailed => Some("ZooKeeper refused the user or the password, and ended the session"),
        SessionState::Closed => Some("the session with ZooKeeper was closed"),
        _ => None,
    }
}
