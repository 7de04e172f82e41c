//! The validity of a hold and the times of its renewals: the decisions, without a clock. Times and random numbers come
//! in.
//!
//! | event | it is valid until | it is renewed |
//! |---|---|---|
//! | granted by a request sent at `s` | `s` and its lease, less a margin | a sixth to a third of the lease after `s` |
//! | granted at `g` for a first lease | `s` and that lease, less a margin | a fortieth to a twentieth of it after `g` |
//! | kept by a session | `s` and the session's length, if it has one | never |
//! | confirmed by a request sent at `s` | the later of that and before | a quarter to a third of the lease after `s` |
//! | confirmed after the deadline, or its end | as before: a loss is final | |
//! | a renewal failed at `f` | as before | a twenty-fourth to a twelfth of the lease that runs after `f` |
//! | the backend has it no more | it is lost | |
//!
//! `max_hold` ends it earlier. Where that is the next end, it is not renewed again.
//!
//! A [`RenewalPlan`] keeps the time of the next renewal:
//!
//! | state | the next renewal | what leads to it |
//! |---|---|---|
//! | planned | when it is due by itself | a grant, or the end of the renewal before |
//! | wanted | earlier, when the backend wants it | [`want`](RenewalPlan::want) |
//! | under way | none | [`take`](RenewalPlan::take), by the keeper |
//! | over | none | [`never`](RenewalPlan::never): the hold has ended |

use std::time::Duration;

use super::Condition;
use crate::backend::Validity;
use crate::clock::Timestamp;
use crate::options::margin;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The pause after the first renewal that the backend wanted, in nanoseconds. It doubles from each to the next, up to
/// that after a failed renewal, and is as short again after a renewal that was due by itself.
const WANTED_PAUSE: u64 = 50_000_000;

/// The terms of a hold.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// The validity that was granted.
    pub validity: Validity,
    /// The lease to be kept up, or the requested one where a session keeps the lock.
    pub lease: Duration,
    /// The lease by which a renewal is made again that failed, or that the backend wanted: the same, or a shorter one
    /// where a session of the process keeps the lock for hours.
    pub retried_by: Duration,
    /// The time at which `max_hold` ends the hold.
    pub ends_at: Timestamp,
}

/// The end of a hold, and its renewal before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The time at which the hold ends unless it is confirmed before.
    pub deadline: Timestamp,
    /// The time of its renewal.
    pub renew_at: Timestamp,
}

/// The report of a backend on a hold, or its absence.
#[derive(Clone, Copy, Debug)]
pub enum Report {
    /// It was confirmed by a request sent then.
    Confirmed(Timestamp),
    /// The backend no longer has it under our token.
    Gone,
    /// No answer came until then that settles it.
    Failed(Timestamp),
}

/// The state of a hold after a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Nothing: the hold has ended.
    Nothing,
    /// It is lost.
    Lost,
    /// It is valid, for longer where that has an end.
    Valid {
        /// The send time of the request that confirmed it.
        sent: Timestamp,
        /// The time at which it ends unless it is confirmed again, or a later one that was known before; `None` without
        /// a known end.
        deadline: Option<Timestamp>,
        /// The time of its next renewal, if there is one.
        renew_at: Option<Timestamp>,
    },
    /// It is at risk, and renewed again soon.
    AtRisk {
        /// The time of its next renewal.
        renew_at: Timestamp,
    },
}

/// The state of a hold when a report comes.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// The condition of the hold.
    pub condition: Condition,
    /// The time at which it ends unless it is confirmed before.
    pub deadline: Timestamp,
    /// The send time of the last request that confirmed it.
    pub confirmed_at: Timestamp,
}

impl LeaseTerms {
    /// Makes the terms of a grant, for the lease that was asked for.
    pub fn new(validity: Validity, asked: Duration, ends_at: Timestamp) -> Self {
        // The backend may have granted another lease than was asked for; what it granted is what the server ends.
        let lease = length_of(validity).unwrap_or(asked);
        Self { validity, lease, retried_by: lease, ends_at }
    }

    /// Has renewals made again as those of a lock with this lease.
    #[must_use]
    pub(crate) fn retried_by(mut self, lease: Duration) -> Self {
        self.retried_by = self.lease.min(lease);
        self
    }

    /// Plans a hold that is granted at `now` by a request sent at `sent`, and that has a shorter lease at first if that
    /// is given. `fraction` is random, of one.
    pub fn granted(
        &self,
        first_lease: Option<Duration>,
        (now, sent): (Timestamp, Timestamp),
        fraction: impl FnOnce() -> f64,
    ) -> Plan {
        let first = first_lease.or(length_of(self.validity));
        let deadline = first.map_or(Timestamp::NEVER, |length| valid_until(sent, length)).min(self.ends_at);
        let renew_at = match (self.validity, first_lease) {
            // Soon, for the sake of what it is to be; a section that is short needs no renewal.
            (Validity::Lease(_), Some(first)) => now + part_of(first / 20, 0.5, fraction()),
            // Early enough for the renewals of locks that were taken at once to part, and late enough not to wake the
            // keeper for locks that are released soon.
            (Validity::Lease(length), None) => sent + part_of(length / 3, 0.5, fraction()),
            // The backend proves the session alive for all of its locks, and reports that by `SignalSink::trust`.
            (Validity::Session(_), _) => Timestamp::NEVER,
        };
        Plan { deadline, renew_at }
    }

    /// Decides what follows a report.
    pub fn after(&self, report: Report, hold: Standing, fraction: impl FnOnce() -> f64) -> After {
        match report {
            Report::Confirmed(_) if matches!(hold.condition, Condition::Lost | Condition::Released) => {
                After::Nothing
            }
            Report::Confirmed(sent) => {
                let length = length_of(self.validity);
                let deadline = length.map(|length| valid_until(sent, length).min(self.ends_at));
                // An answer that arrives late, to a request that was sent early, must not shorten what a later one
                // confirmed.
                let until = deadline.map_or(hold.deadline, |deadline| deadline.max(hold.deadline));
                let renew_at = match self.validity {
                    Validity::Lease(length) => {
                        Some(self.unless_last(until, sent + part_of(length / 3, 0.75, fraction())))
                    }
                    Validity::Session(_) => None,
                };
                After::Valid { sent, deadline, renew_at }
            }
            Report::Gone => After::Lost,
            Report::Failed(now) => {
                let pause = part_of(self.pause(hold.deadline, hold.confirmed_at), 0.5, fraction());
                After::AtRisk { renew_at: self.unless_last(hold.deadline, now + pause) }
            }
        }
    }

    /// Returns `at`, unless the hold ends by `max_hold` before another renewal would be of use.
    fn unless_last(&self, deadline: Timestamp, at: Timestamp) -> Timestamp {
        if deadline >= self.ends_at { Timestamp::NEVER } else { at }
    }

    /// Returns the pause between renewals that are not due by themselves.
    pub fn pause(&self, deadline: Timestamp, confirmed_at: Timestamp) -> Duration {
        // At least 5 ms, or half of that after a failure: a first lease of a few milliseconds that cannot be renewed
        // must not keep the keeper busy.
        (self.lease_that_runs(deadline, confirmed_at).min(self.retried_by) / 12).max(Duration::from_millis(5))
    }

    /// Returns how long the lease that runs now is in all, which may be a first one.
    fn lease_that_runs(&self, deadline: Timestamp, confirmed_at: Timestamp) -> Duration {
        // A deadline that `max_hold` set shows nothing of the lease.
        match deadline >= self.ends_at {
            true => self.lease,
            false => self.lease.min(deadline.since(confirmed_at)),
        }
    }

    /// Returns how long an answer to a renewal sent at `sent` is waited for. In a first lease there is time for another
    /// renewal.
    pub fn answer_limit(
        &self,
        (deadline, confirmed_at): (Timestamp, Timestamp),
        sent: Timestamp,
        request_timeout: Duration,
    ) -> Duration {
        let left = deadline.since(sent);
        // The local deadline is a margin earlier than the lease's end, so that a full lease comes out a little shorter.
        let is_first = self.lease_that_runs(deadline, confirmed_at) < self.lease.mul_f64(0.9);
        request_timeout.min(if is_first { left / 3 } else { left })
    }

    /// Returns how long the hold is valid from one confirmation to the next; `None` without a known end.
    pub fn trusted_for(&self) -> Option<Duration> {
        length_of(self.validity).map(|length| length.saturating_sub(margin(length)))
    }

    /// Returns whether the hold lasts by its lease, and is renewed.
    pub const fn is_renewed(&self) -> bool {
        matches!(self.validity, Validity::Lease(_))
    }
}

/// Returns how long a grant lasts without a confirmation; `None` without a known end.
const fn length_of(validity: Validity) -> Option<Duration> {
    match validity {
        Validity::Lease(length) | Validity::Session(Some(length)) => Some(length),
        Validity::Session(None) => None,
    }
}

/// Returns the time until which a lock can be relied upon that was confirmed by a request sent at `sent`.
fn valid_until(sent: Timestamp, length: Duration) -> Timestamp {
    // The margin first: a length without an end stays without one.
    sent + length.saturating_sub(margin(length))
}

/// Returns a part of `length`, from the share `least` of it upwards; `fraction` is random, of one.
fn part_of(length: Duration, least: f64, fraction: f64) -> Duration {
    length.mul_f64(least + (1.0 - least) * fraction)
}

/// The renewals of one hold; see the [states](self).
pub(super) struct RenewalPlan {
    /// The time at which the next renewal is due by itself.
    renew_at: AtomicU64,
    /// The time at which the backend wants a renewal besides, and the time before which it gets none.
    verify_at: AtomicU64,
    not_wanted_before: AtomicU64,
    /// The pause after the next renewal that the backend wants, in nanoseconds.
    wanted_pause: AtomicU64,
}

impl RenewalPlan {
    pub(super) const fn new(renew_at: Timestamp) -> Self {
        Self {
            renew_at: AtomicU64::new(renew_at.as_nanos()),
            verify_at: AtomicU64::new(Timestamp::NEVER.as_nanos()),
            not_wanted_before: AtomicU64::new(0),
            wanted_pause: AtomicU64::new(WANTED_PAUSE),
        }
    }

    pub(super) fn due_at(&self) -> Timestamp {
        self.renew_at().min(self.verify_at())
    }

    fn renew_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.renew_at.load(Ordering::Acquire))
    }

    pub(super) fn verify_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.verify_at.load(Ordering::Acquire))
    }

    /// Is `true` if a renewal is under way, or the backend wants one by `now`.
    pub(super) fn is_renewing(&self, now: Timestamp) -> bool {
        self.renew_at() == Timestamp::NEVER || self.verify_at() <= now
    }

    /// Takes the renewal that is due within `ahead` of `now`; if there is one, the caller alone carries it out. `most`
    /// is the longest pause between renewals that the backend wants.
    pub(super) fn take(&self, now: Timestamp, ahead: Duration, most: impl FnOnce() -> Duration) -> bool {
        // Loads and stores, and no exchange: only the keeper takes renewals, with the registry locked.
        let is_wanted = self.verify_at() <= now;
        if !is_wanted && self.renew_at() > now + ahead {
            return false;
        }
        if is_wanted {
            let pause = self.wanted_pause.load(Ordering::Acquire);
            let next = now + Duration::from_nanos(pause);
            self.not_wanted_before.store(next.as_nanos(), Ordering::Release);
            let most = u64::try_from(most().as_nanos()).unwrap_or(u64::MAX);
            self.wanted_pause.store(pause.saturating_mul(2).min(most), Ordering::Release);
        } else {
            self.wanted_pause.store(WANTED_PAUSE, Ordering::Release);
        }
        // It is still to be sent, and so all that was wanted until now. Its end plans the next one.
        self.never();
        true
    }

    /// Plans none any more.
    pub(super) fn never(&self) {
        self.plan(Timestamp::NEVER);
        self.verify_at.store(Timestamp::NEVER.as_nanos(), Ordering::Release);
    }

    pub(super) fn plan(&self, at: Timestamp) {
        self.renew_at.store(at.as_nanos(), Ordering::Release);
    }

    /// Notes that the backend wants a renewal by `at`, but not so soon after the last wanted one.
    pub(super) fn want(&self, at: Timestamp) {
        // Later, and not dropped: the change may be the loss of the lock, which the next renewal has to find.
        let at = at.as_nanos().max(self.not_wanted_before.load(Ordering::Acquire));
        self.inherit(Timestamp::from_nanos(at));
    }

    /// Takes over what the backend wanted of the hold before.
    pub(super) fn inherit(&self, verify_at: Timestamp) {
        // The earlier of two wishes: the renewal that it leads to answers both.
        self.verify_at.fetch_min(verify_at.as_nanos(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(12);
    const TERMS: LeaseTerms = LeaseTerms {
        validity: Validity::Lease(LEASE),
        lease: LEASE,
        retried_by: LEASE,
        ends_at: Timestamp::NEVER,
    };

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    const fn held(deadline: Timestamp) -> Standing {
        Standing { condition: Condition::Held, deadline, confirmed_at: Timestamp::from_nanos(0) }
    }

    /// Of a margin of 1 %.
    const TRUSTED: u64 = 11_880;

    #[test]
    fn a_grant_is_valid_from_when_it_was_asked_for_and_renewed_when_the_table_says() {
        let session = |length| LeaseTerms { validity: Validity::Session(length), ..TERMS };
        let short = LeaseTerms { ends_at: at(5_000), ..TERMS };
        let (first, never) = (Some(Duration::from_secs(2)), Timestamp::NEVER);
        let rows = [
            ("a lease", TERMS, None, 0.0, (at(1_000 + TRUSTED), at(3_000))),
            ("a lease, late", TERMS, None, 1.0, (at(1_000 + TRUSTED), at(5_000))),
            ("a first lease", TERMS, first, 1.0, (at(2_980), at(2_100))),
            ("a session", session(Some(LEASE)), None, 1.0, (at(1_000 + TRUSTED), never)),
            ("a session without an end", session(None), None, 1.0, (never, never)),
            ("a lock that is held for four seconds", short, None, 1.0, (at(5_000), at(5_000))),
        ];
        for (what, terms, first, fraction, (deadline, renew_at)) in rows {
            let plan = terms.granted(first, (at(2_000), at(1_000)), || fraction);
            assert_eq!(plan, Plan { deadline, renew_at }, "{what}");
        }
    }

    #[test]
    fn each_report_is_followed_by_what_the_table_says() {
        let session = |length| LeaseTerms { validity: Validity::Session(length), ..TERMS };
        let short = LeaseTerms { ends_at: at(9_000), ..TERMS };
        let longer = LeaseTerms { ends_at: at(20_000), ..TERMS };
        let kept = TERMS.retried_by(LEASE / 4);
        let before = held(at(TRUSTED));
        let lost = Standing { condition: Condition::Lost, ..before };
        let released = Standing { condition: Condition::Released, ..before };
        let suspect = Standing { condition: Condition::Suspect, ..before };
        let valid = |deadline, renew_at| After::Valid { sent: at(4_000), deadline, renew_at };
        let (later, never) = (Some(at(4_000 + TRUSTED)), Some(Timestamp::NEVER));
        let at_risk = |renew_at| After::AtRisk { renew_at };
        let confirmed = Report::Confirmed(at(4_000));
        let failed = Report::Failed(at(4_000));
        let rows = [
            ("a renewal in time", TERMS, confirmed, before, valid(later, Some(at(8_000)))),
            ("a renewal of what was doubtful", TERMS, confirmed, suspect, valid(later, Some(at(8_000)))),
            ("a renewal that comes too late", TERMS, confirmed, lost, After::Nothing),
            ("a renewal after the release", TERMS, confirmed, released, After::Nothing),
            ("the last renewal", short, confirmed, before, valid(Some(at(9_000)), Some(Timestamp::NEVER))),
            ("a renewal before the last", longer, confirmed, before, valid(later, Some(at(8_000)))),
            (
                "an answer that the last one overtook",
                longer,
                confirmed,
                held(at(20_000)),
                valid(later, never),
            ),
            ("a session's proof", session(Some(LEASE)), confirmed, before, valid(later, None)),
            ("a session without an end", session(None), confirmed, before, valid(None, None)),
            ("a renewal that found it gone", TERMS, Report::Gone, before, After::Lost),
            ("a renewal that failed", TERMS, failed, before, at_risk(at(4_990))),
            ("one in a first lease", TERMS, failed, held(at(1_200)), at_risk(at(4_100))),
            ("one in a very short lease", TERMS, failed, held(at(12)), at_risk(at(4_005))),
            ("one of a lock that a session keeps", kept, failed, held(at(TRUSTED)), at_risk(at(4_250))),
            ("one before the end", short, failed, held(at(9_000)), at_risk(Timestamp::NEVER)),
        ];
        for (what, terms, report, hold, after) in rows {
            assert_eq!(terms.after(report, hold, || 1.0), after, "{what}");
        }
    }

    #[test]
    fn an_answer_is_waited_for_until_the_deadline_and_in_a_first_lease_for_a_third_of_that() {
        let limit = |deadline, timeout| TERMS.answer_limit((at(deadline), at(0)), at(1_000), timeout);
        assert_eq!(limit(TRUSTED, Duration::from_secs(3)), Duration::from_secs(3));
        assert_eq!(limit(TRUSTED, LEASE), Duration::from_millis(TRUSTED - 1_000));
        assert_eq!(limit(1_600, LEASE), Duration::from_millis(200));
    }

    #[test]
    fn renewals_that_the_backend_wants_are_spaced_out_until_one_is_due_by_itself() {
        let (plan, most) = (RenewalPlan::new(at(1_000)), || Duration::from_millis(150));
        let want_and_take = |now| {
            plan.want(at(now));
            let due = plan.due_at();
            assert!(plan.take(due, Duration::ZERO, most));
            assert!(plan.is_renewing(due) && !plan.take(due, Duration::ZERO, most), "it is under way");
            plan.plan(at(100_000));
            due
        };
        assert_eq!([(); 4].map(|()| want_and_take(0)), [0, 50, 150, 300].map(at));
        plan.plan(at(10_000));
        assert!(
            !plan.take(at(9_000), Duration::ZERO, most) && plan.take(at(9_000), Duration::from_secs(1), most)
        );
        assert_eq!([(); 2].map(|()| want_and_take(20_000)), [20_000, 20_050].map(at));
    }
}
