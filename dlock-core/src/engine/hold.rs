//! One lock that was granted: its validity, and the claim behind it.

mod claim;
mod passing;
mod shares;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::dynamic::DynClaim;
use crate::backend::{Grant, Mode, Signal, SignalSink, Validity};
use crate::clock::Timestamp;
use crate::engine::registry::RegistryEntry;
use crate::engine::tenure::Tenure;
use crate::engine::{Engine, Spec};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::fence::Fence;
use crate::guarded::wake_all;
use crate::key::Key;
use crate::options::{Role, margin};
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, Notify};
use crate::telemetry::{Loss, Site, Subject, Trace};
use claim::ClaimPlace;
pub(super) use shares::{ShareKind, Uncarried};

const HELD: u8 = 0;
const SUSPECT: u8 = 1;
const LOST: u8 = 2;
const RELEASED: u8 = 3;

/// The pause after the first renewal that the backend wanted, in nanoseconds. It doubles from each to the next, up to
/// that after a failed renewal, and is as short again after a renewal that was due by itself.
const WANTED_PAUSE: u64 = 50_000_000;

/// What a hold is worth at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Held,
    Suspect,
    Lost,
    Released,
}

/// What came of handing a hold over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Carriage {
    Begun,
    Done,
    Failed,
}

impl Carriage {
    const fn sentence(self) -> &'static str {
        match self {
            Self::Begun => "it is being handed over",
            Self::Done => "it was handed over",
            Self::Failed => "it could not be handed over, and is released in the background",
        }
    }
}

/// A lock that was granted. Shared by the guards of its owner, the views of it, and the keeper.
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) fence: Option<Fence>,
    /// How it was granted; see [`mode`](Self::mode).
    granted_as: Mode,
    /// What its owner does with it, where that is more than to hold a lock.
    pub(super) role: Option<Role>,
    /// Whether it was asked to be kept in line.
    pub(super) fair: bool,
    /// The last of the fences that were reserved with it; zero when it is not to be passed on.
    last_fence: u64,
    pub(crate) tenure: Tenure,
    pub(super) acquired_at: Timestamp,
    pub(crate) request_timeout: Duration,
    /// How often the owner asks again after an unknown outcome; `None` for as long as that is of use.
    rechecks: Option<u32>,
    /// The lease to be kept up, or the requested one where a session keeps the lock.
    pub(crate) lease: Duration,
    validity: Validity,
    /// Of the span that took it.
    pub(crate) trace: Trace,
    /// When `max_hold` ends it.
    ends_at: Timestamp,
    /// Until when its release leaves the key taken; zero for an ordinary release.
    leave_until: AtomicU64,
    state: AtomicU8,
    deadline: AtomicU64,
    /// When the last request was sent that confirmed it.
    confirmed_at: AtomicU64,
    renew_at: AtomicU64,
    /// When the backend wants a renewal besides, and before when it gets none.
    wanted_at: AtomicU64,
    not_wanted_before: AtomicU64,
    /// Between two of these, in nanoseconds.
    wanted_pause: AtomicU64,
    at_risk: AtomicBool,
    /// Somebody else asked for the lock.
    release_requested: AtomicBool,
    /// How many guards share the hold, by kind; the last one releases the lock.
    shares: AtomicU64,
    /// Whether the backend has not yet confirmed that it is for reading only; see [`mode`](Self::mode).
    pub(super) downgrades: AtomicBool,
    /// The keeper asks for that.
    pub(super) downgrades_later: AtomicBool,
    /// What came of handing it over.
    carriage: AtomicU8,
    pub(super) listing: RegistryEntry,
    changed: Notify,
    loss: OnceLock<Cow<'static, str>>,
    claim: Mutex<ClaimPlace>,
}

impl Hold {
    /// A hold granted by an attempt whose first request was sent at `sent`, unless its validity counts from an earlier
    /// proof. Not yet listed with the keeper.
    pub(crate) fn new(spec: &Spec, claim: Box<dyn DynClaim>, grant: Grant, sent: Timestamp) -> Arc<Self> {
        let now = spec.engine.clock.now();
        spec.engine.registry.contacted(now);
        let sent = grant.proven_at.map_or(sent, |proof| proof.min(sent));
        let tenure = match spec.options.mode.is_exclusive() {
            true => spec.engine.tenures.granted(&spec.key, now),
            false => Tenure::begin(now),
        };
        let last_fence = match grant.fence {
            Some(fence) if spec.options.handoff && spec.options.mode.is_exclusive() => {
                fence.get().saturating_add(u64::from(grant.reserved.saturating_sub(1)))
            }
            _ => 0,
        };
        // A hold that follows has the validity for its lease, which the server has not confirmed after a first lease.
        let last_fence = if grant.first_lease.is_none() { last_fence } else { 0 };
        // A renewal may shorten a first lease that is longer than the validity.
        let first_lease = match grant.validity {
            Validity::Lease(length) => grant.first_lease.map(|first| first.min(length)),
            Validity::Session(_) => grant.first_lease,
        };
        let terms = (grant.validity, first_lease);
        Self::make(spec, claim, (grant.fence, last_fence), terms, (now, sent), tenure)
    }

    fn make(
        spec: &Spec,
        mut claim: Box<dyn DynClaim>,
        (fence, last_fence): (Option<Fence>, u64),
        (validity, first_lease): (Validity, Option<Duration>),
        (now, sent): (Timestamp, Timestamp),
        tenure: Tenure,
    ) -> Arc<Self> {
        let Spec { engine, key, site, options } = spec.clone();
        let ends_at = options.max_hold.map_or(Timestamp::NEVER, |limit| now + limit);
        let length = match validity {
            Validity::Lease(length) | Validity::Session(Some(length)) => Some(length),
            Validity::Session(None) => None,
        };
        let first = first_lease.or(length);
        let deadline = first.map_or(Timestamp::NEVER, |length| valid_until(sent, length)).min(ends_at);
        let renew_at = match (validity, first_lease) {
            // Soon, for the sake of what it is to be; a section that is short needs no renewal.
            (Validity::Lease(_), Some(first)) => now + part_of(&engine, first / 20, 0.5),
            // Early enough for the renewals of locks that were taken at once to part, and late enough not to wake the
            // keeper for locks that are released soon.
            (Validity::Lease(length), None) => sent + part_of(&engine, length / 3, 0.5),
            (Validity::Session(_), _) => Timestamp::NEVER,
        };
        let hold = Arc::new(Self {
            engine,
            key,
            site,
            fence,
            granted_as: options.mode,
            role: options.role,
            fair: options.fair,
            last_fence,
            tenure,
            acquired_at: now,
            request_timeout: options.request_timeout(),
            rechecks: options.rechecks,
            lease: length.unwrap_or(options.lease),
            validity,
            trace: Trace::current(),
            ends_at,
            leave_until: AtomicU64::new(options.hold_at_least.map_or(0, |least| (now + least).as_nanos())),
            state: AtomicU8::new(HELD),
            deadline: AtomicU64::new(deadline.as_nanos()),
            confirmed_at: AtomicU64::new(sent.as_nanos()),
            renew_at: AtomicU64::new(renew_at.as_nanos()),
            wanted_at: AtomicU64::new(Timestamp::NEVER.as_nanos()),
            not_wanted_before: AtomicU64::new(0),
            wanted_pause: AtomicU64::new(WANTED_PAUSE),
            at_risk: AtomicBool::new(false),
            release_requested: AtomicBool::new(false),
            shares: AtomicU64::new(ShareKind::Plain.one()),
            downgrades: AtomicBool::new(false),
            downgrades_later: AtomicBool::new(false),
            carriage: AtomicU8::new(Carriage::Begun as u8),
            listing: RegistryEntry::default(),
            changed: Notify::new(),
            loss: OnceLock::new(),
            claim: Mutex::new(ClaimPlace::Lent),
        });
        claim.granted(Signal::new(&hold));
        *hold.claim.lock() = ClaimPlace::Here(claim);
        hold
    }

    /// The tenure that its release ends; none where others may hold the lock at the same time.
    pub(crate) fn ended_tenure(&self) -> Option<Tenure> {
        self.mode().is_exclusive().then_some(self.tenure)
    }

    /// What spans and metrics say of it.
    pub(crate) const fn subject(&self) -> Subject<'_> {
        Subject { key: &self.key, site: self.site }
    }

    /// A pure local test; no I/O. Notices by itself that the deadline has passed.
    pub(crate) fn condition(&self) -> Condition {
        self.condition_at(|| self.engine.clock.now())
    }

    /// The same at the moment of the grant, without another look at the clock.
    pub(super) fn condition_when_granted(&self) -> Condition {
        self.condition_at(|| self.acquired_at)
    }

    #[inline]
    fn condition_at(&self, now: impl FnOnce() -> Timestamp) -> Condition {
        match self.state.load(Ordering::Acquire) {
            RELEASED => Condition::Released,
            LOST => Condition::Lost,
            state => {
                if now() >= self.deadline() {
                    self.lose_by(self.reason_of_expiry());
                    return Condition::Lost;
                }
                if state == SUSPECT { Condition::Suspect } else { Condition::Held }
            }
        }
    }

    /// Returns the condition as this process may see it: a child made by `fork` holds nothing.
    pub(crate) fn condition_here(&self) -> Condition {
        self.condition_in(std::process::id())
    }

    /// Returns the condition as `process` may see it, which is the calling one: who looks at many holds asks the system
    /// for it once.
    pub(crate) fn condition_in(&self, process: u32) -> Condition {
        if self.engine.is_of(process) { self.condition() } else { Condition::Lost }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.engine.refuse_in_child().map_err(|failure| self.error(Operation::Hold, failure))?;
        let failure = match self.condition() {
            Condition::Held => return Ok(()),
            Condition::Suspect => Failure::new(
                ErrorKind::Suspect,
                "the connection that keeps it is gone; wait until it is back or lost",
            ),
            Condition::Lost => Failure::new(ErrorKind::Lost, self.cause()),
            Condition::Released if self.is_carried() => {
                Failure::new(ErrorKind::NotHeld, self.carriage().sentence())
            }
            Condition::Released => Failure::new(ErrorKind::NotHeld, "it was released"),
        };
        Err(self.error(Operation::Hold, failure))
    }

    /// What came of handing it over, where it [is carried](Self::is_carried).
    pub(crate) fn carriage(&self) -> Carriage {
        let state = self.carriage.load(Ordering::Acquire);
        [Carriage::Done, Carriage::Failed]
            .into_iter()
            .find(|known| *known as u8 == state)
            .unwrap_or(Carriage::Begun)
    }

    pub(super) fn note_carriage(&self, carriage: Carriage) {
        self.carriage.store(carriage as u8, Ordering::Release);
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        Error::new(operation, failure).on(self.engine.name).of(&self.key)
    }

    /// Whether its loss was noticed. Unlike [`condition`](Self::condition), this does not look at the clock.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) == LOST
    }

    /// Why it was lost.
    pub(crate) fn cause(&self) -> Cow<'static, str> {
        self.loss.get().cloned().unwrap_or_default()
    }

    fn reason_of_expiry(&self) -> Loss {
        if self.deadline() == self.ends_at { Loss::MaxHold } else { Loss::Expired }
    }

    /// Whether a release or a downgrade whose caller waits is asked for again, after so many times.
    pub(crate) fn asks_again(&self, asked: u32) -> bool {
        asked < self.rechecks.unwrap_or(1)
    }

    /// Whether a hand-over is asked for again, after so many times, while its time lasts.
    pub(super) fn hands_over_again(&self, asked: u32) -> bool {
        self.rechecks.is_none_or(|most| asked < most)
    }

    pub(super) fn deadline(&self) -> Timestamp {
        Timestamp::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Marks the hold lost, for good, as the backend said. Does nothing to one that was released.
    pub(crate) fn lose(&self, cause: Cow<'static, str>) {
        self.note_loss(Loss::Backend, cause);
    }

    /// Marks the hold lost, for good. Does nothing to one that was released.
    pub(crate) fn lose_by(&self, loss: Loss) {
        self.note_loss(loss, loss.sentence());
    }

    fn note_loss(&self, loss: Loss, cause: Cow<'static, str>) {
        let _ = self.loss.set(cause);
        let was = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state < LOST).then_some(LOST));
        if was.is_ok() {
            let held = || self.engine.clock.now().since(self.acquired_at);
            let wake = || {
                self.engine.registry.note_lost(self);
                wake_all(&self.changed);
            };
            self.engine.telemetry.lost(self.subject(), loss, &self.cause(), held, wake);
        }
    }

    /// Until it is confirmed again, the hold cannot be relied on.
    pub(super) fn suspect(&self) {
        self.at_risk.store(true, Ordering::Release);
        let was = self.state.compare_exchange(HELD, SUSPECT, Ordering::AcqRel, Ordering::Acquire);
        wake_all(&self.changed);
        if was.is_ok() {
            self.engine.telemetry.suspected(self.subject());
        }
    }

    /// The backend confirmed the hold by a request sent at `sent`. Comes too late when the deadline has passed.
    pub(super) fn confirm(&self, sent: Timestamp) {
        if matches!(self.condition(), Condition::Lost | Condition::Released) {
            return;
        }
        if let Validity::Lease(length) | Validity::Session(Some(length)) = self.validity {
            let deadline = valid_until(sent, length).min(self.ends_at);
            self.deadline.fetch_max(deadline.as_nanos(), Ordering::AcqRel);
            self.confirmed_at.fetch_max(sent.as_nanos(), Ordering::AcqRel);
        }
        if let Validity::Lease(length) = self.validity {
            self.plan_renewal(sent + part_of(&self.engine, length / 3, 0.75));
        }
        self.at_risk.store(false, Ordering::Release);
        let _ = self.state.compare_exchange(SUSPECT, HELD, Ordering::AcqRel, Ordering::Acquire);
        wake_all(&self.changed);
    }

    /// A renewal failed: it is tried again soon.
    pub(super) fn renewal_failed(&self) {
        self.plan_renewal(self.engine.clock.now() + part_of(&self.engine, self.pause(), 0.5));
        self.mark_at_risk();
    }

    /// The pause between renewals that are not due by themselves.
    fn pause(&self) -> Duration {
        (self.lease_that_runs() / 12).max(Duration::from_millis(5))
    }

    /// How long the lease that runs now is in all, which may be a first one.
    fn lease_that_runs(&self) -> Duration {
        let deadline = self.deadline();
        if deadline >= self.ends_at {
            return self.lease;
        }
        let confirmed = Timestamp::from_nanos(self.confirmed_at.load(Ordering::Acquire));
        self.lease.min(deadline.since(confirmed))
    }

    /// How long an answer to a renewal sent at `sent` is waited for. In a first lease there is time for another one.
    pub(super) fn renewal_limit(&self, sent: Timestamp) -> Duration {
        let left = self.deadline().since(sent);
        let is_first = self.lease_that_runs() < self.lease.mul_f64(0.9);
        self.request_timeout.min(if is_first { left / 3 } else { left })
    }

    /// A renewal is late.
    fn mark_at_risk(&self) {
        self.at_risk.store(true, Ordering::Release);
        wake_all(&self.changed);
    }

    pub(crate) fn is_release_requested(&self) -> bool {
        self.release_requested.load(Ordering::Acquire)
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.at_risk.load(Ordering::Acquire)
    }

    /// For how long a renewal should have been confirmed and was not.
    pub(super) fn renewal_overdue(&self, now: Timestamp) -> Option<Duration> {
        let due = Timestamp::from_nanos(self.confirmed_at.load(Ordering::Acquire)) + self.lease / 3;
        (matches!(self.validity, Validity::Lease(_)) && self.is_at_risk() && due < now)
            .then(|| now.since(due))
    }

    /// When the keeper has to look at this hold: a renewal, or the end.
    pub(super) fn due_at(&self) -> Timestamp {
        let renewals = [&self.renew_at, &self.wanted_at].map(|at| at.load(Ordering::Acquire));
        Timestamp::from_nanos(renewals[0].min(renewals[1])).min(self.deadline())
    }

    /// Whether a renewal is due within `ahead` of `now`; if so it is the caller's to carry out, and nobody else's.
    pub(super) fn take_renewal(&self, now: Timestamp, ahead: Duration) -> bool {
        let is_wanted = self.wanted_at.load(Ordering::Acquire) <= now.as_nanos();
        if !is_wanted && self.renew_at.load(Ordering::Acquire) > (now + ahead).as_nanos() {
            return false;
        }
        if is_wanted {
            let pause = self.wanted_pause.load(Ordering::Acquire);
            let next = now + Duration::from_nanos(pause);
            self.not_wanted_before.store(next.as_nanos(), Ordering::Release);
            let most = u64::try_from(self.pause().as_nanos()).unwrap_or(u64::MAX);
            self.wanted_pause.store(pause.saturating_mul(2).min(most), Ordering::Release);
        } else {
            self.wanted_pause.store(WANTED_PAUSE, Ordering::Release);
        }
        // It is still to be sent, and so all that was wanted until now. Its end plans the next one.
        self.renew_never();
        true
    }

    /// Plans none any more.
    pub(super) fn renew_never(&self) {
        self.renew_at.store(Timestamp::NEVER.as_nanos(), Ordering::Release);
        self.wanted_at.store(Timestamp::NEVER.as_nanos(), Ordering::Release);
    }

    /// Plans the next renewal, unless the hold ends before by `max_hold`.
    pub(super) fn plan_renewal(&self, at: Timestamp) {
        let at = if self.deadline() >= self.ends_at { Timestamp::NEVER } else { at };
        self.renew_at.store(at.as_nanos(), Ordering::Release);
    }

    /// How long it stays valid if nothing confirms it; `None` without a known end.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self.condition_here() {
            Condition::Lost | Condition::Released => Some(Duration::ZERO),
            _ if self.deadline() == Timestamp::NEVER => None,
            _ => Some(self.deadline().since(self.engine.clock.now())),
        }
    }

    /// How long it is valid from one confirmation to the next; `None` without a known end.
    pub(crate) fn trusted_for(&self) -> Option<Duration> {
        match self.validity {
            Validity::Lease(length) | Validity::Session(Some(length)) => {
                Some(length.saturating_sub(margin(length)))
            }
            Validity::Session(None) => None,
        }
    }

    /// Resolves when the hold is lost. The keeper ends it at its deadline, so that nothing here depends on the caller's
    /// timers.
    pub(crate) async fn lost(&self) {
        self.when(|hold| hold.condition_here() == Condition::Lost).await;
    }

    /// Resolves when the hold is lost or released.
    pub(crate) async fn ended(&self) {
        self.when(|hold| hold.state.load(Ordering::Acquire) >= LOST).await;
    }

    /// Resolves when `test` holds; it is asked again at every change.
    pub(crate) async fn when(&self, test: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            if test(self) {
                return;
            }
            changed.await;
        }
    }

    /// When a hold that was lost is given up for its owner, who keeps the guard: nobody is to wait longer for what a
    /// session keeps than for a lease to end.
    pub(super) fn overdue_at(&self) -> Timestamp {
        match self.engine.capabilities.session_kept {
            true => self.deadline() + self.lease,
            false => Timestamp::NEVER,
        }
    }

    /// From here on nobody renews it. Says what it was worth until now.
    pub(crate) fn close(&self) -> Condition {
        let now = self.engine.clock.now();
        let was = self.condition_at(|| now);
        let _ = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state < LOST).then_some(RELEASED));
        // Another thread may have noticed the loss since.
        self.engine.registry.unlist(self, self.is_lost(), now);
        wake_all(&self.changed);
        was
    }
}

/// Until when a lock that was confirmed by a request sent at `sent` can be relied upon.
fn valid_until(sent: Timestamp, length: Duration) -> Timestamp {
    // The margin first: a length without an end stays without one.
    sent + length.saturating_sub(margin(length))
}

/// A random part of `length`, at least the share `least` of it.
fn part_of(engine: &Engine, length: Duration, least: f64) -> Duration {
    length.mul_f64(least + (1.0 - least) * engine.entropy.fraction())
}

impl SignalSink for Hold {
    fn lost(&self, cause: Cow<'static, str>) {
        self.lose(cause);
    }

    fn suspect(&self) {
        Self::suspect(self);
    }

    fn trust(&self, proof: Timestamp) {
        self.confirm(proof);
    }

    fn renew_within(&self, limit: Duration) {
        if !matches!(self.validity, Validity::Lease(_)) || self.is_lost() {
            return;
        }
        // One that is not listed yet was granted just now; one that is closed leaves it to the hold that follows.
        let listed = self.listing.is_listed();
        let now = if listed { self.engine.clock.now() } else { self.acquired_at };
        let at = (now + limit).as_nanos().max(self.not_wanted_before.load(Ordering::Acquire));
        self.wanted_at.fetch_min(at, Ordering::AcqRel);
        if listed {
            self.engine.registry.replan(self);
        }
    }

    fn release_requested(&self) {
        if !self.release_requested.swap(true, Ordering::AcqRel) {
            wake_all(&self.changed);
            self.engine.telemetry.release_requested(self.subject());
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("backend", &self.engine.name)
            .field("fence", &self.fence)
            .field("state", &self.state.load(Ordering::Acquire))
            .finish_non_exhaustive()
    }
}
