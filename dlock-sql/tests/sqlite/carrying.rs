//! Locks that are handed over: what the row keeps for those who wait, and what nobody takes over.

use std::time::Duration;

use dlock_core::backend::{Busy, Mode, Withdrawal};
use dlock_core::{Backend, Claim, Key, Locks, Token};
use dlock_sql::{Sqlite, SqliteClaim};
use sqlx::Row;

use crate::by_hand::request;
use crate::support::{Site, busy, claim, granted, until};

const LEASE: Duration = Duration::from_secs(30);
const IS_MARKED: &str = "SELECT count(*) FROM dlock WHERE holder LIKE '% awaited'";

/// A claim that takes over what was left under this token.
async fn taker(backend: &Sqlite, left: Token) -> SqliteClaim {
    let mut request = request("k", LEASE).await;
    request.takes_over = Some(left);
    backend.claim(request)
}

/// A claim, and the token under which it leaves its key.
async fn giver(backend: &Sqlite, key: &str) -> (SqliteClaim, Token) {
    let request = request(key, LEASE).await;
    let left = request.token.left_behind();
    (backend.claim(request), left)
}

#[tokio::test]
async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before() {
    let site = Site::new();
    let (ours, theirs) = (site.backend().await, site.backend().await);
    let ((mut giver, left), mut waiter) = (giver(&ours, "k").await, claim(&theirs, "k", LEASE).await);
    let first = granted(giver.attempt().await.unwrap()).fence;
    let _ = busy(waiter.attempt().await.unwrap());
    tokio::select! {
        _ = waiter.changed() => panic!("nobody tells of a change"),
        () = until("a mark", async || site.number(IS_MARKED).await == 1) => {}
    }
    assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
    let mut taker = taker(&theirs, left).await;
    assert!(granted(taker.attempt().await.unwrap()).fence > first);
    assert_eq!(taker.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
}

#[tokio::test]
async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for_in_whatever_order() {
    let site = Site::new();
    let (backend, key) = (site.backend().await, Key::new("k").unwrap());
    let (mut giver, left) = giver(&backend, "k").await;
    let _ = granted(giver.attempt().await.unwrap());
    let mut earliest = LEASE * 4;
    for time in [LEASE * 4, LEASE * 60, LEASE * 2, LEASE * 4] {
        assert_eq!(giver.leave(time).await.unwrap(), Withdrawal::REMOVED);
        earliest = earliest.min(time);
        let remaining = backend.inspect(&key).await.unwrap().and_then(|holder| holder.expires_in);
        assert!(
            remaining <= Some(earliest) && remaining > Some(earliest / 2),
            "{remaining:?} of {earliest:?}"
        );
    }
    let _ = giver.leave(Duration::from_millis(1)).await.unwrap();
    let _ = giver.leave(LEASE).await.unwrap();
    until("its end", async || backend.inspect(&key).await.unwrap().is_none()).await;
    assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::ABSENT);
    let _ = busy(taker(&backend, left).await.attempt().await.unwrap());
}

/// Whatever else stands there, or nothing: all rows are as before.
async fn takes_nothing(site: &Site, backend: &Sqlite, left: Token) -> Busy {
    let before = rows(site).await;
    let found = busy(taker(backend, left).await.attempt().await.unwrap());
    assert_eq!(rows(site).await, before);
    found
}

async fn rows(site: &Site) -> Vec<String> {
    let all = "SELECT concat_ws(' ', hex(key), hex(token), fence, hex(boot), expires, holder) FROM dlock ORDER BY key";
    let rows = sqlx::query(all).fetch_all(&mut site.raw().await).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn nothing_but_what_was_left_is_taken_over() {
    let site = Site::new();
    let backend = site.backend().await;
    let locks = Locks::builder(backend.clone()).with_label("other").with_lease(LEASE).build().unwrap();
    let (mut giver, left) = giver(&backend, "k").await;
    assert!(takes_nothing(&site, &backend, left).await.holder.is_none(), "there is no row");
    let _ = granted(giver.attempt().await.unwrap());
    let held = takes_nothing(&site, &backend, left).await;
    assert_eq!(held.holder.unwrap().label.as_deref(), Some("tests"), "it is not left yet");
    let _ = giver.withdraw().await.unwrap();
    assert!(takes_nothing(&site, &backend, left).await.holder.is_none(), "it is free");
    let reader = locks.lock("k").read().acquire().await.unwrap();
    let holder = takes_nothing(&site, &backend, left).await.holder.unwrap();
    assert_eq!((holder.mode, holder.label.as_deref()), (Mode::Shared, Some("other")));
    reader.release().await.unwrap();
    let permit = locks.semaphore("k", 2).acquire().await.unwrap();
    let holder = takes_nothing(&site, &backend, left).await.holder.unwrap();
    assert_eq!(holder.mode, Mode::Permits { of: 2, take: 1 });
    permit.release().await.unwrap();
    assert!(takes_nothing(&site, &backend, left).await.holder.is_none(), "it is a semaphore");
}
