//! Steps of readers, permits and waiters in line that PostgreSQL's connections know by name.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::proxy::{Pgwire, Proxy};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresOptions};

use crate::shares::{permits, read};
use crate::support::{Db, is_error, once, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_readers_ask_is_planned_once_for_a_connection_and_again_where_it_was_forgotten() {
    let server = <PostgresServer as Db>::start();
    let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1).connect(&server.url()).await.unwrap();
    PostgresOptions::from_pool(&pool).migrate().await.unwrap();
    let locks = Locks::new(Postgres::from_pool(&pool).await.unwrap());
    let planned = async || {
        let all =
            "SELECT count(*), coalesce(sum(generic_plans), 0)::bigint, coalesce(sum(custom_plans), 0)::bigint
            FROM pg_prepared_statements WHERE name LIKE 'dlock\\_%'";
        sqlx::query_as::<_, (i64, i64, i64)>(all).persistent(false).fetch_one(&pool).await.unwrap()
    };
    for round in 1..=3 {
        for key in ["a", "b", "c", "d", "e"] {
            read(&locks, key).await.release().await.unwrap();
            locks.lock(key).with_fairness(true).acquire().await.unwrap().release().await.unwrap();
            permits(&locks, &format!("of {key}"), 3, 2).await.release().await.unwrap();
        }
        let (statements, generic, custom) = planned().await;
        // Releases have a connection of their own, and a fair lock that is free is one plain statement.
        assert!(statements == 1 && generic >= 10 && custom == 0, "{statements} {generic} {custom}");
        if round == 2 {
            sqlx::raw_sql("DEALLOCATE ALL").execute(&pool).await.unwrap();
        }
    }
}

/// What is prepared for a step has no key in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_permits_and_waiters_in_line_have_nothing_prepared_for_a_new_key() {
    let server = <PostgresServer as Db>::start();
    let proxy = Proxy::speaking(Pgwire::default(), server.address()).unwrap();
    let url = format!("{}&migrate=true", server.url_through(proxy.address()));
    let (ours, theirs) = (Locks::new(Postgres::connect(&url).await.unwrap()), server.locks().await);
    let sent = || proxy.requests().values().sum::<u64>();
    let read_once = async |key: &str| read(&ours, key).await.release().await.unwrap();
    let take_permits = async |key: &str| permits(&ours, key, 3, 2).await.release().await.unwrap();
    // An attempt that takes a place, and a withdrawal that leaves it.
    let wait_in_line = async |key: &str| {
        let held = take(&theirs, key).await;
        let wait = ours.lock(key).with_fairness(true).with_wait(Duration::from_millis(100));
        is_error(wait.acquire().await, ErrorKind::TimedOut, &[]);
        let places = r"SELECT count(*) FROM dlock WHERE key >= '\xFC'";
        until("the place to be left", || server.query(places) == "0").await;
        held.release().await.unwrap();
    };
    let mut costs = Vec::new();
    for kind in ["read", "permits", "line"] {
        let cost = async |key: String| {
            let before = sent();
            match kind {
                "read" => read_once(&key).await,
                "permits" => take_permits(&key).await,
                _ => wait_in_line(&key).await,
            }
            sent() - before
        };
        let (known, mut least) = (format!("{kind} known"), [u64::MAX; 2]);
        // Each connection that may be lent has prepared the statements.
        for n in 0..6 {
            cost(format!("{kind} warm {n}")).await;
            cost(known.clone()).await;
        }
        for n in 0..4 {
            least[0] = least[0].min(cost(known.clone()).await);
            least[1] = least[1].min(cost(format!("{kind} new {n}")).await);
        }
        costs.push(least);
    }
    assert_eq!(costs[..2], [[2, 2]; 2], "an attempt and a release");
    // What was prepared anew would cost two messages more for each of its steps.
    assert!(costs[2][1] < costs[2][0] + 2, "known and new keys: {costs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_work_in_a_pool_that_resets_each_connection_before_it_lends_it() {
    let server = <PostgresServer as Db>::start();
    let resets = sqlx::postgres::PgPoolOptions::new().max_connections(2).before_acquire(|connection, _| {
        Box::pin(async move { sqlx::raw_sql("DEALLOCATE ALL").execute(connection).await.map(|_| true) })
    });
    let options =
        server.url().parse::<sqlx::postgres::PgConnectOptions>().unwrap().statement_cache_capacity(0);
    let pool = resets.connect_with(options).await.unwrap();
    PostgresOptions::from_pool(&pool).migrate().await.unwrap();
    let locks = Locks::new(Postgres::from_pool(&pool).await.unwrap());
    for _ in 0..5 {
        let (one, other) = (read(&locks, "k").await, read(&locks, "k").await);
        is_error(once(&locks, "k").acquire().await, ErrorKind::Busy, &[]);
        one.release().await.unwrap();
        other.release().await.unwrap();
        locks.lock("k").with_fairness(true).acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(server.held(), 0);
}
