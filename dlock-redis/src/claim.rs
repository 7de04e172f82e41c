//! One claim on one lock.
//!
//! | `held` | `in_flight` | what the server may have | `withdraw` |
//! |---|---|---|---|
//! | no | empty | nothing; a place in the queue, or a mark that keeps newcomers out, if `waits_for_all` | settles |
//! | no | attempts | the lock, by one of them | follows each attempt on its connection: settles, or is an error and repeated |
//! | yes | empty | the lock | settles |
//! | yes | attempts | the lock, and an earlier attempt may take it again | removes it, but is not settled |
//!
//! A withdrawal is sent by the script of shared locks wherever the claim may have a share, see `is_share`.

mod batch;
mod carrying;
mod in_flight;
mod queue_place;
mod shares;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::notify::Listener;
use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, InFlight, Mode, Renewed, RequestClock, Signal, Validity,
    Withdrawal,
};
use dlock_core::{ErrorKind, Failure, Fence, Holder};
use futures_util::FutureExt;
use redis::Value;

use crate::client::Client;
use crate::command::{Command, Question, Respondent};
use crate::error::{is_unnamed, senseless, without_fence};
use crate::format::{draw, probe, probed};
use crate::keys::Names;
use crate::request::{Answer, Probe, Request, ScriptKind, Step, Who};
use crate::servers::{Reply, Untracked};
use crate::tracking::{Probes, TRACKED_AFTER, TrackedLock};

use self::in_flight::{Overdue, Sent};
use self::queue_place::QueuePlace;
pub(crate) use batch::attempt_all;

/// A claim on a lock of [`Redis`](crate::Redis).
pub struct RedisClaim {
    client: Arc<Client>,
    request: ClaimRequest,
    names: Names,
    clock: RequestClock,
    /// The number of fences that the next attempt reserves.
    reserves: u32,
    /// `true` if the claim waits and its last attempt found the lock taken.
    contended: bool,
    /// `true` from a grant until the withdrawal that is answered.
    held: bool,
    // Separate from `overdue`: an attempt that arrives late takes the lock again, a renewal or a withdrawal takes
    // nothing.
    in_flight: InFlight<Sent>,
    /// The connection on which a renewal or a withdrawal was not answered.
    overdue: Overdue,
    listener: Option<Listener>,
    /// The claim's place in the queue of a fair lock.
    place: QueuePlace,
    /// `true` once a downgrade was sent: the lock was taken exclusively, and may be held as a reader's by now.
    downgraded: bool,
    /// `true` if the server may keep newcomers out for this claim: it waits for the whole lock or for several permits,
    /// and has a mark or a place in the queue there.
    waits_for_all: bool,
    /// The hold to notify when the lock changes on the server.
    signal: Option<Signal>,
    tracked: Option<TrackedLock>,
}

impl RedisClaim {
    pub(crate) fn new(client: Arc<Client>, request: ClaimRequest, clock: RequestClock) -> Self {
        let names = client.namer.names(&request.key);
        Self {
            client,
            request,
            names,
            clock,
            reserves: 1,
            contended: false,
            held: false,
            in_flight: InFlight::default(),
            overdue: Overdue::default(),
            listener: None,
            place: QueuePlace::default(),
            downgraded: false,
            waits_for_all: false,
            signal: None,
            tracked: None,
        }
    }

    /// Returns `true` if the lock is tracked, or will be from its next renewal on. Enters it for tracking if there is
    /// room.
    fn is_tracked(&mut self) -> bool {
        let tracking = &self.client.tracking;
        if let (None, Some(signal)) = (&self.tracked, &self.signal)
            && tracking.has_room()
        {
            self.tracked = tracking.enter(&self.names.lock, signal, self.probes());
        }
        self.tracked.is_some() && tracking.is_possible()
    }

    /// Returns the reads that show whether the claim still holds a lock whose key other clients change too. `None` for
    /// a lock that is held exclusively: each change of its key concerns the holder.
    fn probes(&self) -> Option<Probes> {
        if self.is_plain() && !self.downgraded {
            return None;
        }
        let mode = if self.downgraded { Mode::Shared } else { self.request.mode };
        let list = self.client.format.probes(&self.names, &self.request.token, mode, self.request.fair);
        let (client, slot) = (Arc::clone(&self.client), self.names.slot);
        let ask = move |probes: Vec<Probe>, patience| {
            let client = Arc::clone(&client);
            let asking = async move {
                let call = |number| probe(&probes, number);
                let question = Question { slot, respondent: Respondent::TrackedMaster, call: &call };
                probed(client.servers.ask(&question, patience).await.ok()?, &probes)
            };
            asking.boxed()
        };
        let runtime = self.request.renewal_runtime();
        Some(Probes { runtime, lease: self.request.lease, list, ask: Box::new(ask) })
    }

    /// Makes the request of a step: by the script of shared locks, or by the one of exclusive locks.
    fn request_by(&self, is_share: bool, step: Step) -> Request {
        let kind = match self.request.fair {
            _ if !is_share => ScriptKind::Exclusive,
            true => ScriptKind::Fair,
            false => ScriptKind::Shared,
        };
        self.request_of(kind, step)
    }

    fn request_of(&self, kind: ScriptKind, step: Step) -> Request {
        let (names, token, mode) = (self.names.clone(), self.request.token, self.request.mode);
        Request { names, token, mode, kind, step, clock: Some(self.clock.clone()) }
    }

    /// Makes the request of an exclusive attempt. Joins the release channel, see [`listens`](Self::listens).
    fn asking(&mut self) -> Result<Request, Failure> {
        let (listens, who) = (self.listens()?, Who::of(&self.request));
        let (lease, fences) = (self.lease(), self.reserves);
        let step = Step::Acquire { lease, listens, who, fences, prefers: false, mark: None };
        Ok(self.request_by(false, step))
    }

    /// Joins the release channel of the lock if this client is subscribed to it already. Returns `true` if the holder
    /// has to publish its release.
    fn listens(&mut self) -> Result<bool, Failure> {
        self.names.check()?;
        match &mut self.listener {
            Some(listener) => listener.forget(),
            none => {
                let channel = self.client.format.channel(&self.names, self.request.mode);
                *none = self.client.channels.join(&channel);
            }
        }
        // A claim that waits without a subscription asks for the same mark: the release is published for the other
        // clients that it keeps waiting behind it.
        Ok(self.listener.is_some() || self.contended)
    }

    /// Sends a step that may take the lock, and keeps account of it in `in_flight`.
    async fn acquire_by(&mut self, request: &Request) -> Result<Reply, Failure> {
        let (command, patience) = (Command::of(request), self.patience());
        self.client.servers.carry_out(command, patience, &mut self.in_flight).await
    }

    /// Sends a step on a lock that is held, and keeps account of it in `overdue`.
    async fn change_by(&mut self, request: &Request) -> Result<Reply, Failure> {
        let (command, patience) = (Command::of(request), self.patience());
        self.client.servers.carry_out(command, patience, &mut self.overdue).await
    }

    /// Returns `true` if the lock is exclusive, and waited for without a place in a queue on the server.
    fn is_plain(&self) -> bool {
        self.request.mode == Mode::Exclusive
            && !self.request.fair
            && self.client.format.has_exclusive_script()
    }

    /// Returns `true` if the claim is withdrawn by the script of shared locks. That script knows exclusive locks, too.
    fn is_share(&self) -> bool {
        !self.is_plain() || self.downgraded || self.waits_for_all && !self.held
    }

    /// Returns the lease in whole milliseconds, as the server keeps it.
    fn lease(&self) -> u64 {
        let longest = self.client.format.longest(self.request.mode).unwrap_or(Duration::MAX);
        u64::try_from(self.request.lease.min(longest).as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the longest wait for a connection. It is shorter than the engine waits for an answer: a server that
    /// cannot be reached then fails as unavailable, and is not taken for a server that may have received the request.
    fn patience(&self) -> Duration {
        (self.request.usual_lease / 8).min(self.client.connect_timeout * 2)
    }

    /// Returns the failure of a grant or renewal that fewer replicas acknowledged than `min_replicas` asks for.
    fn too_few(&self, acknowledged: u32) -> Option<Failure> {
        let replicas = self.client.replicas.filter(|replicas| acknowledged < replicas.count)?;
        Some(Failure::unavailable(format!(
            "{acknowledged} of {} replicas acknowledged within {:?}",
            replicas.count, replicas.timeout
        )))
    }

    /// Sends one attempt, by the script that the claim needs.
    async fn try_once(&mut self) -> Result<Attempt, Failure> {
        if let Some(left) = self.request.takes_over {
            return Box::pin(self.take_over(left)).await;
        }
        if !self.is_plain() {
            return Box::pin(self.attempt_share()).await;
        }
        let request = self.asking()?;
        let reply = self.acquire_by(&request).await?;
        // Boxed, as everything rare here: each attempt allocates its whole future.
        if matches!(reply.answer, Answer::SplitSlot) {
            let reply = Box::pin(self.acquire_in_split_slot(&request, 0)).await?;
            return self.taken(&request, &reply).await;
        }
        self.taken(&request, &reply).await
    }

    /// Extends the lease to its full length by this step.
    async fn extend(&mut self, step: fn(u64, bool) -> Step) -> Result<Renewed, Failure> {
        // An exclusive renewal reads the lock last and so has it tracked by itself. A shared one does not, and is
        // followed by a look.
        let (is_tracked, is_share) = (self.is_tracked(), !self.is_plain() || self.downgraded);
        let request = self.request_by(is_share, step(self.lease(), is_tracked && !is_share));
        let reply = self.change_by(&request).await?;
        // The server reports no change that came over this connection. So a shared lock is looked at once after its own
        // renewal, which also makes the server track what it reads.
        if is_tracked
            && is_share
            && let Some(tracked) = &self.tracked
        {
            tracked.look();
        }
        match reply.answer {
            Answer::Done(true) => self.too_few(reply.acknowledged).map_or(Ok(Renewed::Extended), Err),
            Answer::Done(false) => Ok(Renewed::Gone),
            _ => Err(senseless()),
        }
    }

    /// Reads the answer to an attempt, and sends what has to follow it.
    async fn taken(&mut self, request: &Request, reply: &Reply) -> Result<Attempt, Failure> {
        match &reply.answer {
            // An attempt in a split slot stores the fence 0 first: the lock is held, and needs its number.
            Answer::Adopted(Some(0)) => Box::pin(self.number(request)).await,
            Answer::Granted(_) | Answer::Adopted(_) => self.granted(reply, request.step.fences()),
            Answer::Busy { left, holder } => Ok(self.busy(*left, Some(holder.clone()))),
            // The key is no string: readers may hold it, whom the script of exclusive locks does not know.
            Answer::NoLock => Box::pin(self.attempt_share()).await,
            _ => Err(senseless()),
        }
    }

    /// Takes the lock by its own key alone. A `fence` of 0 takes it without a fence; any other one is stored in the
    /// lock.
    async fn acquire_in_split_slot(&mut self, request: &Request, fence: u64) -> Result<Reply, Failure> {
        let request = Request { kind: ScriptKind::SplitSlot { fence }, ..request.clone() };
        self.acquire_by(&request).await
    }

    /// Draws the fence of a lock that was taken without one, and stores it in the lock.
    async fn number(&mut self, request: &Request) -> Result<Attempt, Failure> {
        // The fence is drawn after the grant, so that fences have the order of the grants. Until it is stored, the lock
        // is held and its grant is worth nothing: failures that are certain say so, and the engine withdraws.
        self.held = true;
        let call = |number| draw(&request.names, number);
        let question = Question { slot: self.names.slot, respondent: Respondent::Master, call: &call };
        let fence = match self.client.servers.ask(&question, self.patience()).await {
            Ok(Value::Int(fence @ 1..)) => fence.unsigned_abs(),
            Ok(_) => return Err(senseless().of_worthless_grant()),
            Err(failure) => return Err(failure.of_worthless_grant()),
        };
        // If nothing is in flight, the fence certainly was not stored. Otherwise the next attempt may find it in the
        // lock.
        let reply = match self.acquire_in_split_slot(request, fence).await {
            Err(failure) if self.in_flight.is_empty() => return Err(failure.of_worthless_grant()),
            reply => reply?,
        };
        match &reply.answer {
            Answer::Adopted(Some(1..)) => self.granted(&reply, 1),
            Answer::Done(false) | Answer::Busy { .. } => {
                self.held = false;
                Err(Failure::unavailable("the lock was gone before it had a fence"))
            }
            _ => Err(senseless()),
        }
    }

    /// Returns the attempt that found the lock taken. Notes it, so that the next attempt asks for a notification.
    fn busy(&mut self, left: Option<Duration>, holder: Option<Box<Holder>>) -> Attempt {
        self.contended = self.request.waits;
        let mut busy = Busy::default();
        (busy.retry_after, busy.holder) = (left, holder);
        Attempt::Busy(busy)
    }

    /// Notes that the lock is held, and returns the grant.
    fn granted(&mut self, reply: &Reply, fences: u32) -> Result<Attempt, Failure> {
        // `held` first: a grant that is refused below, as too few replicas know of it, still has to be withdrawn.
        self.held = true;
        let grant = self.grant(&reply.answer, fences)?;
        if let Some(failure) = self.too_few(reply.acknowledged) {
            return Err(failure.of_worthless_grant());
        }
        self.listener = None;
        Ok(Attempt::Granted(grant))
    }

    /// Returns the grant of an answer. A new grant has `fences` fences.
    fn grant(&self, answer: &Answer, fences: u32) -> Result<Grant, Failure> {
        let (fence, reserved) = match answer {
            Answer::Granted(fence) => (*fence, fences),
            // The earlier attempt may have reserved another number of fences: only its first one is certain.
            Answer::Adopted(Some(fence)) => (*fence, 1),
            Answer::Adopted(None) => return Err(without_fence()),
            _ => return Err(senseless()),
        };
        let lease = Duration::from_millis(self.lease());
        Ok(Grant::new(Validity::Lease(lease)).with_fence(Fence::new(fence)).with_reserved(reserved))
    }
}

impl Claim for RedisClaim {
    fn reserve(&mut self, fences: u32) {
        self.reserves = if self.client.format.reserves() { fences.max(1) } else { 1 };
    }

    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        match self.try_once().await {
            Err(failure) if is_unnamed(&failure) => {
                let (mode, limit) = ((self.request.mode, self.request.fair), self.request.request_timeout);
                let named = Box::pin(self.client.named(failure, &self.names, mode, limit)).await;
                // `named` is a new failure. The refused step may have stopped in the middle, so the grant must stay
                // marked as worthless.
                Err(if self.held { named.of_worthless_grant() } else { named })
            }
            attempt => attempt,
        }
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        // A fair claim has a channel of its own, by its token: a release wakes the first in the queue only.
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
        // The entry in the tracking tables belongs to the section before this one.
        (self.listener, self.signal, self.tracked) = (None, None, None);
        // The grant removed the claim's mark, or its place in the queue.
        self.waits_for_all = false;
        // Renewals run on another runtime than acquires: its connection is opened now, and not when the first renewal
        // is due.
        if let Some(runtime) = self.request.renewal_runtime() {
            self.client.servers.prepare(self.names.slot, &runtime);
        }
        let tracking = &self.client.tracking;
        if tracking.has_room() {
            signal.renew_within(TRACKED_AFTER);
        }
        // Kept also where the lock cannot be tracked now: a later renewal tries again.
        self.signal = tracking.is_wanted().then_some(signal);
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        self.extend(|lease, tracked| Step::Renew { lease, tracked }).await
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        let (mode, before) = ((Mode::Shared, false), self.downgraded);
        if self.is_plain() && !before && !self.client.is_tried(mode.0, mode.1) {
            // An exclusive lock needs fewer rights than a reader's. A right that is missing would otherwise be noticed
            // by the renewals of the downgraded lock, which would then be lost.
            // The engine counts the step from when it is sent, and not from here: the question may take as long as a
            // request.
            self.clock.queued();
            Box::pin(self.client.may_use(&self.names, mode, self.request.request_timeout)).await?;
        }
        // Set before the request: from here on, whatever becomes of it, the lock may be a reader's, and has other
        // probes.
        (self.tracked, self.downgraded) = (None, true);
        let result = Box::pin(self.extend(|lease, _| Step::Downgrade { lease })).await;
        if self.is_plain() && matches!(&result, Err(failure) if failure.kind() == ErrorKind::Denied) {
            // The server refused the step, so that the lock is still exclusive. A right was taken away since it was
            // checked.
            self.client.try_anew(mode.0, mode.1);
            (self.tracked, self.downgraded) = (None, before);
        }
        result
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        (self.listener, self.signal, self.tracked) = (None, None, None);
        let is_share = self.is_share();
        // No attempt was answered with the lock, but one may still take it: the withdrawal has to follow each on its
        // connection. Otherwise any connection will do, since what is held stays where it is.
        if !self.held && !self.in_flight.is_empty() {
            // The withdrawals that follow attempts on their connections outlive this call, so they get no clock: that
            // one stands for the request of this call. Most of them find nothing to release, and hand nothing to the
            // next in the queue.
            let request = self.request_by(is_share, Step::Withdraw { passes_on: false });
            let request = Request { clock: None, ..request };
            let limit = (self.request.usual_lease, self.patience());
            let withdrawal =
                Box::pin(in_flight::withdraw(&mut self.in_flight, &self.client.servers, &request, limit))
                    .await?;
            // Only the script of shared locks removes a mark and a place, and only a settled withdrawal was certainly
            // the last request.
            self.waits_for_all &= !(is_share && withdrawal.settled);
            return Ok(withdrawal);
        }
        let passes_on = is_share && self.request.fair && self.client.format.passes_on();
        let request = self.request_by(is_share, Step::Withdraw { passes_on });
        let mut reply = self.change_by(&request).await?;
        if matches!(reply.answer, Answer::SplitSlot) {
            // The counter of fences is on another server for now, so that the lock cannot be handed to the first in the
            // queue. That waiter is notified instead, and asks for the lock.
            let request = Request { step: Step::Withdraw { passes_on: false }, ..request };
            reply = Box::pin(self.change_by(&request)).await?;
        }
        // Read first: after an answer without sense the server may have all that it had.
        let withdrawal = reply.answer.withdrawn()?;
        self.held = false;
        self.waits_for_all &= !is_share;
        // An earlier attempt may still arrive, and would take the lock again.
        Ok(if self.in_flight.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        (self.listener, self.signal, self.tracked) = (None, None, None);
        // Rounded up: the server keeps whole milliseconds, and the key must not be free too early.
        let millis = u64::try_from(taken_for.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let mode = if self.downgraded { Mode::Shared } else { self.request.mode };
        let request = self.request_of(ScriptKind::Leave { millis }, Step::Withdraw { passes_on: false });
        let request = Request { mode, clock: None, ..request };
        let command = Command::of(&request);
        let reply = self.client.servers.carry_out(command, self.patience(), &mut Untracked).await?;
        let withdrawal = reply.answer.withdrawn()?;
        self.held = false;
        Ok(if self.in_flight.is_empty() { withdrawal } else { withdrawal.unsettled() })
    }

    fn is_clean(&self) -> bool {
        !self.held && self.in_flight.is_empty() && !self.waits_for_all
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
