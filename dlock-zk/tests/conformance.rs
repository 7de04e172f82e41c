//! The conformance suite on a single server, on an ensemble, and on a quorum of three independent servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::Result;
use dlock_quorum::Quorum;
use dlock_rig::servers::ServerError;
use dlock_rig::servers::zookeeper::{ZooKeeperEnsemble, ZooKeeperServer};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_zk::{Recipe, ZooKeeper};

/// Locks on servers that all cases share, apart from those of other cases by their base.
struct OnServers {
    url: Arc<str>,
    base: String,
    recipe: Recipe,
}

impl Harness for OnServers {
    type Backend = ZooKeeper;

    async fn open(&self) -> Result<ZooKeeper> {
        let builder = ZooKeeper::builder(&self.url).with_base(&self.base).with_recipe(self.recipe);
        builder.with_session_timeout(Duration::from_secs(20)).connect().await
    }

    /// A session keeps the locks; the lease only bounds the requests.
    fn lease(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        match self.recipe {
            Recipe::Mutex => &[
                conformance::LEASES,
                conformance::CARRYING,
                conformance::CARRYING_SHARES,
                conformance::SESSIONS,
            ],
            _ => &[
                conformance::LEASES,
                conformance::CARRYING,
                conformance::SESSIONS,
                conformance::CARRYING_SHARES,
                conformance::PERMITS,
            ],
        }
    }
}

/// Locks on a majority of independent servers. They never forget.
struct OnMajority {
    urls: Arc<[String]>,
    base: String,
}

impl Harness for OnMajority {
    type Backend = Quorum;

    async fn open(&self) -> Result<Quorum> {
        let mut nodes = Vec::new();
        for url in self.urls.iter() {
            let builder = ZooKeeper::builder(url).with_base(&self.base);
            nodes.push(builder.with_session_timeout(Duration::from_secs(20)).connect().await?);
        }
        Quorum::builder(nodes).with_node_timeout(Duration::from_secs(2)).build()
    }

    fn lease(&self) -> Duration {
        Duration::from_secs(3)
    }

    fn tries_can_split(&self) -> bool {
        true
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[
            conformance::LEASES,
            conformance::WITH_FENCES,
            conformance::WAITERS,
            conformance::SHARING,
            conformance::DOWNGRADING,
            conformance::PERMITS,
            conformance::FAIRNESS,
            conformance::LEAVING,
            conformance::CARRYING,
            conformance::SESSIONS,
            conformance::CARRYING_SHARES,
        ]
    }
}

fn on_majority(servers: &[ZooKeeperServer]) -> Vec<Trial> {
    let (urls, cases) = (servers.iter().map(ZooKeeperServer::url).collect::<Arc<[_]>>(), AtomicU32::new(0));
    conformance::tests("quorum", move || {
        let base = format!("/case{}", cases.fetch_add(1, Ordering::Relaxed));
        OnMajority { urls: Arc::clone(&urls), base }
    })
}

fn suite(topology: &str, url: String, recipe: Recipe) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), AtomicU32::new(0));
    conformance::tests(topology, move || {
        let base = format!("/case{}", cases.fetch_add(1, Ordering::Relaxed));
        OnServers { url: Arc::clone(&url), base, recipe }
    })
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let wanted = |suite| conformance::is_wanted(&arguments, suite);
    let mut tests = Vec::new();
    let single = wanted("single").then(ZooKeeperServer::start).transpose()?;
    if let Some(server) = &single {
        tests.extend(suite("single", server.url(), Recipe::Mutex));
    }
    let ensemble = wanted("ensemble").then(ZooKeeperEnsemble::start).transpose()?;
    if let Some(servers) = &ensemble {
        tests.extend(suite("ensemble", servers.url(), Recipe::ReadWriteLock));
    }
    let servers = if wanted("quorum") { 3 } else { 0 };
    let servers =
        (0..servers).map(|_| ZooKeeperServer::start()).collect::<std::result::Result<Vec<_>, _>>()?;
    if !servers.is_empty() {
        tests.extend(on_majority(&servers));
    }
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, ensemble, servers));
    conclusion.exit()
}
