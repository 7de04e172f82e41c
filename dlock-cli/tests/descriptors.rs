//! A process that has no descriptor left for a while. A program of its own, since the limit is that of the process.
#![cfg(target_os = "linux")]

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use dlock::{Error, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Longer than anything takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Nothing can be opened as long as this lives.
struct NoneLeft {
    limit: Rlimit,
    /// What became free in between, and is kept.
    _kept: Vec<std::fs::File>,
}

impl NoneLeft {
    fn now() -> Self {
        let limit = getrlimit(Resource::Nofile);
        // The lowest number that is free is the next one; those above are not given out either.
        let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
        let current = Some(u64::try_from(next).unwrap());
        setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum }).unwrap();
        let mut kept = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            kept.push(file);
        }
        Self { limit, _kept: kept }
    }
}

impl Drop for NoneLeft {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.limit).unwrap();
    }
}

fn passes(what: &str, error: &Error) {
    assert!(error.is_retryable(), "{what}: {error}");
}

async fn works(what: &str, locks: &Locks) {
    let since = Instant::now();
    loop {
        match locks.lock("k").with_wait(Wait::No).acquire().await {
            Ok(guard) => break guard.release().await.unwrap(),
            Err(error) => {
                passes(what, &error);
                assert!(since.elapsed() < LIMIT, "{what}: {error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_passing_lack_of_descriptors_at_the_first_use_is_a_retryable_error_and_leaves_nothing_broken() {
    // Of the process: dlock's own threads.
    let none_left = NoneLeft::now();
    let error = dlock::connect("memory:").await.map(drop).unwrap_err();
    drop(none_left);
    passes("memory", &error);
    works("memory", &dlock::connect("memory:").await.unwrap()).await;

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
    // Not each one is refused: a connection that ends meanwhile leaves its descriptor to the next.
    let mut refusals = 0;
    for url in &urls {
        // At the start, and what was there is used again.
        let none_left = NoneLeft::now();
        let refused = dlock::connect(url).await;
        drop(none_left);
        if let Err(error) = &refused {
            passes(url, error);
            refusals += 1;
        }
        drop(refused);
        let locks = dlock::connect(url).await.unwrap();
        works(url, &locks).await;
        // Nothing of it is closed while there is none left.
        locks.shutdown(LIMIT).await.unwrap();
        drop(locks);
        if url.starts_with("sqlite") {
            continue;
        }
        // At the first use of what was built before.
        let more = if url.contains('?') { "&" } else { "?" };
        let locks = dlock::connect(&format!("{url}{more}connect=lazy")).await.unwrap();
        let none_left = NoneLeft::now();
        for _ in 0..3 {
            if let Err(error) = locks.lock("k").try_acquire().await {
                passes(url, &error);
                refusals += 1;
            }
        }
        drop(none_left);
        works(url, &locks).await;
        locks.shutdown(LIMIT).await.unwrap();
    }
    assert!(refusals >= urls.len(), "{refusals} of {urls:?}");
}
