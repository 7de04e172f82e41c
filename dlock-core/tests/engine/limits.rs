//! What an acquire costs at most: time, and requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backend, Busy, Capabilities, Claim, ClaimRequest, Grant, LockId, Renewed, RequestClock,
    Validity, Withdrawal,
};
use dlock_core::{Clock, ErrorKind, Failure, Holder, Key, Locks, Memory, Wait};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::script::{Answer, Call, Scripted};

fn granted() -> Answer {
    Answer::Grant(Validity::Lease(Duration::from_secs(30)))
}

fn lost_reply() -> Answer {
    Answer::Fail(Failure::unknown("the connection was lost after the request was sent"))
}

fn attempts(backend: &Scripted) -> usize {
    backend.count(|call| matches!(call, Call::Attempt(_)))
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_always_tells_of_changes_is_asked_at_a_pace_and_the_wait_ends() {
    let backend = Scripted::new((0..100_000).map(|_| Answer::Busy));
    backend.0.changes.lock().unwrap().extend((0..100_000).map(|_| Ok(())));
    let locks = Locks::new(backend.clone());
    let started = Instant::now();
    let error = locks.lock("k").with_wait(Duration::from_millis(500)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(started.elapsed() <= Duration::from_millis(502), "{:?}", started.elapsed());
    assert!(attempts(&backend) < 1_000, "{}", attempts(&backend));
}

#[tokio::test(start_paused = true)]
async fn the_wait_bounds_requests_too_and_what_was_sent_is_withdrawn() {
    let backend = Scripted::new([]);
    let locks = Locks::new(backend.clone());
    let started = Instant::now();
    let wait = Duration::from_millis(100);
    let error = locks.lock("k").with_wait(wait).acquire().await.unwrap_err();
    assert!(started.elapsed() <= wait + Duration::from_millis(2), "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.maybe_held_for_at_most().unwrap() > Duration::from_secs(30));
    tokio::time::resume();
    backend.wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Withdraw(w)] if a == w)).await;
}

#[tokio::test(start_paused = true)]
async fn a_try_takes_no_longer_than_one_request_timeout() {
    let locks = Locks::new(Scripted::new([]));
    let limit = Duration::from_secs(2);
    let started = Instant::now();
    let error = locks.lock("k").with_request_timeout(limit).try_acquire().await.unwrap_err();
    assert!(started.elapsed() <= limit + Duration::from_millis(2), "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unknown);
}

#[tokio::test]
async fn a_wait_of_zero_is_one_try() {
    let backend = Scripted::new([Answer::Busy, granted()]);
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_wait(Duration::ZERO);
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(attempts(&backend), 1);
    let _guard = lock.acquire().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_zero_is_one_try_for_each_lock_of_a_batch_and_for_each_segment() {
    let backend = Scripted::new([granted(), Answer::Busy, granted(), granted()]);
    let locks = Locks::new(backend.clone());
    let batch = locks.lock_all(["a", "b", "c"]).with_wait(Duration::ZERO);
    let started = Instant::now();
    assert_eq!(batch.acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(attempts(&backend), 2, "`a` was taken, `b` is busy, and `c` is not asked for");
    assert!(started.elapsed() <= Duration::from_millis(2), "{:?}", started.elapsed());

    let backend = Scripted::new([Answer::Busy, Answer::Busy, Answer::Busy, granted()]);
    let segments = Locks::new(backend.clone()).lock("k").with_wait(Duration::ZERO).segmented(3);
    let started = Instant::now();
    let busy = segments.run(|_| async { panic!("no segment was free") }).await;
    assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(attempts(&backend), 3);
    assert!(started.elapsed() <= Duration::from_millis(2), "{:?}", started.elapsed());
    segments.run(|_| async {}).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_asked_about_for_as_long_as_the_caller_waits() {
    let lost = [lost_reply(), Answer::Hang, lost_reply(), Answer::Hang, lost_reply()];
    let backend = Scripted::new(lost.into_iter().chain([granted()]));
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_request_timeout(Duration::from_secs(1));
    let _guard = lock.acquire().await.unwrap();
    let calls = backend.calls();
    assert_eq!(calls.len(), 6);
    assert!(calls.iter().all(|call| *call == calls[0]), "under one token: {calls:?}");

    let backend = Scripted::new((0..100_000).map(|_| lost_reply()));
    let locks = Locks::new(backend.clone());
    let started = Instant::now();
    let error = locks.lock("k").with_wait(Duration::from_secs(20)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(started.elapsed() > Duration::from_secs(15), "{:?}", started.elapsed());
    assert!(attempts(&backend) < 100, "the pauses grow: {}", attempts(&backend));
}

#[tokio::test]
async fn a_release_while_the_busy_answer_is_on_its_way_is_not_missed() {
    let gate = Arc::new(Notify::new());
    let backend = Scripted::unpolled([granted(), Answer::BusyLate(Arc::clone(&gate)), granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    backend.wait_for(|calls| calls.len() == 2).await;
    guard.release().await.unwrap();
    gate.notify_one();
    let waiter = tokio::time::timeout(Duration::from_secs(10), waiter).await;
    let _guard = waiter.expect("a free lock was left idle").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiters_that_give_up_cost_no_requests() {
    let often = Capabilities::basic().with_polling(Duration::from_millis(50), Duration::from_millis(250));
    let backend = Scripted::with(Clock::system(), often, (0..10_000).map(|_| Answer::Busy));
    let locks = Locks::new(backend.clone());
    let mut waiters = tokio::task::JoinSet::new();
    for n in 0..2_000 {
        let lock = locks.lock("k").with_wait(Duration::from_millis(100 + n));
        waiters.spawn(async move { lock.acquire().await.unwrap_err().kind() });
    }
    while let Some(kind) = waiters.join_next().await {
        assert_eq!(kind.unwrap(), ErrorKind::TimedOut);
    }
    // Two seconds of polls, and none because somebody gave up.
    assert!(attempts(&backend) < 60, "{}", attempts(&backend));
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_always_too_late_is_asked_for_at_a_pace() {
    let late = || Answer::Grant(Validity::Lease(Duration::from_millis(1)));
    let backend = Scripted::new((0..100_000).map(|_| late()));
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(attempts(&backend) < 200, "{}", attempts(&backend));
}

#[tokio::test]
async fn the_longest_lease_is_valid() {
    let locks = Locks::new(Scripted::new([Answer::Grant(Validity::Lease(Duration::MAX))]));
    let guard = locks.lock("k").acquire().await.unwrap();
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn with_a_paused_clock_what_was_dropped_can_be_acquired() {
    let locks = Locks::new(Memory::new());
    for wait in [Duration::from_secs(30), Duration::from_millis(20)] {
        for round in 0..300 {
            drop(locks.lock("k").acquire().await.unwrap());
            let guard = locks.lock("k").with_wait(wait).acquire().await;
            guard.unwrap_or_else(|error| panic!("round {round}: {error}")).release().await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_paused_clock_a_drain_and_a_shutdown_wait_for_what_was_dropped() {
    for round in 0..300 {
        let locks = Locks::new(Memory::new());
        drop(locks.lock("k").acquire().await.unwrap());
        locks.drain(Duration::from_secs(60)).await.unwrap_or_else(|error| panic!("round {round}: {error}"));
        let locks = Locks::new(Memory::new());
        drop(locks.lock("k").acquire().await.unwrap());
        locks
            .shutdown(Duration::from_secs(60))
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

/// A backend whose requests wait for their turn in this process first.
#[derive(Debug)]
struct Queueing {
    queue: Duration,
    written: Arc<AtomicUsize>,
    /// So many attempts are answered at once: somebody has the lock.
    busy: Arc<AtomicUsize>,
}

struct QueueingClaim {
    queue: Duration,
    lease: Duration,
    written: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
    request: RequestClock,
}

impl Backend for Queueing {
    type Claim = QueueingClaim;

    fn name(&self) -> &'static str {
        "queueing"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::basic().without_servers()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        Memory::new().lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> QueueingClaim {
        let (lease, request) = (request.lease, RequestClock::new(self.clock()));
        let (written, busy) = (Arc::clone(&self.written), Arc::clone(&self.busy));
        QueueingClaim { queue: self.queue, lease, written, busy, request }
    }

    async fn inspect(&self, _key: &Key) -> Result<Option<Holder>, Failure> {
        Ok(None)
    }
}

impl QueueingClaim {
    async fn have_written(&self) -> Result<(), Failure> {
        self.request.queued();
        let (request, written, queue) = (self.request.clone(), Arc::clone(&self.written), self.queue);
        // The task that writes goes on whoever waits for the answer.
        let writer = tokio::spawn(async move {
            tokio::time::sleep(queue).await;
            if request.written() {
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        writer.await.map_err(|error| Failure::unknown(error.to_string()))
    }
}

impl Claim for QueueingClaim {
    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.request.clone())
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        if self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Ok(Attempt::Busy(Busy::default()));
        }
        self.have_written().await?;
        Ok(Attempt::Granted(Grant::new(Validity::Lease(self.lease))))
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.have_written().await?;
        Ok(Renewed::Extended)
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.have_written().await?;
        Ok(Withdrawal::REMOVED)
    }

    fn is_clean(&self) -> bool {
        self.written.load(Ordering::SeqCst) == 0
    }
}

#[tokio::test(start_paused = true)]
async fn time_in_a_queue_of_this_process_is_no_time_of_the_request() {
    let written = Arc::default();
    let locks = Locks::new(Queueing { queue: Duration::from_secs(20), written, busy: Arc::default() });
    let lock = locks.lock("k").with_request_timeout(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    assert_eq!(locks.stats().rechecks, 0);
    guard.check().unwrap();
}

/// The queue is longer than a request may take: what is given up there and asked again is never answered.
#[tokio::test]
async fn a_renewal_and_a_release_that_wait_for_their_turn_are_neither_given_up_nor_repeated() {
    let (queue, limit) = (Duration::from_millis(300), Duration::from_millis(200));
    let written = Arc::<AtomicUsize>::default();
    let locks = Locks::new(Queueing { queue, written: Arc::clone(&written), busy: Arc::default() });
    let lock = locks.lock("k").with_lease(Duration::from_secs(3)).with_request_timeout(limit);
    let guard = lock.acquire().await.unwrap();
    while locks.stats().renewals < 3 {
        guard.check().unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(locks.stats().failed_renewals, 0);
    let before = written.load(Ordering::SeqCst);
    guard.release().await.unwrap();
    assert_eq!(written.load(Ordering::SeqCst), before + 1, "one request");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_was_never_written_is_no_unknown_outcome() {
    let written = Arc::<AtomicUsize>::default();
    let backend =
        Queueing { queue: Duration::from_secs(20), written: Arc::clone(&written), busy: Arc::default() };
    let locks = Locks::new(backend);
    let error = locks.lock("k").with_wait(Duration::from_secs(10)).acquire().await.unwrap_err();
    // Nobody is known to have the lock.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.maybe_held_for_at_most(), None);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(written.load(Ordering::SeqCst), 0, "it was given up");
}

#[tokio::test(start_paused = true)]
async fn who_stood_in_line_and_was_never_asked_for_timed_out() {
    let busy = Arc::new(AtomicUsize::new(1));
    let locks = Locks::new(Queueing { queue: Duration::from_secs(20), written: Arc::default(), busy });
    let first = locks.lock("k").with_wait(Duration::from_secs(1));
    // Joins the line behind the first, and its turn comes when that one has given up.
    let second = locks.lock("k").with_wait(Duration::from_secs(3));
    let (first, second) = tokio::join!(first.acquire(), second.acquire());
    assert_eq!(first.unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn pauses_without_an_end_or_without_a_length_are_those_of_a_poll() {
    for pauses in [(Duration::ZERO, Duration::ZERO), (Duration::MAX, Duration::MAX)] {
        let often = Capabilities::basic().with_polling(pauses.0, pauses.1);
        let answers = [Answer::BusyFor(Duration::MAX), Answer::Busy];
        let grant = Answer::Grant(Validity::Lease(Duration::from_secs(30)));
        let backend = Scripted::with(Clock::system(), often, answers.into_iter().chain([grant]));
        let lock = Locks::new(backend.clone()).lock("k").with_wait(Wait::Forever);
        drop(lock.acquire().await.unwrap());
        // Nobody told of anything.
        let (first, second) = (lock.clone(), lock);
        backend.0.attempts.lock().unwrap().extend([Answer::Busy, Answer::Busy]);
        let line = async { tokio::join!(first.acquire(), second.acquire()) };
        let waited = tokio::time::timeout(Duration::from_millis(2), line).await;
        assert!(waited.is_err());
        assert!(backend.count(|call| matches!(call, Call::Attempt(_))) < 16, "{:?}", backend.calls());
    }
}
