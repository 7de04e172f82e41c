//! A backend whose answers are scripted, to put the engine into exact situations.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backend, Busy, Capabilities, Claim, ClaimRequest, Grant, LockId, Renewed, ServerAddress, Signal,
    Validity, Withdrawal,
};
use dlock_core::{Clock, Failure, Fence, Holder, Key};
use tokio::sync::Notify;

/// What the backend was asked, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Attempt(u128),
    Renew,
    Withdraw(u128),
}

/// What an attempt answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Grant(Validity),
    /// With a first lease of this length.
    GrantAtFirst(Duration, Validity),
    Busy,
    /// Busy, for so long.
    BusyFor(Duration),
    /// Busy, by the grant with this fence.
    BusyBy(u64),
    /// Busy, as it was before the answer is let go.
    BusyLate(Arc<Notify>),
    Fail(Failure),
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) struct Scripted(pub(crate) Arc<Script>);

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) calls: Mutex<Vec<Call>>,
    pub(crate) attempts: Mutex<VecDeque<Answer>>,
    pub(crate) renewals: Mutex<VecDeque<Result<Renewed, Failure>>>,
    pub(crate) withdrawals: Mutex<VecDeque<Result<Withdrawal, Failure>>>,
    pub(crate) changes: Mutex<VecDeque<Result<(), Failure>>>,
    pub(crate) downgrades: Mutex<VecDeque<Result<Renewed, Failure>>>,
    /// What `inspect` answers; nobody holds it afterwards.
    pub(crate) looks: Mutex<VecDeque<Result<Option<Holder>, Failure>>>,
    pub(crate) signals: Mutex<Vec<Signal>>,
    /// Within which time the first renewal of a grant is wanted.
    pub(crate) first_renewal: Mutex<Option<Duration>>,
    pub(crate) called: Notify,
    /// The number of claims that are made before `claim` panics, if it does.
    pub(crate) panics_at_claim: Mutex<Option<usize>>,
    /// Whether a busy answer leaves something on the server, as a place in a queue.
    pub(crate) queues: bool,
    pub(crate) clock: Clock,
    pub(crate) capabilities: Capabilities,
}

impl Scripted {
    pub(crate) fn new(attempts: impl IntoIterator<Item = Answer>) -> Self {
        Self::with_clock(Clock::system(), attempts)
    }

    /// Without notifications, and polled so rarely that it does not happen in a test.
    pub(crate) fn unpolled(attempts: impl IntoIterator<Item = Answer>) -> Self {
        let rarely = Duration::from_secs(600);
        Self::with(Clock::system(), Capabilities::basic().with_polling(rarely, rarely), attempts)
    }

    pub(crate) fn with_clock(clock: Clock, attempts: impl IntoIterator<Item = Answer>) -> Self {
        Self::with(clock, Capabilities::basic().with_fencing(), attempts)
    }

    pub(crate) fn with(
        clock: Clock,
        capabilities: Capabilities,
        attempts: impl IntoIterator<Item = Answer>,
    ) -> Self {
        Self(Arc::new(Script {
            calls: Mutex::default(),
            attempts: Mutex::new(attempts.into_iter().collect()),
            renewals: Mutex::default(),
            withdrawals: Mutex::default(),
            changes: Mutex::default(),
            downgrades: Mutex::default(),
            looks: Mutex::default(),
            signals: Mutex::default(),
            first_renewal: Mutex::default(),
            called: Notify::new(),
            panics_at_claim: Mutex::default(),
            queues: capabilities.fair,
            clock,
            capabilities: capabilities.without_servers(),
        }))
    }

    /// Makes so many claims, and panics where another one is to be made.
    pub(crate) fn panic_after_claims(&self, claims: usize) {
        *self.0.panics_at_claim.lock().unwrap() = Some(claims);
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.0.calls.lock().unwrap().clone()
    }

    /// Waits as [`wait_for`](Self::wait_for), outside of any runtime.
    pub(crate) fn calls_until(&self, test: impl Fn(&[Call]) -> bool) {
        for _ in 0..20_000 {
            if test(&self.calls()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("never asked for; calls were {:?}", self.calls());
    }

    pub(crate) fn count(&self, test: impl Fn(&Call) -> bool) -> usize {
        self.calls().iter().filter(|call| test(call)).count()
    }

    pub(crate) fn signal(&self) -> Signal {
        self.0.signals.lock().unwrap().last().cloned().expect("something was granted")
    }

    /// Waits until the backend was asked something that passes `test`.
    pub(crate) async fn wait_for(&self, test: impl Fn(&[Call]) -> bool + Send + Sync) {
        let wait = async {
            loop {
                let called = self.0.called.notified();
                if test(&self.calls()) {
                    return;
                }
                called.await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        assert!(waited.is_ok(), "never asked for; calls were {:?}", self.calls());
    }
}

impl Script {
    fn note(&self, call: Call) {
        self.calls.lock().unwrap().push(call);
        self.called.notify_waiters();
    }
}

impl Backend for Scripted {
    type Claim = ScriptedClaim;

    fn name(&self) -> &'static str {
        "scripted"
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn server_address(&self) -> Option<ServerAddress> {
        ServerAddress::in_url("scripted://locks.example:7000")
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        LockId::new("scripted", key.as_str())
    }

    fn claim(&self, request: ClaimRequest) -> ScriptedClaim {
        if let Some(left) = &mut *self.0.panics_at_claim.lock().unwrap() {
            assert!(*left > 0, "no claim is made any more");
            *left -= 1;
        }
        ScriptedClaim { script: Arc::clone(&self.0), token: u128::from_be_bytes(*request.token.as_bytes()) }
    }

    async fn inspect(&self, _key: &Key) -> Result<Option<Holder>, Failure> {
        self.0.looks.lock().unwrap().pop_front().unwrap_or(Ok(None))
    }
}

#[derive(Debug)]
pub(crate) struct ScriptedClaim {
    script: Arc<Script>,
    token: u128,
}

impl Claim for ScriptedClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.script.note(Call::Attempt(self.token));
        let answer = self.script.attempts.lock().unwrap().pop_front().unwrap_or(Answer::Hang);
        match answer {
            Answer::Grant(term) => Ok(Attempt::Granted(Grant::new(term).with_fence(Fence::new(7)))),
            Answer::GrantAtFirst(first, term) => {
                let grant = Grant::new(term).with_fence(Fence::new(7)).with_first_lease(first);
                Ok(Attempt::Granted(grant))
            }
            Answer::Busy => Ok(Attempt::Busy(Busy::default())),
            Answer::BusyFor(left) => {
                let mut busy = Busy::default();
                busy.retry_after = Some(left);
                Ok(Attempt::Busy(busy))
            }
            Answer::BusyBy(fence) => {
                let mut holder = Holder::default();
                holder.fence = Some(Fence::new(fence));
                let mut busy = Busy::default();
                busy.holder = Some(Box::new(holder));
                Ok(Attempt::Busy(busy))
            }
            Answer::BusyLate(gate) => {
                gate.notified().await;
                Ok(Attempt::Busy(Busy::default()))
            }
            Answer::Fail(failure) => Err(failure),
            Answer::Hang => std::future::pending().await,
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let change = self.script.changes.lock().unwrap().pop_front();
        match change {
            Some(change) => change,
            None => std::future::pending().await,
        }
    }

    fn granted(&mut self, signal: Signal) {
        if let Some(limit) = *self.script.first_renewal.lock().unwrap() {
            signal.renew_within(limit);
        }
        self.script.signals.lock().unwrap().push(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.script.note(Call::Renew);
        let answer = self.script.renewals.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        let answer = self.script.downgrades.lock().unwrap().pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    fn is_clean(&self) -> bool {
        !self.script.queues
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        self.script.note(Call::Withdraw(self.token));
        let answer = self.script.withdrawals.lock().unwrap().pop_front();
        answer.unwrap_or(Ok(Withdrawal::REMOVED))
    }
}
