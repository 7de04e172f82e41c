//! Statements that are carried out, and whose answer does not arrive.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::proxy::{Loss, Proxy};

use crate::support::{Db, on_both, once, take, until};

/// Locks by way of a proxy, over a connection that knows the statements already.
async fn warm<D: Db>(db: &D, lease: Duration) -> (Proxy, Locks) {
    db.backend().await;
    let proxy = db.proxy();
    let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
    let locks = Locks::builder(backend).with_lease(lease).with_wait(Duration::from_secs(20)).build().unwrap();
    for _ in 0..2 {
        take(&locks, "a").await.release().await.unwrap();
    }
    (proxy, locks)
}

on_both! {
    async fn a_grant_whose_reply_is_lost_after_the_commit_is_adopted<D: Db>(db: D) {
        for loss in [Loss::Cut, Loss::Silence] {
            let (proxy, locks) = warm(&db, Duration::from_secs(6)).await;
            proxy.lose_reply(1, "EXECUTE", loss);
            let lock = locks.lock("a");
            let taking = tokio::spawn(async move { lock.acquire().await.unwrap_or_else(|error| panic!("{error}")) });
            proxy.wait_until_lost(1).await;
            let fence = db.query("SELECT fence FROM dlock WHERE token IS NOT NULL");
            let guard = taking.await.unwrap();
            assert_eq!(guard.fence().unwrap().get().to_string(), fence, "it was adopted, and not granted anew");
            assert_eq!(locks.stats().rechecks, 1);
            guard.release().await.unwrap();
            until("the lock is free", || db.held() == 0).await;
        }
    }

    async fn a_grant_whose_reply_is_lost_without_a_second_question_is_unknown_and_taken_back<D: Db>(db: D) {
        let (proxy, locks) = warm(&db, Duration::from_secs(6)).await;
        proxy.lose_reply(1, "EXECUTE", Loss::Cut);
        let error = once(&locks, "a").with_rechecks(0).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        until("it is taken back", || locks.stats().background == 0 && db.held() == 0).await;
    }

    async fn a_release_whose_reply_is_lost_has_released<D: Db>(db: D) {
        for loss in [Loss::Cut, Loss::Silence] {
            let (proxy, locks) = warm(&db, Duration::from_secs(6)).await;
            let guard = take(&locks, "a").await;
            proxy.lose_reply(1, "EXECUTE", loss);
            if let Err(error) = guard.release().await {
                assert!(error.is_retryable() || error.kind() == ErrorKind::Unknown, "{error}");
            }
            assert_eq!(proxy.lost(), 1);
            let next = take(&db.locks().await, "a").await;
            until("the first one is done", || locks.stats().background == 0).await;
            next.check().unwrap();
            next.release().await.unwrap();
        }
    }

    async fn renewals_whose_replies_are_lost_are_made_again<D: Db>(db: D) {
        let (proxy, locks) = warm(&db, Duration::from_secs(3)).await;
        let guard = take(&locks, "a").await;
        for lost in 1..=3 {
            let before = locks.stats().renewals;
            proxy.lose_reply(1, "EXECUTE", Loss::Cut);
            proxy.wait_until_lost(lost).await;
            until("another renewal", || locks.stats().renewals > before).await;
        }
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }
}
