//! What a client decides: by the engine's own state machines, at a moment of the model.
//!
//! The model has ages and rests in ticks, and the engine has moments. All that a step is about happens [now](NOW).

use std::time::Duration;

use dlock_core::backend::Validity;
use dlock_core::decisions::acquire::{BusyOutcome, Next, Outcome, Pause, Progress, Terms, Unsettled};
use dlock_core::decisions::hold::{After, Condition, LeaseTerms, Report, Standing};
use dlock_core::{Failure, Timestamp};

/// One tick. The margin of a lease as short as the model's is two milliseconds, which makes it one tick.
const TICK: Duration = Duration::from_millis(2);

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000);

/// An acquire that waits for one lock, without end, and without others in its process.
const WAITS: Terms = Terms { waits: true, lines: false, takes_over: false, many: false, rechecks: None };

fn ago(age: u8) -> Timestamp {
    NOW - TICK * u32::from(age)
}

fn ticks(length: Duration) -> u8 {
    u8::try_from(length.as_nanos() / TICK.as_nanos()).unwrap_or(u8::MAX)
}

fn terms(lease: u8) -> LeaseTerms {
    let lease = TICK * u32::from(lease);
    LeaseTerms::new(Validity::Lease(lease), lease, Timestamp::NEVER)
}

/// An attempt is sent, where the first one that may have taken effect was sent so long ago, if there was one. Returns
/// how long ago that is from now on.
pub(super) fn attempt(first: Option<u8>) -> Option<u8> {
    let mut unsettled = Unsettled::since(first.map(ago));
    unsettled.begin(NOW);
    unsettled.first_sent().map(|at| ticks(NOW.since(at)))
}

/// No answer comes. Returns whether another attempt follows, with the claim of before.
pub(super) fn asks_again() -> bool {
    let outcome: Outcome<()> = Outcome::Unknown(Failure::unknown("no answer"));
    matches!(WAITS.after(outcome, Progress::default()), Next::Pause(Pause::Recheck(_)))
}

/// Another claim has the lock. Returns how long ago the first attempt was sent that may have taken effect.
pub(super) fn busy(first: Option<u8>, lease: u8) -> Option<u8> {
    let mut unsettled = Unsettled::since(first.map(ago));
    let sent = unsettled.begin(NOW);
    unsettled.busy(&sent, true, NOW, TICK * u32::from(lease));
    let outcome: Outcome<()> = Outcome::Busy(BusyOutcome::default());
    match WAITS.after(outcome, Progress::default()) {
        Next::WaitForChange { .. } => unsettled.first_sent().map(|at| ticks(NOW.since(at))),
        next => unreachable!("a busy lock is waited for: {next:?}"),
    }
}

/// The lock is granted by an attempt that was sent so long ago. Returns for how long the holder believes; `None` for a
/// grant that comes too late, which is withdrawn.
pub(super) fn granted(first: u8, lease: u8) -> Option<u8> {
    let sent = Unsettled::since(Some(ago(first))).granted().unwrap_or(NOW);
    let plan = terms(lease).granted(None, (NOW, sent), || 1.0);
    let left = ticks(plan.deadline.since(NOW));
    let outcome = if left > 0 { Outcome::Granted(left) } else { Outcome::Late { is_over: false } };
    match WAITS.after(outcome, Progress::default()) {
        Next::Held(left) => Some(left),
        Next::Pause(Pause::NewClaims) => None,
        next => unreachable!("a late grant is withdrawn: {next:?}"),
    }
}

/// A hold that believes for so long is confirmed by a renewal that was sent so long ago. Returns for how long it
/// believes from now on; `None` where it was lost.
pub(super) fn renewed(extended: bool, left: u8, age: u8, lease: u8) -> Option<u8> {
    let deadline = NOW + TICK * u32::from(left);
    let hold = Standing { condition: Condition::Held, deadline, confirmed_at: NOW };
    let report = if extended { Report::Confirmed(ago(age)) } else { Report::Gone };
    match terms(lease).after(report, hold, || 1.0) {
        After::Valid { deadline: Some(until), .. } => Some(ticks(until.max(deadline).since(NOW))),
        After::Lost => None,
        after => unreachable!("a renewal is confirmed or finds nothing: {after:?}"),
    }
}
