//! Servers whose clock is set.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};

use crate::support::{Db, is_error, on_stepped, take, until};

const HOUR: Duration = Duration::from_secs(3_600);

async fn locks<D: Db>(db: &D, lease: Duration) -> Locks {
    Locks::builder(db.backend().await).with_lease(lease).with_wait(Duration::from_secs(20)).build().unwrap()
}

on_stepped! {
    async fn a_step_forward_ends_leases_and_fences_tell_the_holders_apart<D: Db>(db: D) {
        let (ours, theirs) = (locks(&db, Duration::from_secs(6)).await, locks(&db, Duration::from_secs(30)).await);
        let guard = take(&ours, "a").await;
        db.clock().ahead(HOUR);
        let next = take(&theirs, "a").await;
        assert!(next.fence() > guard.fence());
        guard.lost().await;
        is_error(guard.release().await, ErrorKind::NotHeld, &[]);
        next.check().unwrap();
    }

    async fn a_step_back_keeps_locks_and_fences_go_on_upwards<D: Db>(db: D) {
        let locks = locks(&db, Duration::from_secs(3)).await;
        let guard = take(&locks, "a").await;
        db.clock().behind(HOUR);
        let renewals = locks.stats().renewals;
        until("a renewal", || locks.stats().renewals > renewals).await;
        guard.check().unwrap();
        let mut last = guard.fence();
        guard.release().await.unwrap();
        assert_eq!(db.held(), 0);
        for _ in 0..20 {
            let guard = take(&locks, "a").await;
            assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
            last = guard.fence();
            guard.release().await.unwrap();
        }
    }

    async fn fences_grow_through_steps_to_and_fro<D: Db>(db: D) {
        let locks = locks(&db, Duration::from_secs(30)).await;
        let mut last = None;
        for minutes in [0, 5, -5, 60, -60, 1, 0] {
            let step = Duration::from_secs(60) * i32::abs(minutes).cast_unsigned();
            if minutes < 0 {
                db.clock().behind(step);
            } else {
                db.clock().ahead(step);
            }
            for key in ["a", &format!("new after {minutes}")] {
                let guard = take(&locks, key).await;
                if key == "a" {
                    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
                    last = guard.fence();
                }
                guard.release().await.unwrap();
            }
        }
    }
}
