//! Fences grow, whatever happens to the rows.

use std::time::Duration;

use dlock_core::backend::{Mode, Renewed};
use dlock_core::{Backend, Claim, ErrorKind};

use crate::by_hand::request;
use crate::support::{Site, claim, fence, granted};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_fence_begins_at_the_wall_clock_and_does_not_need_it_to_grow() {
    let site = Site::new();
    let backend = site.backend().await;
    let micros = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let mut mine = claim(&backend, "k", LEASE).await;
    assert!(u128::from(fence(granted(mine.attempt().await.unwrap())).get()) >= micros);
    let _ = mine.withdraw().await.unwrap();
    // As if the clock had been a thousand years ahead at the time of the last grant.
    let ahead = 32_503_680_000_000_000;
    site.execute(&format!("UPDATE dlock SET fence = {ahead} WHERE key > x''")).await;
    let mut next = claim(&backend, "k", LEASE).await;
    assert_eq!(fence(granted(next.attempt().await.unwrap())).get(), ahead + 1);
}

#[tokio::test]
async fn pruning_deletes_what_is_free_and_old_and_keeps_fences_growing() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut held = claim(&backend, "held", LEASE).await;
    let _ = granted(held.attempt().await.unwrap());
    let mut short = claim(&backend, "short", Duration::from_millis(50)).await;
    let _ = granted(short.attempt().await.unwrap());
    let _ = short.withdraw().await.unwrap();
    let mut young = claim(&backend, "young", LEASE).await;
    let _ = granted(young.attempt().await.unwrap());
    let _ = young.withdraw().await.unwrap();
    // Far ahead of the wall clock, so that only the table's own memory can keep up with it.
    let ahead = 32_503_680_000_000_000;
    site.execute(&format!("UPDATE dlock SET fence = {ahead} WHERE key = CAST('short' AS BLOB)")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(backend.prune(LEASE).await.unwrap(), 0);
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(site.number("SELECT count(*) FROM dlock WHERE key > x''").await, 2);
    let mut again = claim(&backend, "short", LEASE).await;
    assert!(fence(granted(again.attempt().await.unwrap())).get() > ahead);
    assert_eq!(held.renew().await.unwrap(), Renewed::Extended);
}

#[tokio::test]
async fn pruning_many_rows_takes_them_in_portions_and_spares_the_held_ones() {
    let site = Site::new();
    let backend = site.backend().await;
    site.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
         INSERT INTO dlock SELECT CAST('k' || i AS BLOB), iif(i % 100 = 0, randomblob(16), NULL), i,
         (SELECT substr(boot, 1, instr(boot, x'3B') - 1) FROM dlock WHERE key = x''), iif(i % 100 = 0, 9000000000000000000, 0), '' FROM n",
    )
    .await;
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 4_950);
    assert_eq!(site.held().await, 50);
    assert_eq!(site.number("SELECT fence FROM dlock WHERE key = x''").await, 4_999);
}

#[tokio::test]
async fn rows_deleted_by_hand_keep_fences_growing_too() {
    let site = Site::new();
    let backend = site.backend().await;
    let mut mine = claim(&backend, "k", LEASE).await;
    let _ = granted(mine.attempt().await.unwrap());
    let ahead = 32_503_680_000_000_000;
    site.execute(&format!("UPDATE dlock SET fence = {ahead} WHERE key > x''")).await;
    site.execute("DELETE FROM dlock").await;
    assert_eq!(site.number("SELECT count(*) FROM dlock").await, 1, "the mark row stays");
    let mut next = claim(&backend, "k", LEASE).await;
    assert!(fence(granted(next.attempt().await.unwrap())).get() > ahead);
}

#[tokio::test]
async fn a_table_whose_mark_row_is_gone_gives_no_lock() {
    let site = Site::new();
    let locks = site.locks().await;
    site.execute("DROP TRIGGER dlock_keeps_mark; DELETE FROM dlock").await;
    let error = locks.lock("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert_eq!(site.held().await, 0);
}

/// Somebody has written it by hand, while the reply to the first attempt was lost.
#[tokio::test]
async fn a_fence_below_zero_is_none_of_a_lock_that_is_adopted() {
    let site = Site::new();
    let backend = site.backend().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let mut request = request("k", LEASE).await;
        request.mode = mode;
        let mut mine = backend.claim(request);
        assert!(granted(mine.attempt().await.unwrap()).fence.is_some());
        site.execute("UPDATE dlock SET fence = -5 WHERE key > x''").await;
        assert_eq!(granted(mine.attempt().await.unwrap()).fence, None, "{mode:?}");
        let _ = mine.withdraw().await.unwrap();
    }
}

#[tokio::test]
async fn a_fence_at_its_end_is_an_error_that_says_what_to_mend() {
    let site = Site::new();
    let locks = site.locks().await;
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    site.execute("UPDATE dlock SET fence = 9223372036854775806 WHERE key > x''").await;
    let last = locks.lock("k").acquire().await.unwrap();
    assert_eq!(last.fence().unwrap().get(), i64::MAX.unsigned_abs());
    last.release().await.unwrap();
    for (row, key) in [("key > x''", "k"), ("key = x''", "new")] {
        site.execute(&format!("UPDATE dlock SET fence = 9223372036854775807 WHERE {row}")).await;
        let error = locks.lock(key).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(error.to_string().contains("end of its numbers"), "{error}");
    }
    site.execute("UPDATE dlock SET fence = 0 WHERE key = x''; UPDATE dlock SET fence = -5 WHERE key > x''")
        .await;
    for key in ["k", "new"] {
        let mut last = 0;
        for _ in 0..2 {
            let guard = locks.lock(key).acquire().await.unwrap();
            let fence = guard.fence().unwrap().get();
            assert!(last < fence && fence < i64::MAX.unsigned_abs(), "{key}: {fence} after {last}");
            last = fence;
            guard.release().await.unwrap();
        }
    }
    let text = sqlx::query("UPDATE dlock SET fence = 'text'").execute(&mut site.raw().await).await;
    assert!(text.is_err(), "a fence is a number");
    assert_eq!(site.held().await, 0);
}
