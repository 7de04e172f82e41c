//! Connections and servers that fail.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::proxy::{Direction, Flow, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_sql::{MysqlRowLocks, MysqlSessions};

use crate::support::{Db, is_error, on_both, once, take, until};

on_both! {
    async fn a_lock_outlives_every_connection<D: Db>(db: D) {
        let backend = db.backend().await;
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(3)).with_wait(Duration::from_secs(20)).build().unwrap();
        let guard = take(&locks, "a").await;
        for _ in 0..3 {
            let before = locks.stats().renewals;
            assert!(db.disconnect_all() > 0);
            until("a renewal over a new connection", || locks.stats().renewals > before).await;
            take(&locks, "b").await.release().await.unwrap();
        }
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn a_lock_outlives_a_crash_of_the_server<D: Db>(db: D) {
        let mut db = db;
        let locks = db.locks().await;
        let guard = take(&locks, "a").await;
        db.restart();
        let again = take(&locks, "b").await;
        guard.check().unwrap();
        let other = db.locks().await;
        assert_eq!(once(&other, "a").acquire().await.unwrap_err().kind(), ErrorKind::Busy);
        guard.release().await.unwrap();
        again.release().await.unwrap();
    }

    async fn what_a_frozen_server_carries_out_later_is_withdrawn<D: Db>(db: D) {
        let locks = Locks::builder(db.backend().await).with_lease(Duration::from_secs(30)).build().unwrap();
        take(&locks, "warm").await.release().await.unwrap();
        db.pause();
        let asking = locks.lock("a").with_wait(dlock_core::Wait::No).with_request_timeout(Duration::from_millis(300));
        let error = asking.acquire().await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
        db.resume();
        until("the withdrawal", || locks.stats().background == 0).await;
        until("the lock is free", || db.held() == 0).await;
    }

    async fn a_reply_that_is_lost_costs_no_lock_and_no_second_grant<D: Db>(db: D) {
        db.backend().await;
        let proxy = Proxy::start(db.address()).unwrap();
        for _ in 0..5 {
            let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
            let locks = Locks::builder(backend).with_wait(Duration::from_secs(20)).build().unwrap();
            // The server knows the row and the statement: the next request is the one that takes the lock.
            take(&locks, "a").await.release().await.unwrap();
            proxy.set(Direction::ToClient, Flow::Drop);
            let taking = tokio::spawn({
                let lock = locks.lock("a").with_request_timeout(Duration::from_secs(3));
                async move { lock.acquire().await.unwrap_or_else(|error| panic!("{error}")) }
            });
            let granted = format!("SELECT count(*) FROM dlock WHERE {} = 'a' AND token IS NOT NULL", D::KEY);
            until("the grant that nobody hears of", || db.query(&granted) == "1").await;
            let fence = db.query(&format!("SELECT fence FROM dlock WHERE {} = 'a'", D::KEY));
            proxy.cut();
            proxy.mend();
            let guard = taking.await.unwrap();
            assert_eq!(guard.fence().unwrap().get().to_string(), fence, "it was adopted, and not granted anew");
            guard.release().await.unwrap();
        }
        assert_eq!(db.held(), 0);
    }

    async fn statements_that_get_into_each_others_way_are_tried_again<D: Db>(db: D) {
        let locks = db.locks().await;
        take(&locks, "a").await.release().await.unwrap();
        // Somebody looks at the rows for long, in a transaction that keeps them from being changed.
        let pool = db.pool(1);
        let open = D::lock_rows(&pool).await;
        let taking = tokio::spawn({
            let lock = locks.lock("a").with_request_timeout(Duration::from_secs(4));
            async move { lock.acquire().await }
        });
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!taking.is_finished(), "neither busy nor taken");
        drop(open);
        taking.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(db.held(), 0);
    }

    async fn a_server_that_ends_idle_sessions_costs_no_lock<D: Db>(db: D) {
        db.end_idle();
        let locks = db.locks().await;
        for _ in 0..2 {
            let guard = take(&locks, "a").await;
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            guard.release().await.unwrap();
            tokio::time::sleep(Duration::from_millis(1_500)).await;
        }
        assert_eq!(db.held(), 0);
    }

    async fn a_holder_behind_a_black_hole_knows_before_another_has_the_lock<D: Db>(db: D) {
        let theirs = db.locks().await;
        let proxy = Proxy::start(db.address()).unwrap();
        let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
        let ours = Locks::builder(backend).with_lease(Duration::from_secs(2)).build().unwrap();
        let guard = take(&ours, "a").await;
        proxy.black_hole();
        let next = tokio::spawn(async move { take(&theirs, "a").await });
        guard.lost().await;
        assert!(!next.is_finished(), "it was lost first");
        let next = next.await.unwrap();
        assert!(next.fence() > guard.fence());
        proxy.mend();
        guard.release().await.unwrap_err();
        until("what was sent into the black hole is done", || ours.stats().background == 0).await;
        next.check().unwrap();
        next.release().await.unwrap();
    }

    async fn a_black_hole_that_ends_in_time_costs_no_lock<D: Db>(db: D) {
        db.backend().await;
        let proxy = Proxy::start(db.address()).unwrap();
        let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(6)).build().unwrap();
        let guard = take(&locks, "a").await;
        let failed = locks.stats().failed_renewals;
        proxy.black_hole();
        until("a renewal that fails", || locks.stats().failed_renewals > failed).await;
        let renewals = locks.stats().renewals;
        proxy.mend();
        until("a renewal", || locks.stats().renewals > renewals).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_live_on_when_others_have_used_up_the_prepared_statements_of_the_server() {
    let server = <MysqlServer as Db>::start();
    let backend = server.backend().await;
    let locks = |backend| {
        let locks = Locks::builder(backend).with_lease(Duration::from_secs(3));
        locks.with_wait(Duration::from_secs(20)).build().unwrap()
    };
    let leases = locks(backend.clone());
    let (held, dropped) = (take(&leases, "a").await, take(&leases, "b").await);
    server.query("SET GLOBAL max_prepared_stmt_count = 0");
    // What is opened from now on knows no statement.
    server.disconnect_all();
    drop(dropped);
    until("it is released", || server.held() == 1).await;
    let before = leases.stats().renewals;
    until("renewals", || leases.stats().renewals >= before + 3).await;
    held.check().unwrap();
    assert_eq!(leases.holders().await.unwrap().len(), 1);
    let theirs = Locks::new(backend.clone());
    let holder = is_error(once(&theirs, "a").acquire().await, ErrorKind::Busy, &[]).holder().cloned();
    assert_eq!(holder.unwrap().fence, held.fence());
    held.release().await.unwrap();
    for key in ["b", "new"] {
        take(&leases, key).await.release().await.unwrap();
    }
    server.age("b");
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
    let kept = [
        Locks::new(MysqlSessions::connect(&server.url()).await.unwrap()),
        Locks::new(MysqlRowLocks::connect(&server.url()).await.unwrap()),
    ];
    for locks in kept {
        let (one, other) = (take(&locks, "one").await, take(&locks, "other").await);
        one.release().await.unwrap();
        assert_eq!(locks.holders().await.unwrap().len(), 1);
        assert_eq!(locks.inspect("other").await.unwrap().unwrap().fence, other.fence());
        other.check().unwrap();
        other.release().await.unwrap();
    }
}
