//! The simulated stores answer as real servers do: the same random history of commands, on both.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim, Renewed};
use dlock_core::{Failure, Key, Result};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_sim::history::{Claimed, Said, Simulated};
use dlock_testkit::claim_request;
use fastrand::Rng;

const PROCESSES: usize = 3;
const KEYS: usize = 3;
const HISTORIES: u64 = 12;
const STEPS: usize = 60;
/// Never runs out in a test.
const LONG: Duration = Duration::from_secs(600);
/// Runs out when the history says so.
const SHORT: Duration = Duration::from_millis(60);

/// A claim on both.
struct OnBoth<C> {
    number: usize,
    claimed: Claimed,
    real: C,
    /// The fences of its last grant: the simulated one and the real one.
    fences: Option<(u64, u64)>,
}

/// A store and the server that has to answer the same.
struct Both<B: Backend> {
    backends: Vec<B>,
    simulated: Simulated,
    prefix: String,
    claims: Vec<OnBoth<B::Claim>>,
    begun: usize,
    /// The highest real fence of each key.
    highest: HashMap<usize, u64>,
    rng: Rng,
    story: Vec<String>,
}

/// Opens the store as a further process would.
trait Open: Sync {
    type Backend: Backend;

    fn open(&self) -> impl Future<Output = Result<Self::Backend>> + Send;
}

impl<B: Backend> Both<B> {
    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.prefix)
    }

    async fn begin(&mut self, lease: Duration) -> usize {
        let (process, key) = (self.rng.usize(..PROCESSES), self.rng.usize(..KEYS));
        let waits = self.rng.bool();
        let mut request = claim_request(&self.key(key), lease, waits).await.expect("the key is fine");
        // What belongs to so short a lease would end requests on a busy machine.
        request.request_timeout = Duration::from_secs(10);
        let lease = u64::try_from(lease.as_millis()).expect("it is short");
        let claimed = Claimed { process, key, token: request.token, lease, waits };
        let real = self.backends[process].claim(request);
        self.begun += 1;
        self.claims.push(OnBoth { number: self.begun, claimed, real, fences: None });
        self.claims.len() - 1
    }

    /// Both have answered: the same, but for the fences, which have to be the same grant on both, or a later one.
    fn compare(&mut self, at: Option<usize>, what: &str, real: Said, simulated: Said) {
        let who = at.map(|at| {
            let OnBoth { number, claimed: Claimed { process, key, .. }, .. } = &self.claims[at];
            format!("c{number} of p{process} on key {key}")
        });
        self.story.push(format!("{what} {}: {real:?}", who.unwrap_or_default()));
        match (real, simulated, at) {
            (Said::Granted(real), Said::Granted(simulated), Some(at)) => {
                let claim = &mut self.claims[at];
                let highest = self.highest.entry(claim.claimed.key).or_default();
                let is_new = claim.fences.is_none_or(|(before, _)| before != simulated);
                let is_right = match claim.fences {
                    Some((_, before)) if !is_new => real == before,
                    _ => real > *highest,
                };
                claim.fences = Some((simulated, real));
                *highest = real.max(*highest);
                assert!(is_right, "the fence is {real}, new: {is_new}\n{}", self.story.join("\n"));
            }
            (real, simulated, _) => {
                let story = self.story.join("\n");
                assert_eq!(real, simulated, "the server's answer, and the simulated one\n{story}");
            }
        }
    }

    async fn attempt(&mut self, at: usize) {
        let claim = &mut self.claims[at];
        let real = match answered(claim.real.attempt().await) {
            Attempt::Granted(grant) => Said::Granted(grant.fence.expect("it has fences").get()),
            Attempt::Busy(_) => Said::Busy,
        };
        let simulated = self.simulated.attempt(&claim.claimed);
        self.compare(Some(at), "attempt", real, simulated);
    }

    async fn renew(&mut self, at: usize) {
        let claim = &mut self.claims[at];
        let real = match answered(claim.real.renew().await) {
            Renewed::Extended => Said::Extended,
            Renewed::Gone => Said::Gone,
        };
        let simulated = self.simulated.renew(&claim.claimed);
        self.compare(Some(at), "renew", real, simulated);
    }

    /// A claim that was withdrawn is not used again, as the contract says.
    async fn withdraw(&mut self, at: usize) {
        let claim = &mut self.claims[at];
        let withdrawn = answered(claim.real.withdraw().await);
        assert!(withdrawn.settled, "nothing is on its way");
        let simulated = self.simulated.withdraw(&claim.claimed);
        // Of a place in line the contract does not say whether it counts as removed.
        let simulated = if claim.fences.is_none() { Said::Removed(withdrawn.removed) } else { simulated };
        self.compare(Some(at), "withdraw", Said::Removed(withdrawn.removed), simulated);
        self.claims.swap_remove(at);
    }

    async fn inspect(&mut self, at: usize) {
        let claimed = self.claims[at].claimed;
        let key = Key::new(self.key(claimed.key)).expect("the key is fine");
        let holder = answered(self.backends[claimed.process].inspect(&key).await);
        let simulated = self.simulated.inspect(&claimed);
        self.compare(None, "inspect", Said::Held(holder.is_some()), simulated);
    }

    /// A lease that begins and runs out, with nothing in between.
    async fn run_out(&mut self) {
        let at = self.begin(SHORT).await;
        self.attempt(at).await;
        tokio::time::sleep(SHORT * 2).await;
        self.simulated.pass(2 * u64::try_from(SHORT.as_millis()).expect("it is short"));
        self.story.push("a short lease has run out".into());
        match self.rng.u32(..3) {
            0 => self.renew(at).await,
            1 => self.attempt_late(at).await,
            _ => {}
        }
        self.inspect(at).await;
        if self.rng.bool() {
            self.withdraw(at).await;
        } else {
            // Its process has died.
            self.claims.swap_remove(at);
        }
    }

    /// Asks again when the lease is over, and lets that one end too.
    async fn attempt_late(&mut self, at: usize) {
        self.attempt(at).await;
        tokio::time::sleep(SHORT * 2).await;
        self.simulated.pass(2 * u64::try_from(SHORT.as_millis()).expect("it is short"));
    }

    /// Waits until the server has carried out the end of a session, which is asked for in the background.
    async fn see_the_end(&mut self, claimed: Claimed) {
        let Said::Held(is_held) = self.simulated.inspect(&claimed) else { panic!("an answer to a look") };
        let key = Key::new(self.key(claimed.key)).expect("the key is fine");
        for _ in 0..1_000 {
            if answered(self.backends[claimed.process].inspect(&key).await).is_some() == is_held {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the session of p{} has not ended\n{}", claimed.process, self.story.join("\n"));
    }

    async fn end_session(&mut self, opener: &impl Open<Backend = B>) {
        let process = self.rng.usize(..PROCESSES);
        self.backends[process].close().await;
        let (ended, go_on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.claims).into_iter().partition(|claim| claim.claimed.process == process);
        self.claims = go_on;
        let ended: Vec<_> = ended.into_iter().map(|claim| claim.claimed).collect();
        self.backends[process] = opener.open().await.expect("the server is there");
        self.simulated.end_session(process);
        for claimed in ended {
            self.see_the_end(claimed).await;
        }
        self.story.push(format!("the session of p{process} ends"));
    }
}

fn answered<T>(answer: std::result::Result<T, Failure>) -> T {
    answer.expect("nothing fails in these histories")
}

/// Random histories on a store of leases, or of sessions and queues.
async fn agrees<O: Open>(name: &str, opener: &O, has_leases: bool) {
    let mut counts = HashMap::<String, usize>::new();
    let mut backends = Vec::new();
    for _ in 0..PROCESSES {
        backends.push(opener.open().await.expect("the server is there"));
    }
    let series = fastrand::u64(..);
    for n in 0..HISTORIES {
        let simulated = if has_leases { Simulated::leases() } else { Simulated::queues(PROCESSES) };
        let seed = dlock_sim::seed_of(series, n);
        let mut both = Both {
            backends,
            simulated,
            prefix: format!("{name}-{seed:016x}"),
            claims: Vec::new(),
            begun: 0,
            highest: HashMap::new(),
            rng: Rng::with_seed(seed),
            story: vec![format!("history {seed:016x} on {name}")],
        };
        for _ in 0..STEPS {
            let at = (!both.claims.is_empty()).then(|| both.rng.usize(..both.claims.len()));
            match (both.rng.u32(..20), at) {
                (0..=5, _) | (_, None) => {
                    let at = both.begin(LONG).await;
                    both.attempt(at).await;
                }
                (6..=9, Some(at)) => both.attempt(at).await,
                (10..=14, Some(at)) => both.withdraw(at).await,
                (15..=16, Some(at)) => both.inspect(at).await,
                (17..=18, Some(at)) if has_leases && both.claims[at].fences.is_some() => both.renew(at).await,
                (19, _) if has_leases && both.rng.u32(..3) == 0 => both.run_out().await,
                (19, _) if !has_leases => both.end_session(opener).await,
                _ => {}
            }
        }
        while !both.claims.is_empty() {
            both.withdraw(0).await;
        }
        for line in &both.story {
            let answer = line.rsplit(": ").next().unwrap_or_default();
            *counts.entry(answer.split('(').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        backends = both.backends;
    }
    // Much of everything was seen.
    let least = if has_leases {
        &["Granted", "Busy", "Extended", "Removed"][..]
    } else {
        &["Granted", "Busy", "Removed"]
    };
    for answer in least {
        assert!(counts.get(*answer).is_some_and(|count| *count > 5), "{name}: {counts:?}");
    }
}

struct Url<'a>(&'a str);

macro_rules! open {
    ($name:ident, $backend:ty) => {
        struct $name<'a>(Url<'a>);

        impl Open for $name<'_> {
            type Backend = $backend;

            async fn open(&self) -> Result<$backend> {
                <$backend>::connect(self.0.0).await
            }
        }
    };
}

open!(OnRedis, dlock_redis::Redis);
open!(OnPostgres, dlock_sql::Postgres);
open!(OnMysql, dlock_sql::Mysql);
open!(OnSqlite, dlock_sql::Sqlite);
open!(OnZooKeeper, dlock_zk::ZooKeeper);

#[tokio::test(flavor = "multi_thread")]
async fn redis_answers_a_random_history_of_commands_as_the_simulated_leases_do() {
    let server = RedisServer::start().unwrap();
    agrees("redis", &OnRedis(Url(&server.url())), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgresql_and_mariadb_answer_a_random_history_of_commands_as_the_simulated_leases_do() {
    let server = PostgresServer::start().unwrap();
    agrees("postgres", &OnPostgres(Url(&format!("{}&migrate=true", server.url()))), true).await;
    let server = MysqlServer::start().unwrap();
    agrees("mysql", &OnMysql(Url(&format!("{}?migrate=true", server.url()))), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_answers_a_random_history_of_commands_as_the_simulated_leases_do() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", directory.path().join("locks.db").display());
    agrees("sqlite", &OnSqlite(Url(&url)), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_answers_a_random_history_of_commands_as_the_simulated_queues_do() {
    let server = ZooKeeperServer::start().unwrap();
    agrees("zk", &OnZooKeeper(Url(&server.url())), false).await;
}
