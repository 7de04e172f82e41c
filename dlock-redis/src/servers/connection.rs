//! One connection with the requests on it.
//!
//! Requests are carried out in the order in which they are given to a connection, which is what makes it safe to
//! withdraw what an unanswered request may have taken. A request on an idle connection is sent at once by who makes it.
//! While others are under way, requests are collected for as long as the executor is busy with who makes them, and go
//! out together, as one call of the script: that costs no round trip and saves most of the work at both ends.

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
use super::queue::{Call, Queue};
use super::wire::{Reply, Wire, WireOptions, answered};
use crate::config::Replicas;
use crate::error::Fault;
use crate::request::{
    By, CallNumber, Request, RequestAll, RequestAlone, RequestTakeOver, ShareRequest, ShareStep, TakenAll,
};
use crate::tracking::ConnectionTracking;

/// A call of so many requests keeps the server busy for as long as it takes to send it.
const FULL: usize = 16;
/// Nothing is held back on a connection on which a call takes longer, or a full one.
const AT_MOST_HELD_BACK: Duration = Duration::from_micros(300);
const AT_MOST_HELD_BACK_BY_FULL: Duration = Duration::from_millis(2);
/// How many calls are under way at once at the most; further requests wait here, where they can still be taken back.
const MOST_CALLS: usize = 64;
/// The same of calls with one step on what several may hold, or wait for in line: so many are read, carried out and
/// answered well within a request timeout.
const MOST_STEPS: usize = 256;

/// What was not sent, since the other end is silent.
const REPLACED: Fault = Fault::Unsent("another connection is in the place of this one");

/// One connection.
pub(crate) struct Connection {
    wire: Wire,
    queue: Arc<Queue>,
    /// The turns of calls with one step on what several may hold, in the order of their makers.
    steps: Semaphore,
    ended: Arc<AtomicBool>,
    tracking: Arc<ConnectionTracking>,
    resp3: bool,
    /// The server was a replica when it was opened.
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
        runtime.spawn(pump(wire.clone(), EndsWith { queue: Arc::clone(&queue), ended: Arc::clone(&ended) }));
        let (probing, silent) = (AtomicBool::new(false), AtomicBool::new(false));
        let steps = Semaphore::new(MOST_STEPS);
        Self { wire, queue, steps, ended, tracking, resp3, is_replica, runtime, probing, silent }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the server is a replica, which grants nothing also where it can be written to.
    pub(crate) const fn is_replica(&self) -> bool {
        self.is_replica
    }

    /// Nothing more is sent over it.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.tracking.ended();
    }

    /// Another connection is in its place: what waits for its turn here goes there. Only what follows on this one what
    /// was sent on it, stays.
    pub(crate) fn retire(&self) {
        self.queue.retire(&REPLACED);
        self.steps.close();
    }

    /// Has the server tell of changes of locks that are renewed over this connection, where it can.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub(crate) async fn track(&self) {
        self.tracking.begin(&self.wire.connection, self.resp3).await;
    }

    /// The runtime that drives it.
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn client(&self) -> MultiplexedConnection {
        self.wire.connection.clone()
    }

    /// Whether it did not answer when it was probed last.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire)
    }

    /// Carries out one request.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the request is taken back if it was not sent yet, and else carried out.
    pub(crate) async fn carry_out(&self, request: &Request) -> Result<Reply, Fault> {
        if self.is_ended() {
            return Err(Fault::Unsent("the connection has ended"));
        }
        let result = if let Some(_alone) = self.queue.alone() {
            // It may have waited in another queue before.
            if !request.clock.as_ref().is_none_or(RequestClock::written) {
                return Err(Fault::Unsent("nobody waits for the answer any more"));
            }
            // In a box, so that requests in the queue need no memory for it.
            Box::pin(self.wire.exchange(request)).await
        } else {
            match self.queue.push(request.clone()) {
                Some(pending) => pending.await,
                None if self.queue.is_closed() => {
                    return Err(Fault::Unsent("the runtime that drives the connection is gone"));
                }
                None => return Err(REPLACED),
            }
        };
        if matches!(result, Err(Fault::Cut(_))) {
            self.end();
        }
        result
    }

    /// Carries out one request on a server that is about to become responsible for its slot.
    pub(crate) async fn carry_out_asking(&self, request: &Request) -> Result<Reply, Fault> {
        if self.is_ended() {
            return Err(Fault::Unsent("the connection has ended"));
        }
        self.wire.asking(request).await
    }

    /// Takes several locks or none, in a call of its own.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it is carried out if it was sent already.
    pub(crate) async fn carry_out_all(
        &self,
        request: &RequestAll,
        asking: bool,
    ) -> Result<Reply<TakenAll>, Fault> {
        let format = &self.wire.options.format;
        let replicas = self.wire.options.replicas;
        let call = async |by| {
            self.carry_out_apart(|number| format.call_all(request, by, number), asking, replicas).await
        };
        let reply = match call(By::Hash).await {
            Err(fault) if fault.code() == Some("NOSCRIPT") => call(By::Text).await,
            result => result,
        };
        reply?.read(|reply| format.read_all(reply, request.0.len()))
    }

    /// Takes a lock without its counter.
    ///
    /// # Cancel safety
    ///
    /// As [`carry_out_all`](Self::carry_out_all).
    pub(crate) async fn carry_out_alone(
        &self,
        request: &RequestAlone<'_>,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let format = &self.wire.options.format;
        let call = |number| format.call_alone(request.request, request.fence, number);
        let reply = self.carry_out_apart(call, asking, self.wire.options.replicas).await?;
        let reply = reply.read(|reply| format.read_alone(reply))?;
        answered(reply.answer, reply.acknowledged)
    }

    /// Takes over a lock that was left.
    ///
    /// # Cancel safety
    ///
    /// As [`carry_out_all`](Self::carry_out_all).
    pub(crate) async fn carry_out_take_over(
        &self,
        take_over: &RequestTakeOver<'_>,
        asking: bool,
    ) -> Result<Reply, Fault> {
        let RequestTakeOver { request, left, mode } = take_over;
        if !request.clock.as_ref().is_none_or(RequestClock::written) {
            return Err(Fault::Unsent("nobody waits for the answer any more"));
        }
        let format = &self.wire.options.format;
        let call = |number| format.call_take_over(request, (left, *mode), number);
        let reply = self.carry_out_apart(call, asking, self.wire.options.replicas).await?;
        let reply = reply.read(|reply| format.read_take_over(reply, *mode))?;
        answered(reply.answer, reply.acknowledged)
    }

    /// Carries out a step on a lock that several may hold, when it is its turn.
    ///
    /// # Cancel safety
    ///
    /// As [`carry_out`](Self::carry_out).
    pub(crate) async fn carry_out_share(&self, request: &ShareRequest, asking: bool) -> Result<Reply, Fault> {
        let replicas =
            self.wire.options.replicas.filter(|_| !matches!(request.step, ShareStep::Withdraw { .. }));
        let format = &self.wire.options.format;
        let _turn = self.turn(request).await?;
        let call = async |by| {
            self.carry_out_apart(|number| format.call_share(request, by, number), asking, replicas).await
        };
        let reply = match call(By::Hash).await {
            Err(fault) if fault.code() == Some("NOSCRIPT") => call(By::Text).await,
            result => result,
        };
        let reply = reply?.read(|reply| format.read_share(reply, request))?;
        answered(reply.answer, reply.acknowledged)
    }

    /// Waits for the turn of a call with one step: what is handed to the wire can neither be taken back nor told apart
    /// from what a server that is slow has not answered.
    async fn turn(&self, request: &ShareRequest) -> Result<Option<SemaphorePermit<'_>>, Fault> {
        let turn = match self.steps.try_acquire() {
            Err(TryAcquireError::NoPermits) => {
                request.clock.iter().for_each(RequestClock::queued);
                self.steps.acquire().await.ok()
            }
            turn => turn.ok(),
        };
        if turn.is_none() && !matches!(request.step, ShareStep::Withdraw { .. }) {
            return Err(REPLACED);
        }
        // One that the engine has given up while it waited must not be sent.
        match request.clock.as_ref().is_none_or(RequestClock::written) {
            true => Ok(turn),
            false => Err(Fault::Unsent("nobody waits for the answer any more")),
        }
    }

    /// Sends a call that takes no lock.
    ///
    /// # Cancel safety
    ///
    /// As [`carry_out_all`](Self::carry_out_all).
    pub(crate) async fn ask(
        &self,
        call: impl FnOnce(CallNumber) -> Cmd,
        asking: bool,
    ) -> Result<Reply<Value>, Fault> {
        self.carry_out_apart(call, asking, None).await
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
        if self.is_ended() {
            return Err(Fault::Unsent("the connection has ended"));
        }
        let result = self.wire.send_all(calls).await;
        if matches!(result, Err(Fault::Cut(_))) {
            self.end();
        }
        result
    }

    /// Sends a call of its own, which may overtake what is queued, and waits for what comes of it.
    async fn carry_out_apart(
        &self,
        call: impl FnOnce(CallNumber) -> Cmd,
        asking: bool,
        replicas: Option<Replicas>,
    ) -> Result<Reply<Value>, Fault> {
        if self.is_ended() {
            return Err(Fault::Unsent("the connection has ended"));
        }
        let _beside = self.queue.beside();
        let result = self.wire.send_apart(call, asking, replicas).await;
        if matches!(result, Err(Fault::Cut(_))) {
            self.end();
        }
        result
    }

    /// Finds out whether the other end is still there. `false` when it does not answer in time, or another probe is
    /// under way.
    pub(crate) async fn probe(&self, limit: Duration) -> bool {
        if self.probing.swap(true, Ordering::AcqRel) {
            return true;
        }
        let mut connection = self.client();
        let ping = redis::cmd("PING");
        let answer = within(limit, connection.send_packed_command(&ping)).await;
        let alive = match answer {
            Some(Ok(_)) => true,
            Some(Err(_)) => {
                self.end();
                false
            }
            None => false,
        };
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

/// Carries out what is queued, until the connection is dropped or its runtime ends.
async fn pump(wire: Wire, end: EndsWith) {
    let mut calls = FuturesUnordered::new();
    let mut pace = Pace { fast: true, near: false };
    loop {
        let most = if pace.fast { 1 } else { MOST_CALLS };
        while (calls.len() < most || calls.len() == 1 && end.queue.waiting() >= FULL)
            && let Some(call) = end.queue.pop()
        {
            let mut call = Box::pin(carry_out(&wire, call));
            // It goes out before those whose replies are there get on, so that the server works meanwhile.
            let sent = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
            match sent {
                Poll::Ready((count, took)) => pace.answered(count, took),
                Poll::Pending => calls.push(call),
            }
            if calls.len() > 1 {
                tokio::task::yield_now().await;
            }
        }
        if calls.is_empty() && end.queue.is_closed() {
            return;
        }
        tokio::select! {
            biased;
            Some((count, took)) = calls.next(), if !calls.is_empty() => {
                pace.answered(count, took);
                if end.queue.waiting() < FULL {
                    // Those who were answered may ask again at once, and share the next call.
                    tokio::task::yield_now().await;
                }
            }
            () = end.queue.changed() => {
                // Whoever else is about to ask gets on too.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// While a call is under way on a fast connection, other requests are held back until its reply, or until they make a
/// full call: they cost both ends less together, and a server answers what it reads at once only when all of it is
/// done. What was held back goes out before those who were answered get on, so that client and server work at the same
/// time.
struct Pace {
    fast: bool,
    /// The server is not far away: a full call that takes long is long by its work, and not by its way.
    near: bool,
}

impl Pace {
    fn answered(&mut self, count: usize, took: Duration) {
        let (quick, full) = (took < AT_MOST_HELD_BACK, count >= FULL);
        if quick || !full {
            self.near = quick;
        }
        self.fast = quick || full && self.near && took < AT_MOST_HELD_BACK_BY_FULL;
    }
}

/// Carries out one call and tells everybody; how many requests it had, and how long it took.
async fn carry_out(wire: &Wire, call: Call) -> (usize, Duration) {
    let (count, sent) = (call.requests.len(), Instant::now());
    let failed = |fault| vec![Err(fault); count];
    let mut replies = wire.send(&call.requests, By::Hash, false).await.unwrap_or_else(failed);
    let mut apart = false;
    // The server refuses a whole call where this user has no right to one of its keys.
    for (code, by) in [("NOPERM", By::Hash), ("NOSCRIPT", By::Text)] {
        let refused: Vec<usize> = (0..count.min(replies.len()))
            .filter(|index| matches!(&replies[*index], Err(fault) if fault.code() == Some(code)))
            // A request that was cancelled meanwhile may be about to withdraw, which must not be overtaken.
            .filter(|index| !call.is_unwanted(*index))
            .collect();
        if refused.is_empty() || by == By::Hash && count == 1 {
            continue;
        }
        apart |= by == By::Hash;
        let again: Vec<Request> = refused.iter().map(|index| call.requests[*index].clone()).collect();
        for (index, answer) in refused.into_iter().zip(wire.send_again(&again, by, apart).await) {
            replies[index] = answer;
        }
    }
    call.answer(replies);
    (count, sent.elapsed())
}

/// Marks the connection ended when its runtime drops what drives it.
struct EndsWith {
    queue: Arc<Queue>,
    ended: Arc<AtomicBool>,
}

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
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
