//! The conformance suite on a single server, on an ensemble, and on a quorum of three independent servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::{Quorum, Result};
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

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[LEASES]
    }
}

/// What a lease does. The scenarios say what a session does instead.
const LEASES: &[&str] = &[
    "a_waiter_takes_over_when_the_holder_goes_silent",
    "the_shortest_and_the_longest_lease_work",
    "releasing_a_lock_that_was_deleted_is_not_held",
    "a_release_that_gets_no_answer_ends_and_is_made_up_for",
    "a_release_does_not_wait_for_a_renewal_that_hangs",
    "a_forgotten_guard_ends_by_max_hold",
    "a_lost_lock_is_not_entered_again",
    "a_deleted_lock_is_noticed_by_the_next_renewal",
    "a_loss_is_final_for_the_guard_and_its_views",
    "a_holder_that_cannot_renew_knows_before_anybody_else_gets_in",
    "a_late_renewal_is_announced_before_the_loss",
    "releasing_after_a_loss_is_not_held_and_leaves_the_successor_alone",
    "dropping_after_a_loss_leaves_the_successor_alone",
    "a_body_is_dropped_when_its_lock_is_lost",
    "a_body_that_asked_to_continue_runs_on_and_is_told",
    "after_a_loss_the_same_process_takes_the_key_again_and_renews_it",
    "max_hold_ends_a_lock_that_is_in_use",
    "losing_one_lock_leaves_the_others_of_the_process",
    "renewal_keeps_a_lock_for_many_leases",
    "many_locks_are_renewed_side_by_side",
    "a_blocked_runtime_does_not_lose_the_lock",
    "a_runtime_that_is_gone_does_not_lose_the_lock",
    "an_outage_shorter_than_the_lease_loses_nothing",
    "a_renewal_whose_reply_is_lost_is_made_again",
    "nothing_is_renewed_after_the_release",
    "what_remains_never_exceeds_the_lease",
    "a_nested_release_does_not_end_the_renewal",
    "a_long_hold_is_renewed_in_time_every_time",
    "a_fence_grows_after_the_lease_ran_out",
    "a_fence_grows_after_the_lock_was_deleted",
    "a_fence_stays_the_same_while_the_lock_is_renewed",
    "a_register_refuses_a_holder_that_was_overtaken",
    "a_stalled_request_that_arrives_late_leaves_no_lock",
    "an_acquire_on_a_backend_that_hangs_comes_to_an_end",
    "a_grant_that_comes_after_a_pause_counts_from_its_first_request",
    "what_the_holder_has_left_is_not_more_than_the_lease",
    "an_expired_lock_has_no_place_in_the_list",
];

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

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        &[LEASES, conformance::WITH_FENCES, conformance::ADMINISTRATION, conformance::WAITERS]
    }
}

fn on_majority(servers: &[ZooKeeperServer]) -> Vec<Trial> {
    let (urls, cases) = (servers.iter().map(ZooKeeperServer::url).collect::<Arc<[_]>>(), AtomicU32::new(0));
    conformance::tests("quorum", move || {
        let base = format!("/case{}", cases.fetch_add(1, Ordering::Relaxed));
        OnMajority { urls: Arc::clone(&urls), base }
    })
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
    let servers = (0..3).map(|_| ZooKeeperServer::start()).collect::<std::result::Result<Vec<_>, _>>()?;
    tests.extend(on_majority(&servers));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((single, ensemble, servers));
    conclusion.exit()
}
