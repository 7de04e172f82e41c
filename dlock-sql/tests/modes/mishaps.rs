//! What happens to the connections that keep locks between a question and its answer, and when there are no others.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Locks, Wait};
use dlock_rig::proxy::{Direction, Flow, Loss, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_sql::{Mysql, MysqlSessions, Postgres, PostgresSessions};
use futures_util::FutureExt;
use sqlx::Connection;

use crate::kept::{
    Kind, LONG, MysqlRow, MysqlSession, PostgresRow, PostgresSession, error_of, locks, on_each_kind, over,
    soon, take, until,
};

/// Locks by way of a proxy, on a connection that is open, of keys that have rows.
async fn warm<K: Kind>(server: &K::Server) -> (Proxy, Locks) {
    let proxy = K::proxy(server);
    let locks = over::<K>(&K::url_through(server, proxy.address()), Duration::from_secs(6)).await;
    for key in ["a", "b", "a", "b"] {
        take(&locks, key).await.release().await.unwrap();
    }
    (proxy, locks)
}

/// All connections that the server still has.
async fn use_up<K: Kind>(server: &K::Server) -> Box<dyn std::any::Any + Send> {
    let url = K::url(server).replace("?migrate=true", "").replace("&migrate=true", "");
    if K::ROLE.starts_with("postgres") {
        let mut all = Vec::new();
        while let Ok(one) = sqlx::PgConnection::connect(&url).await {
            all.push(one);
        }
        Box::new(all)
    } else {
        let mut all = Vec::new();
        while let Ok(one) = sqlx::MySqlConnection::connect(&url).await {
            all.push(one);
        }
        Box::new(all)
    }
}

/// A renewal looks at rows of its own only, whatever the server finds cheaper where a table is small.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_of_a_lease_waits_for_no_row_that_somebody_keeps_locked() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    let leases = Locks::builder(Mysql::connect(&url).await.unwrap()).with_lease(Duration::from_secs(9));
    let leases = leases.build().unwrap();
    let kept = take(&locks::<MysqlRow>(&server, LONG).await, "kept").await;
    let (mine, gone) = (take(&leases, "mine").await, take(&leases, "gone").await);
    let mut others = Vec::new();
    for n in 0..100 {
        others.push(take(&leases, &format!("{n}")).await);
    }
    // So that the server is asked which of them are still there.
    server.query("DELETE FROM dlock WHERE `key` = 'gone'");
    gone.lost().await;
    let before = leases.stats().renewals;
    until("renewals", || leases.stats().renewals >= before + 202).await;
    mine.check().unwrap();
    for other in others {
        other.check().unwrap();
    }
    mine.release().await.unwrap();
    kept.release().await.unwrap();
}

on_each_kind! {
    async fn a_reply_that_is_lost_or_comes_twice_gives_no_lock_to_two<K: Kind>() {
        let server = K::start(&[]);
        let theirs = locks::<K>(&server, LONG).await;
        let fates: [fn(&Proxy); 3] = [
            |proxy| proxy.lose_reply(1, "", Loss::Cut),
            |proxy| proxy.lose_reply(1, "", Loss::Silence),
            |proxy| proxy.repeat_reply(1, ""),
        ];
        for (number, fate) in fates.iter().enumerate() {
            // What the fate meets: taking, or releasing.
            for releases in [false, true] {
                let (proxy, ours) = warm::<K>(&server).await;
                let other = take(&theirs, "b").await;
                if !releases {
                    fate(&proxy);
                }
                let guard = soon("the lock", ours.lock("a").acquire()).await.unwrap();
                if releases {
                    fate(&proxy);
                }
                // On the same connection, where locks share one: its answer is not that to the question before.
                let busy = soon("an answer", ours.lock("b").with_wait(Wait::No).acquire()).await;
                assert!(busy.is_err(), "{number}, {releases}: somebody else has it");
                if guard.check().is_ok() {
                    let third = theirs.lock("a").with_wait(Wait::No).acquire().await;
                    error_of(third, ErrorKind::Busy);
                }
                let _ = soon("the release", guard.release()).await;
                let next = soon("the lock of another", theirs.lock("a").acquire()).await.unwrap();
                let busy = soon("an answer", ours.lock("a").with_wait(Wait::No).acquire()).await;
                assert!(busy.is_err(), "{number}, {releases}: somebody else has it now");
                next.check().unwrap();
                next.release().await.unwrap();
                other.check().unwrap();
                other.release().await.unwrap();
                until("all withdrawals", || ours.stats().background == 0).await;
                soon("the lock again", take(&ours, "a")).await.release().await.unwrap();
            }
        }
        until("every lock is free", || K::held(&server) == 0).await;
    }

    /// The grant is on its way when the session that has it ends.
    async fn a_grant_of_a_session_that_has_ended_is_lost_and_its_fence_is_lower<K: Kind>() {
        let server = K::start(&[]);
        let (proxy, ours) = warm::<K>(&server).await;
        let theirs = locks::<K>(&server, LONG).await;
        take(&theirs, "a").await.release().await.unwrap();
        proxy.set(Direction::ToClient, Flow::Hold);
        let taking = tokio::spawn({
            let lock = ours.lock("a");
            async move { lock.acquire().await.unwrap() }
        });
        until("the grant", || K::held(&server) == 1).await;
        K::disconnect_all(&server);
        let other = take(&theirs, "a").await;
        proxy.mend();
        // That grant, or a new one of a later moment; the first one would be lost at the next sign of life.
        let taking = tokio::time::timeout(Duration::from_secs(2), taking).await;
        if let Ok(guard) = taking {
            let guard = guard.unwrap();
            assert!(guard.fence() < other.fence());
            soon("the loss", guard.lost()).await;
            error_of(guard.release().await, ErrorKind::NotHeld);
        }
        other.check().unwrap();
        other.release().await.unwrap();
    }

    async fn a_panic_of_who_holds_a_lock_releases_it_and_costs_the_connection_nothing<K: Kind>() {
        let server = K::start(&[]);
        let (ours, theirs) = (locks::<K>(&server, LONG).await, locks::<K>(&server, LONG).await);
        let kept = take(&ours, "kept").await;
        for _ in 0..20 {
            let lock = ours.lock("a");
            let body = lock.run(async { panic!("in the body") });
            assert!(AssertUnwindSafe(body).catch_unwind().await.is_err());
            let guard = take(&ours, "a").await;
            let task = tokio::spawn(async move {
                let _guard = guard;
                panic!("in a task");
            });
            assert!(task.await.is_err());
            soon("the lock", take(&theirs, "a")).await.release().await.unwrap();
        }
        kept.check().unwrap();
        kept.release().await.unwrap();
        assert_eq!(ours.stats().lost, 0);
        until("every lock is free", || K::held(&server) == 0).await;
    }

    async fn locks_that_are_kept_stay_when_the_server_has_no_connection_left<K: Kind>() {
        let setting = if K::ROLE.starts_with("postgres") { "max_connections" } else { "max-connections" };
        let server = K::start(&[(setting, "16")]);
        let locks = locks::<K>(&server, Duration::from_secs(6)).await;
        take(&locks, "b").await.release().await.unwrap();
        let guard = take(&locks, "a").await;
        let others = use_up::<K>(&server).await;
        // A session takes and releases on the connection that it has; a row, where it has one that is free.
        match locks.lock("b").with_wait(Wait::No).acquire().await {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert!(!K::SHARED && error.kind() == ErrorKind::Unavailable, "{error}"),
        }
        // More than one sign of life.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        drop(others);
        until("the lock is free", || K::query(&server, "SELECT 1") == "1" && K::held(&server) == 0).await;
        soon("the lock", take(&locks, "new")).await.release().await.unwrap();
        assert_eq!(locks.stats().lost, 0);
    }
}

/// No turn takes that long, on any machine: a waiter that is still there then waits for nothing.
const ALL_TURNS: Duration = Duration::from_secs(600);

/// Of each of these processes one asks, whatever their number of waiters.
async fn crowd<B: Backend>(
    at_most: u64,
    server: SocketAddr,
    connect: impl AsyncFn(SocketAddr) -> B,
    sessions: bool,
) {
    let mut processes = Vec::new();
    for _ in 0..4 {
        let proxy = Proxy::start(server).unwrap();
        let backend = connect(proxy.address()).await;
        let locks = Locks::builder(backend).with_lease(LONG).with_wait(ALL_TURNS).build().unwrap();
        processes.push((proxy, locks));
    }
    let guard = take(&processes[0].1, "hot").await;
    let waiters: Vec<_> = (0..2_000)
        .map(|n| {
            let lock = processes[n % 4].1.lock("hot");
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
        })
        .collect();
    let sent = || processes.iter().map(|(proxy, _)| proxy.traffic().bytes_to_server).sum::<u64>();
    // Each asks once when it arrives, which takes as long as the machine wants. Waiters that go on asking never leave
    // two seconds to the server.
    let mut in_two_seconds = u64::MAX;
    for _ in 0..15 {
        let before = sent();
        tokio::time::sleep(Duration::from_secs(2)).await;
        in_two_seconds = sent() - before;
        println!("{in_two_seconds} bytes in 2 s, sessions: {sessions}");
        if in_two_seconds <= at_most {
            break;
        }
    }
    assert!(in_two_seconds <= at_most, "{in_two_seconds} bytes in 2 s");
    guard.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_waiters_in_four_processes_ask_hardly_ever_and_all_get_the_lock() {
    let server = PostgresSession::start(&[]);
    let url = |address| format!("{}&migrate=true", server.url_through(address));
    crowd(20_000, server.address(), async |at| PostgresSessions::connect(&url(at)).await.unwrap(), true)
        .await;
    // Each process may send the text of a step once more, of 13 KB, for a connection that is new.
    let with_texts = 20_000 + 4 * 13_000;
    crowd(with_texts, server.address(), async |at| Postgres::connect(&url(at)).await.unwrap(), false).await;
    let server = MysqlSession::start(&[]);
    let url = |address| format!("{}?migrate=true", server.url_through(address));
    crowd(20_000, server.address(), async |at| MysqlSessions::connect(&url(at)).await.unwrap(), true).await;
    crowd(60_000, server.address(), async |at| Mysql::connect(&url(at)).await.unwrap(), false).await;
}

/// A statement that asks for a named lock is none for a log of statements: a replica would ask for it, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_named_lock_of_mariadb_is_in_a_log_of_statements() {
    for format in ["STATEMENT", "MIXED", "ROW"] {
        let server = MysqlServer::options().setting("log-bin", "binlog").setting("server-id", "1");
        let server = server.setting("binlog-format", format).start().unwrap();
        let (ours, theirs) =
            (locks::<MysqlSession>(&server, LONG).await, locks::<MysqlSession>(&server, LONG).await);
        let mut last = None;
        for _ in 0..3 {
            for locks in [&ours, &theirs] {
                let guard = take(locks, "a").await;
                assert!(guard.fence() > last, "{format}");
                last = guard.fence();
                guard.release().await.unwrap();
            }
        }
        let logged = server.query("SHOW BINLOG EVENTS");
        // What a replica carries out again; beside it, there are remarks of where rows come from.
        let carried_out = logged.lines().filter(|line| line.contains("\tQuery\t"));
        assert!(carried_out.clone().count() > 0, "{logged}");
        assert!(!carried_out.into_iter().any(|line| line.contains("GET_LOCK")), "{format}: {logged}");
    }
}

/// Each counts: a lock that a statement had asked for twice would stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_lock_of_mariadb_is_asked_for_once() {
    let server = MysqlServer::start().unwrap();
    let (ours, theirs) =
        (locks::<MysqlSession>(&server, LONG).await, locks::<MysqlSession>(&server, LONG).await);
    // Its row is missing, there, and deleted meanwhile.
    for change in ["", "", "DELETE FROM locks.dlock WHERE `key` = X'FF61'", ""] {
        server.query(&format!("SELECT 1; {change}"));
        for locks in [&ours, &theirs, &ours] {
            let guard = locks.lock("a").with_wait(Wait::No).acquire().await.unwrap();
            assert_eq!(MysqlSession::held(&server), 1);
            guard.release().await.unwrap();
            assert_eq!(MysqlSession::held(&server), 0);
        }
    }
}
