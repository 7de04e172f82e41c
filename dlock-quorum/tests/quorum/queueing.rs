//! Nodes that tell more than a plain one: when a request was written, and when they want a renewal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{Attempt, Claim, ClaimRequest, LockId, Renewed, RequestClock, Signal, Withdrawal};
use dlock_core::{Backend, Capabilities, Clock, ErrorKind, Failure, Holder, Key, Locks, Memory, Node};
use dlock_quorum::Quorum;
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::support::{KEY, nodes, take, try_take, until};

/// A node whose requests are written one after the other, and that wants an early renewal where a test says so.
#[derive(Clone, Debug)]
struct Queueing {
    memory: Memory,
    turns: Arc<Semaphore>,
    asked: Arc<AtomicUsize>,
    written: Arc<AtomicUsize>,
    first_renewal: Option<Duration>,
    takes: Duration,
}

impl Queueing {
    /// With so many requests that may be under way at a time.
    fn new(turns: usize) -> Self {
        let (memory, turns) = (Memory::new(), Arc::new(Semaphore::new(turns)));
        let (asked, written, takes) = (Arc::default(), Arc::default(), Duration::from_millis(1));
        Self { memory, turns, asked, written, first_renewal: None, takes }
    }

    fn written(&self) -> usize {
        self.written.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct QueueingClaim {
    inner: <Memory as Backend>::Claim,
    node: Queueing,
    clock: RequestClock,
}

impl Backend for Queueing {
    type Claim = QueueingClaim;

    fn name(&self) -> &'static str {
        "queueing"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> QueueingClaim {
        let clock = RequestClock::new(self.clock());
        QueueingClaim { inner: self.memory.claim(request), node: self.clone(), clock }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.memory.inspect(key).await
    }
}

impl Claim for QueueingClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.clock.queued();
        self.node.asked.fetch_add(1, Ordering::SeqCst);
        let _turn = self.node.turns.acquire().await;
        if !self.clock.written() {
            return Err(Failure::unavailable("it was given up"));
        }
        self.node.written.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.node.takes).await;
        self.inner.attempt().await
    }

    fn granted(&mut self, signal: Signal) {
        if let Some(limit) = self.node.first_renewal {
            signal.renew_within(limit);
        }
        self.inner.granted(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.inner.renew().await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.inner.withdraw().await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }
}

fn process(nodes: [Node; 3], node_timeout: Duration) -> Locks {
    let quorum = Quorum::builder(nodes).with_durable_nodes().with_node_timeout(node_timeout);
    Locks::new(quorum.build().expect("a sound quorum"))
}

/// Requests that wait behind others of this process are not answered late by the node.
#[tokio::test]
async fn keys_that_wait_for_their_turn_on_one_connection_for_longer_than_a_node_may_take_are_all_taken() {
    const KEYS: u32 = 100;
    let takes = Duration::from_millis(25);
    let (plain, queueing) = (nodes(1), [1, 1].map(|turns| Queueing { takes, ..Queueing::new(turns) }));
    let all: [Node; 3] = [plain[0].clone().into(), queueing[0].clone().into(), queueing[1].clone().into()];
    // Less than the queue takes, and more than a busy machine makes of one turn.
    let quorum = Quorum::builder(all).with_durable_nodes().with_node_timeout(KEYS * takes * 4 / 5);
    let builder =
        Locks::builder(quorum.build().expect("a sound quorum")).with_lease(Duration::from_secs(600));
    let locks = builder.with_request_timeout(Duration::from_secs(300)).build().expect("locks");
    let taken = join_all((0..KEYS).map(|n| {
        let lock = locks.lock(format!("{n}"));
        async move { lock.try_acquire().await }
    }));
    for taken in taken.await {
        taken.expect("a majority is there").expect("it is free").release().await.expect("it is held");
    }
    until("the clean-up", || locks.stats().background == 0);
    assert_eq!(queueing.each_ref().map(|node| node.memory.held()), [0, 0]);
}

/// Nobody waits for it, and most requests to it are given up before they are written.
#[tokio::test]
async fn a_long_queue_to_a_node_that_answers_does_not_make_it_one_that_is_silent() {
    let (plain, queueing) = (nodes(2), Queueing::new(1));
    let all = [plain[0].clone().into(), plain[1].clone().into(), queueing.clone().into()];
    let locks = process(all, Duration::from_millis(100));
    let mut guards = Vec::new();
    for wave in 0..20 {
        guards.extend(
            join_all((0..100).map(|n| {
                let lock = locks.lock(format!("{wave}-{n}"));
                async move { lock.acquire().await.expect("it is free") }
            }))
            .await,
        );
        // Those of earlier waves are given up meanwhile, between answers.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(queueing.asked.load(Ordering::SeqCst), 2_000, "all asked it");
    assert!(queueing.written() < 2_000, "the queue was too short");
    drop(guards);
    until("the clean-up", || locks.stats().background == 0);
}

/// A connection that is being made keeps requests in a queue too.
#[tokio::test]
async fn a_queue_that_does_not_move_is_a_silent_node_and_what_was_in_it_is_never_written() {
    let (plain, stuck) = (nodes(2), Queueing::new(0));
    let all = [plain[0].clone().into(), plain[1].clone().into(), stuck.clone().into()];
    let locks = process(all, Duration::from_millis(50));
    plain[0].faults().set_unavailable(true);
    // With three fifths of a request's time, it would be six seconds each time.
    let limit = Duration::from_secs(5);
    // Once it is known to be silent, one asks it, and the others do not.
    for _ in 0..4 {
        let error = tokio::time::timeout(limit, try_take(&locks)).await.expect("in time").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuorumNotReached, "{error}");
    }
    // On a busy machine it is time to ask it again, now and then.
    let known = async {
        while !try_take(&locks).await.unwrap_err().to_string().contains("has not answered lately") {}
    };
    tokio::time::timeout(4 * limit, known).await.expect("it is known to be silent");
    stuck.turns.add_permits(1);
    plain[0].faults().set_unavailable(false);
    let guard = take(&locks).await;
    assert_eq!(plain.iter().map(Memory::held).collect::<Vec<_>>(), [1, 1]);
    guard.release().await.unwrap();
    until("the clean-up", || locks.stats().background == 0);
    assert_eq!((stuck.written(), stuck.memory.held()), (0, 0), "it was given up before it was written");
}

#[tokio::test]
async fn a_renewal_that_a_node_wants_with_its_vote_is_made() {
    let wanting = || Queueing { first_renewal: Some(Duration::from_millis(20)), ..Queueing::new(1) };
    // The third one's vote would come later.
    let (plain, all) = (nodes(1), [wanting(), wanting()].map(Node::from));
    plain[0].faults().set_unavailable(true);
    let [first, second] = all;
    let locks = process([first, second, plain[0].clone().into()], Duration::from_millis(200));
    let guard = locks.lock(KEY).with_lease(Duration::from_secs(600)).acquire().await.unwrap();
    // The next one that is due by itself is minutes away.
    until("the renewal", || locks.stats().renewals > 0);
    guard.release().await.unwrap();
}
