//! Proxies that pool transactions, and do not know prepared statements.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_rig::servers::pgbouncer::PgBouncer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Postgres, PostgresOptions};

use crate::support::{Db, is_error, once, take, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_rows_work_behind_a_pooler_without_prepared_statements() {
    let server = <PostgresServer as Db>::start();
    let pooler = PgBouncer::start(&server).unwrap();
    let url = format!("{}&statements=simple&migrate=true", pooler.url());
    let backend = Postgres::connect(&url).await.unwrap();
    let locks = Locks::builder(backend.clone())
        .with_lease(Duration::from_secs(2))
        .with_label("it's \\ a \"label\" $1");
    let locks = locks.with_wait(Duration::from_secs(20)).build().unwrap();
    let kept: Vec<_> =
        [take(&locks, "'; DROP TABLE dlock; --").await, take(&locks, "$1 zürich \\ 🔒").await].into();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..10 {
                    take(&locks, "a").await.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let renewals = locks.stats().renewals;
    until("renewals", || locks.stats().renewals >= renewals + 4).await;
    let theirs = Locks::new(Postgres::connect(&server.url()).await.unwrap());
    for guard in kept {
        guard.check().unwrap();
        is_error(once(&theirs, guard.key()).acquire().await, ErrorKind::Busy, &[]);
        let holder = locks.inspect(guard.key()).await.unwrap().unwrap();
        assert_eq!((holder.fence, holder.label.as_deref()), (guard.fence(), Some("it's \\ a \"label\" $1")));
        guard.release().await.unwrap();
    }
    assert_eq!(locks.holders().await.unwrap(), []);
    server.age("a");
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(server.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_is_restarted_costs_no_lock() {
    let server = <PostgresServer as Db>::start();
    let mut pooler = PgBouncer::start(&server).unwrap();
    let backend =
        Postgres::connect(&format!("{}&statements=simple&migrate=true", pooler.url())).await.unwrap();
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(6)).with_wait(Duration::from_secs(20));
    let locks = locks.build().unwrap();
    let guard = take(&locks, "a").await;
    for _ in 0..2 {
        pooler.restart().unwrap();
        assert_eq!(locks.inspect("a").await.unwrap().unwrap().fence, guard.fence());
        take(&locks, "b").await.release().await.unwrap();
        let renewals = locks.stats().renewals;
        until("a renewal through the new one", || locks.stats().renewals > renewals).await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(server.held(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simple_statements_are_one_message_each() {
    let server = <PostgresServer as Db>::start();
    server.backend().await;
    let proxy = server.proxy();
    let options = PostgresOptions::from_url(&server.url_through(proxy.address())).unwrap();
    let locks = Locks::new(options.with_simple_statements(true).connect().await.unwrap());
    take(&locks, "a").await.release().await.unwrap();
    // What is asked next is one message, whose reply is the grant.
    proxy.lose_reply(1, "QUERY", dlock_rig::proxy::Loss::Cut);
    let guard = take(&locks, "a").await;
    assert_eq!((proxy.lost(), locks.stats().rechecks), (1, 1), "the grant was adopted");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simple_statements_list_and_prune_however_the_database_writes_bytes() {
    let server = <PostgresServer as Db>::start();
    server.query("ALTER DATABASE postgres SET bytea_output = 'escape'");
    let backend =
        Postgres::connect(&format!("{}&migrate=true&statements=simple", server.url())).await.unwrap();
    let locks = Locks::new(backend.clone());
    let key = "a\\b\tc 🔒";
    let guard = take(&locks, key).await;
    let held = locks.holders().await.unwrap();
    assert_eq!(held.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), [key]);
    guard.release().await.unwrap();
    take(&locks, "old").await.release().await.unwrap();
    server.age("old");
    assert_eq!(backend.prune(Duration::ZERO).await.unwrap(), 1);
}
