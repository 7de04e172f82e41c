//! The backend of the simulated store: what a process has of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backend, BatchAttempt, Busy, Capabilities, Claim, ClaimRequest, Grant, LockId, Renewed,
    Validity, Withdrawal,
};
use dlock_core::{Clock, Failure, Fence, Holder, Key};

use crate::lease::{Answer, Command, One};
use crate::majority::on_node;
use crate::net::{Request, Route};
use crate::world::{Trouble, read, violate, world};

/// One process's way to the store.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) drift: i64,
    pub(crate) capabilities: Capabilities,
    /// Which node of a quorum this is.
    pub(crate) node: Option<usize>,
}

impl Leases {
    pub(crate) fn new(process: usize, engine: usize) -> Self {
        let (drift, notified, from, to) =
            world(|w| (w.plan.drift[process + 1], w.plan.notified, w.plan.poll_from, w.plan.poll_to));
        let (from, to) = (Duration::from_millis(from), Duration::from_millis(to));
        let basic = Capabilities::basic().with_fencing();
        let capabilities = match notified {
            true => basic.with_notifications(to),
            false => basic.with_polling(from, to),
        };
        // Not where the runs are to stay what they are.
        let (leaves, hands_over) = world(|w| (w.plan.firings.is_some(), w.plan.batons));
        let capabilities = if leaves || hands_over { capabilities.with_leaving() } else { capabilities };
        let capabilities = if hands_over { capabilities.with_handing_over() } else { capabilities };
        let capabilities = match world(|w| w.plan.modes) {
            true => {
                let shared = capabilities.with_sharing().with_downgrading().with_pipelining();
                shared.with_permits().with_fairness_on_request()
            }
            false => capabilities,
        };
        Self { process, engine, drift, capabilities, node: None }
    }

    /// One process's way to a node of a quorum.
    pub(crate) fn of_node(process: usize, engine: usize, node: usize) -> Self {
        Self { node: Some(node), ..Self::new(process, engine) }
    }

    fn key(&self, key: &Key) -> usize {
        let Some(node) = self.node else { return world(|w| w.key(key.as_str())) };
        let name = on_node(key.as_str(), node);
        world(|w| {
            let at = w.keys.iter().position(|key| *key == name);
            at.unwrap_or_else(|| {
                w.violate(format!("{name} is none of the keys that were planned"));
                0
            })
        })
    }

    async fn ask(&self, command: Command) -> (Route, Result<Answer, Failure>) {
        ask(self.process, command).await
    }
}

async fn ask(process: usize, command: Command) -> (Route, Result<Answer, Failure>) {
    let route = world(|w| w.send(process, None, command));
    let answer = Request::new(route).await.map_err(|trouble| match trouble {
        Trouble::Refused => Failure::unavailable("the connection was refused"),
        Trouble::Reset | Trouble::Panic => Failure::unknown("the connection was reset"),
    });
    (route, answer)
}

impl Backend for Leases {
    type Claim = LeaseClaim;

    fn name(&self) -> &'static str {
        "simulated"
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn clock(&self) -> Clock {
        let drift = self.drift;
        Clock::simulated(move || read(drift))
    }

    fn lock_id(&self, key: &Key) -> LockId {
        match self.node {
            Some(node) => LockId::new(format_args!("simulated node {node}"), key.as_str()),
            None => LockId::new("simulated", key.as_str()),
        }
    }

    fn claim(&self, request: ClaimRequest) -> LeaseClaim {
        let key = self.key(&request.key);
        let one = world(|w| {
            w.claims += 1;
            let claim = w.claims;
            w.claimed(claim, key);
            One {
                key,
                claim,
                process: self.process,
                engine: self.engine,
                token: request.token,
                lease: u64::try_from(request.lease.as_nanos()).unwrap_or(u64::MAX),
                fences: 1,
                waits: request.waits,
                mode: request.mode,
                fair: request.fair,
                takes_over: request.takes_over,
                request: w.plan.twin.then(|| Box::new(request)),
            }
        });
        let call = world(|w| one.fair.then(|| w.last_call()));
        LeaseClaim { one, open: Vec::new(), held: false, seen: AtomicU64::new(0), call, node: self.node }
    }

    async fn attempt_all(&self, claims: &mut [&mut LeaseClaim]) -> Result<BatchAttempt, Failure> {
        if world(|w| w.plan.separately) {
            return Ok(BatchAttempt::Separately);
        }
        claims.iter_mut().for_each(|claim| claim.look());
        let all = claims.iter().map(|claim| claim.one.clone()).collect();
        let route = world(|w| w.send(self.process, None, Command::Attempt(all)));
        claims.iter_mut().for_each(|claim| claim.open.push(route));
        let answer = answer(Request::new(route).await);
        for claim in claims.iter_mut() {
            claim.settle(route, &answer);
        }
        match answer? {
            Answer::Granted(fences) => {
                let grants = claims.iter().zip(fences).map(|(claim, fence)| claim.grant(fence));
                Ok(BatchAttempt::Granted(grants.collect()))
            }
            Answer::Busy(place, left) => Ok(BatchAttempt::Busy { place, busy: busy(left) }),
            Answer::Left(place, left) => Ok(BatchAttempt::Busy { place, busy: busy_with_left(left) }),
            other => Err(absurd(&other)),
        }
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        let answer = self.ask(Command::Inspect(self.key(key))).await.1?;
        let Answer::Held(left) = answer else { return Err(absurd(&answer)) };
        // Of a node it is asked how old the lease is by which it remembers.
        Ok(left.filter(|_| self.node.is_some()).map(|left| {
            let mut holder = Holder::default();
            holder.expires_in = Some(Duration::from_nanos(left));
            holder
        }))
    }
}

fn answer(answer: Result<Answer, Trouble>) -> Result<Answer, Failure> {
    answer.map_err(|trouble| match trouble {
        Trouble::Refused => Failure::unavailable("the connection was refused"),
        Trouble::Reset | Trouble::Panic => Failure::unknown("the connection was reset"),
    })
}

fn busy(left: u64) -> Busy {
    let mut busy = Busy::default();
    busy.retry_after = Some(Duration::from_nanos(left));
    busy
}

fn busy_with_left(left: u64) -> Busy {
    let mut holder = Holder::default();
    holder.left_behind = true;
    let mut busy = busy(left);
    busy.holder = Some(Box::new(holder));
    busy
}

fn absurd(answer: &Answer) -> Failure {
    Failure::denied(format!("the store answered {answer:?}"))
}

/// A claim on a lock of the simulated store.
pub(crate) struct LeaseClaim {
    one: One,
    /// Attempts whose answers have not come, and which may still arrive.
    open: Vec<Route>,
    held: bool,
    /// How often the process had been told of a change when the last attempt was made.
    seen: AtomicU64,
    /// The call that waits for its turn by this.
    call: Option<u64>,
    /// On which node of a quorum this is.
    node: Option<usize>,
}

impl LeaseClaim {
    fn look(&self) {
        let told = world(|w| w.processes[self.one.process].told.get(&self.one.key).copied());
        self.seen.store(told.unwrap_or(0), Ordering::Relaxed);
    }

    fn grant(&self, (fence, fences): (u64, u32)) -> Grant {
        let grant = Grant::new(Validity::Lease(Duration::from_nanos(self.one.lease)));
        grant.with_fence(Fence::new(fence)).with_reserved(fences)
    }

    /// What an answer says of the requests before it on the same connection: they are done.
    fn settle(&mut self, route: Route, answer: &Result<Answer, Failure>) {
        match answer {
            Ok(answer) => {
                let before = |open: &Route| {
                    open.connection == route.connection
                        && open.generation == route.generation
                        && open.request <= route.request
                };
                self.open.retain(|open| !before(open));
                match answer {
                    Answer::Granted(_) => self.held = true,
                    Answer::Removed(_) | Answer::Awaited => self.held = false,
                    _ => {}
                }
            }
            Err(failure) if failure.kind() == dlock_core::ErrorKind::Unavailable => {
                self.open.retain(|open| open.request != route.request);
            }
            Err(_) => {}
        }
    }
}

impl Claim for LeaseClaim {
    fn reserve(&mut self, fences: u32) {
        self.one.fences = fences;
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.look();
        if self.held && self.node.is_some() {
            // A round that failed gives back what it got, so that others find a majority.
            violate(format!("c{} asks a node for a vote that it has", self.one.claim));
        }
        let route = world(|w| w.send(self.one.process, None, Command::Attempt(vec![self.one.clone()])));
        self.open.push(route);
        let answer = answer(Request::new(route).await);
        self.settle(route, &answer);
        match answer? {
            Answer::Granted(fences) => Ok(Attempt::Granted(self.grant(fences[0]))),
            Answer::Busy(_, left) => {
                world(|w| {
                    w.found_busy(self.one.claim);
                    self.call.into_iter().for_each(|call| w.has_place(call));
                });
                Ok(Attempt::Busy(busy(left)))
            }
            Answer::Left(_, left) => {
                world(|w| w.found_busy(self.one.claim));
                Ok(Attempt::Busy(busy_with_left(left)))
            }
            other => Err(absurd(&other)),
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let (process, key) = (self.one.process, self.one.key);
        if !world(|w| w.plan.notified) {
            return std::future::pending().await;
        }
        if world(|w| w.chance(w.plan.rate_untold / 4)) {
            return Err(Failure::unavailable("the subscription is gone"));
        }
        if world(|w| w.chance(w.plan.rate_for_nothing)) {
            return Ok(());
        }
        let seen = self.seen.load(Ordering::Relaxed);
        std::future::poll_fn(|cx| {
            world(|w| {
                let process = &mut w.processes[process];
                if process.told.get(&key).is_some_and(|told| *told > seen) {
                    return Poll::Ready(Ok(()));
                }
                process.watchers.retain(|(of, waker)| *of != key || !waker.will_wake(cx.waker()));
                process.watchers.push((key, cx.waker().clone()));
                Poll::Pending
            })
        })
        .await
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        let claim = self.one.claim;
        let (_, answer) = ask(self.one.process, Command::Renew(self.one.clone())).await;
        match answer.inspect_err(|_| world(|w| w.renewal_failed(claim)))? {
            Answer::Extended => Ok(Renewed::Extended),
            Answer::Gone => {
                world(|w| w.renewal_found_gone(claim));
                Ok(Renewed::Gone)
            }
            other => Err(absurd(&other)),
        }
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        match ask(self.one.process, Command::Downgrade(self.one.clone())).await.1? {
            Answer::Extended => Ok(Renewed::Extended),
            Answer::Gone => Ok(Renewed::Gone),
            other => Err(absurd(&other)),
        }
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.release(Command::Withdraw(self.one.clone())).await
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let taken_for = u64::try_from(taken_for.as_nanos()).unwrap_or(u64::MAX);
        self.release(Command::Leave(self.one.clone(), taken_for)).await
    }

    fn is_clean(&self) -> bool {
        !self.held && (self.open.is_empty() || world(|w| w.plan.forgetful))
    }
}

impl LeaseClaim {
    async fn release(&mut self, command: Command) -> Result<Withdrawal, Failure> {
        let (route, answer) = ask(self.one.process, command).await;
        self.settle(route, &answer);
        match answer? {
            answer @ (Answer::Removed(_) | Answer::Awaited) => {
                let withdrawal = match answer {
                    Answer::Removed(false) => Withdrawal::ABSENT,
                    other => Withdrawal::REMOVED.with_others_waiting(u32::from(other == Answer::Awaited)),
                };
                Ok(if self.open.is_empty() { withdrawal } else { withdrawal.unsettled() })
            }
            other => Err(absurd(&other)),
        }
    }
}
