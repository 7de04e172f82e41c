//! Locks over a pool of the user.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};

use crate::support::{Db, is_error, on_both, once, take, until};

on_both! {
    async fn an_exhausted_pool_delays_new_locks_and_loses_none<D: Db>(db: D) {
        let pool = db.pool(3);
        let backend = D::on_pool(&pool).await.unwrap();
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(2)).build().unwrap();
        let (kept, released) = (take(&locks, "kept").await, take(&locks, "released").await);
        let all = D::exhaust(&pool).await;
        let before = locks.stats().renewals;
        is_error(once(&locks, "new").acquire().await, ErrorKind::Unavailable, &["pool", "no free connection"]);
        until("renewals without the pool", || locks.stats().renewals >= before + 4).await;
        released.release().await.unwrap();
        kept.check().unwrap();
        drop(all);
        take(&locks, "new").await.release().await.unwrap();
        kept.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn a_pool_that_takes_longer_to_open_a_connection_than_a_request_may_is_of_use_all_the_same<D: Db>(db: D) {
        let pool = db.pool_that_takes(Duration::from_secs(3), 2);
        let locks = Locks::new(D::on_pool(&pool).await.unwrap());
        // Migration has left one that is open.
        let open = D::exhaust(&pool).await;
        db.disconnect_all();
        drop(open);
        let lock = locks.lock("a").with_request_timeout(Duration::from_secs(2));
        // The first release needs a connection of our own, which is made ready as the pool's are: it goes on by itself.
        let _ = lock.with_wait(Duration::from_secs(20)).acquire().await.unwrap().release().await;
        until("the release", || db.held() == 0).await;
    }

    async fn a_pool_that_is_closed_is_an_error_and_keeps_no_lock_from_being_released<D: Db>(db: D) {
        let pool = db.pool(2);
        let locks = Locks::new(D::on_pool(&pool).await.unwrap());
        let guard = take(&locks, "a").await;
        let mut waiting = once(&locks, "b");
        waiting = waiting.with_request_timeout(Duration::from_secs(1));
        D::close_pool(&pool).await;
        is_error(waiting.acquire().await, ErrorKind::Closed, &[]);
        guard.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn the_pools_connections_are_left_as_they_were<D: Db>(db: D) {
        let pool = db.pool(1);
        let locks = Locks::builder(D::on_pool(&pool).await.unwrap()).with_lease(Duration::from_secs(2)).build().unwrap();
        let theirs = db.locks().await;
        let before = D::state(&pool).await;
        assert!(before.lines().count() > 100, "{before}");
        let guard = take(&locks, "a").await;
        let other = take(&theirs, "b").await;
        is_error(once(&locks, "b").acquire().await, ErrorKind::Busy, &[]);
        let waiting = tokio::time::timeout(Duration::from_millis(300), locks.lock("b").acquire()).await;
        assert!(waiting.is_err(), "it is taken");
        assert!(locks.inspect("b").await.unwrap().is_some());
        let renewals = locks.stats().renewals;
        until("a renewal", || locks.stats().renewals > renewals).await;
        guard.release().await.unwrap();
        other.release().await.unwrap();
        until("what was cancelled is withdrawn", || locks.stats().background == 0).await;
        assert_eq!(D::state(&pool).await, before);
    }
}
