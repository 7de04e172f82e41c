//! The conformance suite on a single server, on a cluster, under sentinels, and on a quorum of five.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::{MAX_LEASE, Result};
use dlock_quorum::Quorum;
use dlock_redis::{Recipe, Redis};
use dlock_rig::servers::ServerError;
use dlock_rig::servers::redis::{RedisCluster, RedisSentinel, RedisServer};
use dlock_testkit::BatchOfOne;
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};

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

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[conformance::WAITERS]
    }
}

fn suite(topology: &str, url: String) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), Arc::new(AtomicU32::new(0)));
    let on_servers = move || {
        let prefix = format!("case{}:", cases.fetch_add(1, Ordering::Relaxed));
        OnServers { url: Arc::clone(&url), prefix }
    };
    let mut tests = conformance::tests(topology, on_servers.clone());
    if topology != "sentinel" {
        // Under sentinels it is the same single master.
        let name = format!("{topology}_batch_of_one");
        tests.extend(conformance::tests(&name, move || ByBatches(on_servers())));
    }
    tests
}

/// The same, every lock as a batch of one.
struct ByBatches(OnServers);

impl Harness for ByBatches {
    type Backend = BatchOfOne<Redis>;

    async fn open(&self) -> Result<Self::Backend> {
        Ok(BatchOfOne::of_exclusive_locks(self.0.open().await?))
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[
            conformance::WAITERS,
            conformance::SHARING,
            conformance::DOWNGRADING,
            conformance::PERMITS,
            conformance::FAIRNESS,
            conformance::CARRYING_SHARES,
            conformance::SESSIONS_BESIDE_SHARES,
        ]
    }
}

/// Locks in the forms of Redisson, with the cases that are about more than an exclusive lock.
struct WithRedisson {
    of: OnServers,
    recipe: Recipe,
}

impl Harness for WithRedisson {
    type Backend = Redis;

    async fn open(&self) -> Result<Redis> {
        let builder = Redis::builder(&self.of.url).with_prefix(&self.of.prefix);
        builder.with_redisson(true).with_recipe(self.recipe).connect().await
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        match self.recipe {
            Recipe::Lock => &[
                conformance::WAITERS,
                conformance::SHARING,
                conformance::DOWNGRADING,
                conformance::LEAVING,
                conformance::CARRYING,
                conformance::SESSIONS,
                conformance::CARRYING_SHARES,
                IN_LINE_BESIDE_READERS,
            ],
            _ => &[
                conformance::WAITERS,
                conformance::FAIRNESS,
                conformance::LEAVING,
                conformance::CARRYING,
                conformance::SESSIONS,
                conformance::CARRYING_SHARES,
            ],
        }
    }
}

fn with_redisson(topology: &str, url: String) -> Vec<Trial> {
    let (url, cases) = (Arc::<str>::from(url), Arc::new(AtomicU32::new(0)));
    let of = move |recipe| {
        let (url, cases) = (Arc::clone(&url), Arc::clone(&cases));
        move || {
            let prefix = format!("redisson{}:", cases.fetch_add(1, Ordering::Relaxed));
            WithRedisson { of: OnServers { url: Arc::clone(&url), prefix }, recipe }
        }
    };
    let mut tests = conformance::tests(&format!("{topology}_redisson_lock"), of(Recipe::Lock));
    let lists = [conformance::PERMITS, conformance::FAIRNESS, EXCLUSIVE];
    tests.retain(|test| is_listed(test, &lists) && !is_listed(test, &[JUMPED]));
    let mut readers =
        conformance::tests(&format!("{topology}_redisson_read_write"), of(Recipe::ReadWriteLock));
    readers.retain(|test| is_listed(test, &[conformance::SHARING, conformance::DOWNGRADING, EXCLUSIVE]));
    tests.extend(readers);
    tests
}

/// What a recipe without readers cannot have of fair locks.
const IN_LINE_BESIDE_READERS: &[&str] = &[
    "a_waiter_in_line_has_its_turn_between_readers_that_never_stop",
    "a_waiter_in_line_and_a_writer_that_wait_for_a_reader_both_come_in",
    "the_last_reader_leaves_the_lock_to_those_in_line",
];

/// An `RLock` jumps the line of an `RFairLock`.
const JUMPED: &[&str] = &["a_waiter_in_line_has_its_turn_between_writers_that_do_not_ask_for_theirs"];

/// What is about an exclusive lock, and differs most from one form to the other.
const EXCLUSIVE: &[&str] = &[
    "no_case_is_left_out_unnoticed",
    "every_grant_has_a_higher_fence_than_the_one_before",
    "a_waiter_takes_over_when_the_holder_goes_silent",
    "a_lock_released_by_force_is_free_for_others",
    "the_list_of_holders_has_every_lock_that_is_held_and_no_other",
];

fn is_listed(test: &Trial, lists: &[&[&str]]) -> bool {
    let name = test.name().rsplit("::").next().unwrap_or_default();
    lists.iter().any(|list| list.contains(&name))
}

/// Locks on a majority of independent servers, which are asked whether they forget.
struct OnMajority {
    urls: Arc<[String]>,
    prefix: String,
}

impl Harness for OnMajority {
    type Backend = Quorum;

    async fn open(&self) -> Result<Quorum> {
        let mut nodes = Vec::new();
        for url in self.urls.iter() {
            nodes.push(Redis::builder(url).with_prefix(&self.prefix).connect().await?);
        }
        let builder = Quorum::builder(nodes).with_longest_lease(MAX_LEASE);
        let quorum = builder.with_node_timeout(Duration::from_secs(2)).build()?;
        quorum.bootstrap().await?;
        Ok(quorum)
    }

    /// Each request is five, on a machine that runs the servers too.
    fn lease(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn tries_can_split(&self) -> bool {
        true
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[
            conformance::WITH_FENCES,
            conformance::WAITERS,
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

fn on_majority(servers: &[RedisServer]) -> Vec<Trial> {
    let (urls, cases) = (servers.iter().map(RedisServer::url).collect::<Arc<[_]>>(), AtomicU32::new(0));
    conformance::tests("quorum", move || {
        let prefix = format!("case{}:", cases.fetch_add(1, Ordering::Relaxed));
        OnMajority { urls: Arc::clone(&urls), prefix }
    })
}

/// What one server, or several that are one, are asked for.
fn suites(of: &str) -> [String; 4] {
    ["", "_batch_of_one", "_redisson_lock", "_redisson_read_write"].map(|of_it| format!("{of}{of_it}"))
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let wanted = |of: &str| suites(of).iter().any(|suite| conformance::is_wanted(&arguments, suite));
    let mut tests = Vec::new();
    let single = wanted("single").then(RedisServer::start).transpose()?;
    if let Some(server) = &single {
        tests.extend(suite("single", server.url()));
        tests.extend(with_redisson("single", server.url()));
    }
    let cluster = wanted("cluster").then(RedisCluster::start).transpose()?;
    if let Some(servers) = &cluster {
        tests.extend(suite("cluster", servers.url()));
        tests.extend(with_redisson("cluster", servers.url()));
    }
    let watched = wanted("sentinel").then(RedisSentinel::start).transpose()?;
    if let Some(servers) = &watched {
        tests.extend(suite("sentinel", servers.url()));
    }
    let servers = if wanted("quorum") { 5 } else { 0 };
    let servers = (0..servers).map(|_| RedisServer::start()).collect::<std::result::Result<Vec<_>, _>>()?;
    if !servers.is_empty() {
        tests.extend(on_majority(&servers));
    }
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, cluster, watched, servers));
    conclusion.exit()
}
