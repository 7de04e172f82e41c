//! One claim on one lock.

mod answers;
mod batch;
mod carrying;
mod in_flight;
mod line;
mod shares;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, Mode, Renewed, RequestClock, Signal, Validity, Withdrawal,
};
use dlock_core::{ErrorKind, Failure, Fence, Holder};
use futures_util::FutureExt;
use redis::Value;

use crate::client::Client;
use crate::format::draw;
use crate::keys::Names;
use crate::request::{Answer, Look, Request, RequestAlone, ShareStep, Step};
use crate::servers::{Reply, Untracked};
use crate::tracking::{Probes, TRACKED_AFTER, TrackedLock};

use self::answers::{senseless, withdrawn, without_fence};
use self::in_flight::{InFlight, InFlightAttempts};
use self::line::Line;
pub(crate) use batch::attempt_all;

/// A claim on a lock of [`Redis`](crate::Redis).
pub struct RedisClaim {
    client: Arc<Client>,
    request: ClaimRequest,
    names: Names,
    clock: RequestClock,
    /// How many fences the next attempt reserves.
    reserves: u32,
    /// It waits, and the last attempt found the lock taken.
    contended: bool,
    /// The lock was granted, and not withdrawn since.
    held: bool,
    unanswered: InFlightAttempts,
    /// Where the answer to a renewal or a withdrawal did not come.
    overdue: InFlight,
    listener: Option<Listener>,
    /// Where it waits in line.
    line: Line,
    /// The lock was taken alone, and may be a reader's by now.
    downgraded: bool,
    /// It may keep newcomers out while it waits for all, or much, of what others share.
    waits_for_all: bool,
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
            reserves: 1,
            contended: false,
            held: false,
            unanswered: InFlightAttempts::default(),
            overdue: InFlight::default(),
            listener: None,
            line: Line::default(),
            downgraded: false,
            waits_for_all: false,
            signal: None,
            tracked: None,
        }
    }

    /// Whether the lock is tracked, or is from its next renewal on.
    fn is_tracked(&mut self) -> bool {
        let tracking = &self.client.tracking;
        if let (None, Some(signal)) = (&self.tracked, &self.signal)
            && tracking.has_room()
        {
            self.tracked = tracking.enter(&self.names.lock, signal, self.probes());
        }
        self.tracked.is_some() && tracking.is_possible()
    }

    /// What shows that the lock is held, where others change what is stored for it.
    fn probes(&self) -> Option<Probes> {
        if self.is_plain() && !self.downgraded {
            return None;
        }
        let mode = if self.downgraded { Mode::Shared } else { self.request.mode };
        let list = self.client.format.probes(&self.names, &self.request.token, mode, self.request.fair);
        let (client, slot) = (Arc::clone(&self.client), self.names.slot);
        let ask = move |probes, patience| {
            let (client, look) = (Arc::clone(&client), Look { slot, probes });
            let asking = async move { client.servers.carry_out(&look, patience, &mut Untracked).await };
            asking.map(|reply| reply.ok().map(|reply| reply.answer)).boxed()
        };
        let runtime = self.request.renewal_runtime();
        Some(Probes { runtime, lease: self.request.lease, list, ask: Box::new(ask) })
    }

    fn step(&self, step: Step) -> Request {
        let (names, clock) = (self.names.clone(), Some(self.clock.clone()));
        Request { names, token: self.request.token, step, clock }
    }

    /// Whether the lock is held alone, and waited for without a place in line.
    fn is_plain(&self) -> bool {
        self.request.mode == Mode::Exclusive && !self.request.fair && self.client.format.has_alone()
    }

    /// The lease in whole milliseconds, as the server keeps it.
    fn lease(&self) -> u64 {
        let longest = self.client.format.longest(self.request.mode).unwrap_or(Duration::MAX);
        u64::try_from(self.request.lease.min(longest).as_millis()).unwrap_or(u64::MAX)
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
            Answer::Granted(fence) => self.granted(reply, *fence, request.step.fences()),
            // Of what an earlier attempt reserved, whatever it was, the first is certain.
            Answer::Adopted(Some(fence)) => self.granted(reply, *fence, 1),
            Answer::Adopted(None) => {
                self.held = true;
                Err(without_fence())
            }
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            // Perhaps others read it.
            Answer::NoLock => Box::pin(self.attempt_share()).await,
            _ => Err(senseless()),
        }
    }

    /// Draws the fence of a lock that was taken without one, and stores it with the lock.
    async fn number(&mut self, request: &Request) -> Result<Attempt, Failure> {
        self.held = true;
        let (client, patience) = (Arc::clone(&self.client), self.patience());
        let drawn =
            client.servers.ask(self.names.slot, (false, patience), |number| draw(&self.names, number)).await;
        let fence = match drawn {
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
            Answer::Adopted(Some(fence @ 1..)) => self.granted(&reply, *fence, 1),
            Answer::Done(false) | Answer::Busy { .. } => {
                self.held = false;
                Err(Failure::unavailable("the lock was gone before it had a fence"))
            }
            _ => Err(senseless()),
        }
    }

    fn busy(&mut self, left: Option<Duration>, holder: Option<Box<Holder>>) -> Attempt {
        self.contended = self.request.waits;
        let mut busy = Busy::default();
        (busy.retry_after, busy.holder) = (left, holder);
        Attempt::Busy(busy)
    }

    fn granted(&mut self, reply: &Reply, fence: u64, reserved: u32) -> Result<Attempt, Failure> {
        self.held = true;
        if let Some(failure) = self.too_few(reply.acknowledged) {
            return Err(failure.of_worthless_grant());
        }
        self.listener = None;
        let lease = Duration::from_millis(self.lease());
        let grant = Grant::new(Validity::Lease(lease)).with_fence(Fence::new(fence));
        Ok(Attempt::Granted(grant.with_reserved(reserved)))
    }
}

impl Claim for RedisClaim {
    fn reserve(&mut self, fences: u32) {
        self.reserves = if self.client.format.reserves() { fences.max(1) } else { 1 };
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        if let Some(left) = self.request.takes_over {
            return Box::pin(self.take_over(left)).await;
        }
        if !self.is_plain() {
            return Box::pin(self.attempt_share()).await;
        }
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
            none if self.request.fair => {
                let channel = self.client.format.place_channel(&self.names, &self.request.token);
                none.insert(self.client.channels.listen(&channel)?)
            }
            none => {
                let channel = self.client.format.channel(&self.names, self.request.mode);
                none.insert(self.client.channels.listen(&channel)?)
            }
        };
        listener.changed().await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn granted(&mut self, signal: Signal) {
        // What was tracked was so for the section before.
        (self.listener, self.signal, self.tracked) = (None, None, None);
        self.waits_for_all = false;
        if let Some(runtime) = self.request.renewal_runtime() {
            self.client.servers.prepare(self.names.slot, &runtime);
        }
        let tracking = &self.client.tracking;
        if tracking.has_room() {
            signal.renew_within(TRACKED_AFTER);
        }
        // Where it may not be tracked now, a later renewal asks again.
        self.signal = tracking.is_wanted().then_some(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        if !self.is_plain() || self.downgraded {
            return Box::pin(self.extend_share(|lease| ShareStep::Renew { lease })).await;
        }
        let tracked = self.is_tracked();
        let request = self.step(Step::Renew { lease: self.lease(), tracked });
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        let (mode, before) = ((Mode::Shared, false), self.downgraded);
        if self.is_plain() && !before && !self.client.is_tried(mode.0, mode.1) {
            // A lock that is held alone needs less than a reader's: what is missing would be met by its renewals.
            self.clock.queued();
            Box::pin(self.client.may_use(&self.names, mode, self.request.request_timeout)).await?;
        }
        // What is tracked is a reader's from here on.
        (self.tracked, self.downgraded) = (None, true);
        let result = Box::pin(self.extend_share(|lease| ShareStep::Downgrade { lease })).await;
        if self.is_plain() && matches!(&result, Err(failure) if failure.kind() == ErrorKind::Denied) {
            // A right was taken away since it was tried, and this step changed nothing.
            self.client.try_anew(mode.0, mode.1);
            (self.tracked, self.downgraded) = (None, before);
        }
        result
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        (self.listener, self.signal, self.tracked) = (None, None, None);
        if self.is_share() {
            return Box::pin(self.withdraw_share()).await;
        }
        let request = self.step(Step::Withdraw);
        if !self.held && !self.unanswered.is_empty() {
            // Those that follow attempts on their connections are under way for longer than this call.
            let request = Request { clock: None, ..request };
            let limit = (self.request.lease, self.patience());
            return Box::pin(self.unanswered.withdraw(&self.client.servers, &request, limit)).await;
        }
        let reply = self.client.servers.carry_out(&request, self.patience(), &mut self.overdue).await?;
        self.held = false;
        let withdrawal = withdrawn(&reply.answer)?;
        // An earlier attempt may still arrive, and would take the lock again.
        Ok(if self.unanswered.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        (self.listener, self.signal, self.tracked) = (None, None, None);
        // The server keeps whole milliseconds: rather one too many.
        let millis = u64::try_from(taken_for.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let mode = if self.downgraded { Mode::Shared } else { self.request.mode };
        let (client, names, token) = (Arc::clone(&self.client), self.names.clone(), self.request.token);
        let call = |number| client.format.leave(&names, (&token, mode), millis, number);
        let answer = client.servers.ask(names.slot, (false, self.patience()), call).await?;
        self.held = false;
        let withdrawal = match answer {
            Value::Int(0) => Withdrawal::ABSENT,
            Value::Int(found @ 1..=2) => Withdrawal::REMOVED.with_others_waiting(u32::from(found == 2)),
            _ => return Err(senseless()),
        };
        Ok(if self.unanswered.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }

    fn is_clean(&self) -> bool {
        !self.held && self.unanswered.is_empty() && !self.waits_for_all
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
