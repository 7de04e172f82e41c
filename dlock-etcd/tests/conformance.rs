//! The conformance suite on a single server, and on a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::Result;
use dlock_etcd::Etcd;
use dlock_rig::servers::ServerError;
use dlock_rig::servers::etcd::{EtcdCluster, EtcdServer};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};

/// Locks on servers that all cases share, apart from those of other cases by their prefix.
struct OnServers {
    url: Arc<str>,
    prefix: String,
}

impl Harness for OnServers {
    type Backend = Etcd;

    async fn open(&self) -> Result<Etcd> {
        Etcd::builder(&self.url).with_prefix(&self.prefix).connect().await
    }

    /// The servers count leases in whole seconds, and grant none below two.
    fn lease(&self) -> Duration {
        Duration::from_secs(4)
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[conformance::CARRYING, conformance::CARRYING_SHARES, conformance::SESSIONS]
    }
}

fn suite(topology: &str, url: String) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), AtomicU32::new(0));
    conformance::tests(topology, move || {
        let prefix = format!("case{}", cases.fetch_add(1, Ordering::Relaxed));
        OnServers { url: Arc::clone(&url), prefix }
    })
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let wanted = |suite| conformance::is_wanted(&arguments, suite);
    let mut tests = Vec::new();
    let single = wanted("single").then(EtcdServer::start).transpose()?;
    if let Some(server) = &single {
        tests.extend(suite("single", server.url()));
    }
    let cluster = wanted("cluster").then(EtcdCluster::start).transpose()?;
    if let Some(servers) = &cluster {
        tests.extend(suite("cluster", servers.url()));
    }
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, cluster));
    conclusion.exit()
}
