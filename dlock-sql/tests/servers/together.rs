//! Requests of one moment that go out together, and the runtimes that drive them.

use std::collections::BTreeSet;
use std::time::Duration;

use dlock_core::{Backend, Claim, ErrorKind, Guard, Lock, Locks};
use dlock_rig::proxy::{Direction, Flow, Loss, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlSessions, PostgresSessions};
use dlock_testkit::cancel::poll_n_then_drop;
use futures_util::future::join_all;
use tokio::runtime::{Builder, Runtime};

use crate::by_hand::{busy, request};
use crate::support::{Db, is_error, on_both, once, take, until};

/// A runtime that is driven only while somebody waits in it.
fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs it on another thread.
async fn elsewhere<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

/// Takes locks, all at one moment.
fn take_all(locks: impl Iterator<Item = Lock>) -> Vec<dlock_core::Result<Guard>> {
    runtime().block_on(async move {
        let asked: Vec<_> = locks.map(|lock| tokio::spawn(async move { lock.acquire().await })).collect();
        let mut all = Vec::new();
        for one in asked {
            all.push(one.await.unwrap());
        }
        all
    })
}

/// Releases them, all at one moment.
fn release_all(guards: Vec<Guard>) {
    runtime().block_on(async move {
        let left: Vec<_> = guards.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
        for one in left {
            one.await.unwrap().unwrap();
        }
    });
}

fn executed(proxy: &Proxy) -> u64 {
    proxy.requests().get("EXECUTE").copied().unwrap_or_default()
}

fn one_connection<D: Db>(url: &str) -> String {
    format!("{url}{}max_connections=1", &D::MIGRATE[..1])
}

async fn through<D: Db>(db: &D) -> (Proxy, Locks) {
    db.backend().await;
    let proxy = db.proxy();
    let backend = D::connect(&db.url_through(proxy.address())).await.unwrap();
    // What became of a request is never known when the runtime of its connection is gone: its lease ends it.
    (proxy, Locks::builder(backend).with_lease(Duration::from_secs(3)).build().unwrap())
}

/// One of two has to wait for the only connection, on which an answer takes more than half of the request timeout.
async fn two_by_one_connection<D: Db, B: Backend>(db: &D, connect: impl AsyncFnOnce(String) -> B) {
    db.backend().await;
    let proxy = db.proxy();
    let backend = connect(db.url_through(proxy.address())).await;
    let limit = Duration::from_secs(3);
    let locks = Locks::builder(backend).with_request_timeout(limit).build().unwrap();
    for key in ["a", "b"] {
        take(&locks, key).await.release().await.unwrap();
    }
    proxy.set(Direction::ToClient, Flow::Delay(limit * 6 / 10));
    let (first, second) = (locks.lock("a"), locks.lock("b"));
    let (first, second) = tokio::join!(first.acquire(), second.acquire());
    proxy.set(Direction::ToClient, Flow::Pass);
    for guard in [first, second] {
        guard.unwrap().release().await.unwrap();
    }
    assert_eq!(locks.stats().rechecks, 0, "each was answered in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_that_an_order_waits_for_a_session_is_none_of_its_request() {
    let postgres = async |url: String| PostgresSessions::connect(&url).await.unwrap();
    two_by_one_connection(&<PostgresServer as Db>::start(), postgres).await;
    let mysql = async |url: String| MysqlSessions::connect(&url).await.unwrap();
    two_by_one_connection(&<MysqlServer as Db>::start(), mysql).await;
}

on_both! {
    async fn the_time_that_an_attempt_waits_for_a_connection_is_none_of_its_request<D: Db>(db: D) {
        let connect = async |url: String| D::connect(&one_connection::<D>(&url)).await.unwrap();
        two_by_one_connection(&db, connect).await;
    }

    async fn a_thousand_who_ask_for_one_key_at_one_moment_are_answered_by_a_few_statements<D: Db>(db: D) {
        let guard = take(&db.locks().await, "a").await;
        let (proxy, theirs) = through(&db).await;
        let before = executed(&proxy);
        let all = elsewhere(move || take_all((0..1_000).map(|_| once(&theirs, "a")))).await;
        let asked = executed(&proxy) - before;
        println!("1,000 attempts: {asked} statements");
        for one in all {
            is_error(one, ErrorKind::Busy, &[]);
        }
        // Some are answered while the others are still being asked for.
        assert!(asked < 400, "{asked} statements");
        guard.release().await.unwrap();
    }

    async fn a_thousand_who_ask_over_a_pool_at_one_moment_are_answered_by_a_few_statements<D: Db>(db: D) {
        let guard = take(&db.locks().await, "a").await;
        let proxy = db.proxy();
        let pool = D::pool_of(&db.url_through(proxy.address()), 8);
        let theirs = Locks::new(D::backend_of(&pool).await.unwrap());
        let before = executed(&proxy);
        let all: Vec<_> = (0..1_000).map(|_| once(&theirs, "a")).collect();
        // In one task, so that all want it before the first is answered.
        for one in join_all(all.iter().map(Lock::acquire)).await {
            is_error(one, ErrorKind::Busy, &[]);
        }
        let asked = executed(&proxy) - before;
        assert!(asked < 100, "{asked} statements");
        guard.release().await.unwrap();
        let theirs = Locks::builder(D::backend_of(&pool).await.unwrap()).with_wait(Duration::from_secs(60)).build().unwrap();
        let waiters: Vec<_> = (0..50).map(|_| theirs.lock("a")).map(|lock| tokio::spawn(async move { lock.acquire().await?.release().await })).collect();
        for waiter in waiters {
            waiter.await.unwrap().unwrap();
        }
    }

    // What was not asked leaves no outcome open, so that nobody has to ask by himself the next time.
    async fn claims_that_got_neither_a_turn_nor_a_connection_ask_together_the_next_time<D: Db>(db: D) {
        let guard = take(&db.locks().await, "a").await;
        let proxy = db.proxy();
        let pool = D::pool_of(&db.url_through(proxy.address()), 1);
        let backend = D::backend_of(&pool).await.unwrap();
        let mut claims = Vec::new();
        for _ in 0..100 {
            let mut request = request("a", Duration::from_secs(30)).await;
            request.request_timeout = Duration::from_secs(2);
            claims.push(backend.claim(request));
        }
        let all = D::exhaust(&pool).await;
        for attempt in join_all(claims.iter_mut().map(Claim::attempt)).await {
            assert_eq!(attempt.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        drop(all);
        let before = executed(&proxy);
        for attempt in join_all(claims.iter_mut().map(Claim::attempt)).await {
            busy(attempt.unwrap());
        }
        let asked = executed(&proxy) - before;
        assert!(asked < 20, "{asked} statements");
        guard.release().await.unwrap();
    }

    async fn one_of_many_who_ask_for_a_free_lock_gets_it_and_the_others_know_who<D: Db>(db: D) {
        let (_proxy, locks) = through(&db).await;
        for _ in 0..5 {
            let locks = locks.clone();
            let all = elsewhere(move || take_all((0..200).map(|_| once(&locks, "a")))).await;
            let (granted, busy): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
            let granted: Vec<Guard> = granted.into_iter().map(Result::unwrap).collect();
            assert_eq!((granted.len(), busy.len()), (1, 199));
            let fence = granted[0].fence();
            for one in busy {
                let error = is_error(one, ErrorKind::Busy, &[]);
                assert!(error.holder().is_none_or(|holder| holder.fence == fence), "{error:?}");
            }
            elsewhere(move || release_all(granted)).await;
            assert_eq!(db.held(), 0);
        }
    }

    async fn an_attempt_in_a_line_that_is_dropped_leaves_nothing_behind<D: Db>(db: D) {
        let (_proxy, locks) = through(&db).await;
        let all = locks.clone();
        elsewhere(move || {
            let runtime = runtime();
            runtime.block_on(async {
                for n in 0..300 {
                    tokio::spawn({ let lock = once(&all, &format!("k{n}")); async move { lock.acquire().await } });
                }
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            });
            // With all that is under way.
            drop(runtime);
        })
        .await;
        until("everything is withdrawn", || locks.stats().background == 0 && db.held() == 0).await;
        take(&locks, "k7").await.release().await.unwrap();
    }

    async fn a_runtime_that_nobody_drives_holds_up_no_other<D: Db>(db: D) {
        let (_proxy, locks) = through(&db).await;
        let theirs = locks.clone();
        let (runtime, guard) = elsewhere(move || {
            let runtime = runtime();
            let guard = runtime.block_on(take(&theirs, "held"));
            // Requests that were sent, whose answers nobody will read here.
            for n in 0..20 {
                let lock = once(&theirs, &format!("k{n}"));
                runtime.spawn(async move { lock.acquire().await.map(drop) });
            }
            runtime.block_on(async { tokio::task::yield_now().await });
            (runtime, guard)
        })
        .await;
        for n in 0..20 {
            take(&locks, &format!("other{n}")).await.release().await.unwrap();
        }
        guard.release().await.unwrap();
        assert!(locks.inspect("held").await.unwrap().is_none());
        elsewhere(move || runtime.shutdown_background()).await;
        until("everything is withdrawn", || locks.stats().background == 0 && db.held() == 0).await;
    }

    async fn who_asks_again_after_a_lost_reply_is_not_answered_by_what_another_has_learned<D: Db>(db: D) {
        db.backend().await;
        let proxy = db.proxy();
        let backend = D::connect(&one_connection::<D>(&db.url_through(proxy.address()))).await.unwrap();
        let locks = || {
            let locks = Locks::builder(backend.clone()).with_lease(Duration::from_secs(20));
            locks.with_request_timeout(Duration::from_secs(6)).build().unwrap()
        };
        let (ours, theirs) = (locks(), locks());
        for _ in 0..2 {
            take(&ours, "a").await.release().await.unwrap();
        }
        proxy.set(Direction::ToClient, Flow::Hold);
        proxy.lose_reply(1, "EXECUTE", Loss::Cut);
        let lock = once(&ours, "a");
        let taking = tokio::spawn(async move { lock.acquire().await });
        until("it is granted", || db.held() == 1).await;
        let fence = db.query("SELECT fence FROM dlock WHERE token IS NOT NULL");
        // Stands in the line for the only connection before the one who will ask again.
        let lock = once(&theirs, "a");
        let mut other = Box::pin(lock.acquire());
        assert!(poll_n_then_drop(&mut other, 1).await.is_none(), "it waits for a connection");
        // The connection for the line cannot be opened yet.
        proxy.set(Direction::ToServer, Flow::Hold);
        proxy.set(Direction::ToClient, Flow::Pass);
        until("it is asked for again", || ours.stats().rechecks == 1).await;
        proxy.set(Direction::ToServer, Flow::Pass);
        is_error(other.await, ErrorKind::Busy, &[]);
        let guard = taking.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(guard.fence().unwrap().get().to_string(), fence, "it was adopted, and not granted anew");
        guard.release().await.unwrap();
        until("the lock is free", || db.held() == 0).await;
    }

    async fn locks_follow_their_user_from_runtime_to_runtime<D: Db>(db: D) {
        let (_proxy, locks) = through(&db).await;
        for _ in 0..4 {
            let theirs = locks.clone();
            let kept = elsewhere(move || {
                runtime().block_on(async {
                    take(&theirs, "a").await.release().await.unwrap();
                    take(&theirs, "kept").await
                })
            })
            .await;
            kept.check().unwrap();
            is_error(once(&locks, "kept").acquire().await, ErrorKind::Busy, &[]);
            kept.release().await.unwrap();
        }
        assert_eq!(db.held(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_that_are_wanted_at_one_moment_are_taken_and_released_in_a_few_statements() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let (proxy, locks) = through(&server).await;
    for round in 0..2 {
        let before = executed(&proxy);
        let theirs = locks.clone();
        // The second time the rows are there.
        let all = elsewhere(move || take_all((0..500).map(|n| once(&theirs, &format!("k{n}"))))).await;
        let guards: Vec<Guard> = all.into_iter().map(Result::unwrap).collect();
        assert_eq!(server.held(), 500);
        let taken = executed(&proxy) - before;
        let fences: BTreeSet<_> = guards.iter().map(Guard::fence).collect();
        assert!(!fences.contains(&None));
        for holder in locks.holders().await.unwrap() {
            assert!(fences.contains(&holder.1.fence), "{holder:?}");
        }
        let before = executed(&proxy);
        elsewhere(move || release_all(guards)).await;
        let released = executed(&proxy) - before;
        println!("round {round}: 500 locks by {taken} statements, released by {released}");
        assert!(taken < 250 && released < 250, "{taken} and {released} statements");
        assert_eq!(server.held(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_somebody_has_locked_holds_up_nobody_who_asks_for_others() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let (_proxy, locks) = through(&server).await;
    take(&locks, "stuck").await.release().await.unwrap();
    let pool = Db::pool(&server, 1);
    let mut theirs = pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM dlock WHERE key = 'stuck' FOR UPDATE").execute(&mut *theirs).await.unwrap();
    let (asked, stuck) = (locks.clone(), 100);
    let all = elsewhere(move || {
        let key = |n| if n == stuck { "stuck".to_owned() } else { format!("k{n}") };
        take_all((0..300).map(|n| once(&asked, &key(n)).with_lease(Duration::from_secs(10))))
    })
    .await;
    for (n, one) in all.into_iter().enumerate() {
        assert_eq!(one.is_ok(), n != stuck, "{n}: {one:?}");
    }
    theirs.rollback().await.unwrap();
    until("everything is withdrawn", || locks.stats().background == 0 && server.held() == 0).await;
}
