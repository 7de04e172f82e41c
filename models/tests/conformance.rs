//! Whether the reference backend does what model (a) says: random histories of the model, each step of which is also
//! carried out on `dlock_core::Memory` through the contract of backends, and compared.
//!
//! Compared are the answer to every request, who holds the lock after every step, its fence, and when its lease ends.
//! The part of the client in the model, which decides what is asked and when it believes, is the engine's, and is not
//! compared here.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::backend::{Attempt, ClaimRequest, Grant, Renewed, Validity};
use dlock_core::{Backend, Claim, Failure, Key, ManualClock, Memory};
use dlock_models::lease::{Action, Lease, Lock, Reply, Request, Rules, Server, What};
use dlock_testkit::claim_request;
use fastrand::Rng;
use stateright::Model;

const TICK: Duration = Duration::from_secs(1);
const KEY: &str = "room_7";

/// The store, and the claims that clients have made on it.
struct Mirror {
    memory: Memory,
    clock: ManualClock,
    lease: Duration,
    key: Key,
    claims: HashMap<(u8, u8), OnStore>,
}

struct OnStore {
    request: ClaimRequest,
    claim: <Memory as Backend>::Claim,
    /// A request went unanswered, after which `is_clean` is not asked.
    doubtful: bool,
}

impl Mirror {
    fn new(model: &Lease) -> Self {
        let clock = ManualClock::stopped();
        let memory = Memory::with_clock(clock.clock());
        let (lease, key) = (TICK * model.lease.into(), Key::new(KEY).unwrap());
        Self { memory, clock, lease, key, claims: HashMap::new() }
    }

    async fn claim(&mut self, client: u8, token: u8) -> &mut OnStore {
        if !self.claims.contains_key(&(client, token)) {
            let request = claim_request(KEY, self.lease, false).await.unwrap();
            let claim = self.memory.claim(request.clone());
            self.claims.insert((client, token), OnStore { request, claim, doubtful: false });
        }
        self.claims.get_mut(&(client, token)).unwrap()
    }

    /// Carries a request out, and says what the answer was.
    async fn carry_out(&mut self, request: Request) -> Result<Reply, Failure> {
        let memory = self.memory.clone();
        let lease = self.lease;
        let on_store = self.claim(request.client, request.token).await;
        // One whose sender has stopped waiting is carried out beside the claim, as by a connection that goes on.
        let mut beside = (!request.heard).then(|| memory.claim(on_store.request.clone()));
        let claim = beside.as_mut().unwrap_or(&mut on_store.claim);
        Ok(match request.what {
            What::Attempt => match claim.attempt().await? {
                Attempt::Granted(Grant { fence, validity, .. }) => {
                    assert_eq!(validity, Validity::Lease(lease));
                    Reply::Granted { fence: u8::try_from(fence.unwrap().get()).unwrap(), section: 0 }
                }
                Attempt::Busy(_) => Reply::Busy,
            },
            What::Renew => match claim.renew().await? {
                Renewed::Extended => Reply::Extended,
                Renewed::Gone => Reply::Gone,
            },
            What::Withdraw => {
                let withdrawal = claim.withdraw().await?;
                assert!(withdrawal.settled);
                Reply::Withdrawn
            }
            What::DrawFence => unreachable!("the backend draws fences with the grant"),
        })
    }

    /// The fence of the lock, and the ticks that are left of it.
    async fn lock(&self) -> Option<(u8, u8)> {
        let holder = self.memory.inspect(&self.key).await.unwrap()?;
        let left = holder.expires_in.unwrap();
        assert_eq!(left.subsec_nanos(), 0);
        let fence = holder.fence.unwrap().get();
        Some((u8::try_from(fence).unwrap(), u8::try_from(left.as_secs()).unwrap()))
    }
}

/// Takes a random walk through the model, and the same steps on the store; the first difference, with the steps so far.
async fn walk(model: &Lease, seed: u64, steps: usize) -> Result<usize, String> {
    let mut random = Rng::with_seed(seed);
    let mut state = model.init_states().remove(0);
    let mut mirror = Mirror::new(model);
    let mut story = Vec::new();
    let mut grants = 0;
    for _ in 0..steps {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        let action = random.choice(actions).unwrap();
        let Some(next) = model.next_state(&state, action.clone()) else { continue };
        story.push(format!("{action:?}"));
        let differs = |what: String| format!("seed {seed}: {what}, after {}", story.join(", "));
        match action {
            Action::Arrives(client, what) => {
                let request = state.request(client, what).unwrap();
                let answer = mirror.carry_out(request).await.map_err(|f| differs(f.to_string()))?;
                let same = match (next.clients[usize::from(client)].reply(), answer) {
                    // Nobody hears it; the state of the store is compared below.
                    _ if !request.heard => true,
                    (Some(Reply::Granted { fence, .. }), Reply::Granted { fence: granted, .. }) => {
                        grants += 1;
                        fence == granted
                    }
                    (expected, answer) => expected == Some(answer),
                };
                if !same {
                    let expected = next.clients[usize::from(client)].reply();
                    return Err(differs(format!("{expected:?} in the model, {answer:?} from the store")));
                }
            }
            Action::IsLost(client, what) => {
                let request = state.request(client, what).unwrap();
                if request.heard {
                    mirror.memory.faults().drop_requests(1);
                    let answer = mirror.carry_out(request).await;
                    assert!(answer.is_err());
                    mirror.claim(client, request.token).await.doubtful = true;
                }
            }
            Action::TimeOut(client)
            | Action::GiveUp(client)
            | Action::Release(client)
            | Action::Finish(client) => {
                let token = state.clients[usize::from(client)].token();
                if token > 0 {
                    mirror.claim(client, token).await.doubtful = true;
                }
            }
            Action::Tick | Action::TickMissedBy(_) => mirror.clock.advance(TICK),
            Action::Forget => drop(mirror.memory.delete(KEY)),
            _ => {}
        }
        state = next;
        let on_store = mirror.lock().await;
        let in_model = state.lock.map(|Lock { fence, left, .. }| (fence, left));
        if in_model != on_store {
            return Err(differs(format!(
                "fence and rest are {in_model:?} in the model, {on_store:?} on the store"
            )));
        }
        if let Some(lock) = state.lock {
            let owner = mirror.claim(lock.client, lock.token).await;
            if owner.claim.is_clean() && !owner.doubtful {
                return Err(differs("a claim that has the lock says that it is clean".into()));
            }
        }
    }
    Ok(grants)
}

fn walks(rules: Rules, count: u64) -> Result<usize, String> {
    let model = Lease { claims: vec![4, 3, 3], attempts: 3, lease: 4, in_flight: 3, rules };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut grants = 0;
        for seed in 0..count {
            grants += walk(&model, seed, 300).await?;
        }
        Ok(grants)
    })
}

#[test]
fn the_reference_backend_does_what_the_model_says() {
    let rules = Rules { server: Server::ForgetsLocks, ..Rules::default() };
    let grants = walks(rules, 5_000).unwrap_or_else(|difference| panic!("{difference}"));
    println!("{grants} grants");
    assert!(grants > 10_000, "only {grants} grants: the histories are too poor to show anything");
}

#[test]
fn a_model_whose_renewal_makes_the_lock_anew_is_told_from_the_reference_backend() {
    let difference = walks(Rules { renewal_checks_token: false, ..Rules::default() }, 1_000).unwrap_err();
    println!("{difference}");
}

#[test]
fn a_model_whose_release_does_not_look_at_the_token_is_told_from_the_reference_backend() {
    let difference = walks(Rules { release_checks_token: false, ..Rules::default() }, 1_000).unwrap_err();
    println!("{difference}");
}

#[test]
fn a_model_whose_fences_begin_anew_is_told_from_the_reference_backend() {
    let difference = walks(Rules { server: Server::ForgetsFences, ..Rules::default() }, 1_000).unwrap_err();
    println!("{difference}");
}
