//! The conformance suite on a single server, on a cluster, and under sentinels.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dlock_core::Result;
use dlock_redis::Redis;
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_testkit::servers::ServerError;
use dlock_testkit::servers::redis::{RedisCluster, RedisSentinel, RedisServer};

/// Locks on servers that all cases share, apart from those of other cases by their prefix.
struct OnServers {
    url: Arc<str>,
    prefix: String,
}

impl Harness for OnServers {
    type Backend = Redis;

    async fn open(&self) -> Result<Redis> {
        Redis::builder(&self.url).with_prefix(&self.prefix).connect().await
    }

    fn left_out(&self) -> &'static [&'static str] {
        conformance::WAITERS
    }
}

fn suite(topology: &str, url: String) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), AtomicU32::new(0));
    conformance::tests(topology, move || {
        let prefix = format!("case{}:", cases.fetch_add(1, Ordering::Relaxed));
        OnServers { url: Arc::clone(&url), prefix }
    })
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let single = RedisServer::start()?;
    let cluster = RedisCluster::start()?;
    let watched = RedisSentinel::start()?;
    let mut tests = suite("single", single.url());
    tests.extend(suite("cluster", cluster.url()));
    tests.extend(suite("sentinel", watched.url()));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, cluster, watched));
    conclusion.exit()
}
