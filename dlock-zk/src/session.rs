//! One session with the servers, and what it keeps.
//!
//! A session is driven on dlock's own thread, so that a blocked or finished runtime of the user's does not let it expire. The
//! local deadline of a lock counts from the last *proof of life*: the send of a request that went through the leader. A
//! reply to a ping or to a read proves less, since a server that is cut off from the leader gives those too, while the
//! leader lets the session expire.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dlock_core::backend::Signal;
use dlock_core::{Clock, Failure, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use zookeeper::{Client, Error, SessionState, StateWatcher};

use crate::error::of_read;

/// A share of the session timeout, for what has to happen several times within it.
const BEATS: u32 = 10;
/// Locks are looked at on the server this often within a session timeout.
const LOOKS: u32 = 3;

/// A session that was opened. It is closed when the last share of it is dropped.
pub(crate) struct Session {
    pub(crate) client: Client,
    /// What the server calls it.
    pub(crate) id: i64,
    timeout: Duration,
    clock: Clock,
    kept: Mutex<Kept>,
    /// Held while signals are given, so that they are given in the order of their causes.
    telling: Mutex<()>,
    wake: Arc<Notify>,
    /// Ends the task that attends to the session.
    _attended: oneshot::Sender<()>,
}

/// The locks that the session keeps.
#[derive(Default)]
struct Kept {
    state: Connection,
    /// How often the connection was lost.
    losses: u64,
    locks: HashMap<u64, KeptLock>,
    next: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Connection {
    #[default]
    Up,
    Down,
    /// The session is over, for this reason.
    Ended(&'static str),
}

#[derive(Clone)]
struct KeptLock {
    signal: Signal,
    path: Arc<str>,
    czxid: i64,
    /// When it was last seen on the server.
    seen: Timestamp,
    /// The last proof of life that counted for it.
    proof: Timestamp,
    /// The connection was lost since.
    suspect: bool,
}

/// A lock's entry in its session's book; it is taken out when this is dropped.
pub(crate) struct Entry {
    session: Arc<Session>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        let lock = self.session.kept().locks.remove(&self.number);
        // Outside of the mutex.
        drop(lock);
    }
}

impl Session {
    /// Takes the client over and attends to it. Called on dlock's own runtime.
    pub(crate) fn new(client: Client) -> Arc<Self> {
        let (attended, over) = oneshot::channel();
        let wake = Arc::new(Notify::new());
        let session = Arc::new(Self {
            id: client.session_id().0,
            timeout: client.session_timeout(),
            clock: Clock::system(),
            kept: Mutex::default(),
            telling: Mutex::default(),
            wake: Arc::clone(&wake),
            _attended: attended,
            client,
        });
        let states = session.client.state_watcher();
        session.note(session.client.state());
        tokio::spawn(attend(Arc::downgrade(&session), states, wake, over));
        session
    }

    /// How long a lock counts as held after a proof of life.
    ///
    /// The leader hears of a session from the server it is connected to, up to half a tick late; a session is at least two ticks
    /// long. So the leader may count from up to a quarter of the timeout before the proof.
    pub(crate) fn trusted_for(&self) -> Duration {
        self.timeout * 2 / 3
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the session is over, if it is.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        if let Connection::Ended(cause) = self.kept().state {
            return Some(cause);
        }
        cause_of_end(self.client.state())
    }

    /// Waits until a request would be sent at once. The client library queues requests while it has no connection, and
    /// nobody could tell then whether they will be carried out.
    pub(crate) async fn connected(&self, until: Instant) -> Result<(), Failure> {
        if self.client.state() == SessionState::SyncConnected {
            return Ok(());
        }
        let mut states = self.client.state_watcher();
        let mut state = self.client.state();
        loop {
            if state == SessionState::SyncConnected {
                return Ok(());
            }
            if let Some(cause) = cause_of_end(state) {
                return Err(Failure::unavailable(cause));
            }
            state = match tokio::time::timeout_at(until, states.changed()).await {
                Ok(state) => state,
                Err(_) => return Err(Failure::unavailable("the connection is lost, and no server answers")),
            };
        }
    }

    /// The names in `directory`, by way of the leader, so that they are no older than the call. `None` when it is missing.
    pub(crate) async fn list(&self, directory: &str, until: Instant) -> Result<Option<Vec<String>>, Failure> {
        // Sent together; the session keeps their order.
        let (synced, listed) = (self.client.sync(directory), self.client.list_children(directory));
        read(directory, until, async {
            match synced.await {
                Ok(()) | Err(Error::NoNode) => listed.await,
                Err(error) => {
                    self.heed(&error);
                    Err(error)
                }
            }
        })
        .await
    }

    /// Enters a lock that was granted, to be told of trouble.
    /// Its first request was sent at `proof`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        signal: Signal,
        path: Arc<str>,
        czxid: i64,
        proof: Timestamp,
    ) -> Entry {
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.kept();
        let (number, state) = (kept.next, kept.state);
        kept.next += 1;
        let alone = kept.locks.is_empty();
        let lock = KeptLock {
            signal: signal.clone(),
            path,
            czxid,
            seen: self.clock.now(),
            proof,
            suspect: state == Connection::Down,
        };
        kept.locks.insert(number, lock);
        drop(kept);
        match state {
            Connection::Up => {}
            Connection::Down => signal.suspect(),
            Connection::Ended(cause) => signal.lost(cause),
        }
        drop(telling);
        if alone {
            self.wake.notify_one();
        }
        Entry { session: Arc::clone(self), number }
    }

    /// The node of the lock that has this fence.
    pub(crate) fn node_of(&self, czxid: i64) -> Option<Arc<str>> {
        self.kept().locks.values().find(|lock| lock.czxid == czxid).map(|lock| Arc::clone(&lock.path))
    }

    /// Notes what became of the connection.
    fn note(&self, state: SessionState) {
        self.change_to(match (cause_of_end(state), state) {
            (Some(cause), _) => Connection::Ended(cause),
            (None, SessionState::SyncConnected) => Connection::Up,
            (None, _) => Connection::Down,
        });
    }

    fn change_to(&self, now: Connection) {
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.kept();
        if matches!(kept.state, Connection::Ended(_)) {
            return;
        }
        kept.state = now;
        let mut signals = Vec::new();
        if now != Connection::Up {
            kept.losses += 1;
            for lock in kept.locks.values_mut() {
                lock.suspect = true;
                signals.push(lock.signal.clone());
            }
        }
        drop(kept);
        for signal in signals {
            match now {
                Connection::Ended(cause) => signal.lost(cause),
                _ => signal.suspect(),
            }
        }
        drop(telling);
    }

    /// Asks the servers for a sign of life, and for the locks that were not seen for a while.
    async fn beat(self: Arc<Self>) {
        self.give_up().await;
        let sent = self.clock.now();
        let (losses, to_see) = {
            let kept = self.kept();
            let limit = self.timeout / LOOKS;
            let due = |lock: &KeptLock| lock.suspect || sent.since(lock.seen) >= limit;
            let to_see = kept.locks.iter().filter(|(_, lock)| due(lock));
            (kept.losses, to_see.map(|(number, lock)| (*number, lock.clone())).collect::<Vec<_>>())
        };
        // All are sent before the first answer is waited for.
        let synced = self.client.sync("/");
        let looks: Vec<_> = to_see
            .into_iter()
            .map(|(number, lock)| (self.client.check_stat(&lock.path), number, lock))
            .collect();
        if let Err(error) = synced.await {
            return self.heed(&error);
        }
        self.prove(sent, losses, None);
        for (look, number, lock) in looks {
            match look.await {
                Ok(stat) if stat.is_some_and(|stat| stat.czxid == lock.czxid) => {
                    self.prove(sent, losses, Some(number));
                }
                Ok(_) => self.lose(number, "somebody deleted its node"),
                Err(_) => return,
            }
        }
    }

    /// A request sent at `sent` went through the leader: the locks are good for a while longer. One that is suspect is
    /// not, unless it was `seen` itself.
    fn prove(&self, sent: Timestamp, losses: u64, seen: Option<u64>) {
        let telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kept = self.kept();
        if kept.losses != losses || kept.state != Connection::Up {
            return;
        }
        let mut signals = Vec::new();
        match seen {
            Some(number) => {
                if let Some(lock) = kept.locks.get_mut(&number) {
                    (lock.seen, lock.proof, lock.suspect) = (sent, sent, false);
                    signals.push(lock.signal.clone());
                }
            }
            None => {
                for lock in kept.locks.values_mut().filter(|lock| !lock.suspect) {
                    lock.proof = sent;
                    signals.push(lock.signal.clone());
                }
            }
        }
        drop(kept);
        for signal in signals {
            signal.trust(sent);
        }
        drop(telling);
    }

    /// Deletes the nodes of locks whose proof of life came too late, so that others get them although their guards are not
    /// dropped yet: the session may well have survived.
    async fn give_up(&self) {
        let now = self.clock.now();
        // A little before the engine's own limit, so that no lock is in between.
        let limit = self.trusted_for() - (self.trusted_for() / 50).max(Duration::from_millis(3));
        let late: Vec<_> = {
            let kept = self.kept();
            let late = kept.locks.iter().filter(|(_, lock)| now.since(lock.proof) >= limit);
            late.map(|(number, lock)| (*number, Arc::clone(&lock.path))).collect()
        };
        for (number, path) in late {
            self.lose(number, "no server confirmed it in time");
            match self.client.delete(&path, None).await {
                Ok(()) | Err(Error::NoNode) => drop(self.kept().locks.remove(&number)),
                // The next beat tries again.
                Err(error) => self.heed(&error),
            }
        }
    }

    /// Ends the session when the client library has failed: nothing that is asked of it would be answered.
    pub(crate) fn heed(&self, error: &Error) {
        if let Error::UnexpectedError(_) = error {
            self.change_to(Connection::Ended("the client library failed"));
        }
    }

    fn lose(&self, number: u64, cause: &'static str) {
        let signal = self.kept().locks.get(&number).map(|lock| lock.signal.clone());
        if let Some(signal) = signal {
            signal.lost(cause);
        }
    }

    fn keeps_nothing(&self) -> bool {
        self.kept().locks.is_empty()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.client.session_id()).finish_non_exhaustive()
    }
}

/// A bounded request that changes nothing. `None` when there is no such node.
pub(crate) async fn read<T>(
    path: &str,
    until: Instant,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Failure> {
    match tokio::time::timeout_at(until, request).await {
        Ok(Ok(answer)) => Ok(Some(answer)),
        Ok(Err(Error::NoNode)) => Ok(None),
        Ok(Err(error)) => Err(of_read(error, path)),
        Err(_) => Err(Failure::unavailable(format!("no answer in time about {path:?}"))),
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

enum Event {
    State(SessionState),
    Beat,
}

/// Follows the state of a session and keeps proving that it lives while it keeps a lock.
async fn attend(
    session: Weak<Session>,
    mut states: StateWatcher,
    wake: Arc<Notify>,
    over: oneshot::Receiver<()>,
) {
    let mut over = pin!(over);
    loop {
        let Some(pause) = session.upgrade().map(|s| (!s.keeps_nothing()).then_some(s.timeout / BEATS)) else {
            return;
        };
        let event = tokio::select! {
            _ = &mut over => return,
            state = states.changed() => Event::State(state),
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => Event::Beat,
            () = wake.notified(), if pause.is_none() => continue,
        };
        let Some(session) = session.upgrade() else { return };
        if let Event::State(state) = event {
            session.note(state);
        }
        if session.ended().is_some() {
            return;
        }
        // Without a connection the request would only queue up.
        if session.client.state() == SessionState::SyncConnected && !session.keeps_nothing() {
            tokio::spawn(session.beat());
        }
    }
}
