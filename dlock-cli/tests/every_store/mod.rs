//! All stores, each with a server of its own, for tests of a process that is short of something for a while.

// Each test target uses a part of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use dlock::{Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;

/// Longer than anything takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct EveryStore {
    pub(crate) urls: Vec<String>,
    _directory: tempfile::TempDir,
    _servers: (RedisServer, ZooKeeperServer, PostgresServer, MysqlServer),
}

impl EveryStore {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (redis, zookeeper) = (RedisServer::start().unwrap(), ZooKeeperServer::start().unwrap());
        let (postgres, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
        let mut urls = vec![
            format!("sqlite://{}", directory.path().join("locks.db").display()),
            redis.url(),
            zookeeper.url(),
            format!("quorum:{0}/1|{0}/2|{0}/3|?durable=true", redis.url().trim_end_matches('/')),
        ];
        for mode in ["lease", "session", "row"] {
            urls.push(format!("{}&table=public.dlock&migrate=true&mode={mode}", postgres.url()));
            urls.push(format!("{}?table=locks.dlock&migrate=true&mode={mode}", mysql.url()));
        }
        Self { urls, _directory: directory, _servers: (redis, zookeeper, postgres, mysql) }
    }
}

/// A lock can be taken and released, at once or after a while.
pub(crate) async fn works(url: &str, locks: &Locks) {
    let since = Instant::now();
    loop {
        match locks.lock("k").with_wait(Wait::No).acquire().await {
            Ok(guard) => break guard.release().await.unwrap(),
            Err(error) => assert!(error.is_retryable() && since.elapsed() < LIMIT, "{url}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
