//! Locks by a URL whose servers are started later than the program.

use std::time::{Duration, Instant};

use dlock::{ErrorKind, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

async fn is_away(locks: &Locks, kind: ErrorKind) {
    assert_eq!(locks.ping().await.unwrap_err().kind(), kind);
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    assert!(error.kind() == kind && error.is_retryable(), "{error}");
    assert_eq!(locks.inspect("k").await.unwrap_err().kind(), kind);
}

async fn comes_up(locks: &Locks) {
    let since = Instant::now();
    while let Err(error) = locks.ping().await {
        assert!(since.elapsed() < LIMIT && error.is_retryable(), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let guard = locks.lock("k").with_wait(LIMIT).acquire().await.unwrap();
    assert!(locks.inspect("k").await.unwrap().is_some());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_program_starts_while_redis_is_away_and_is_ready_when_it_is() {
    let mut server = RedisServer::start().unwrap();
    let url = format!("{}?connect=lazy", server.url());
    server.kill();
    let locks = dlock::connect(&url).await.unwrap();
    is_away(&locks, ErrorKind::Unavailable).await;
    server.restart().unwrap();
    comes_up(&locks).await;
}

#[tokio::test]
async fn a_program_starts_while_zookeeper_is_away_and_is_ready_when_it_is() {
    let mut server = ZooKeeperServer::start().unwrap();
    let url = format!("{}?connect=lazy", server.url());
    server.kill();
    let locks = dlock::connect(&url).await.unwrap();
    is_away(&locks, ErrorKind::Unavailable).await;
    server.restart().unwrap();
    comes_up(&locks).await;
}

/// In each mode. The table is made by whoever comes first.
async fn of_a_database(url: &str, mut kill: impl FnMut(), mut restart: impl FnMut()) {
    kill();
    for mode in ["lease", "session", "row"] {
        let locks = dlock::connect(&format!("{url}&connect=lazy&migrate=true&mode={mode}")).await.unwrap();
        is_away(&locks, ErrorKind::Unavailable).await;
        restart();
        comes_up(&locks).await;
        // The lock of who connected later is the one of who connected at once.
        let other = dlock::connect(&format!("{url}&mode={mode}")).await.unwrap();
        let guard = locks.lock("k").acquire().await.unwrap();
        assert_eq!(other.lock("k").try_acquire().await.unwrap().map(drop), None);
        guard.release().await.unwrap();
        kill();
    }
}

#[tokio::test]
async fn a_program_starts_while_postgresql_is_away_and_is_ready_when_it_is() {
    let server = std::cell::RefCell::new(PostgresServer::start().unwrap());
    let url = format!("{}&table=public.dlock", server.borrow().url());
    let restart = || server.borrow_mut().restart().unwrap();
    of_a_database(&url, || server.borrow_mut().kill(), restart).await;
}

#[tokio::test]
async fn a_program_starts_while_mariadb_is_away_and_is_ready_when_it_is() {
    let server = std::cell::RefCell::new(MysqlServer::start().unwrap());
    let url = format!("{}?table=locks.dlock", server.borrow().url());
    let restart = || server.borrow_mut().restart().unwrap();
    of_a_database(&url, || server.borrow_mut().kill(), restart).await;
}

#[tokio::test]
async fn a_table_of_another_version_is_found_out_by_the_first_use_and_never_locked_in() {
    let server = PostgresServer::start().unwrap();
    let url = format!("{}&table=public.dlock", server.url());
    drop(dlock::connect(&format!("{url}&migrate=true")).await.unwrap());
    server.query("UPDATE dlock SET holder = 'dlock table, version 2'");
    let locks = dlock::connect(&format!("{url}&connect=lazy")).await.unwrap();
    for _ in 0..2 {
        let error = locks.lock("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    }
    assert_eq!(server.query("SELECT count(*) FROM dlock"), "1");
    server.query("UPDATE dlock SET holder = 'dlock table, version 1'");
    comes_up(&locks).await;
}

#[tokio::test]
async fn a_quorum_by_url_starts_without_a_minority_and_lazily_without_any_node() {
    let mut servers = [(); 3].map(|()| RedisServer::start().unwrap());
    let nodes = servers.each_ref().map(RedisServer::url).join("|");
    servers[2].kill();
    let locks = dlock::connect(&format!("quorum:{nodes}|?durable=true")).await.unwrap();
    comes_up(&locks).await;
    assert!(locks.health().nodes[2].answered.is_none());
    servers[1].kill();
    let error = dlock::connect(&format!("quorum:{nodes}|?durable=true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuorumNotReached, "{error}");
    let later = dlock::connect(&format!("quorum:{nodes}|?durable=true&connect=lazy")).await.unwrap();
    is_away(&later, ErrorKind::QuorumNotReached).await;
    servers[1].restart().unwrap();
    servers[2].restart().unwrap();
    comes_up(&later).await;
    let guard = later.lock("k").acquire().await.unwrap();
    assert_eq!(locks.lock("k").try_acquire().await.unwrap().map(drop), None);
    guard.release().await.unwrap();
}
