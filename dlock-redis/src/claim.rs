//! One claim on one lock.

mod batch;
mod in_flight;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, Renewed, RequestClock, Signal, Term, Withdrawal,
};
use dlock_core::{Failure, Fence};
use redis::Value;

use crate::client::Client;
use crate::error::Fault;
use crate::keys::Names;
use crate::request::{Answer, Draw, Request, RequestAlone, Step};
use crate::servers::{Reply, Untracked};
use crate::tracking::{TRACKED_AFTER, TrackedLock};

use self::in_flight::{InFlight, InFlightAttempts};
pub(crate) use batch::attempt_all;

/// A claim on a lock of [`Redis`](crate::Redis).
pub struct RedisClaim {
    client: Arc<Client>,
    request: ClaimRequest,
    names: Names,
    clock: RequestClock,
    /// The lock was granted, and not withdrawn since.
    held: bool,
    unanswered: InFlightAttempts,
    /// Where the answer to a renewal or a withdrawal did not come.
    overdue: InFlight,
    listener: Option<Listener>,
    /// Whom to tell of changes of a lock that is held.
    signal: Option<Signal>,
    tracked: Option<TrackedLock>,
}

impl RedisClaim {
    pub(crate) fn new(client: Arc<Client>, request: ClaimRequest, clock: RequestClock) -> Self {
        let names = client.names(&request.key);
        Self {
            client,
            request,
            names,
            clock,
            held: false,
            unanswered: InFlightAttempts::default(),
            overdue: InFlight::default(),
            listener: None,
            signal: None,
            tracked: None,
        }
    }

    /// Whether the lock is tracked, or is from its next renewal on.
    fn is_tracked(&mut self) -> bool {
        if let (None, Some(signal)) = (&self.tracked, &self.signal) {
            self.tracked = self.client.tracking.enter(&self.names.lock, signal);
        }
        self.tracked.is_some() && self.client.tracking.is_possible()
    }

    fn step(&self, step: Step) -> Request {
        Request { names: self.names.clone(), token: self.request.token, step, clock: None }
    }

    /// The lease in whole milliseconds, as the server keeps it.
    fn lease(&self) -> u64 {
        u64::try_from(self.request.lease.as_millis()).unwrap_or(u64::MAX)
    }

    /// How long to wait for a connection: less than the engine waits for an answer, so that a server that is away is
    /// seen to be away, and not taken for one that may have got a request.
    fn patience(&self) -> Duration {
        (self.request.lease / 8).min(self.client.connect_timeout * 2)
    }

    fn too_few(&self, acknowledged: u32) -> Option<Failure> {
        let replicas = self.client.replicas.filter(|replicas| acknowledged < replicas.count)?;
        Some(Failure::unavailable(format!(
            "{acknowledged} of {} replicas acknowledged within {:?}",
            replicas.count, replicas.timeout
        )))
    }

    /// Reads the answer to an attempt.
    async fn taken(&mut self, request: &Request, reply: &Reply) -> Result<Attempt, Failure> {
        match &reply.answer {
            Answer::Adopted(Some(0)) => Box::pin(self.number(request)).await,
            Answer::Granted(fence) | Answer::Adopted(Some(fence)) => self.granted(reply, *fence),
            Answer::Adopted(None) => {
                self.held = true;
                Err(Failure::invalid_config("somebody removed the fence from the lock; do not edit locks"))
            }
            Answer::Busy { left, holder } => {
                let mut busy = Busy::default();
                busy.retry_after = *left;
                busy.holder = Some(holder.clone());
                Ok(Attempt::Busy(busy))
            }
            _ => Err(senseless()),
        }
    }

    /// Draws the fence of a lock that was taken without one, and stores it with the lock.
    async fn number(&mut self, request: &Request) -> Result<Attempt, Failure> {
        self.held = true;
        let (client, patience) = (Arc::clone(&self.client), self.patience());
        let drawn = client.servers.carry_out(&Draw(&self.names), patience, &mut Untracked).await;
        let fence = match drawn.map(|reply| reply.answer) {
            Ok(Value::Int(fence @ 1..)) => fence.unsigned_abs(),
            Ok(_) => return Err(senseless().of_worthless_grant()),
            Err(failure) => return Err(failure.of_worthless_grant()),
        };
        let alone = RequestAlone { request, fence };
        let reply = match client.servers.carry_out(&alone, patience, &mut self.unanswered).await {
            Err(failure) if self.unanswered.is_empty() => return Err(failure.of_worthless_grant()),
            reply => reply?,
        };
        match &reply.answer {
            Answer::Adopted(Some(fence @ 1..)) => self.granted(&reply, *fence),
            Answer::Done(false) | Answer::Busy { .. } => {
                self.held = false;
                Err(Failure::unavailable("the lock was gone before it had a fence"))
            }
            _ => Err(senseless()),
        }
    }

    fn granted(&mut self, reply: &Reply, fence: u64) -> Result<Attempt, Failure> {
        self.held = true;
        if let Some(failure) = self.too_few(reply.acknowledged) {
            return Err(failure.of_worthless_grant());
        }
        self.listener = None;
        let lease = Duration::from_millis(self.lease());
        Ok(Attempt::Granted(Grant::new(Term::Lease(lease)).with_fence(Fence::new(fence))))
    }
}

impl Claim for RedisClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        let request = self.asking()?;
        let client = Arc::clone(&self.client);
        let reply = client.servers.carry_out(&request, self.patience(), &mut self.unanswered).await?;
        if reply.answer == Answer::Apart {
            let alone = RequestAlone { request: &request, fence: 0 };
            let reply = client.servers.carry_out(&alone, self.patience(), &mut self.unanswered);
            let reply = Box::pin(reply).await?;
            return self.taken(&request, &reply).await;
        }
        self.taken(&request, &reply).await
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let listener = match &mut self.listener {
            Some(listener) => listener,
            none => none.insert(self.client.channels.listen(&self.client.format.channel(&self.names))?),
        };
        listener.changed().await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn granted(&mut self, signal: Signal) {
        self.listener = None;
        if self.client.tracking.has_room() {
            signal.renew_within(TRACKED_AFTER);
            self.signal = Some(signal);
        }
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        let tracked = self.is_tracked();
        let request = self.step(Step::Renew { lease: self.lease(), tracked });
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        (self.listener, self.signal, self.tracked) = (None, None, None);
        let request = self.step(Step::Withdraw);
        if !self.held && !self.unanswered.is_empty() {
            let limit = (self.request.lease, self.patience());
            return Box::pin(self.unanswered.withdraw(&self.client.servers, &request, limit)).await;
        }
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        self.held = false;
        let withdrawal = withdrawn(&reply.answer)?;
        // An earlier attempt may still arrive, and would take the lock again.
        Ok(if self.unanswered.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }

    fn is_clean(&self) -> bool {
        !self.held && self.unanswered.is_empty()
    }
}

impl fmt::Debug for RedisClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisClaim")
            .field("key", &self.request.key)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

fn withdrawn(answer: &Answer) -> Result<Withdrawal, Failure> {
    match answer {
        Answer::Done(true) => Ok(Withdrawal::REMOVED),
        Answer::Done(false) => Ok(Withdrawal::ABSENT),
        _ => Err(senseless()),
    }
}

fn senseless() -> Failure {
    Fault::Cut("malformed reply".into()).into_failure()
}
