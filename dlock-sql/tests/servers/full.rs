//! Servers that have no connection left.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Locks};

use crate::support::{Db, is_error, on_both, once, take, until};

const RIGHTS: &str = "SELECT, INSERT, UPDATE";

/// Locks that are renewed often, and whose requests have time to wait for the only connection.
fn patient(backend: impl Backend) -> Locks {
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(6));
    locks.with_request_timeout(Duration::from_secs(3)).build().unwrap()
}

on_both! {
    async fn what_is_held_is_renewed_and_released_when_the_server_has_no_connection_left<D: Db>(db: D) {
        drop(db.backend().await);
        db.make_user("app", RIGHTS);
        let backend = D::connect(&db.url_as("app", "right")).await.unwrap();
        let locks = patient(backend);
        db.limit_connections("app", 1);
        db.disconnect_all();
        // The one connection is that of this runtime.
        let kept = locks.lock("kept").with_wait(Duration::from_secs(60)).acquire().await.unwrap();
        let released = take(&locks, "released").await;
        let before = locks.stats().renewals;
        until("renewals", || locks.stats().renewals >= before + 4).await;
        // From a thread that has no connections.
        let (told, release) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            told.send(runtime.block_on(released.release())).unwrap();
        });
        tokio::task::spawn_blocking(move || release.recv().unwrap()).await.unwrap().unwrap();
        kept.check().unwrap();
        kept.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    // The one connection serves for all that is asked, here and from elsewhere.
    async fn who_may_have_one_connection_only_has_locks<D: Db>(db: D) {
        drop(db.backend().await);
        db.make_user("app", RIGHTS);
        db.limit_connections("app", 1);
        let backend = D::connect(&db.url_as("app", "right")).await.unwrap();
        let locks = patient(backend);
        let lock = |key| locks.lock(key).with_wait(Duration::from_secs(60));
        for _ in 0..2 {
            let (one, two) = (lock("one").acquire().await.unwrap(), lock("two").acquire().await.unwrap());
            let before = locks.stats().renewals;
            until("renewals", || locks.stats().renewals >= before + 4).await;
            is_error(once(&locks, "one").acquire().await, ErrorKind::Busy, &[]);
            let waiter = tokio::spawn({ let lock = lock("one"); async move { lock.acquire().await } });
            one.release().await.unwrap();
            waiter.await.unwrap().unwrap().release().await.unwrap();
            assert!(locks.inspect("two").await.unwrap().is_some());
            two.release().await.unwrap();
        }
        assert_eq!(db.held(), 0);
    }

    async fn a_pool_lends_a_connection_to_what_is_held_when_the_server_has_none_left<D: Db>(db: D) {
        drop(db.backend().await);
        db.make_user("app", RIGHTS);
        let pool = D::pool_of(&db.url_as("app", "right"), 1);
        let backend = D::backend_of(&pool).await.unwrap();
        let locks = patient(backend);
        db.limit_connections("app", 1);
        db.disconnect_all();
        let kept = locks.lock("kept").with_wait(Duration::from_secs(60)).acquire().await.unwrap();
        let before = locks.stats().renewals;
        until("renewals", || locks.stats().renewals >= before + 2).await;
        kept.check().unwrap();
        kept.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn a_question_that_nobody_polls_any_more_keeps_no_connection_from_locks<D: Db>(db: D) {
        let backend = D::connect(&format!("{}{}&max_connections=1", db.url(), D::MIGRATE)).await.unwrap();
        let locks = Locks::builder(backend).with_wait(Duration::from_secs(60)).build().unwrap();
        take(&locks, "k").await.release().await.unwrap();
        for rounds in 0..3 {
            let mut question = std::pin::pin!(locks.inspect("other"));
            // Now and then the answer is there already.
            let polled = poll_fn(|context| Poll::Ready(question.as_mut().poll(context))).await;
            take(&locks, "k").await.release().await.unwrap();
            if polled.is_pending() {
                assert!(question.await.unwrap().is_none());
                return;
            }
            assert!(rounds < 2, "it never waits for an answer");
        }
    }

    async fn a_lock_that_is_new_has_to_wait_for_a_connection<D: Db>(db: D) {
        drop(db.backend().await);
        db.make_user("app", RIGHTS);
        let backend = D::connect(&db.url_as("app", "right")).await.unwrap();
        let locks = Locks::new(backend);
        db.limit_connections("app", 1);
        db.disconnect_all();
        let other = D::pool_of(&db.url_as("app", "right"), 1);
        let all = D::exhaust(&other).await;
        let error = is_error(once(&locks, "new").acquire().await, ErrorKind::Unavailable, &["connections"]);
        assert!(!format!("{error}").contains("right"), "{error}");
        drop(all);
        D::close_pool(&other).await;
        take(&locks, "new").await.release().await.unwrap();
    }

    // What was refused a moment ago is no reason to wait for a connection that nobody has.
    async fn a_release_opens_a_connection_once_the_server_has_room_for_it_again<D: Db>(db: D) {
        drop(db.backend().await);
        db.make_user("app", RIGHTS);
        let backend = D::connect(&db.url_as("app", "right")).await.unwrap();
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(60));
        let locks = locks.with_request_timeout(Duration::from_secs(20)).build().unwrap();
        let guard = take(&locks, "kept").await;
        db.limit_connections("app", 1);
        db.disconnect_all();
        let other = D::pool_of(&db.url_as("app", "right"), 1);
        let all = D::exhaust(&other).await;
        // The connections of this runtime, and those of dlock's own thread, turn out to have ended.
        is_error(locks.inspect("kept").await, ErrorKind::Unavailable, &["connections"]);
        let theirs = locks.clone();
        let elsewhere = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(theirs.inspect("kept"))
        };
        let elsewhere = tokio::task::spawn_blocking(elsewhere).await.unwrap();
        is_error(elsewhere, ErrorKind::Unavailable, &["connections"]);
        drop(all);
        D::close_pool(&other).await;
        guard.release().await.unwrap();
        assert_eq!((locks.stats().failed_withdrawals, db.held()), (0, 0));
    }
}
