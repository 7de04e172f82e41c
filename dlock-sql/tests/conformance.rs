//! The conformance suite on the database servers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Backend, Result};
use dlock_sql::{
    Mysql, MysqlOptions, MysqlRowLocks, MysqlSessions, Postgres, PostgresOptions, PostgresRowLocks,
    PostgresSessions,
};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_testkit::servers::ServerError;
use dlock_testkit::servers::mysql::MysqlServer;
use dlock_testkit::servers::postgres::PostgresServer;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

/// How each process of a case connects, with this URL.
trait Way: Send + Sync + 'static {
    type Backend: Backend;
    /// The cases that need what it cannot do.
    const LEFT_OUT: &'static [&'static [&'static str]] = &[conformance::WAITERS];

    fn connect(url: &str) -> impl Future<Output = Result<Self::Backend>> + Send;
}

/// Locks on a server that all cases share; their keys are different.
struct OnServer<W> {
    url: Arc<str>,
    way: std::marker::PhantomData<W>,
}

impl<W: Way> Harness for OnServer<W> {
    type Backend = W::Backend;

    async fn open(&self) -> Result<W::Backend> {
        W::connect(&self.url).await
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(1_800)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(240)
    }

    fn left_out(&self) -> &'static [&'static [&'static str]] {
        W::LEFT_OUT
    }
}

/// What a lease does. A connection keeps these locks; the tests of the modes say what it does instead.
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
];

struct PostgresUrl;
struct PostgresPool;
struct PostgresSession;
struct PostgresRow;
struct MysqlUrl;
struct MysqlPool;
struct MysqlSession;
struct MysqlRow;

impl Way for PostgresUrl {
    type Backend = Postgres;

    async fn connect(url: &str) -> Result<Postgres> {
        Postgres::connect(url).await
    }
}

impl Way for PostgresPool {
    type Backend = Postgres;

    async fn connect(url: &str) -> Result<Postgres> {
        let pool = PgPoolOptions::new().max_connections(8).connect_lazy(url).expect("a URL");
        Postgres::from_pool(&pool).await
    }
}

impl Way for MysqlUrl {
    type Backend = Mysql;

    async fn connect(url: &str) -> Result<Mysql> {
        Mysql::connect(url).await
    }
}

impl Way for MysqlPool {
    type Backend = Mysql;

    async fn connect(url: &str) -> Result<Mysql> {
        let pool = MySqlPoolOptions::new().max_connections(8).connect_lazy(url).expect("a URL");
        Mysql::from_pool(&pool).await
    }
}

/// How many rows one process of a case locks at a time.
const LOCKED_AT_ONCE: u32 = 120;

impl Way for PostgresSession {
    type Backend = PostgresSessions;
    const LEFT_OUT: &'static [&'static [&'static str]] =
        &[LEASES, conformance::ADMINISTRATION, conformance::WAITERS];

    async fn connect(url: &str) -> Result<PostgresSessions> {
        PostgresSessions::connect(url).await
    }
}

impl Way for MysqlSession {
    type Backend = MysqlSessions;
    const LEFT_OUT: &'static [&'static [&'static str]] =
        &[LEASES, conformance::ADMINISTRATION, conformance::WAITERS];

    async fn connect(url: &str) -> Result<MysqlSessions> {
        MysqlSessions::connect(url).await
    }
}

impl Way for PostgresRow {
    type Backend = PostgresRowLocks;
    const LEFT_OUT: &'static [&'static [&'static str]] =
        &[LEASES, conformance::ADMINISTRATION, conformance::WAITERS];

    async fn connect(url: &str) -> Result<PostgresRowLocks> {
        let options = PostgresOptions::from_url(url)?.with_max_connections(LOCKED_AT_ONCE);
        PostgresRowLocks::with_options(options).await
    }
}

impl Way for MysqlRow {
    type Backend = MysqlRowLocks;
    const LEFT_OUT: &'static [&'static [&'static str]] =
        &[LEASES, conformance::ADMINISTRATION, conformance::WAITERS];

    async fn connect(url: &str) -> Result<MysqlRowLocks> {
        let options = MysqlOptions::from_url(url)?.with_max_connections(LOCKED_AT_ONCE);
        MysqlRowLocks::with_options(options).await
    }
}

fn suite<W: Way>(name: &str, _: W, url: String) -> Vec<Trial> {
    let url = Arc::<str>::from(url);
    conformance::tests(name, move || OnServer::<W> { url: Arc::clone(&url), way: std::marker::PhantomData })
}

#[tokio::main(flavor = "current_thread")]
async fn migrate(postgres: &str, mysql: &str) -> Result<()> {
    PostgresOptions::from_url(postgres)?.migrate().await?;
    MysqlOptions::from_url(mysql)?.migrate().await
}

fn main() -> std::result::Result<(), ServerError> {
    let arguments = Arguments::from_args();
    let postgres = PostgresServer::options().setting("max_connections", "500").start()?;
    let mysql = MysqlServer::options().setting("max-connections", "500").start()?;
    migrate(&postgres.url(), &mysql.url()).unwrap_or_else(|error| panic!("{error}"));
    let mut tests = suite("postgres", PostgresUrl, postgres.url());
    tests.extend(suite("postgres-pool", PostgresPool, postgres.url()));
    tests.extend(suite("postgres-session", PostgresSession, postgres.url()));
    tests.extend(suite("postgres-row", PostgresRow, postgres.url()));
    tests.extend(suite("mysql", MysqlUrl, mysql.url()));
    tests.extend(suite("mysql-pool", MysqlPool, mysql.url()));
    tests.extend(suite("mysql-session", MysqlSession, mysql.url()));
    tests.extend(suite("mysql-row", MysqlRow, mysql.url()));
    // Over a pool the statements are the same: different keys need not be tried out again. And so many rows as that would take
    // are not locked at once, since each needs a connection.
    let many_keys =
        ["-pool::generated_keys_are_all_different_locks", "-row::generated_keys_are_all_different_locks"];
    tests.retain(|test| !many_keys.iter().any(|case| test.name().ends_with(case)));
    let conclusion = conformance::run(&arguments, tests);
    // `exit` would leave the servers behind.
    drop((postgres, mysql));
    conclusion.exit()
}
