//! One session with the servers, and the locks that it keeps.
//!
//! A session is driven on dlock's own thread, so that it does not expire when the user's runtime is blocked or has
//! ended. The local deadline of a lock counts from the last [proof of life](proof): the send of a write that a majority
//! has confirmed.
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

/// The cause that is reported when the client library failed without ending the session.
const FAILED: &str = "the client library failed";

/// An open session. It is closed when the last reference to it is dropped.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) driver: Arc<Driver>,
    /// The id that the servers gave to the session.
    pub(crate) id: i64,
    pub(crate) clock: Clock,
    pub(crate) requests: Requests,
    pub(crate) watches: Watches,
    timeout: Duration,
    proof: ProofNode,
    /// A proof of life that is under way, shared by all claims that need one at the moment.
    proving: Mutex<Option<watch::Receiver<Proven>>>,
    kept: Mutex<Kept>,
    /// Held while signals are sent, so that they are sent in the order of their causes.
    signalling: Mutex<()>,
    wake: Arc<Notify>,
    /// Ends the task that attends to the session, by being dropped.
    _attended: oneshot::Sender<()>,
}

impl Session {
    /// Takes over the client of a session that was requested at `opened`. The session is attended to until `attended`
    /// is dropped.
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

    /// Returns the session timeout that the servers granted.
    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns how long a lock counts as held after a proof of life.
    ///
    /// The servers let the session live for its whole timeout after they last heard of it. The remaining third covers
    /// two things: a leader learns of a session on another server up to half a tick late, which is a quarter of the
    /// timeout at the most, and clocks run at different rates.
    pub(crate) fn trusted_for(&self) -> Duration {
        self.timeout * 2 / 3
    }

    /// Returns why the session has ended, or `None` while it lives.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        if let Connection::Ended(cause) = self.kept.lock().state {
            return Some(cause);
        }
        // Asked of the library and of the driver too, since the attending task may not have noted the end yet.
        cause_of_end(self.client.state()).or_else(|| self.driver.has_ended().then_some(FAILED))
    }

    /// Returns how often the connection was lost, or `None` while it is noted as lost.
    pub(crate) fn losses(&self) -> Option<u64> {
        let kept = self.kept.lock();
        (kept.state == Connection::Up).then(|| self.driver.losses())
    }

    /// Waits until a request would be sent at once. While there is no connection, the client library queues requests,
    /// and it could not be known whether they will be carried out.
    pub(crate) async fn connected(&self, until: Instant) -> Result<(), Failure> {
        if self.client.state() == SessionState::SyncConnected {
            // Noted before the caller goes on: a lock that it gets over this connection is not suspect.
            self.note_connection();
            return Ok(());
        }
        Box::pin(self.connected_again(until)).await
    }

    async fn connected_again(&self, until: Instant) -> Result<(), Failure> {
        // The watcher comes first, so that a change after the state was read is not missed.
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
                    // A client library that panicked reports no further state.
                    () = self.driver.until_ended() => Err(Failure::unavailable(FAILED)),
                }
            };
            state = match by_then(until, changed).await {
                Some(state) => state?,
                None => return Err(Failure::unavailable("the connection is lost, and no server answers")),
            };
        }
    }

    /// Returns the names in `directory`, or `None` if it is missing. The answer comes by way of the leader, so that the
    /// names are no older than the call.
    pub(crate) async fn list(&self, directory: &str, until: Instant) -> Result<Option<Vec<String>>, Failure> {
        // The `sync` has the server catch up with the leader before it lists. Both are sent together; the session keeps
        // their order.
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

    /// Deletes a node. A node that is missing is no failure.
    pub(crate) async fn delete(&self, path: &Arc<str>, until: Instant) -> Result<(), Failure> {
        // If the time is up, the deletion goes on: it was sent, or is in a task of its own.
        match by_then(until, self.requests.delete(path)).await {
            Some(Ok(()) | Err(Error::NoNode)) => Ok(()),
            Some(Err(error)) => Err(of_write(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to the deletion of {path:?}"))),
        }
    }

    /// Notes the state of the connection, as the client library reports it.
    fn note(&self, state: SessionState) {
        self.change_to(match (cause_of_end(state), state) {
            (Some(cause), _) => Connection::Ended(cause),
            (None, SessionState::SyncConnected) => Connection::Up,
            (None, _) => Connection::Down,
        });
    }

    /// Notes that the connection is back before the attending task does so, so that a lock granted over it does not
    /// count as suspect.
    fn note_connection(&self) {
        let mut kept = self.kept.lock();
        // The state is read under the mutex, so that it cannot replace a later loss that is noted already.
        if kept.state == Connection::Down && self.client.state() == SessionState::SyncConnected {
            kept.state = Connection::Up;
        }
    }

    fn change_to(&self, now: Connection) {
        let signalling = self.signalling.lock();
        let mut kept = self.kept.lock();
        // `Ended` is final, although the client library may report other states after it.
        if matches!(kept.state, Connection::Ended(_)) {
            return;
        }
        kept.state = now;
        let losses = self.driver.losses();
        let mut signals = Vec::new();
        // `Up` may hide a loss: a connection that was lost and restored at once is reported as `Up` only. The loss
        // concerns the locks for which fewer losses are noted than were counted.
        for lock in kept.locks.values_mut().filter(|lock| now != Connection::Up || lock.losses < losses) {
            (lock.losses, lock.suspect) = (losses, true);
            signals.push(lock.signal.clone());
        }
        // Sent without the mutex of `kept`; `signalling` keeps their order.
        drop(kept);
        for signal in signals {
            match now {
                Connection::Ended(cause) => signal.lost(cause),
                _ => signal.suspect(),
            }
        }
        drop(signalling);
    }

    /// Ends the session if the client library has failed, since nothing that is asked of it would be answered.
    pub(crate) fn end_if_failed(&self, error: &Error) {
        if let Error::UnexpectedError(_) = error {
            self.change_to(Connection::Ended(FAILED));
        }
    }

    /// Notes that the session is no longer driven.
    fn note_end(&self) {
        self.change_to(Connection::Ended(self.ended().unwrap_or(FAILED)));
    }

    /// Signals that another client asks for the release of the lock.
    fn release_requested(&self, number: u64) {
        // Cloned, so that it is sent without the mutex.
        let signal = self.kept.lock().locks.get(&number).map(|lock| lock.signal.clone());
        if let Some(signal) = signal {
            signal.release_requested();
        }
    }

    /// Notes that the node of a lock is gone, and signals its loss.
    fn lose_deleted(&self, number: u64, path: &str) {
        match self.kept.lock().locks.get_mut(&number) {
            // The lock has another node by now, or is being moved to one.
            Some(lock) if lock.moves.is_some() || *lock.path != *path => return,
            // Noted for `LockEntry::is_gone`: the release need not delete a node that is gone.
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
