//! One connection with the requests on it.
//!
//! Requests are carried out in the order in which they are given to a link, which is what makes it safe to withdraw
//! what an unanswered request may have taken. A request on an idle link is sent at once by who makes it. While others
//! are under way, requests are collected for as long as the executor is busy with who makes them, and go out together,
//! as one call of the script: that costs no round trip and saves most of the work at both ends. A request whose maker
//! goes away before it is sent, is not sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::open::Opened;
use crate::config::Replicas;
use crate::error::Fault;
use crate::scripts::{self, Answer, By, Request, RequestAll, TakenAll};

/// How many requests share one call at the most, so that no call keeps the server from others for long.
const MOST_IN_A_CALL: usize = 32;
/// A call of so many requests keeps the server busy for as long as it takes to send it.
const FULL: usize = 16;
/// Nothing is held back on a connection on which that would take longer.
const AT_MOST_HELD_BACK: Duration = Duration::from_millis(2);
/// How many calls are under way at once at the most; further requests wait here, where they can still be taken back.
const MOST_CALLS: usize = 64;

/// What came back for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply<A = Answer> {
    pub(crate) answer: A,
    /// How many replicas know what the request changed, where that was asked.
    pub(crate) acknowledged: u32,
}

/// How requests are put on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether requests for different locks may share a call: not on a cluster, where each lock has its slot.
    pub(crate) together: bool,
    pub(crate) replicas: Option<Replicas>,
}

/// One connection.
pub(crate) struct Link {
    wire: Wire,
    queue: mpsc::UnboundedSender<Queued>,
    state: Arc<State>,
    runtime: Handle,
    probing: AtomicBool,
    silent: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Requests that are waiting or under way.
    open: AtomicUsize,
    ended: Arc<AtomicBool>,
}

struct Queued {
    request: Request,
    reply: oneshot::Sender<Result<Reply, Fault>>,
}

impl Link {
    /// Takes over a connection that was opened on the calling runtime.
    pub(crate) fn new(opened: Opened, manner: Manner) -> Self {
        let Opened { connection, ended } = opened;
        let (queue, inbox) = mpsc::unbounded_channel();
        let state = Arc::new(State { open: AtomicUsize::new(0), ended });
        let wire = Wire { connection, manner };
        let runtime = Handle::current();
        runtime.spawn(pump(wire.clone(), inbox, Arc::clone(&state)));
        Self { wire, queue, state, runtime, probing: AtomicBool::new(false), silent: AtomicBool::new(false) }
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.state.ended.load(Ordering::Acquire)
    }

    /// Nothing more is sent over it.
    pub(crate) fn end(&self) {
        self.state.ended.store(true, Ordering::Release);
    }

    /// The runtime that drives it.
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(crate) fn connection(&self) -> MultiplexedConnection {
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
        let alone = self.state.open.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let result = if alone {
            let _open = Open(&self.state);
            self.wire.exchange(request).await
        } else {
            self.state.open.fetch_add(1, Ordering::AcqRel);
            let (reply, answer) = oneshot::channel();
            if let Err(unsent) = self.queue.send(Queued { request: request.clone(), reply }) {
                drop(unsent);
                self.state.done(1);
                return Err(Fault::Unsent("the runtime that drives the connection is gone"));
            }
            answer.await.unwrap_or_else(|_| Err(Fault::Cut("its runtime is gone".into())))
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
        if self.is_ended() {
            return Err(Fault::Unsent("the connection has ended"));
        }
        self.state.open.fetch_add(1, Ordering::AcqRel);
        let _open = Open(&self.state);
        let result = match self.wire.send_all(request, By::Hash, asking).await {
            Err(fault) if fault.code() == Some("NOSCRIPT") => {
                self.wire.send_all(request, By::Text, asking).await
            }
            result => result,
        };
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
        let mut connection = self.connection();
        let ping = redis::cmd("PING");
        let answer = tokio::time::timeout(limit, connection.send_packed_command(&ping)).await;
        let alive = match answer {
            Ok(Ok(_)) => true,
            Ok(Err(_)) => {
                self.end();
                false
            }
            Err(_) => false,
        };
        self.silent.store(!alive, Ordering::Release);
        self.probing.store(false, Ordering::Release);
        alive
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("open", &self.state.open)
            .field("ended", &self.is_ended())
            .field("silent", &self.is_silent())
            .finish_non_exhaustive()
    }
}

impl State {
    fn done(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::AcqRel);
    }
}

/// One request that is under way without the queue.
struct Open<'a>(&'a State);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.done(1);
    }
}

/// The connection and how it is written to.
#[derive(Clone)]
struct Wire {
    connection: MultiplexedConnection,
    manner: Manner,
}

impl Wire {
    async fn exchange(&self, request: &Request) -> Result<Reply, Fault> {
        let mut by = By::Hash;
        loop {
            let fault = match self.send(std::slice::from_ref(request), by, false).await {
                Ok(mut replies) => match replies.pop() {
                    Some(Ok(reply)) => return Ok(reply),
                    Some(Err(fault)) => fault,
                    None => return Err(senseless()),
                },
                Err(fault) => fault,
            };
            if by == By::Text || fault.code() != Some("NOSCRIPT") {
                return Err(fault);
            }
            by = By::Text;
        }
    }

    async fn asking(&self, request: &Request) -> Result<Reply, Fault> {
        // By its text at once: the server has hardly seen it yet, and this is rare.
        let mut replies = self.send(std::slice::from_ref(request), By::Text, true).await?;
        replies.pop().unwrap_or_else(|| Err(senseless()))
    }

    /// Sends requests and waits for the replies to all of them.
    async fn send(
        &self,
        requests: &[Request],
        by: By,
        asking: bool,
    ) -> Result<Vec<Result<Reply, Fault>>, Fault> {
        let replicas = self.manner.replicas.filter(|_| requests.iter().any(|request| request.step.grants()));
        let together = self.manner.together || requests.len() == 1;
        let mut connection = self.connection.clone();
        if together && replicas.is_none() && !asking {
            let call = scripts::call(requests.iter(), by);
            let reply = connection.send_packed_command(&call).await.map_err(Fault::of)?;
            return split(reply, requests.len(), 0);
        }
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        if together {
            pipeline.add_command(scripts::call(requests.iter(), by));
        } else {
            for request in requests {
                pipeline.add_command(scripts::call(std::iter::once(request), by));
            }
        }
        if let Some(replicas) = replicas {
            add_wait(&mut pipeline, replicas);
        }
        let count = pipeline.len();
        let mut replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        if replies.len() != count {
            return Err(senseless());
        }
        let acknowledged = acknowledged(replicas.and_then(|_| replies.pop()));
        let mut replies = replies.into_iter().skip(usize::from(asking));
        if together {
            return split(replies.next().unwrap_or(Value::Nil), requests.len(), acknowledged);
        }
        Ok(replies
            .map(|reply| {
                split(reply, 1, acknowledged)
                    .and_then(|mut one| one.pop().unwrap_or_else(|| Err(senseless())))
            })
            .collect())
    }

    async fn send_all(&self, request: &RequestAll, by: By, asking: bool) -> Result<Reply<TakenAll>, Fault> {
        let mut pipeline = redis::pipe();
        if asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(request.call(by));
        if let Some(replicas) = self.manner.replicas {
            add_wait(&mut pipeline, replicas);
        }
        let count = pipeline.len();
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&pipeline, 0, count).await.map_err(Fault::of)?;
        let mut replies = replies.into_iter().skip(usize::from(asking));
        match replies.next() {
            Some(Value::ServerError(error)) => Err(Fault::of(error.into())),
            Some(reply) => {
                let answer = request.read(reply).ok_or_else(senseless)?;
                Ok(Reply { answer, acknowledged: acknowledged(replies.next()) })
            }
            None => Err(senseless()),
        }
    }
}

/// Behind the script and on the same connection: it tells of what was written on this connection only.
fn add_wait(pipeline: &mut redis::Pipeline, replicas: Replicas) {
    let limit = u64::try_from(replicas.timeout.as_millis()).unwrap_or(u64::MAX);
    pipeline.cmd("WAIT").arg(replicas.count).arg(limit);
}

fn acknowledged(reply: Option<Value>) -> u32 {
    match reply {
        Some(Value::Int(count)) => count.try_into().unwrap_or(0),
        _ => 0,
    }
}

fn split(reply: Value, count: usize, acknowledged: u32) -> Result<Vec<Result<Reply, Fault>>, Fault> {
    if let Value::ServerError(error) = reply {
        return Err(Fault::of(error.into()));
    }
    let answers = scripts::read(reply, count).ok_or_else(senseless)?;
    Ok(answers.into_iter().map(|answer| answered(answer, acknowledged)).collect())
}

fn answered(answer: Answer, acknowledged: u32) -> Result<Reply, Fault> {
    match answer {
        Answer::Refused(text) => Err(Fault::Refused(text)),
        answer => Ok(Reply { answer, acknowledged }),
    }
}

fn senseless() -> Fault {
    Fault::Cut("the reply makes no sense".into())
}

/// Carries out what is queued, until the link is dropped or its runtime ends.
async fn pump(wire: Wire, mut inbox: mpsc::UnboundedReceiver<Queued>, state: Arc<State>) {
    let _ended = EndsWith(Arc::clone(&state));
    let mut calls = FuturesUnordered::new();
    let mut waiting = VecDeque::new();
    let mut full = Full { under_way: 0, fast: wire.manner.together };
    loop {
        while calls.len() < if full.holds_back() { 1 } else { MOST_CALLS }
            && let Some(batch) = next_batch(&mut waiting, &state)
        {
            full.under_way += usize::from(batch.len() >= FULL);
            calls.push(call(&wire, batch, &state));
        }
        tokio::select! {
            biased;
            Some((count, took)) = calls.next(), if !calls.is_empty() => {
                full.answered(count, took);
                // What was held back goes out before those who were answered get on.
                while let Ok(queued) = inbox.try_recv() {
                    waiting.push_back(queued);
                }
            }
            queued = inbox.recv(), if waiting.is_empty() => {
                let Some(queued) = queued else { return };
                waiting.push_back(queued);
                // Whoever else is about to ask gets on too.
                tokio::task::yield_now().await;
                while let Ok(queued) = inbox.try_recv() {
                    waiting.push_back(queued);
                }
            }
        }
    }
}

/// While a full call is under way on a fast connection, other requests are held back until its reply. A server answers
/// what it reads at once only when all of it is done, so two full calls that go out together have client and server wait
/// for each other; one after the other, they work at the same time.
struct Full {
    under_way: usize,
    /// The last full call took less than [`AT_MOST_HELD_BACK`], and so does holding back.
    fast: bool,
}

impl Full {
    const fn holds_back(&self) -> bool {
        self.fast && self.under_way > 0
    }

    fn answered(&mut self, count: usize, took: Duration) {
        if count >= FULL {
            self.under_way -= 1;
            self.fast = self.fast && took < AT_MOST_HELD_BACK;
        }
    }
}

/// The requests that go out next: of those still wanted, as many as fit, and no two of one lock.
fn next_batch(waiting: &mut VecDeque<Queued>, state: &State) -> Option<Vec<Queued>> {
    let mut batch: Vec<Queued> = Vec::new();
    while let Some(queued) = waiting.front() {
        let taken_back = queued.reply.is_closed();
        let same_lock = |other: &Queued| {
            other.request.names.slot == queued.request.names.slot
                && other.request.names.lock == queued.request.names.lock
        };
        if !taken_back && (batch.len() == MOST_IN_A_CALL || batch.iter().any(same_lock)) {
            break;
        }
        match waiting.pop_front() {
            Some(queued) if !taken_back => batch.push(queued),
            _ => state.done(1),
        }
    }
    (!batch.is_empty()).then_some(batch)
}

/// Carries out one batch and tells everybody; how many requests it had, and how long it took.
async fn call(wire: &Wire, batch: Vec<Queued>, state: &State) -> (usize, Duration) {
    let (count, sent) = (batch.len(), Instant::now());
    let (mut requests, mut makers): (Vec<_>, Vec<_>) =
        batch.into_iter().map(|queued| (queued.request, queued.reply)).unzip();
    let mut by = By::Hash;
    loop {
        let replies =
            wire.send(&requests, by, false).await.unwrap_or_else(|fault| vec![Err(fault); makers.len()]);
        let mut again = (Vec::new(), Vec::new());
        for ((request, maker), reply) in requests.into_iter().zip(makers).zip(replies) {
            match reply {
                Err(fault) if by == By::Hash && fault.code() == Some("NOSCRIPT") => {
                    // Who went away meanwhile may be about to withdraw, which must not be overtaken.
                    if !maker.is_closed() {
                        again.0.push(request);
                        again.1.push(maker);
                    }
                }
                reply => drop(maker.send(reply)),
            }
        }
        (requests, makers) = again;
        if requests.is_empty() {
            break;
        }
        by = By::Text;
    }
    state.done(count);
    (count, sent.elapsed())
}

/// Marks the connection ended when its runtime drops what drives it.
struct EndsWith(Arc<State>);

impl Drop for EndsWith {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
    }
}
