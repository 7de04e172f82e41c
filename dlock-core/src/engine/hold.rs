//! One lock that was granted.
//!
//! A [`Hold`] is what its guards, the views of it and the keeper share. Its states are those of [`LocalValidity`].
//! Each part of it answers one question:
//!
//! | question | part |
//! |---|---|
//! | can it be relied on, and if not, why | [`LocalValidity`] |
//! | when is it renewed | [`RenewalPlan`], by the rules of [`LeaseTerms`] |
//! | who shares it, and may they only read | [`HoldShares`] |
//! | what does its end leave to others | [`Succession`], by the rules of [`LeaseTerms::passes_on`] |
//! | who has the claim behind it | [`ClaimPlace`] |
//! | what record does its end leave | `record` |
//!
//! None of the parts has a clock, or runs code of others: the hold reads the clock, and reports and wakes.

mod claim;
pub(super) mod lease;
pub(super) mod pass;
mod passing;
mod record;
mod shares;
mod validity;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::dynamic::DynClaim;
use crate::backend::{Grant, Signal, SignalSink, Validity};
use crate::clock::Timestamp;
use crate::engine::registry::RegistryEntry;
use crate::engine::session::{Session, usual_lease};
use crate::engine::tenure::Tenure;
use crate::engine::{Engine, Spec};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::fence::Fence;
use crate::guarded::wake_all;
use crate::key::Key;
use crate::options::Role;
use crate::sync::{Mutex, Notify};
use crate::telemetry::{Loss, Site, Subject, Trace};
use claim::ClaimPlace;
use lease::{After, LeaseTerms, RenewalPlan, Report, Standing};
use pass::ReservedFences;
use passing::Succession;
use shares::HoldShares;
pub(super) use shares::{ShareKind, Uncarried, Unshared};
use validity::LocalValidity;

/// The condition of a hold at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is valid.
    Held,
    /// It cannot be relied on until it is confirmed.
    Suspect,
    /// It was lost, for good.
    Lost,
    /// It was released.
    Released,
}

/// The outcome of handing a hold over.
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
    pub(super) options: HoldOptions,
    terms: LeaseTerms,
    pub(super) acquired_at: Timestamp,
    /// The trace of the span that took it.
    pub(crate) trace: Trace,
    /// The session that keeps it, beside its lease.
    session: Option<Arc<Session>>,
    validity: LocalValidity,
    renewals: RenewalPlan,
    pub(super) shares: HoldShares,
    succession: Succession,
    pub(super) listing: RegistryEntry,
    changed: Notify,
    claim: Mutex<ClaimPlace>,
}

/// The options of a hold that its owner asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct HoldOptions {
    /// The role of the owner, if it does more than hold a lock.
    pub(super) role: Option<Role>,
    /// Is `true` if the waiters are served in order.
    pub(super) fair: bool,
    pub(super) request_timeout: Duration,
    /// The number of times that the servers are asked again after an unknown outcome; `None` for as long as that is of
    /// use.
    rechecks: Option<u32>,
}

impl Hold {
    /// Makes a hold granted by an attempt whose first request was sent at `sent`, unless its validity counts from an
    /// earlier proof. It is not yet listed with the keeper.
    pub(crate) fn new(
        spec: &Spec,
        (claim, session): (Box<dyn DynClaim>, Option<Arc<Session>>),
        grant: Grant,
        sent: Timestamp,
    ) -> Arc<Self> {
        let now = spec.engine.clock.now();
        // Noted here, and not where the answer came, which spares a second look at the clock.
        spec.engine.registry.contacted(now);
        // The earlier of the two: the local deadline must not be later than the server's.
        let sent = grant.proven_at.map_or(sent, |proof| proof.min(sent));
        // Readers and permits share a key with others, so that their sections follow each other in no tenure.
        let tenure = match spec.options.mode.is_exclusive() {
            true => spec.engine.tenures.granted(&spec.key, now),
            false => Tenure::begin(now),
        };
        let may_be_passed_on = spec.options.handoff && spec.options.mode.is_exclusive();
        let fences = ReservedFences::granted(&grant, may_be_passed_on);
        // A renewal may shorten a first lease that is longer than the validity.
        let first_lease = match grant.validity {
            Validity::Lease(length) => grant.first_lease.map(|first| first.min(length)),
            Validity::Session(_) => grant.first_lease,
        };
        let terms = (grant.validity, first_lease);
        Self::make(spec, (claim, session), (fences, false), terms, (now, sent), tenure)
    }

    fn make(
        spec: &Spec,
        (mut claim, session): (Box<dyn DynClaim>, Option<Arc<Session>>),
        (fences, is_passed_on): (ReservedFences, bool),
        (validity, first_lease): (Validity, Option<Duration>),
        (now, sent): (Timestamp, Timestamp),
        tenure: Tenure,
    ) -> Arc<Self> {
        let Spec { engine, key, site, options } = spec.clone();
        let ends_at = options.max_hold.map_or(Timestamp::NEVER, |limit| now + limit);
        let mut terms = LeaseTerms::new(validity, options.lease, ends_at);
        if session.is_some() {
            // Its lease may be hours, by which a change that the backend reported would be looked at too late.
            terms = terms.retried_by(usual_lease(options.lease));
        }
        let plan = terms.granted(first_lease, (now, sent), || engine.entropy.fraction());
        let leave_until = options.hold_at_least.map_or(Timestamp::from_nanos(0), |least| now + least);
        let hold = Arc::new(Self {
            engine,
            key,
            site,
            options: HoldOptions {
                role: options.role,
                fair: options.fair,
                request_timeout: options.request_timeout(),
                rechecks: options.rechecks,
            },
            terms,
            acquired_at: now,
            trace: Trace::current(),
            session,
            validity: LocalValidity::new(plan, sent),
            renewals: RenewalPlan::new(plan.renew_at),
            shares: HoldShares::new(options.mode),
            succession: Succession::new((fences, is_passed_on), tenure, leave_until),
            listing: RegistryEntry::default(),
            changed: Notify::new(),
            // Not here yet: the claim's signal needs the hold, which it reports to.
            claim: Mutex::new(ClaimPlace::Lent),
        });
        // The signal before the place: a report that comes at once finds the hold, and no renewal has the claim yet.
        claim.granted(Signal::new(&hold));
        *hold.claim.lock() = ClaimPlace::Here(claim);
        hold.audit_begin();
        hold
    }

    /// Returns its fencing token, where the backend has such.
    pub(crate) const fn fence(&self) -> Option<Fence> {
        self.succession.fences().own()
    }

    /// Returns the tenure that its release ends; `None` where others may hold the lock at the same time.
    pub(crate) fn ended_tenure(&self) -> Option<Tenure> {
        self.mode().is_exclusive().then_some(self.succession.tenure)
    }

    /// Returns the labels of spans and metrics for it.
    pub(crate) const fn subject(&self) -> Subject<'_> {
        Subject { key: &self.key, site: self.site }
    }

    /// Returns the condition, by a local test without I/O. Notices by itself that the deadline has passed.
    pub(crate) fn condition(&self) -> Condition {
        self.condition_at(|| self.engine.clock.now())
    }

    /// Returns the condition at the moment of the grant, without another look at the clock.
    pub(super) fn condition_when_granted(&self) -> Condition {
        self.condition_at(|| self.acquired_at)
    }

    #[inline]
    fn condition_at(&self, now: impl FnOnce() -> Timestamp) -> Condition {
        match self.validity.condition(now) {
            Some(condition @ (Condition::Lost | Condition::Released)) => condition,
            // The session of a lock that has ended does not matter any more.
            Some(condition) => match self.session.as_ref().is_none_or(|session| session.is_live()) {
                true => condition,
                false => {
                    self.lose_by(Loss::Session);
                    Condition::Lost
                }
            },
            None => {
                self.lose_by(self.reason_of_expiry());
                Condition::Lost
            }
        }
    }

    /// Returns the condition as this process may see it: a child made by `fork` holds nothing.
    pub(crate) fn condition_here(&self) -> Condition {
        self.condition_in(std::process::id())
    }

    /// Returns the condition as `process` may see it, which is the calling one: a caller that looks at many holds asks
    /// the system for it once.
    pub(crate) fn condition_in(&self, process: u32) -> Condition {
        if self.engine.is_of(process) { self.condition() } else { Condition::Lost }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        // First: in a child of `fork` the state is a copy that no keeper maintains.
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

    /// Returns the outcome of handing it over, where it [is carried](Self::is_carried).
    pub(crate) fn carriage(&self) -> Carriage {
        self.shares.carriage()
    }

    pub(super) fn note_carriage(&self, carriage: Carriage) {
        self.shares.note_carriage(carriage);
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        Error::new(operation, failure).on(self.engine.name).of(&self.key)
    }

    /// Is `true` if its loss was noticed. Unlike [`condition`](Self::condition), this does not look at the clock.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.validity.is_lost()
    }

    /// Returns the lease to be kept up, or the requested one where a session keeps the lock.
    pub(crate) const fn lease(&self) -> Duration {
        self.terms.lease
    }

    /// Returns the lease by which its requests are measured.
    pub(super) fn usual_lease(&self) -> Duration {
        if self.session.is_some() { usual_lease(self.terms.lease) } else { self.terms.lease }
    }

    /// Returns the cause of its loss.
    pub(crate) fn cause(&self) -> Cow<'static, str> {
        self.validity.loss().cloned().unwrap_or_default()
    }

    fn reason_of_expiry(&self) -> Loss {
        if self.deadline() == self.terms.ends_at { Loss::MaxHold } else { Loss::Expired }
    }

    /// Returns whether a release or a downgrade whose caller waits is asked for again, after so many times.
    pub(crate) fn asks_again(&self, asked: u32) -> bool {
        asked < self.options.rechecks.unwrap_or(1)
    }

    /// Returns whether a hand-over is asked for again, after so many times, while its time lasts.
    pub(super) fn hands_over_again(&self, asked: u32) -> bool {
        self.options.rechecks.is_none_or(|most| asked < most)
    }

    pub(super) fn deadline(&self) -> Timestamp {
        self.validity.deadline()
    }

    /// Marks the hold lost, for good, by the backend's report. Does nothing to a hold that was released.
    pub(crate) fn lose(&self, cause: Cow<'static, str>) {
        self.note_loss(Loss::Backend, cause);
    }

    /// Marks the hold lost, for good. Does nothing to a hold that was released.
    pub(crate) fn lose_by(&self, loss: Loss) {
        self.note_loss(loss, loss.sentence());
    }

    fn note_loss(&self, loss: Loss, cause: Cow<'static, str>) {
        let now = self.audit_clock();
        // Only the first loss of a hold that was not released reports and wakes.
        if let Some(trusted) = self.validity.lose(cause) {
            let held = || self.engine.clock.now().since(self.acquired_at);
            // Woken before the event is reported: a subscriber may block. The deadline that ended it is not reported
            // twice.
            let wake = || {
                self.engine.registry.note_lost(self);
                wake_all(&self.changed);
            };
            self.engine.telemetry.lost(self.subject(), loss, &self.cause(), held, wake);
            if let Some(now) = now {
                self.audit_end(now.min(trusted), Some(loss));
            }
        }
    }

    /// Notes that the hold cannot be relied on until it is confirmed again.
    pub(super) fn suspect(&self) {
        // Reported once, for the change, and after the waiters are woken: a subscriber may block.
        let was_held = self.validity.suspect(self.engine.clock.now());
        wake_all(&self.changed);
        if was_held {
            self.engine.telemetry.suspected(self.subject());
        }
    }

    /// Notes that the backend confirmed the hold by a request sent at `sent`. It comes too late when the deadline has
    /// passed.
    pub(super) fn confirm(&self, sent: Timestamp) {
        // The condition is read with the clock, so that a confirmation after the deadline finds the hold lost.
        self.report(Report::Confirmed(sent), self.condition());
    }

    /// Notes that the backend no longer has the lock under our token.
    pub(super) fn gone(&self) {
        // Without a look at the clock: whatever the deadline, the backend's answer is the cause of the loss.
        self.report(Report::Gone, Condition::Held);
    }

    /// Notes that a renewal failed: it is tried again soon.
    pub(super) fn renewal_failed(&self) {
        // Also where the deadline has passed, which the keeper notices.
        self.report(Report::Failed(self.engine.clock.now()), Condition::Held);
    }

    /// Carries out what follows a report on a hold of this condition.
    fn report(&self, report: Report, condition: Condition) {
        // Read one after the other, which may mix two confirmations: `extend` never moves either of them back, so that
        // nothing is trusted for longer by that.
        let (deadline, confirmed_at) = (self.validity.deadline(), self.validity.confirmed_at());
        let standing = Standing { condition, deadline, confirmed_at };
        match self.terms.after(report, standing, || self.engine.entropy.fraction()) {
            After::Nothing => return,
            After::Lost => return self.lose_by(Loss::Gone),
            After::Valid { sent, deadline, renew_at } => {
                // The deadline before the condition: a check that sees the hold sound sees the later deadline too.
                if let Some(deadline) = deadline {
                    self.validity.extend(deadline, sent);
                }
                if let Some(at) = renew_at {
                    self.renewals.plan(at);
                }
                self.validity.confirm();
            }
            After::AtRisk { renew_at } => {
                self.renewals.plan(renew_at);
                self.validity.put_at_risk();
            }
        }
        wake_all(&self.changed);
    }

    /// Returns how long an answer to a renewal sent at `sent` is waited for.
    pub(super) fn renewal_limit(&self, sent: Timestamp) -> Duration {
        let known = (self.deadline(), self.validity.confirmed_at());
        self.terms.answer_limit(known, sent, self.options.request_timeout)
    }

    pub(crate) fn is_release_requested(&self) -> bool {
        self.succession.is_requested()
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        self.validity.is_at_risk() || self.session.as_ref().is_some_and(|session| session.is_at_risk())
    }

    /// Returns the session that keeps it, if one does.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.session.clone()
    }

    /// Is `true` if a session keeps it.
    pub(super) const fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// Is `true` if this session keeps it.
    pub(super) fn is_kept_by(&self, session: &Arc<Session>) -> bool {
        self.session.as_ref().is_some_and(|own| Arc::ptr_eq(own, session))
    }

    /// Returns for how long a renewal should have been confirmed and was not.
    pub(super) fn renewal_overdue(&self, now: Timestamp) -> Option<Duration> {
        // A third of the lease is when a renewal is due at the latest, see `LeaseTerms::after`.
        let due = self.validity.confirmed_at() + self.terms.lease / 3;
        (self.terms.is_renewed() && self.is_at_risk() && due < now).then(|| now.since(due))
    }

    /// Returns the time at which the keeper has to look at this hold: a renewal, or the end.
    pub(super) fn due_at(&self) -> Timestamp {
        // The end as well: the keeper reports a loss that no caller looks for.
        self.renewals.due_at().min(self.deadline())
    }

    /// Returns whether a renewal is due within `ahead` of `now`. If so, the caller alone has to carry it out.
    pub(super) fn take_renewal(&self, now: Timestamp, ahead: Duration) -> bool {
        let most = || self.terms.pause(self.deadline(), self.validity.confirmed_at());
        self.renewals.take(now, ahead, most)
    }

    /// Plans no renewal any more.
    pub(super) fn renew_never(&self) {
        self.renewals.never();
    }

    /// Returns for how long it stays valid if nothing confirms it; `None` without a known end.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        match self.condition_here() {
            Condition::Lost | Condition::Released => Some(Duration::ZERO),
            _ => {
                let deadline = self.deadline();
                let of_session = self.session.as_ref().map_or(Timestamp::NEVER, |session| session.deadline());
                let deadline = deadline.min(of_session);
                (deadline != Timestamp::NEVER).then(|| deadline.since(self.engine.clock.now()))
            }
        }
    }

    /// Returns for how long it is valid from one confirmation to the next; `None` without a known end.
    pub(crate) fn trusted_for(&self) -> Option<Duration> {
        let of_session = self.session.as_ref().and_then(|session| session.trusted_for());
        self.terms.trusted_for().into_iter().chain(of_session).min()
    }

    /// Resolves when the hold is lost. The keeper ends it at its deadline, so that nothing here depends on the caller's
    /// timers.
    pub(crate) async fn lost(&self) {
        // Not `is_lost`: in a child made by `fork` no keeper notices a loss, and the hold counts as lost at once.
        self.when(|hold| hold.condition_here() == Condition::Lost).await;
    }

    /// Resolves when a renewal is late, of the hold or of the record of its session, or the hold is lost.
    pub(crate) async fn at_risk(&self) {
        let is_at_risk = |hold: &Self| hold.is_at_risk() || hold.condition_here() == Condition::Lost;
        // No report on a record reaches the holds themselves, of which there may be a million.
        let of_record = async {
            match &self.session {
                Some(session) => session.at_risk().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.when(is_at_risk) => {}
            () = of_record => {}
        }
    }

    /// Is `true` if it was lost or released. Does not look at the clock.
    pub(super) fn has_ended(&self) -> bool {
        self.validity.has_ended()
    }

    /// Resolves when the hold is lost or released.
    pub(crate) async fn ended(&self) {
        self.when(|hold| hold.validity.has_ended()).await;
    }

    /// Resolves when `test` holds; it is called again at every change.
    pub(crate) async fn when(&self, test: impl Fn(&Self) -> bool) {
        loop {
            // Listens before it looks: a change between the two is not missed.
            let changed = self.changed.notified();
            if test(self) {
                return;
            }
            changed.await;
        }
    }

    /// Returns the time at which a hold that was lost is given up for its owner, who keeps the guard: others wait for a
    /// lock that a session keeps no longer than for a lease to end.
    pub(super) fn overdue_at(&self) -> Timestamp {
        // A lease has ended by then on the server; a session may last as long as its process.
        match self.engine.capabilities.session_kept || self.session.is_some() {
            true => self.deadline() + self.usual_lease(),
            false => Timestamp::NEVER,
        }
    }

    /// Ends the hold, which is not renewed from here on. Returns its condition until now.
    pub(crate) fn close(&self) -> Condition {
        // One look at the clock for the condition and for the time that it was held.
        let now = self.engine.clock.now();
        let was = self.condition_at(|| now);
        let released = self.validity.release();
        // Another thread may have noticed the loss since `condition_at`.
        self.engine.registry.unlist(self, self.is_lost(), now);
        // Last, so that a task that is woken by the end finds the hold off the registry.
        wake_all(&self.changed);
        if let Some(trusted) = released {
            self.audit_end(now.min(trusted), None);
        }
        was
    }
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
        if !self.terms.is_renewed() || self.is_lost() {
            return;
        }
        // Not listed yet: it was granted just now. Closed already: the hold that follows inherits the request.
        let listed = self.listing.is_listed();
        let now = if listed { self.engine.clock.now() } else { self.acquired_at };
        // Wanted before it is listed anew: the keeper that is woken by that finds the earlier time.
        self.renewals.want(now + limit);
        if listed {
            self.engine.registry.replan(self);
        }
    }

    fn release_requested(&self) {
        if self.succession.request() {
            wake_all(&self.changed);
            self.engine.telemetry.release_requested(self.subject());
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("backend", &self.engine.name)
            .field("fence", &self.fence())
            .field("validity", &self.validity)
            .finish_non_exhaustive()
    }
}
