//! What stands in the table, and what administrators do with it.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Backend, Claim, ErrorKind};

use crate::by_hand::{granted, request};
use crate::support::{Db, is_error, on_both, take};

on_both! {

    // Somebody has written it by hand, or another program.
    async fn a_fence_below_zero_is_none<D: Db>(db: D) {
        let locks = db.locks().await;
        let guard = take(&locks, "a").await;
        db.query("UPDATE dlock SET fence = -5 WHERE token IS NOT NULL");
        assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, None);
        assert_eq!(locks.holders().await.unwrap()[0].1.fence, None);
        let error = is_error(db.locks().await.lock("a").with_wait(dlock_core::Wait::No).acquire().await, ErrorKind::Busy, &[]);
        assert!(error.holder().is_some_and(|holder| holder.fence.is_none()), "{error}");
        guard.release().await.unwrap();
        assert!(take(&locks, "a").await.fence().unwrap().get() > 1_000_000);
        // Of a grant that is adopted, since its reply was lost.
        let backend = db.backend().await;
        for mode in [Mode::Exclusive, Mode::Shared] {
            let mut request = request("adopted", Duration::from_secs(30)).await;
            request.mode = mode;
            let mut claim = backend.claim(request);
            assert!(granted(claim.attempt().await.unwrap()).fence.is_some());
            db.query("UPDATE dlock SET fence = -5 WHERE token IS NOT NULL");
            assert_eq!(granted(claim.attempt().await.unwrap()).fence, None, "{mode:?}");
            let _ = claim.withdraw().await.unwrap();
        }
    }

    async fn more_holders_than_one_answer_has_are_all_listed<D: Db>(db: D) {
        let backend = db.backend().await;
        let keys: Vec<String> = (0..2_100).map(|n| format!("k{n}")).collect();
        for some in keys.chunks(300) {
            let rows: Vec<String> = some.iter().map(|key| format!("('{key}', '{:016}', 1, 99, 'x')", key.len())).collect();
            db.query(&format!("INSERT INTO dlock ({}, token, fence, expires, holder) VALUES {}", D::KEY, rows.join(", "))
                .replace(", 99, ", if D::KEY == "key" { ", 'infinity', " } else { ", 9000000000000000, " }));
        }
        assert_eq!(D::holders(&backend).await.unwrap().len(), keys.len());
    }

    async fn a_forced_release_takes_the_lock_away_with_a_higher_fence<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = dlock_core::Locks::builder(backend.clone()).with_lease(Duration::from_secs(2)).build().unwrap();
        let first = take(&locks, "a").await;
        assert!(D::force(&backend, "a").await.unwrap());
        assert!(!D::force(&backend, "a").await.unwrap(), "nobody has it any more");
        assert!(!D::force(&backend, "never").await.unwrap());
        is_error(D::force(&backend, "").await, ErrorKind::InvalidKey, &[]);
        let other = db.locks().await;
        let second = take(&other, "a").await;
        assert!(second.fence().unwrap().get() > first.fence().unwrap().get() + 1);
        first.lost().await;
        is_error(first.release().await, ErrorKind::NotHeld, &[]);
        second.check().unwrap();
    }

    async fn fences_grow_over_rows_that_were_pruned_or_deleted<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = db.locks().await;
        let mut last = 0;
        let mut grows = |guard: &dlock_core::Guard| {
            let fence = guard.fence().unwrap().get();
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        };
        let guard = take(&locks, "a").await;
        grows(&guard);
        guard.release().await.unwrap();
        let held = take(&locks, "held").await;
        assert_eq!(D::prune(&backend, Duration::ZERO).await.unwrap(), 0, "it was in use a moment ago");
        db.age("a");
        // Its fence is from the future: the server's clock was set back.
        let future = 2 * 3_600_000_000_u64;
        db.query(&format!("UPDATE dlock SET fence = fence + {future} WHERE {} = 'a'", D::KEY));
        assert_eq!(D::prune(&backend, Duration::ZERO).await.unwrap(), 0, "the clock has to be well past the fence");
        db.query(&format!("UPDATE dlock SET fence = fence - {future} WHERE {} = 'a'", D::KEY));
        assert_eq!(D::prune(&backend, Duration::ZERO).await.unwrap(), 1);
        assert_eq!(db.query("SELECT count(*) FROM dlock"), "2", "the mark and the one that is held");
        let kept: u64 = db.query(&format!("SELECT fence FROM dlock WHERE {} = ''", D::KEY)).parse().unwrap();
        assert!(kept > 0);
        // As if all later fences had been drawn by a clock that is ahead.
        db.query(&format!("UPDATE dlock SET fence = {} WHERE {} = ''", kept + future, D::KEY));
        let guard = take(&locks, "a").await;
        assert!(guard.fence().unwrap().get() > kept + future, "a new row starts above all that were pruned");
        held.check().unwrap();
    }

    async fn a_fence_at_its_end_is_an_error_that_says_what_to_mend<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = db.locks().await;
        take(&locks, "a").await.release().await.unwrap();
        let set = |fence: i64, key: &str| db.query(&format!("UPDATE dlock SET fence = {fence} WHERE {} = '{key}'", D::KEY));
        set(i64::MAX - 1, "a");
        let last = take(&locks, "a").await;
        assert_eq!(last.fence().unwrap().get(), i64::MAX.unsigned_abs());
        is_error(D::force(&backend, "a").await, ErrorKind::InvalidConfig, &["end of its numbers"]);
        last.check().unwrap();
        last.release().await.unwrap();
        let once = |key: &str| crate::support::once(&locks, key);
        is_error(once("a").acquire().await, ErrorKind::InvalidConfig, &["end of its numbers", "set `fence`"]);
        set(i64::MAX, "");
        is_error(once("new").acquire().await, ErrorKind::InvalidConfig, &["end of its numbers"]);
        set(-5, "a");
        set(0, "");
        let next = take(&locks, "a").await;
        assert!(next.fence().unwrap().get() < i64::MAX.unsigned_abs());
        next.release().await.unwrap();
        take(&locks, "new").await.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn a_lock_whose_row_is_deleted_is_lost_and_can_be_taken_again<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = dlock_core::Locks::builder(backend).with_lease(Duration::from_secs(2)).build().unwrap();
        let guard = take(&locks, "a").await;
        db.query(&format!("DELETE FROM dlock WHERE {} = 'a'", D::KEY));
        guard.lost().await;
        let again = take(&db.locks().await, "a").await;
        assert!(again.fence() > guard.fence());
    }
}
