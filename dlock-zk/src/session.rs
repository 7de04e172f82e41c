//! One session with the servers, and what it keeps.
//!
//! A session is driven on dlock's own thread, so that a blocked or finished runtime of the user's does not let it
//! expire. The local deadline of a lock counts from the last [proof of life](proof): the send of a write that a
//! majority has.

mod attend;
mod current;
mod driver;
mod entry;
mod greeting;
mod leftovers;
mod proof;
mod requests;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dlock_core::backend::{Signal, by_then};
use dlock_core::{Clock, Failure, Timestamp, keeper};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use zookeeper::{Client, Error, SessionState};

pub(crate) use self::current::{Refusal, Sessions};
pub(crate) use self::driver::{Driven, Driver, event, open as open_driven, together};
pub(crate) use self::entry::Entry;
pub(crate) use self::greeting::Greeting;
use self::proof::ProofNode;
pub(crate) use self::proof::make_directory;
pub(crate) use self::requests::Pass;
use self::requests::Requests;
use crate::config::Config;
use crate::error::{of_read, of_write};
use crate::queue::lock;

/// A share of the session timeout, for what has to happen several times within it.
const BEATS: u32 = 10;
/// Locks are looked at on the server this often within a session timeout.
const LOOKS: u32 = 3;
/// A lock that is held for longer than this is watched, so that a deletion of its node is known at once. Most are not,
/// and need no watch.
const WATCHED_AFTER: Duration = Duration::from_millis(20);

/// How many bytes of paths may be watched for those who wait. The client library sets all watches again over a new
/// connection; with more than 128 KiB of paths it does so in a way that ends that connection too, and so the session.
const WATCHED_BY_WAITERS: usize = 96 << 10;
/// The same for everything else, without which a watch is no loss.
const WATCHED_BY_OTHERS: usize = 28 << 10;

/// Why a session is over that its client library did not end.
const FAILED: &str = "the client library failed";

/// An answer that is waited for by whoever has it, and not by the step that asked.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The right to watch a path, for as long as it is watched.
pub(crate) type WatchPass = OwnedSemaphorePermit;

/// What came of a proof of life.
type Proven = Option<Result<(), Error>>;

/// A session that was opened. It is closed when the last share of it is dropped.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) driver: Arc<Driver>,
    /// What the server calls it.
    pub(crate) id: i64,
    pub(crate) clock: Clock,
    pub(crate) requests: Requests,
    watched_by_waiters: Arc<Semaphore>,
    watched_by_others: Arc<Semaphore>,
    timeout: Duration,
    proof: ProofNode,
    /// A proof of life that is under way, for whoever wants one.
    proving: Mutex<Option<watch::Receiver<Proven>>>,
    kept: Mutex<Kept>,
    /// Held while signals are given, so that they are given in the order of their causes.
    telling: Mutex<()>,
    wake: Arc<Notify>,
    /// Ends the task that attends to the session.
    _attended: oneshot::Sender<()>,
}

/// The locks that the session keeps.
struct Kept {
    state: Connection,
    locks: HashMap<u64, KeptLock>,
    next: u64,
    /// How many wait for a lock.
    waiting: usize,
    /// The send of the last write that a majority has.
    proof: Timestamp,
    /// When the next proof is due.
    beat_at: Timestamp,
    /// When the session will be looked after next.
    look_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
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
    /// That of the node by which it was granted.
    fence: i64,
    /// The node that takes the place of this one, or has done so.
    moves: Option<Arc<str>>,
    /// When its node is to be watched; `NEVER` while it is.
    watch_at: Timestamp,
    /// When it was last seen on the server.
    seen: Timestamp,
    /// The last proof of life that counted for it.
    proof: Timestamp,
    /// How many losses of the connection it knows of.
    losses: u64,
    /// The connection was lost since.
    suspect: bool,
    /// The server said that its node is gone.
    gone: bool,
}

/// Keeps the session proving that it lives while somebody waits.
pub(crate) struct Waiting(Arc<Session>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.kept().waiting -= 1;
    }
}

impl Session {
    /// Takes over the client of a session that was asked for at `opened`, and attends to it. Called on dlock's own
    /// runtime.
    pub(crate) fn new(driven: Driven, opened: Timestamp, config: &Config) -> Arc<Self> {
        let Driven { client, driver } = driven;
        let (attended, over) = oneshot::channel();
        let wake = Arc::new(Notify::new());
        let id = client.session_id().0;
        let session = Arc::new(Self {
            id,
            timeout: client.session_timeout(),
            clock: Clock::system(),
            requests: Requests::new(),
            watched_by_waiters: Arc::new(Semaphore::new(WATCHED_BY_WAITERS)),
            watched_by_others: Arc::new(Semaphore::new(WATCHED_BY_OTHERS)),
            proof: ProofNode::new(config, id),
            proving: Mutex::default(),
            kept: Mutex::new(Kept {
                state: Connection::Up,
                locks: HashMap::new(),
                next: 0,
                waiting: 0,
                proof: opened,
                beat_at: Timestamp::NEVER,
                look_at: Timestamp::NEVER,
            }),
            telling: Mutex::default(),
            wake: Arc::clone(&wake),
            _attended: attended,
            client,
            driver,
        });
        let states = session.client.state_watcher();
        session.note(session.client.state());
        let driver = Arc::clone(&session.driver);
        tokio::spawn(attend::attend(Arc::downgrade(&session), driver, states, wake, over));
        session
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

    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }

    /// Why the session is over, if it is.
    pub(crate) fn ended(&self) -> Option<&'static str> {
        if let Connection::Ended(cause) = self.kept().state {
            return Some(cause);
        }
        cause_of_end(self.client.state()).or_else(|| self.driver.has_ended().then_some(FAILED))
    }

    /// How often the connection was lost; `None` while it is.
    pub(crate) fn losses(&self) -> Option<u64> {
        let kept = self.kept();
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

    /// The right of one who waits to watch the node before his own. Without it he asks now and then.
    pub(crate) fn watch_previous(&self, path: &str) -> Option<WatchPass> {
        watch_pass(&self.watched_by_waiters, path, 0)
    }

    /// The right of one who waits to watch his own node, as long as that takes it from nobody else.
    pub(crate) fn watch_own(&self, path: &str) -> Option<WatchPass> {
        watch_pass(&self.watched_by_waiters, path, WATCHED_BY_WAITERS / 2)
    }

    /// The right of a holder to watch his node.
    pub(crate) fn watch_held(&self, path: &str) -> Option<WatchPass> {
        watch_pass(&self.watched_by_others, path, 0)
    }

    /// The right to watch a directory, as long as that takes it from no holder.
    pub(crate) fn watch_directory(&self, path: &str) -> Option<WatchPass> {
        watch_pass(&self.watched_by_others, path, WATCHED_BY_OTHERS / 2)
    }

    /// Makes sure that proofs of life can be written, before a lock depends on them.
    pub(crate) async fn provable(self: &Arc<Self>, until: Instant) -> Result<(), Failure> {
        if self.proof.exists() {
            return Ok(());
        }
        Box::pin(self.prove_life_together(until)).await
    }

    /// The last proof of life, a new one when that is old already.
    pub(crate) async fn fresh_proof(self: &Arc<Self>, until: Instant) -> Result<Timestamp, Failure> {
        // One that was under way may have been sent long ago; the next is not.
        for _ in 0..2 {
            if self.clock.now().since(self.kept().proof) < self.timeout / 4 {
                break;
            }
            Box::pin(self.prove_life_together(until)).await?;
        }
        Ok(self.kept().proof)
    }

    /// Writes, once for all who ask at the same time. None of them has to go on for that.
    async fn prove_life_together(self: &Arc<Self>, until: Instant) -> Result<(), Failure> {
        let mut proving = {
            let mut proving = lock(&self.proving);
            match &*proving {
                // One whose task was ended tells nobody any more.
                Some(under_way) if under_way.has_changed().is_ok() => under_way.clone(),
                _ => {
                    let (tell, told) = watch::channel(None);
                    let session = Arc::clone(self);
                    keeper::runtime()?.spawn(async move {
                        let written = session.write_proof().await.map(drop);
                        *lock(&session.proving) = None;
                        tell.send_replace(Some(written));
                    });
                    proving.insert(told).clone()
                }
            }
        };
        let written = async {
            // One that is not told was dropped with its runtime, at the end of the process.
            let written = proving.wait_for(Option::is_some).await;
            written.map_or(Err(Error::ClientClosed), |written| written.clone().unwrap_or(Ok(())))
        };
        self.in_time(until, written).await
    }

    /// Writes. An error of the kind `Unavailable` when that was not confirmed, be it that the session is over.
    pub(crate) async fn prove_life(&self, until: Instant) -> Result<(), Failure> {
        self.server_time(until).await.map(drop)
    }

    /// The time by the servers' clock, in milliseconds since 1970: that of a write which is made now, so that what
    /// compares it with the times of nodes asks no clock but the servers'.
    pub(crate) async fn server_time(&self, until: Instant) -> Result<i64, Failure> {
        self.in_time(until, self.write_proof()).await
    }

    async fn write_proof(&self) -> Result<i64, Error> {
        let sent = self.clock.now();
        let written = self.proof.write(&self.client).await;
        match &written {
            Ok(_) => self.note_proof(sent),
            Err(error) => self.heed(error),
        }
        written
    }

    async fn in_time<T>(
        &self,
        until: Instant,
        written: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Failure> {
        let path = self.proof.path();
        match by_then(until, written).await {
            // No lock depends on it yet, so that an unknown outcome is none.
            Some(written) => written.map_err(|error| of_read(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to a write to {path:?}"))),
        }
    }

    /// Notes that a write which was sent at `sent` was confirmed.
    pub(crate) fn note_proof(&self, sent: Timestamp) {
        let mut kept = self.kept();
        kept.proof = kept.proof.max(sent);
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
                    self.heed(&error);
                    Err(error)
                }
            }
        })
        .await
    }

    /// Deletes a node that may be there.
    pub(crate) async fn delete(&self, path: &Arc<str>, until: Instant) -> Result<(), Failure> {
        match by_then(until, self.requests.delete(self, path)).await {
            Some(Ok(()) | Err(Error::NoNode)) => Ok(()),
            Some(Err(error)) => Err(of_write(error, path)),
            None => Err(Failure::unavailable(format!("no answer in time to the deletion of {path:?}"))),
        }
    }

    /// Enters somebody who waits.
    pub(crate) fn wait(self: &Arc<Self>) -> Waiting {
        let mut kept = self.kept();
        kept.waiting += 1;
        let wakes = self.look_by(&mut kept, self.timeout / BEATS);
        drop(kept);
        if wakes {
            self.wake.notify_one();
        }
        Waiting(Arc::clone(self))
    }

    /// Enters a lock that was granted, to be told of trouble. The last proof of life was `proof`.
    pub(crate) fn enter(
        self: &Arc<Self>,
        signal: Signal,
        path: Arc<str>,
        czxid: i64,
        proof: Timestamp,
    ) -> Entry {
        let telling = lock(&self.telling);
        let now = self.clock.now();
        let mut kept = self.kept();
        let (number, state) = (kept.next, kept.state);
        kept.next += 1;
        let lock = KeptLock {
            signal: signal.clone(),
            path,
            czxid,
            fence: czxid,
            moves: None,
            watch_at: now + WATCHED_AFTER,
            seen: now,
            proof,
            losses: self.driver.losses(),
            suspect: state == Connection::Down,
            gone: false,
        };
        kept.locks.insert(number, lock);
        let wakes = self.look_by(&mut kept, WATCHED_AFTER);
        drop(kept);
        match state {
            Connection::Up => {}
            Connection::Down => signal.suspect(),
            Connection::Ended(cause) => signal.lost(cause),
        }
        drop(telling);
        if wakes {
            self.wake.notify_one();
        }
        Entry::new(self, number)
    }

    /// Has the session looked after within this time; whether it has to be woken for that.
    fn look_by(&self, kept: &mut Kept, within: Duration) -> bool {
        let now = self.clock.now();
        if kept.beat_at == Timestamp::NEVER {
            kept.beat_at = now + self.timeout / BEATS;
        }
        let at = now + within;
        let wakes = kept.look_at > at;
        kept.look_at = kept.look_at.min(at);
        wakes
    }

    /// The node of the lock that has this fence.
    pub(crate) fn node_of(&self, fence: i64) -> Option<Arc<str>> {
        self.kept().locks.values().find(|lock| lock.fence == fence).map(|lock| Arc::clone(&lock.path))
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
        let mut kept = self.kept();
        // Asked here, so that no later loss is noted already.
        if kept.state == Connection::Down && self.client.state() == SessionState::SyncConnected {
            kept.state = Connection::Up;
        }
    }

    fn change_to(&self, now: Connection) {
        let telling = lock(&self.telling);
        let mut kept = self.kept();
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
        drop(telling);
    }

    /// Ends the session when the client library has failed: nothing that is asked of it would be answered.
    pub(crate) fn heed(&self, error: &Error) {
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
        let signal = self.kept().locks.get(&number).map(|lock| lock.signal.clone());
        if let Some(signal) = signal {
            signal.release_requested();
        }
    }

    /// The node of a lock is gone.
    fn lose_deleted(&self, number: u64, path: &str) {
        match self.kept().locks.get_mut(&number) {
            // It has another one, or is about to.
            Some(lock) if lock.moves.is_some() || *lock.path != *path => return,
            Some(lock) => lock.gone = true,
            None => {}
        }
        self.lose(number, "its node was deleted");
    }

    fn lose(&self, number: u64, cause: &'static str) {
        let signal = self.kept().locks.get(&number).map(|lock| lock.signal.clone());
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

fn watch_pass(free: &Arc<Semaphore>, path: &str, left: usize) -> Option<WatchPass> {
    let bytes = u32::try_from(path.len()).ok()?;
    let pass = Arc::clone(free).try_acquire_many_owned(bytes).ok()?;
    (free.available_permits() >= left).then_some(pass)
}

/// A bounded request that changes nothing. `None` when there is no such node.
pub(crate) async fn read<T>(
    path: &str,
    until: Instant,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<Option<T>, Failure> {
    match by_then(until, request).await {
        Some(Ok(answer)) => Ok(Some(answer)),
        Some(Err(Error::NoNode)) => Ok(None),
        Some(Err(error)) => Err(of_read(error, path)),
        None => Err(Failure::unavailable(format!("no answer in time about {path:?}"))),
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
