//! What is sent to PostgreSQL, and statements that it has prepared.

use dlock_core::Locks;
use dlock_rig::proxy::{Pgwire, Proxy};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresRowLocks, PostgresSessions};

async fn pair(locks: &Locks) {
    let guard = locks.lock("a").acquire().await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_row_that_nobody_else_wants_costs_two_messages() {
    let server = PostgresServer::start().unwrap();
    let proxy = Proxy::speaking(Pgwire::default(), (*server).address()).unwrap();
    let url = format!("{}&migrate=true", server.url_through(proxy.address()));
    let locks = Locks::new(PostgresRowLocks::connect(&url).await.unwrap());
    pair(&locks).await;
    let sent = || proxy.requests().values().sum::<u64>();
    let before = sent();
    for _ in 0..10 {
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!(sent() - before, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_taken_after_their_table_was_altered() {
    let server = PostgresServer::start().unwrap();
    let url = format!("{}&migrate=true", server.url());
    let all = [
        Locks::new(Postgres::connect(&url).await.unwrap()),
        Locks::new(PostgresSessions::connect(&url).await.unwrap()),
        Locks::new(PostgresRowLocks::connect(&url).await.unwrap()),
    ];
    // Until the server has kept the plans of what it has prepared.
    for _ in 0..8 {
        for locks in &all {
            pair(locks).await;
        }
    }
    server.query("ALTER TABLE dlock ALTER holder TYPE varchar(2000)");
    for locks in &all {
        pair(locks).await;
    }
}
