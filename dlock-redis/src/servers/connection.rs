//! One connection, and the requests on it.
//!
//! The server carries out requests in the order in which they are given to a connection. This makes it safe to withdraw
//! what an unanswered request may have taken. A request on an idle connection is sent at once by its maker. While
//! others are under way, requests are collected for as long as the executor is busy with their makers, and are sent
//! together, as one call of the script: that costs no round trip and saves most of the work at both ends.
//!
//! ```text
//!                    Connection::carry_out(command)
//!                     |                          |
//!     ScriptKind::Exclusive, not after ASK    all else
//!                     |                          |
//!         is anything under way here?            |  Shared, Fair: a turn, of 256
//!             | yes          | no                |
//!          Queue, pump       |                   |
//!             |              |                   |
//!             +------> Wire::carry_out <---------+
//! ```
//!
//! | state | begins with | queued requests | direct requests |
//! |---|---|---|---|
//! | open | `new` | are sent | are sent |
//! | retired | `retire`: another connection is in its place | withdrawals are sent; all others return to their makers unsent | of those in turn only withdrawals are sent; all others are sent |
//! | ended | `end`: a reply did not come or was malformed, or the server is not the master any more; the end of its runtime | are still sent as long as the socket and the runtime live, else answered with `Fault::Cut` | are refused unsent |
//!
//! Requests that a connection did not send, since it was retired or has ended, go over another one.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use dlock_core::backend::{RequestClock, within};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit, TryAcquireError};

use super::open::Opened;
use super::queue::{Call, Direct, Queue};
use super::wire::{Reply, Wire, WireOptions};
use crate::command::Command;
use crate::error::Fault;
use crate::request::{CallNumber, Request, ScriptKind};
use crate::tracking::ConnectionTracking;

/// A full call: the server works on it for about as long as it takes to send it.
const FULL: usize = 16;
/// The bounds on the time of a call, and of a full one, within which requests are held back. A connection with slower
/// calls holds nothing back.
const AT_MOST_HELD_BACK: Duration = Duration::from_micros(300);
const AT_MOST_HELD_BACK_BY_FULL: Duration = Duration::from_millis(2);
/// The most calls that are under way at once. Further requests wait here, where they can still be taken back.
const MOST_CALLS: usize = 64;
/// The most calls under way with one step on a shared or fair lock. A server reads, carries out and answers so many
/// well within a request timeout.
const MOST_STEPS: usize = 256;

/// The fault of a request that was not sent since another connection is in use.
const REPLACED: Fault = Fault::Unsent("another connection is in the place of this one");

/// One connection.
pub(crate) struct Connection {
    wire: Wire,
    queue: Arc<Queue>,
    /// The turns of calls with one step on a shared or fair lock, in the order of their makers.
    steps: Semaphore,
    ended: Arc<AtomicBool>,
    tracking: Arc<ConnectionTracking>,
    resp3: bool,
    /// `true` if the server was a replica when the connection was opened.
    is_replica: bool,
    runtime: Handle,
    probing: AtomicBool,
    silent: AtomicBool,
}

impl Connection {
    /// Takes over a connection that was opened on the calling runtime.
    pub(crate) fn new(
        opened: Opened,
        options: WireOptions,
        tracking: Arc<ConnectionTracking>,
        is_replica: bool,
    ) -> Self {
        let Opened { connection, ended, resp3 } = opened;
        let (queue, wire) = (Arc::new(Queue::default()), Wire::new(connection, options));
        let runtime = Handle::current();
        // The pump holds no reference to the connection, whose drop closes the queue and so ends the pump.
        runtime.spawn(pump(wire.clone(), EndsWith { queue: Arc::clone(&queue), ended: Arc::clone(&ended) }));
        let (probing, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let steps = Semaphore::new(MOST_STEPS);
        Self { wire, queue, steps, ended, tracking, resp3, is_replica, runtime, probing, silent }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Returns `true` if the server is a replica, which grants nothing even if it accepts writes.
    pub(crate) const fn is_replica(&self) -> bool {
        self.is_replica
    }

    /// Ends the connection: nothing more is sent over it.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // After the flag: the holds that are notified renew at once, and must find another connection.
        self.tracking.ended();
    }

    /// Retires the connection: another one is in its place, and the requests that wait for their turn here go there.
    /// Only withdrawals stay, which have to follow the requests that were sent here.
    pub(crate) fn retire(&self) {
        self.queue.retire(&REPLACED);
        // Ends the waits for a turn: those requests return to their makers unsent as well, unless they withdraw.
        self.steps.close();
    }

    /// Returns the runtime that drives the connection.
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn client(&self) -> MultiplexedConnection {
        self.wire.connection.clone()
    }

    /// Returns `true` if the connection did not answer its last probe.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Carries out a command. With `asking`, on a server that is about to become responsible for the slot.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the command is taken back if it was not sent yet, and is carried out otherwise.
    pub(crate) async fn carry_out(&self, command: Command<'_>, asking: bool) -> Result<Reply, Fault> {
        // Before the command, on the same connection: the server tracks only what is read after it has agreed.
        if command.is_tracked() {
            Box::pin(self.tracking.begin(&self.wire.connection, self.resp3)).await;
        }
        // After the `await` above, during which the connection may have ended.
        self.check()?;
        let is_queued = |request: &&Request| request.kind == ScriptKind::Exclusive && !asking;
        let open = match command.step().filter(is_queued) {
            None => self.queue.unbatched(),
            Some(request) => match self.queue.direct() {
                Some(open) => open,
                None => return self.ended_by(self.carry_out_queued(request).await),
            },
        };
        // Boxed, so that queued requests need no memory for it.
        self.ended_by(Box::pin(self.carry_out_directly(command, asking, open)).await)
    }

    async fn carry_out_queued(&self, request: &Request) -> Result<Reply, Fault> {
        match self.queue.push(request.clone()) {
            // Dropping this drops `pending`, which takes the request back unless it was sent.
            Some(pending) => pending.await,
            None if self.queue.is_closed() => {
                Err(Fault::Unsent("the runtime that drives the connection is gone"))
            }
            None => Err(REPLACED),
        }
    }

    /// Sends a command by itself. It counts as open in the queue until `_open` is dropped.
    async fn carry_out_directly(
        &self,
        command: Command<'_>,
        asking: bool,
        _open: Direct<'_>,
    ) -> Result<Reply, Fault> {
        let _turn = self.turn(command).await?;
        let mut replies = self.wire.carry_out(command, asking, &|_| false).await;
        // A direct call has one answer.
        replies.pop().unwrap_or_else(|| Err(Fault::senseless()))
    }

    /// Waits for the turn of a call with one step. Once a request is handed to the wire it can neither be taken back
    /// nor distinguished from a request that a slow server has not answered, so the number of such requests is bounded.
    async fn turn(&self, command: Command<'_>) -> Result<Option<SemaphorePermit<'_>>, Fault> {
        let Some(request) = command.step() else { return Ok(None) };
        let mut turn = None;
        if matches!(request.kind, ScriptKind::Shared | ScriptKind::Fair) {
            turn = match self.steps.try_acquire() {
                Err(TryAcquireError::NoPermits) => {
                    // The engine has to know that the request is not sent yet, and counts its validity from when it is.
                    request.clock.iter().for_each(RequestClock::queued);
                    self.steps.acquire().await.ok()
                }
                turn => turn.ok(),
            };
            // No turn means that the connection was retired. A withdrawal has to follow the attempts that were sent
            // here.
            if turn.is_none() && !request.step.withdraws() {
                return Err(REPLACED);
            }
        }
        // The engine may have given the request up while it waited, here or for another connection. Such a request must
        // not be sent.
        if !request.clock.as_ref().is_none_or(RequestClock::written) {
            return Err(Fault::Unsent("nobody waits for the answer any more"));
        }
        // Checked again: the connection may have ended during the wait.
        self.check().map(|()| turn)
    }

    fn check(&self) -> Result<(), Fault> {
        if self.is_ended() { Err(Fault::Unsent("the connection has ended")) } else { Ok(()) }
    }

    /// Ends the connection if a reply did not come, or was malformed: the replies that follow cannot be trusted.
    fn ended_by<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        if matches!(result, Err(Fault::Cut(_))) {
            self.end();
        }
        result
    }

    /// Sends calls that change nothing, all at once.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn ask_all(
        &self,
        calls: impl IntoIterator<Item = impl FnOnce(CallNumber) -> Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Fault> {
        self.check()?;
        self.ended_by(self.wire.send_all(calls).await)
    }

    /// Sends a ping to find out whether the other end is still there. Returns `false` if it does not answer in time,
    /// and `true` if another probe is under way.
    pub(crate) async fn probe(&self, limit: Duration) -> bool {
        // One probe at a time: its outcome stands for all who doubt the connection.
        if self.probing.swap(true, Ordering::AcqRel) {
            return true;
        }
        // Past the queue and its turns: the ping has to show that the server answers, and not that others wait.
        let mut connection = self.client();
        let ping = redis::cmd("PING");
        let answer = within(limit, connection.send_packed_command(&ping)).await;
        let alive = match answer {
            Some(Ok(_)) => true,
            Some(Err(_)) => {
                self.end();
                false
            }
            // Silent, and not ended: the answers may still come, and withdrawals have to follow on this connection.
            None => false,
        };
        // Before `probing` is cleared, so that a probe which begins after this does not have its outcome overwritten.
        self.silent.store(!alive, Ordering::Release);
        self.probing.store(false, Ordering::Release);
        alive
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("ended", &self.is_ended())
            .field("silent", &self.is_silent())
            .finish_non_exhaustive()
    }
}

/// Sends the queued requests until the connection is dropped or its runtime ends.
///
/// A fast connection has one call under way, or two if the second is full, and collects requests meanwhile. A slow one
/// sends at once, with up to [`MOST_CALLS`] under way, since holding requests back would add its round trip to each.
async fn pump(wire: Wire, end: EndsWith) {
    let mut calls = FuturesUnordered::new();
    let mut pace = Pace { fast: true, near: false };
    loop {
        let most = if pace.fast { 1 } else { MOST_CALLS };
        while (calls.len() < most || calls.len() == 1 && end.queue.waiting() >= FULL)
            && let Some(call) = end.queue.pop()
        {
            let mut call = Box::pin(carry_out(&wire, call));
            // Polled once here, so that the call goes out before the makers of the last one run: the server works while
            // they do.
            let sent = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            match sent {
                // Answered at once: as a rule, the connection has ended.
                Poll::Ready((count, took)) => pace.answered(count, took),
                Poll::Pending => calls.push(call),
            }
            // A second call is under way: other tasks run first, and share the third.
            if calls.len() > 1 {
                tokio::task::yield_now().await;
            }
        }
        // Queued requests of a closed queue were popped above, so that nothing is left unanswered.
        if calls.is_empty() && end.queue.is_closed() {
            return;
        }
        tokio::select! {
            // Replies first: they make room for the requests that wait, and their makers may join these.
            biased;
            Some((count, took)) = calls.next(), if !calls.is_empty() => {
                pace.answered(count, took);
                if end.queue.waiting() < FULL {
                    // The makers that were just answered may ask again at once, and share the next call.
                    tokio::task::yield_now().await;
                }
            }
            () = end.queue.changed() => {
                // Other tasks that are about to ask run first, and share the call.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// The pace of a connection: whether it is fast enough to hold requests back.
///
/// While a call is under way on a fast connection, other requests are held back until its reply, or until they make a
/// full call. Together they cost both ends less, and a server answers the requests that it reads at once only when all
/// of them are done. Requests that were held back are sent before the answered makers run, so that client and server
/// work at the same time.
struct Pace {
    fast: bool,
    /// `true` if the server is near: a full call that takes long is long by its work, and not by its way.
    near: bool,
}

impl Pace {
    /// Notes that a call with `count` requests took so long.
    fn answered(&mut self, count: usize, took: Duration) {
        // The time of a full call says nothing of the distance, unless it is short.
        let (quick, full) = (took < AT_MOST_HELD_BACK, count >= FULL);
        if quick || !full {
            self.near = quick;
        }
        self.fast = quick || full && self.near && took < AT_MOST_HELD_BACK_BY_FULL;
    }
}

/// Carries out one call and answers its makers. Returns the number of its requests, and the time it took.
async fn carry_out(wire: &Wire, call: Call) -> (usize, Duration) {
    let (count, sent) = (call.requests.len(), Instant::now());
    let replies =
        wire.carry_out(Command::Each(&call.requests), false, &|index| call.is_unwanted(index)).await;
    // Without this line, `Call::drop` would answer its makers with a fault: that is for a runtime that ends here.
    call.answer(replies);
    (count, sent.elapsed())
}

/// Marks the connection as ended when its runtime drops the pump.
struct EndsWith {
    queue: Arc<Queue>,
    ended: Arc<AtomicBool>,
}

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        // The flag first: the makers that are answered here may ask again, and must not come back to this connection.
        self.queue.fail(&Fault::Cut("its runtime is gone".into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_held_back_on_a_long_way_although_its_calls_are_full() {
        let mut pace = Pace { fast: true, near: false };
        let way = Duration::from_millis(1);
        for count in [1, 32, 32, 31, 32] {
            pace.answered(count, way + Duration::from_micros(5) * 32);
            assert!(!pace.fast, "{count} requests");
        }
        // Also where the first call is full.
        let mut pace = Pace { fast: true, near: false };
        pace.answered(32, way);
        assert!(!pace.fast);
    }

    #[test]
    fn requests_are_held_back_for_a_full_call_that_takes_long_on_a_short_way() {
        let mut pace = Pace { fast: true, near: false };
        pace.answered(1, Duration::from_micros(80));
        for _ in 0..3 {
            pace.answered(32, Duration::from_millis(1));
            assert!(pace.fast);
        }
        pace.answered(32, Duration::from_millis(3));
        assert!(!pace.fast);
    }
}
