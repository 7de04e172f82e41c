//! Taking, holding and releasing.

use std::time::Duration;

use dlock_core::backend::{Renewed, Validity, Withdrawal};
use dlock_core::{Backend, Claim, ErrorKind, Key, Wait};
use dlock_sql::SqliteOptions;

use crate::mixing::boot_time;
use crate::support::{Site, busy, claim, fence, granted};

const LEASE: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_busy_lock_tells_who_has_it_and_for_how_long() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut first = claim(&backend, "k", LEASE).await;
    let grant = granted(first.attempt().await.unwrap());
    assert_eq!(grant.validity, Validity::Lease(LEASE));
    let mut second = claim(&backend, "k", LEASE).await;
    // The first attempt writes, the next ones read: both tell the same.
    for _ in 0..3 {
        let answer = busy(second.attempt().await.unwrap());
        assert!(answer.retry_after.unwrap() > LEASE - Duration::from_secs(10));
        let holder = answer.holder.unwrap();
        assert_eq!((holder.pid, holder.label.as_deref()), (Some(std::process::id()), Some("tests")));
        assert_eq!(holder.fence, grant.fence);
        assert!(second.is_clean());
    }
    let holder = backend.inspect(&Key::new("k").unwrap()).await.unwrap().unwrap();
    assert!(holder.host.is_some() && holder.since.is_some() && holder.expires_in.unwrap() <= LEASE);
    assert_eq!(backend.inspect(&Key::new("other").unwrap()).await.unwrap(), None);
    assert_eq!(first.withdraw().await.unwrap(), Withdrawal::REMOVED);
    assert_eq!(backend.inspect(&Key::new("k").unwrap()).await.unwrap(), None);
    assert!(fence(granted(second.attempt().await.unwrap())) > fence(grant));
}

#[tokio::test]
async fn an_attempt_that_finds_its_own_token_keeps_the_fence_and_extends_the_lease() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", LEASE).await;
    let first = granted(mine.attempt().await.unwrap());
    let expiry = "SELECT expires FROM dlock WHERE key = CAST('k' AS BLOB)";
    let before = site.number(expiry).await;
    let again = granted(mine.attempt().await.unwrap());
    assert_eq!(fence(again), fence(first));
    assert!(site.number(expiry).await > before);
    assert_eq!(mine.withdraw().await.unwrap(), Withdrawal::REMOVED);
}

#[tokio::test]
async fn withdrawing_is_idempotent_and_touches_only_its_own() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut never_tried = claim(&backend, "k", LEASE).await;
    assert!(never_tried.is_clean());
    assert_eq!(never_tried.withdraw().await.unwrap(), Withdrawal::ABSENT);

    let mut first = claim(&backend, "k", SHORT).await;
    let _ = granted(first.attempt().await.unwrap());
    assert!(!first.is_clean());
    tokio::time::sleep(SHORT * 2).await;
    let mut second = claim(&backend, "k", LEASE).await;
    let _ = granted(second.attempt().await.unwrap());
    for _ in 0..2 {
        assert_eq!(first.withdraw().await.unwrap(), Withdrawal::ABSENT);
        assert!(first.is_clean());
    }
    assert_eq!(second.renew().await.unwrap(), Renewed::Extended);
    assert_eq!(second.withdraw().await.unwrap(), Withdrawal::REMOVED);
    assert_eq!(second.withdraw().await.unwrap(), Withdrawal::ABSENT);
    assert_eq!(site.held().await, 0);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_neither_renewed_nor_counted_as_released() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", SHORT).await;
    let _ = granted(mine.attempt().await.unwrap());
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(mine.renew().await.unwrap(), Renewed::Gone);
    assert_eq!(backend.inspect(&Key::new("k").unwrap()).await.unwrap(), None);
    assert_eq!(mine.withdraw().await.unwrap(), Withdrawal::ABSENT);
}

#[tokio::test]
async fn a_row_that_somebody_deletes_is_reported_and_never_made_again_by_a_renewal() {
    let site = Site::new();
    let locks = site.locks().await;
    let guard = locks.lock("k").acquire().await.unwrap();
    site.execute("DELETE FROM dlock").await;
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(site.held().await, 0);
    let next = locks.lock("k").acquire().await.unwrap();
    assert!(next.fence() > guard.fence());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_of_an_earlier_boot_is_over_whatever_its_time_says() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut before = claim(&backend, "k", LEASE).await;
    let first = granted(before.attempt().await.unwrap());
    site.execute("UPDATE dlock SET boot = CAST('an earlier boot' AS BLOB), expires = 9e18 WHERE key > x''")
        .await;
    assert_eq!(before.renew().await.unwrap(), Renewed::Gone);
    assert_eq!(backend.inspect(&Key::new("k").unwrap()).await.unwrap(), None);
    let mut after = claim(&backend, "k", LEASE).await;
    assert!(fence(granted(after.attempt().await.unwrap())) > fence(first));
}

#[tokio::test]
async fn leases_are_measured_since_the_machine_started_and_not_by_the_wall_clock() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", LEASE).await;
    let lease = i64::try_from(LEASE.as_nanos()).unwrap();
    for renewed in [false, true] {
        let before = boot_time();
        if renewed {
            assert_eq!(mine.renew().await.unwrap(), Renewed::Extended);
        } else {
            let _ = granted(mine.attempt().await.unwrap());
        }
        let expires = site.number("SELECT expires FROM dlock WHERE key > x''").await;
        assert!((before + lease..=boot_time() + lease).contains(&expires), "{expires}");
    }
    // With the boot's name, which the table's own row begins with.
    let boot = "SELECT instr(noted.boot, held.boot) FROM dlock AS noted, dlock AS held WHERE noted.key = x'' AND held.key > x''";
    assert_eq!(site.number(boot).await, 1);
}

#[tokio::test]
async fn two_handles_on_one_file_exclude_each_other_and_two_tables_do_not() {
    let site = Site::new();
    let (one, two) = (site.locks().await, site.locks().await);
    let other = SqliteOptions::new(&site.path).with_table("Other_locks").unwrap().connect().await.unwrap();
    let other = dlock_core::Locks::new(other);
    let guard = one.lock("k").acquire().await.unwrap();
    let error = two.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(error.holder().unwrap().pid, Some(std::process::id()));
    let elsewhere = other.lock("k").with_wait(Wait::No).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { two.lock("k").acquire().await });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    next.check().unwrap();
    elsewhere.check().unwrap();
}

#[tokio::test]
async fn a_closed_backend_says_so() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", LEASE).await;
    backend.close().await;
    assert_eq!(mine.attempt().await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(backend.inspect(&Key::new("k").unwrap()).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(backend.prune(LEASE).await.unwrap_err().kind(), ErrorKind::Closed);
    // The log is gone when the last connection was closed in order.
    assert!(!site.directory.path().join("locks.db-wal").exists());
}
