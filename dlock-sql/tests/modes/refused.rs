//! What locks by sessions and locked rows refuse, at once and by a typed error.

use dlock_core::{Backend, ErrorKind, Locks, Requirement};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{MysqlRowLocks, MysqlSessions, PostgresRowLocks, PostgresSessions};

async fn refuses(backend: impl Backend, name: &str, also: &[Requirement]) {
    let locks = Locks::new(backend);
    for requirement in [&[Requirement::Permits], also].concat() {
        let error = locks.require(&[requirement]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
    }
    let reads = locks.lock("k").read().try_acquire().await.map(drop);
    assert_eq!(reads.is_err(), also.contains(&Requirement::Shared), "{name}: {reads:?}");
    let tried = [
        reads.and_then(|()| locks.require(&[Requirement::Permits])),
        locks.lock("k").with_fairness(true).try_acquire().await.map(drop),
        locks.semaphore("s", 2).acquire().await.map(drop),
    ];
    for refused in tried {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
    }
    // The lock that is held alone is as it was, and stays so.
    let mut guard = locks.lock("k").acquire().await.unwrap();
    match guard.downgrade().await {
        Ok(()) => assert!(!also.contains(&Requirement::Downgrade), "{name}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}"),
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn readers_permits_and_turns_are_refused_on_postgres_before_anything_is_taken() {
    let server = PostgresServer::start().unwrap();
    let url = format!("{}&migrate=true", server.url());
    refuses(PostgresSessions::connect(&url).await.unwrap(), "sessions", &[]).await;
    refuses(PostgresRowLocks::connect(&url).await.unwrap(), "locked rows", &[Requirement::Downgrade]).await;
}

#[tokio::test]
async fn readers_permits_and_turns_are_refused_on_mariadb_before_anything_is_taken() {
    let server = MysqlServer::start().unwrap();
    let url = format!("{}?migrate=true", server.url());
    refuses(
        MysqlSessions::connect(&url).await.unwrap(),
        "sessions",
        &[Requirement::Shared, Requirement::Downgrade],
    )
    .await;
    refuses(MysqlRowLocks::connect(&url).await.unwrap(), "locked rows", &[Requirement::Downgrade]).await;
}
