//! Waiting on the server, in its own first-come queues.
//!
//! A claim that waits for a key has a connection for it, which first waits for its turn among all that wait for that
//! key, and then until the lock is free for it. Then the claim tries; the turn is kept until it has the lock or is
//! cancelled:
//!
//! ```text
//!          `join`                  `queue`: the turn comes             `wait`: the lock is free
//!     out -------> in the queue ---------------------------> turn ----------------------------> free seen
//!                   ^      ^                                  ^                                 |  |
//!                   |      +- a statement may wait no longer  +-- `again`: the attempt failed --+  |
//!                   +-- no attempt for 2 s: `leave_queue`, and in line again when it tries --------+
//!
//!     the claim has gone, in any state: the statement is cancelled, the queue left, and `left` resolves
//! ```
//!
//! A reader asks only with the turn, by that of another reader of its process, or where no session has it: so readers
//! and writers that wait are served in their order, and readers that never stop keep no writer out. A reader respects
//! that for some time only, and a claim that does not ask when it could loses its turn: the process that has it may be
//! stopped. A release looks whether a session has the turn, so that its process leaves the lock to others after its
//! time. So the lock goes around among the processes that want it, and a release is noticed at once. There are few of
//! these connections; a claim that gets none polls, and is not seen to wait.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, Mutex, sleep, within};
use dlock_core::{Failure, Key, keeper};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::name::Name;
use super::protocol::POLLING;
use super::session_server::SessionServer;
use super::steps::{Cancel, End};
use super::strategy::{Others, Strategy};
use crate::connector::end;
use crate::driver::Conn;
use crate::limits::QUESTION;
use crate::protocol::SqlResult;
use crate::server::Server;

/// The largest number of connections of a backend that wait.
const MOST: usize = 4;
/// The time after which a connection whose statement is not answered counts as cut off.
const CUT_OFF: Duration = Duration::from_secs(60);
/// The time for which others may be faster each time before a claim pauses: what it learns may be of another server.
/// Not shorter: those that are faster leave the lock to others for a moment every now and then, in which it has to ask.
const LOSING: Duration = Duration::from_secs(1);
/// The number of times that a statement is cancelled whose claim has gone, before its session is ended, and the pause
/// between them.
const CANCELS: (u32, Duration) = (4, Duration::from_millis(50));
/// The time that a claim waits before it joins a queue: a lock that goes from task to task within this process comes
/// back sooner.
const PATIENCE: Duration = Duration::from_millis(5);
/// The time for which a connection keeps the turn for a claim that does not ask, which may not be polled.
const ASKS: Duration = Duration::from_secs(2);
/// The time for which a reader that came in leaves its turn to the next reader of its process, and the time for all
/// that follow each other.
const JOINING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// The connections that wait.
pub(super) struct Queue<M: Strategy> {
    others: Others<M::Server>,
    permits: Arc<Semaphore>,
    /// The number of connections of this process that have the turn for a name, or are leaving it to the next, by
    /// whether they read.
    turns: Mutex<HashMap<([u8; 32], bool), Turns>>,
}

#[derive(Default)]
struct Turns {
    connections: usize,
    /// The number of claims of this process that have asked by the turn of another one.
    joined: u64,
    /// Cloned by each of those that wait for the answer.
    asking: Arc<()>,
}

impl<M: Strategy> Queue<M> {
    pub(super) fn new(others: Others<M::Server>) -> Arc<Self> {
        Arc::new(Self { others, permits: Arc::new(Semaphore::new(MOST)), turns: Mutex::default() })
    }

    pub(super) fn close(&self) {
        self.permits.close();
    }

    /// Joins the queue of a key. Returns `None` if there is no connection for it.
    fn join(self: &Arc<Self>, name: Name) -> Result<Option<QueuePlace>, Failure> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else { return Ok(None) };
        let (tell, seen) = watch::channel(Seen::default());
        // Each side notices the end of the other by the ends of these channels: the visit that the claim has gone, the
        // claim that the queue was left.
        let (again, asked) = mpsc::unbounded_channel();
        let (stands, left) = oneshot::channel();
        let visit = Visit { queue: Arc::clone(self), name, tell, asked, _stands: stands };
        keeper::runtime()?.spawn(visit.carry_out(permit));
        Ok(Some(QueuePlace { seen, again, asked_again: 0, left }))
    }
}

/// The turn for a name, to read or not, which a connection of this process has.
struct TurnHere<M: Strategy>(Arc<Queue<M>>, ([u8; 32], bool));

impl<M: Strategy> TurnHere<M> {
    fn of(queue: &Arc<Queue<M>>, name: &Name) -> Self {
        let turn = (name.digest, name.is_read());
        queue.turns.lock().entry(turn).or_default().connections += 1;
        Self(Arc::clone(queue), turn)
    }

    /// Waits, before the turn goes to the next session, for as long as readers of this process come in by it.
    // Writers come in one at a time: there is nothing to join.
    async fn joined(&self) {
        if !self.1.1 {
            return;
        }
        let end = Instant::now() + JOINING.1;
        let mut before = self.joiners();
        // The turn ends once a pause brings no new reader and none waits for its answer, and in any case at the end:
        // readers that never stop would keep the writer behind them out.
        while Instant::now() < end {
            sleep(JOINING.0).await;
            let now = self.joiners();
            if now == before && !now.1 {
                return;
            }
            before = now;
        }
    }

    /// Returns how many have joined, and whether some of them wait for their answers.
    fn joiners(&self) -> (u64, bool) {
        let turns = self.0.turns.lock();
        turns.get(&self.1).map_or((0, false), |turn| (turn.joined, Arc::strong_count(&turn.asking) > 1))
    }
}

impl<M: Strategy> Drop for TurnHere<M> {
    fn drop(&mut self) {
        let mut turns = self.0.turns.lock();
        let Some(of_name) = turns.get_mut(&self.1) else { return };
        of_name.connections -= 1;
        if of_name.connections == 0 {
            turns.remove(&self.1);
        }
    }
}

/// The waiting of one claim.
pub(super) struct Waiting<M: Strategy> {
    queue: Arc<Queue<M>>,
    place: Option<QueuePlace>,
    /// The places that the claim is leaving; each resolves when nothing of it is on the server any more.
    leaving: Vec<oneshot::Receiver<Infallible>>,
    /// The number of times that the lock was seen free before the last attempt.
    known: u64,
    /// Is `true` if the claim had its turn then.
    has_turn: bool,
    /// Set once the claim has waited for the time before it joins.
    patient: bool,
    /// The moment since which the lock was seen free, and was not to be had.
    losing_since: Option<Instant>,
    pauses: Backoff,
}

/// The state of a place, as its claim sees it.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The number of times that the lock was seen free.
    free: u64,
    /// Is `true` if the claim has its turn, which it loses when it does not ask.
    has_turn: bool,
}

/// A place in the queue of a key. Dropping it leaves the queue.
struct QueuePlace {
    seen: watch::Receiver<Seen>,
    again: mpsc::UnboundedSender<()>,
    /// The number of times the lock had been seen free when the connection was last asked to wait again.
    asked_again: u64,
    /// Resolves when the connection has left the queue.
    left: oneshot::Receiver<Infallible>,
}

impl<M: Strategy> Waiting<M> {
    pub(super) fn new(queue: Arc<Queue<M>>) -> Self {
        Self {
            queue,
            place: None,
            leaving: Vec::new(),
            known: 0,
            has_turn: false,
            patient: false,
            losing_since: None,
            pauses: Backoff::new(POLLING.0, POLLING.1),
        }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self) {
        // Read before the request is sent: a release that is seen from here on is news to this attempt, and `changed`
        // returns at once.
        let seen = self.place.as_ref().map(|place| *place.seen.borrow()).unwrap_or_default();
        (self.known, self.has_turn) = (seen.free, seen.has_turn);
    }

    /// Returns `true` if the claim has its turn among all that wait for the key.
    pub(super) const fn has_turn(&self) -> bool {
        self.has_turn
    }

    /// Returns the turn of another reader of this process, where there is one: a reader has it for all of them. It is
    /// kept until the returned value is dropped, but not for long.
    pub(super) fn joins(&self, key: &Key) -> Option<Arc<()>> {
        let name = self.queue.others.server().name(key);
        let mut turns = self.queue.turns.lock();
        let turn = turns.get_mut(&(name.digest, true))?;
        turn.joined += 1;
        Some(Arc::clone(&turn.asking))
    }

    /// Waits until the lock was free after the last attempt has begun.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(super) async fn changed(&mut self, name: Name) -> Result<(), Failure> {
        if self.place.is_none() {
            if !std::mem::replace(&mut self.patient, true) {
                sleep(PATIENCE).await;
            }
            (self.place, self.known, self.has_turn) = (self.queue.join(name)?, 0, false);
        }
        // The connection waits for a word after each time it saw the lock free. The attempt that followed has failed,
        // or this would not be called: it is asked to wait again, once.
        if let Some(place) = &mut self.place {
            // Pausing sooner would miss the short time in which faster claims leave the lock alone.
            if place.seen.borrow().free == self.known && self.known > place.asked_again {
                if self.losing_since.get_or_insert_with(Instant::now).elapsed() > LOSING {
                    sleep(self.pauses.next_pause()).await;
                }
                // Noted before it is sent and without an await in between: a cancelled call does not ask twice.
                place.asked_again = self.known;
                let _ = place.again.send(());
            }
            let known = self.known;
            if place.seen.wait_for(|seen| seen.free > known).await.is_ok() {
                return Ok(());
            }
            // The visit has ended: its connection broke, or there was none. This call polls, and the next one joins
            // anew.
            self.place = None;
        }
        sleep(self.pauses.next_pause()).await;
        Ok(())
    }

    /// Begins to leave the queue.
    pub(super) fn leave(&mut self) {
        // Dropping the place drops its sender, which the connection notices.
        self.leaving.extend(self.place.take().map(|place| place.left));
    }

    /// Returns `true` if a connection of this process has the turn for a key.
    pub(super) fn has_turn_here(&self, key: &Key) -> bool {
        let name = self.queue.others.server().name(key);
        let turns = self.queue.turns.lock();
        [false, true].iter().any(|reads| turns.contains_key(&(name.digest, *reads)))
    }

    /// Returns `true` if nothing of this claim is in a queue, for certain.
    pub(super) const fn is_out(&self) -> bool {
        self.place.is_none() && self.leaving.is_empty()
    }

    /// Resolves when the queues that were left know it: until then the server may still give the lock for a moment to a
    /// place whose claim waits no more.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(super) async fn left(&mut self) {
        // Each is removed only after its end was seen, so that a cancelled call is resumed by the next one.
        while let Some(left) = self.leaving.last_mut() {
            let _ = left.await;
            self.leaving.pop();
        }
    }
}

/// The work of one connection for one place.
struct Visit<M: Strategy> {
    queue: Arc<Queue<M>>,
    name: Name,
    tell: watch::Sender<Seen>,
    asked: mpsc::UnboundedReceiver<()>,
    /// Dropped at the end, which resolves `left`.
    _stands: oneshot::Sender<Infallible>,
}

impl<M: Strategy> Visit<M> {
    async fn carry_out(mut self, permit: OwnedSemaphorePermit) {
        let others = Arc::clone(&self.queue.others);
        // Without a connection the place is gone, and its claim polls.
        let Ok((mut connection, permit)) = others.connection(permit, QUESTION).await else { return };
        match self.stand(&mut connection).await {
            // Nothing of the name is left after an orderly end, and another place may use the connection. Otherwise
            // closing it is the only way to leave the queue for certain.
            Ok(()) => others.put_back(connection),
            Err(_) => end(connection).await,
        }
        drop(permit);
    }

    /// Waits until the claim has gone. After an error the connection is of no use any more.
    async fn stand(&mut self, on: &mut Conn<M::Server>) -> SqlResult<()> {
        let Self { queue, name, tell, asked, .. } = self;
        // Needed for a cancellation, which goes over another connection: it must be known before the first wait.
        let session = queue.others.server().ping(on).await?;
        let mut turn = None;
        loop {
            let waited = {
                let waiting = async {
                    if turn.is_some() {
                        M::wait(queue.others.server(), on, name).await
                    } else {
                        M::Server::queue(on, name, !M::SHARED).await
                    }
                };
                tokio::pin!(waiting);
                tokio::select! {
                    biased;
                    waited = within(CUT_OFF, &mut waiting) => Some(waited),
                    () = gone(asked) => {
                        // A server may not notice by itself that the claim has gone. Only the statement's own answer
                        // says that it has not taken anything. A cancellation may arrive before its statement does, so
                        // that it is repeated.
                        let mut answered = false;
                        for _ in 0..CANCELS.0 {
                            let _ = queue.others.ask(Cancel(session), QUESTION).await;
                            answered = within(CANCELS.1, &mut waiting).await.is_some();
                            if answered {
                                break;
                            }
                        }
                        // The session must go: its place in the queue goes with it.
                        if !answered {
                            let _ = queue.others.ask(End(session), QUESTION).await;
                            return Err(sqlx::Error::WorkerCrashed);
                        }
                        None
                    }
                }
            };
            let Some(waited) = waited else { return leave::<M>(on, name, turn.as_ref()).await };
            match waited {
                Some(Ok(true)) if turn.is_some() => {
                    // A word says that the attempt has failed, the end of the channel that the claim has gone. Without
                    // either the claim is not polled.
                    tell.send_modify(|seen| *seen = Seen { free: seen.free + 1, has_turn: true });
                    let mut asks = within(ASKS, asked.recv()).await;
                    if asks.is_none() {
                        // Others are not to wait for a claim that does nothing. It may come back, and then gets in
                        // line.
                        tell.send_if_modified(|seen| {
                            seen.has_turn = false;
                            false
                        });
                        // The flag first: an attempt that begins now must not count on a turn that is being left. The
                        // claim is not woken by it.
                        leave_queue::<M>(on, name).await?;
                        turn = None;
                        asks = Some(asked.recv().await);
                    }
                    // The lock was granted, or the claim was cancelled.
                    if asks == Some(None) {
                        return leave::<M>(on, name, turn.as_ref()).await;
                    }
                }
                Some(Ok(true)) => turn = Some(TurnHere::of(queue, name)),
                // The statement has waited for as long as one may: another one goes on, in the old place if the turn is
                // there.
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    // The connection itself failed, and with it the place in the queue.
                    if !matches!(error, sqlx::Error::Database(_)) {
                        return Err(error);
                    }
                    let fault = queue.others.server().fault(error);
                    if !fault.again {
                        return Err(sqlx::Error::WorkerCrashed);
                    }
                }
                None => return Err(sqlx::Error::PoolTimedOut),
            }
        }
    }
}

/// Leaves the queue of a name, and the turn to the next session.
async fn leave<M: Strategy>(
    on: &mut Conn<M::Server>,
    name: &Name,
    turn: Option<&TurnHere<M>>,
) -> SqlResult<()> {
    // A reader's turn stays open for the readers of this process that come right behind it.
    if let Some(turn) = turn {
        turn.joined().await;
    }
    leave_queue::<M>(on, name).await
}

/// Leaves the queue of a name. A connection on which that is not answered is of no use any more, and its turn ends with
/// it.
async fn leave_queue<M: Strategy>(on: &mut Conn<M::Server>, name: &Name) -> SqlResult<()> {
    let left = within(CUT_OFF, M::Server::leave(on, name, !M::SHARED)).await;
    left.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

/// Resolves when the claim has gone.
async fn gone(asked: &mut mpsc::UnboundedReceiver<()>) {
    while asked.recv().await.is_some() {}
}
