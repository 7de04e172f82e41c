//! The simulated queues answer as a real `ZooKeeper` does: the same random history of commands, on both. The simulated
//! leases need no server: some of the runs compare them with `Memory`, which has the rules that the statements and
//! scripts of the servers are compared with (`dlock_rig::rules`).

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim};
use dlock_core::{Failure, Key};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_sim::history::{Claimed, Said, Simulated};
use dlock_testkit::claim_request;
use dlock_zk::ZooKeeper;
use fastrand::Rng;

const PROCESSES: usize = 3;
const KEYS: usize = 3;
const HISTORIES: u64 = 12;
const STEPS: usize = 60;

/// A claim on both.
struct OnBoth {
    number: usize,
    claimed: Claimed,
    real: <ZooKeeper as Backend>::Claim,
    /// The fences of its last grant: the simulated one and the real one.
    fences: Option<(u64, u64)>,
}

/// A store and the server that has to answer the same.
struct Both {
    backends: Vec<ZooKeeper>,
    simulated: Simulated,
    prefix: String,
    claims: Vec<OnBoth>,
    begun: usize,
    /// The highest real fence of each key.
    highest: HashMap<usize, u64>,
    rng: Rng,
    story: Vec<String>,
}

/// Opens the store as a further process would.
async fn open(server: &ZooKeeperServer) -> ZooKeeper {
    ZooKeeper::connect(&server.url()).await.expect("the server is there")
}

impl Both {
    fn key(&self, key: usize) -> String {
        format!("{}-{key}", self.prefix)
    }

    async fn begin(&mut self) -> usize {
        let (process, key) = (self.rng.usize(..PROCESSES), self.rng.usize(..KEYS));
        let waits = self.rng.bool();
        let lease = Duration::from_secs(600);
        let request = claim_request(&self.key(key), lease, waits).await.expect("the key is fine");
        let claimed = Claimed { process, key, token: request.token, waits };
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

    async fn end_session(&mut self, server: &ZooKeeperServer) {
        let process = self.rng.usize(..PROCESSES);
        self.backends[process].close().await;
        let (ended, go_on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.claims).into_iter().partition(|claim| claim.claimed.process == process);
        self.claims = go_on;
        let ended: Vec<_> = ended.into_iter().map(|claim| claim.claimed).collect();
        self.backends[process] = open(server).await;
        self.simulated.end_session(process);
        for claimed in ended {
            self.see_the_end(claimed).await;
        }
        self.story.push(format!("the session of p{process} ends"));
    }
}

fn answered<T>(answer: Result<T, Failure>) -> T {
    answer.expect("nothing fails in these histories")
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_answers_a_random_history_of_commands_as_the_simulated_queues_do() {
    let server = ZooKeeperServer::start().unwrap();
    let mut counts = HashMap::<String, usize>::new();
    let mut backends = Vec::new();
    for _ in 0..PROCESSES {
        backends.push(open(&server).await);
    }
    let series = fastrand::u64(..);
    for n in 0..HISTORIES {
        let seed = dlock_sim::seed_of(series, n);
        let mut both = Both {
            backends,
            simulated: Simulated::queues(PROCESSES),
            prefix: format!("{seed:016x}"),
            claims: Vec::new(),
            begun: 0,
            highest: HashMap::new(),
            rng: Rng::with_seed(seed),
            story: vec![format!("history {seed:016x}")],
        };
        for _ in 0..STEPS {
            let at = (!both.claims.is_empty()).then(|| both.rng.usize(..both.claims.len()));
            match (both.rng.u32(..20), at) {
                (0..=5, _) | (_, None) => {
                    let at = both.begin().await;
                    both.attempt(at).await;
                }
                (6..=9, Some(at)) => both.attempt(at).await,
                (10..=14, Some(at)) => both.withdraw(at).await,
                (15..=16, Some(at)) => both.inspect(at).await,
                (19, _) => both.end_session(&server).await,
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
    for answer in ["Granted", "Busy", "Removed"] {
        assert!(counts.get(answer).is_some_and(|count| *count > 5), "{counts:?}");
    }
}
