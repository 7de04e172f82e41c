//! Processes that are killed and frozen while they hold a lock in one SQLite database.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::register::RegisterServer;
use dlock_rig::worker::{Order, Report, Worker};
use dlock_testkit::checkers::lost_updates;
use dlock_testkit::now_ns;
use dlock_testkit::register::Register;

const LEASE: Duration = Duration::from_millis(800);
/// What a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(10);

struct Store {
    directory: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    async fn worker(&self) -> Worker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dlock-reliability"));
        command.arg("worker");
        Worker::open(command, &self.url(), LEASE).await.unwrap()
    }

    async fn locks(&self) -> Locks {
        dlock::from_url(&self.url()).await.unwrap().with_lease(LEASE).build().unwrap()
    }
}

async fn acquire(worker: &mut Worker, wait_ms: u64) -> (u64, u64) {
    match worker.ask(&Order::Acquire { key: "k".into(), wait_ms }).await.unwrap() {
        Report::Acquired { fence, at } => (fence.expect("SQLite has fences"), at),
        other => panic!("not acquired: {other:?}"),
    }
}

#[tokio::test]
async fn processes_exclude_each_other_and_handoff_on_release() {
    let store = Store::new();
    let (mut first, mut second) = (store.worker().await, store.worker().await);
    let (fence, _) = acquire(&mut first, 0).await;
    let busy = second.ask(&Order::Acquire { key: "k".into(), wait_ms: 0 }).await.unwrap_err().to_string();
    assert!(busy.starts_with("busy") && busy.contains(&first.pid().to_string()), "{busy}");
    second.order(&Order::Acquire { key: "k".into(), wait_ms: 20_000 }).await.unwrap();
    assert_eq!(first.ask(&Order::Release).await.unwrap(), Report::Done);
    let Report::Acquired { fence: Some(next), .. } = second.report().await.unwrap() else {
        panic!("the release handed it over")
    };
    assert!(next > fence);
}

#[tokio::test]
async fn a_killed_holder_is_taken_over_from_within_its_lease() {
    let store = Store::new();
    let mut waiter = store.worker().await;
    for round in 0..3 {
        let mut holder = store.worker().await;
        let (fence, _) = acquire(&mut holder, 20_000).await;
        waiter.order(&Order::Acquire { key: "k".into(), wait_ms: 20_000 }).await.unwrap();
        // It may be killed before or after a renewal.
        tokio::time::sleep(LEASE / 3 * round).await;
        let killed = now_ns();
        holder.kill().await.unwrap();
        let Report::Acquired { fence: Some(next), at } = waiter.report().await.unwrap() else {
            panic!("the lock of a dead process does not block for ever")
        };
        assert!(next > fence);
        let took = Duration::from_nanos(at.saturating_sub(killed));
        println!("taken over {took:.0?} after the kill, with a lease of {LEASE:.0?}");
        assert!(took <= LEASE + SLACK, "{took:?}");
        assert_eq!(waiter.ask(&Order::Release).await.unwrap(), Report::Done);
    }
}

#[tokio::test]
async fn a_killed_waiter_is_in_nobodys_way() {
    let store = Store::new();
    let (mut holder, mut waiter) = (store.worker().await, store.worker().await);
    acquire(&mut holder, 0).await;
    waiter.order(&Order::Acquire { key: "k".into(), wait_ms: 20_000 }).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    waiter.kill().await.unwrap();
    assert_eq!(holder.ask(&Order::Release).await.unwrap(), Report::Done);
    let locks = store.locks().await;
    assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_holder_that_was_frozen_past_its_lease_knows_at_its_first_check_and_its_write_is_refused() {
    let store = Store::new();
    let server = RegisterServer::start(Register::fenced()).await.unwrap();
    let register = server.address();
    let locks = store.locks().await;
    let mut holder = store.worker().await;
    let (fence, _) = acquire(&mut holder, 0).await;
    assert_eq!(holder.ask(&Order::Check).await.unwrap(), Report::Checked { held: true });
    assert_eq!(holder.ask(&Order::Read { register }).await.unwrap(), Report::Value(Some(0)));
    let gap_ms = u64::try_from(LEASE.as_millis()).unwrap();
    assert_eq!(holder.ask(&Order::Watch { gap_ms }).await.unwrap(), Report::Done);

    holder.freeze().unwrap();
    let frozen = tokio::time::Instant::now();
    let successor = locks.lock("k").with_wait(LEASE + SLACK).acquire().await.unwrap();
    let successors = successor.fence().unwrap();
    assert!(successors.get() > fence);
    assert_eq!(server.register().read(successors), Ok(0));
    assert_eq!(server.register().write(successors, 0, 1), Ok(1));
    tokio::time::sleep_until(frozen + LEASE * 5 / 2).await;
    let thawed = now_ns();
    holder.thaw().unwrap();

    let (mut first_check, mut lost_at) = (None, None);
    while first_check.is_none() || lost_at.is_none() {
        match holder.report().await.unwrap() {
            Report::Paused { held, .. } => first_check = first_check.or(Some(held)),
            Report::Lost { at } => lost_at = Some(at),
            other => panic!("unexpected: {other:?}"),
        }
    }
    assert_eq!(first_check, Some(false), "the very first check after the pause");
    println!("the loss was signalled {:?} after the thaw", lost_at.unwrap().saturating_sub(thawed));
    let stale = Order::Write { register, read: 0, value: 1 };
    assert_eq!(holder.ask(&stale).await.unwrap(), Report::Value(None), "a stale write is refused");
    let released = holder.ask(&Order::Release).await.unwrap_err().to_string();
    assert!(released.starts_with("not_held"), "{released}");

    successor.check().unwrap();
    successor.release().await.unwrap();
    let updates = lost_updates(&server.register().record());
    assert_eq!((updates.stale_tried, updates.stale_accepted, updates.lost_updates), (1, 0, 0));
}

#[tokio::test]
async fn a_holder_that_was_frozen_for_less_than_its_lease_keeps_the_lock() {
    let store = Store::new();
    let locks = store.locks().await;
    let mut holder = store.worker().await;
    acquire(&mut holder, 0).await;
    for _ in 0..4 {
        holder.freeze().unwrap();
        tokio::time::sleep(LEASE / 5).await;
        holder.thaw().unwrap();
        tokio::time::sleep(LEASE / 2).await;
    }
    assert!(locks.lock("k").try_acquire().await.unwrap().is_none());
    assert_eq!(holder.ask(&Order::Check).await.unwrap(), Report::Checked { held: true });
    assert_eq!(holder.ask(&Order::Release).await.unwrap(), Report::Done);
}

#[tokio::test]
async fn a_process_that_blocks_its_runtime_keeps_its_lock() {
    let store = Store::new();
    let locks = store.locks().await;
    let mut holder = store.worker().await;
    acquire(&mut holder, 0).await;
    let ms = u64::try_from((LEASE * 3).as_millis()).unwrap();
    holder.order(&Order::Block { ms }).await.unwrap();
    let wait = locks.lock("k").with_wait(LEASE * 5 / 2).acquire().await;
    assert_eq!(wait.unwrap_err().kind(), ErrorKind::TimedOut, "somebody got in");
    assert_eq!(holder.report().await.unwrap(), Report::Checked { held: true });
    assert_eq!(holder.ask(&Order::Release).await.unwrap(), Report::Done);
    assert!(locks.lock("k").try_acquire().await.unwrap().is_some());
}
