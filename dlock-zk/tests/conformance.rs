//! The conformance suite on a single server and on an ensemble.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::Result;
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_testkit::servers::ServerError;
use dlock_testkit::servers::zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};
use dlock_zk::ZooKeeper;

/// Locks on servers that all cases share, apart from those of other cases by their base.
struct OnServers {
    url: Arc<str>,
    base: String,
}

impl Harness for OnServers {
    type Backend = ZooKeeper;

    async fn open(&self) -> Result<ZooKeeper> {
        let builder = ZooKeeper::builder(&self.url).with_base(&self.base);
        builder.with_session_timeout(Duration::from_secs(20)).connect().await
    }

    /// A session keeps the locks; the lease only bounds the requests.
    fn lease(&self) -> Duration {
        Duration::from_secs(3)
    }
}

fn suite(topology: &str, url: String) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), AtomicU32::new(0));
    conformance::tests(topology, move || {
        let base = format!("/case{}", cases.fetch_add(1, Ordering::Relaxed));
        OnServers { url: Arc::clone(&url), base }
    })
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let single = ZooKeeperServer::start()?;
    let ensemble = ZooKeeperEnsemble::start()?;
    let mut tests = suite("single", single.url());
    tests.extend(suite("ensemble", ensemble.url()));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, ensemble));
    conclusion.exit()
}
