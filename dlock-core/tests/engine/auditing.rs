//! The record that each hold leaves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::audit::{AuditSink, AuditedHold, AuditedLocks, HoldEnd};
use dlock_core::backend::{Mode, Validity};
use dlock_core::{Clock, ErrorKind, Locks, LocksBuilder, ManualClock, Memory, Timestamp};

use crate::script::{Answer, Scripted};

const LEASE: Duration = Duration::from_secs(30);

/// What is trusted of a lease.
const TRUSTED: Duration = Duration::from_millis(29_700);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    key: String,
    fence: Option<u64>,
    mode: Mode,
    passed_on: bool,
    from: Duration,
    until: Duration,
    alone_until: Option<Duration>,
    end: HoldEnd,
}

/// Keeps the records, with times since it was made.
#[derive(Clone)]
struct Records {
    start: Timestamp,
    began: Arc<Mutex<u32>>,
    ended: Arc<Mutex<Vec<Record>>>,
}

impl Records {
    fn since(clock: &Clock) -> Self {
        Self { start: clock.now(), began: Arc::default(), ended: Arc::default() }
    }

    fn all(&self) -> Vec<Record> {
        let all = self.ended.lock().unwrap().clone();
        assert!(all.len() <= *self.began.lock().unwrap() as usize);
        all
    }

    /// The only one.
    fn one(&self) -> Record {
        let [one] = &self.all()[..] else { panic!("{:?}", self.all()) };
        one.clone()
    }

    fn ends(&self) -> Vec<(Duration, Duration, HoldEnd)> {
        self.all().into_iter().map(|record| (record.from, record.until, record.end)).collect()
    }
}

impl AuditSink for Records {
    fn hold_began(&self, _: &Arc<AuditedLocks>) {
        *self.began.lock().unwrap() += 1;
    }

    fn hold_ended(&self, hold: &AuditedHold<'_>) {
        let at = |time: Timestamp| time.since(self.start);
        self.ended.lock().unwrap().push(Record {
            key: hold.key().as_str().to_owned(),
            fence: hold.fence().map(dlock_core::Fence::get),
            mode: hold.mode(),
            passed_on: hold.was_passed_on(),
            from: at(hold.believed_from()),
            until: at(hold.believed_until()),
            alone_until: hold.alone_until().map(at),
            end: hold.end(),
        });
    }
}

struct Stage {
    memory: Memory,
    clock: ManualClock,
    records: Records,
    locks: Locks,
}

fn stage(options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Stage {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let records = Records::since(&clock.clock());
    let locks = Locks::builder(memory.clone()).with_lease(LEASE).with_audit(records.clone());
    let locks = options(locks).build().unwrap();
    Stage { memory, clock, records, locks }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn a_hold_leaves_one_record_with_the_time_until_its_release_began() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    clock.advance(seconds(1));
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(records.all(), []);
    clock.advance(seconds(2));
    let fence = guard.fence().map(dlock_core::Fence::get);
    guard.release().await.unwrap();
    let record = records.one();
    assert_eq!((record.key.as_str(), record.fence, record.mode), ("k", fence, Mode::Exclusive));
    assert_eq!((record.from, record.until, record.end), (seconds(1), seconds(3), HoldEnd::Released));
    assert!(!record.passed_on && record.alone_until.is_none());
}

#[tokio::test]
async fn a_guard_that_is_dropped_leaves_the_record_of_a_release_and_so_does_a_panic() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(2));
    drop(guard);
    assert_eq!(records.ends(), [(seconds(0), seconds(2), HoldEnd::Released)]);
    let body = locks.lock("other");
    let body = tokio::spawn(async move { body.run(async { panic!("of a body") }).await });
    assert!(body.await.unwrap_err().is_panic());
    assert_eq!(records.ends()[1..], [(seconds(2), seconds(2), HoldEnd::Released)]);
}

#[tokio::test]
async fn a_deadline_that_nobody_noticed_ends_the_record_when_it_passed() {
    let Stage { memory, clock, records, locks } = stage(|locks| locks);
    let guard = locks.lock("k").acquire().await.unwrap();
    memory.faults().set_unavailable(true);
    clock.advance(seconds(100));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    assert_eq!(records.ends(), [(seconds(0), TRUSTED, HoldEnd::Lost("lease_expired"))]);
}

#[tokio::test]
async fn a_loss_that_the_backend_reports_ends_the_record_when_it_was_noticed() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Grant(Validity::Session(Some(LEASE)))]);
    let records = Records::since(&clock.clock());
    let locks = Locks::builder(backend.clone()).with_audit(records.clone()).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(5));
    backend.signal().lost("the session ended");
    clock.advance(seconds(1));
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    assert_eq!(records.ends(), [(seconds(0), seconds(5), HoldEnd::Lost("backend"))]);
}

#[tokio::test]
async fn a_hold_that_ends_while_it_is_suspect_was_relied_on_until_it_became_so() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Grant(Validity::Session(Some(LEASE)))]);
    let records = Records::since(&clock.clock());
    let locks = Locks::builder(backend.clone()).with_audit(records.clone()).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(2));
    backend.signal().suspect();
    clock.advance(seconds(2));
    backend.signal().trust(clock.clock().now());
    guard.check().unwrap();
    clock.advance(seconds(3));
    backend.signal().suspect();
    clock.advance(seconds(1));
    drop(guard);
    assert_eq!(records.ends(), [(seconds(0), seconds(7), HoldEnd::Released)]);
}

#[tokio::test]
async fn a_lock_that_is_passed_on_leaves_a_record_of_each_section_and_none_overlaps_the_next() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks.with_handoff_time(seconds(10)));
    let first = locks.lock("k").acquire().await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let lock = locks.lock("k");
            tokio::spawn(async move { lock.acquire().await.unwrap() })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    clock.advance(Duration::from_millis(1));
    first.release().await.unwrap();
    for waiter in waiters {
        let guard = waiter.await.unwrap();
        clock.advance(Duration::from_millis(1));
        guard.release().await.unwrap();
    }
    let all = records.all();
    assert_eq!(all.len(), 4);
    assert_eq!(all.iter().filter(|record| record.passed_on).count(), 2);
    for pair in all.windows(2) {
        assert!(pair[0].until <= pair[1].from && pair[0].fence < pair[1].fence, "{pair:?}");
    }
}

#[tokio::test]
async fn a_writer_that_becomes_a_reader_was_alone_until_it_asked_for_that() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    let mut guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(1));
    guard.downgrade().await.unwrap();
    clock.advance(seconds(1));
    let reader = locks.lock("k").read().acquire().await.unwrap();
    clock.advance(seconds(1));
    guard.release().await.unwrap();
    reader.release().await.unwrap();
    let all = records.all();
    assert_eq!((all[0].mode, all[0].alone_until), (Mode::Exclusive, Some(seconds(1))));
    assert_eq!((all[0].from, all[0].until), (seconds(0), seconds(3)));
    assert_eq!((all[1].mode, all[1].alone_until), (Mode::Shared, None));
}

#[tokio::test]
async fn a_hand_over_ends_the_record_when_it_begins_and_the_take_over_begins_another() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(2));
    let baton = guard.hand_over().await.unwrap();
    clock.advance(seconds(1));
    let taken = locks.take_over(&baton).await.unwrap();
    clock.advance(seconds(1));
    taken.release().await.unwrap();
    let ends = [(seconds(0), seconds(2), HoldEnd::HandedOver), (seconds(3), seconds(4), HoldEnd::Released)];
    assert_eq!(records.ends(), ends);
}

#[tokio::test]
async fn nested_guards_and_permits_leave_one_record_a_hold() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    locks
        .scope(async {
            let outer = locks.lock("k").acquire().await.unwrap();
            let inner = locks.lock("k").acquire().await.unwrap();
            clock.advance(seconds(1));
            inner.release().await.unwrap();
            clock.advance(seconds(1));
            outer.release().await.unwrap();
        })
        .await;
    assert_eq!(records.ends(), [(seconds(0), seconds(2), HoldEnd::Released)]);
    locks.semaphore("gpu", 4).take(3).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(records.all()[1].mode, Mode::Permits { of: 4, take: 3 });
}

#[tokio::test]
async fn a_shutdown_ends_the_record_and_the_guard_that_stays_leaves_no_second_one() {
    let Stage { clock, records, locks, .. } = stage(|locks| locks);
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(seconds(2));
    let _ = locks.shutdown(Duration::from_millis(50)).await;
    drop(guard);
    assert_eq!(records.ends(), [(seconds(0), seconds(2), HoldEnd::Lost("shutdown"))]);
}

struct Panics;

impl AuditSink for Panics {
    fn hold_began(&self, _: &Arc<AuditedLocks>) {
        panic!("of a sink");
    }

    fn hold_ended(&self, _: &AuditedHold<'_>) {
        panic!("of a sink");
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("of a sink");
        }
    }
}

#[tokio::test]
async fn a_sink_that_panics_changes_nothing() {
    let memory = Memory::new();
    let locks = Locks::builder(memory.clone()).with_audit(Panics).build().unwrap();
    for _ in 0..3 {
        let guard = locks.lock("k").acquire().await.unwrap();
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(memory.held(), 0);
    locks.shutdown(seconds(20)).await.unwrap();
}

/// Does not return from the end of a hold before it is let go.
struct Blocks(Mutex<std::sync::mpsc::Receiver<()>>);

impl AuditSink for Blocks {
    fn hold_ended(&self, _: &AuditedHold<'_>) {
        let _ = self.0.lock().unwrap().recv();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_blocks_keeps_no_holder_from_learning_of_a_loss() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Grant(Validity::Session(Some(LEASE)))]);
    let (let_go, blocked) = std::sync::mpsc::channel();
    let locks = Locks::builder(backend.clone()).with_audit(Blocks(Mutex::new(blocked))).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let signal = backend.signal();
    let reporting = std::thread::spawn(move || signal.lost("the session ended"));
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(let_go);
    reporting.join().unwrap();
}

#[tokio::test]
async fn the_name_of_the_store_differs_by_place_and_prefix_and_by_nothing_else() {
    #[derive(Default)]
    struct Names(Mutex<Vec<(u64, String)>>);
    impl AuditSink for Names {
        fn hold_ended(&self, hold: &AuditedHold<'_>) {
            let locks = hold.locks();
            assert_eq!(
                (locks.backend(), locks.is_in_process(), locks.process()),
                ("memory", true, std::process::id())
            );
            self.0.lock().unwrap().push((locks.number(), locks.store().to_owned()));
        }
    }
    let names = Arc::new(Names::default());
    let (one, other) = (Memory::new(), Memory::new());
    let builders = [
        Locks::builder(one.clone()).with_label("a"),
        Locks::builder(one.clone()),
        Locks::builder(one).with_prefix("p:"),
        Locks::builder(other),
    ];
    for builder in builders {
        let locks = builder.with_audit(Arc::clone(&names)).build().unwrap();
        locks.lock("k").run(async {}).await.unwrap();
        locks.shutdown(seconds(20)).await.unwrap();
    }
    let names = names.0.lock().unwrap();
    let stores: std::collections::HashSet<_> = names.iter().map(|(_, store)| store).collect();
    let numbers: std::collections::HashSet<_> = names.iter().map(|(number, _)| number).collect();
    assert_eq!((names.len(), stores.len(), numbers.len()), (4, 3, 4));
    assert_eq!(names[0].1, names[1].1);
}
