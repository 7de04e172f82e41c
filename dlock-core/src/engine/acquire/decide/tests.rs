use smallvec::smallvec;

use super::*;
use crate::backend::Validity;
use crate::error::ErrorKind;

/// An acquire that waits for one lock, in line.
const WAITS: Terms = Terms { waits: true, lines: true, takes_over: false, many: false, rechecks: None };
const TRIES_ONCE: Terms = Terms { waits: false, lines: false, ..WAITS };
const BATON: Terms = Terms { lines: false, takes_over: true, ..WAITS };
const MANY: Terms = Terms { many: true, ..WAITS };
const TWO_RECHECKS: Terms = Terms { rechecks: Some(2), ..WAITS };

const AT_FIRST: Progress =
    Progress { in_line: false, was_busy: false, tries: 0, unknowns: 0, may_stand: false };
const IN_LINE: Progress = Progress { in_line: true, was_busy: true, tries: 1, ..AT_FIRST };

const BUSY: BusyOutcome =
    BusyOutcome { retry_after: None, may_be_own: false, is_run: false, may_have_ended: false };

fn busy(busy: BusyOutcome) -> Outcome<()> {
    Outcome::Busy(busy)
}

fn unknown() -> Outcome<()> {
    Outcome::Unknown(Failure::unknown("no answer"))
}

fn failed(kind: ErrorKind) -> Outcome<()> {
    Outcome::Failed(Failure::new(kind, "no"))
}

fn worthless() -> Failure {
    Failure::new(ErrorKind::QuorumNotReached, "too few").of_worthless_grant()
}

fn named(next: &Next<()>) -> &'static str {
    match next {
        Next::Held(()) => "held",
        Next::AwaitWithdrawal => "awaits its own withdrawal",
        Next::WaitForChange { joins: true, .. } => "joins the line and waits",
        Next::WaitForChange { joins: false, .. } => "waits",
        Next::Pause(Pause::NewClaims) => "pauses, new claims",
        Next::Pause(Pause::Recheck(_)) => "pauses, same claims",
        Next::Pause(Pause::Away(Failed { joins: true, .. })) => "joins the line and pauses",
        Next::Pause(Pause::Away(Failed { joins: false, .. })) => "pauses",
        Next::Pause(Pause::Refused(Failed { joins: true, .. })) => "joins the line and pauses for long",
        Next::Pause(Pause::Refused(Failed { joins: false, .. })) => "pauses for long",
        Next::End(End::Separately | End::OneByOne) => "one by one",
        Next::End(End::Busy) => "ends: busy",
        Next::End(End::NotThere) => "ends: not there",
        Next::End(End::UsedUp) => "ends: used up",
        Next::End(End::TooLate) => "ends: too late",
        Next::End(End::Unknown(_)) => "ends: unknown",
        Next::End(End::Failed(_)) => "ends: failed",
    }
}

#[test]
fn each_outcome_is_followed_by_what_the_table_says() {
    let own = BusyOutcome { may_be_own: true, ..BUSY };
    let run = BusyOutcome { is_run: true, ..BUSY };
    let ended = BusyOutcome { may_have_ended: true, ..BUSY };
    let (seventh, eighth) = (Progress { tries: 6, ..IN_LINE }, Progress { tries: 7, ..IN_LINE });
    let [asked_once, asked_twice] = [1, 2].map(|unknowns| Progress { unknowns, ..AT_FIRST });
    let in_order = Terms { lines: false, ..WAITS };
    let open = Progress { may_stand: true, ..AT_FIRST };
    let is_over = |is_over| Outcome::Late { is_over };
    let rows: [(&str, Terms, Outcome<()>, Progress, &str); 37] = [
        ("a grant ends it", WAITS, Outcome::Granted(()), AT_FIRST, "held"),
        ("a late grant is tried for anew", WAITS, is_over(false), AT_FIRST, "pauses, new claims"),
        ("a late grant at the end of the time", WAITS, is_over(true), AT_FIRST, "ends: too late"),
        ("a late grant of one try", TRIES_ONCE, is_over(false), AT_FIRST, "ends: too late"),
        ("a late take-over", BATON, is_over(false), AT_FIRST, "ends: used up"),
        ("a late take-over at the end of the time", BATON, is_over(true), AT_FIRST, "ends: too late"),
        ("a busy lock is waited for", WAITS, busy(BUSY), AT_FIRST, "joins the line and waits"),
        ("a busy lock is waited for where it stands", WAITS, busy(BUSY), IN_LINE, "waits"),
        ("a queue of the server", in_order, busy(BUSY), AT_FIRST, "waits"),
        ("a try that meets another holder", TRIES_ONCE, busy(BUSY), AT_FIRST, "ends: busy"),
        ("a try that meets its own", TRIES_ONCE, busy(own), AT_FIRST, "awaits its own withdrawal"),
        ("a try that meets a run", TRIES_ONCE, busy(run), AT_FIRST, "ends: busy"),
        ("a job that waits and meets a run", WAITS, busy(run), IN_LINE, "ends: busy"),
        ("a baton of a lock that is not there", BATON, busy(BUSY), AT_FIRST, "ends: not there"),
        ("a baton that was used", BATON, busy(ended), AT_FIRST, "ends: used up"),
        ("a baton that may meet its own", BATON, busy(own), AT_FIRST, "ends: not there"),
        ("one of many is busy", MANY, busy(BUSY), AT_FIRST, "joins the line and waits"),
        ("one of many is busy for the seventh time", MANY, busy(BUSY), seventh, "waits"),
        ("one of many is busy for the eighth time", MANY, busy(BUSY), eighth, "one by one"),
        ("one lock is busy for the eighth time", WAITS, busy(BUSY), eighth, "waits"),
        ("many that the backend cannot take at once", MANY, Outcome::Separately, AT_FIRST, "one by one"),
        ("an unknown outcome is asked about", TRIES_ONCE, unknown(), AT_FIRST, "pauses, same claims"),
        ("an unknown outcome without a bound", WAITS, unknown(), asked_twice, "pauses, same claims"),
        ("an unknown outcome below its bound", TWO_RECHECKS, unknown(), AT_FIRST, "pauses, same claims"),
        ("the last that is asked about", TWO_RECHECKS, unknown(), asked_once, "pauses, same claims"),
        ("an unknown outcome at its bound", TWO_RECHECKS, unknown(), asked_twice, "ends: unknown"),
        ("a failed try", TRIES_ONCE, failed(ErrorKind::Unavailable), AT_FIRST, "ends: failed"),
        ("servers away", WAITS, failed(ErrorKind::Unavailable), AT_FIRST, "joins the line and pauses"),
        ("servers away for the first waiter", WAITS, failed(ErrorKind::Unavailable), IN_LINE, "pauses"),
        ("servers away for what may be there", WAITS, failed(ErrorKind::Unavailable), open, "pauses"),
        ("servers away for a queue of theirs", in_order, failed(ErrorKind::Unavailable), AT_FIRST, "pauses"),
        ("servers away for many", MANY, failed(ErrorKind::Unavailable), AT_FIRST, "pauses"),
        ("a refusal at first", WAITS, failed(ErrorKind::Denied), AT_FIRST, "ends: failed"),
        ("a refusal while it waits", WAITS, failed(ErrorKind::Denied), IN_LINE, "pauses for long"),
        ("another use of the key", WAITS, failed(ErrorKind::Conflict), IN_LINE, "ends: failed"),
        ("a worthless grant", WAITS, Outcome::Failed(worthless()), AT_FIRST, "joins the line and pauses"),
        ("a worthless take-over", BATON, Outcome::Failed(worthless()), AT_FIRST, "ends: failed"),
    ];
    for (what, terms, outcome, progress, next) in rows {
        assert_eq!(named(&terms.after(outcome, progress)), next, "{what}");
    }
}

#[test]
fn a_wait_lasts_no_longer_than_the_lease_of_the_holder() {
    let retry_after = Some(Duration::from_secs(3));
    let next = WAITS.after(busy(BusyOutcome { retry_after, ..BUSY }), AT_FIRST);
    assert!(matches!(next, Next::WaitForChange { retry_after: left, .. } if left == retry_after), "{next:?}");
}

#[test]
fn each_answer_leaves_on_the_servers_what_it_says() {
    let granted = || Answer::Granted(smallvec![Grant::new(Validity::Session(None))]);
    let busy = || Answer::Busy(0, Busy::default());
    let away = || Answer::Failed(Failure::unavailable("away"));
    let rows: [(&str, Terms, Answer, bool, Leaves); 11] = [
        ("a grant", WAITS, granted(), false, Leaves::All),
        ("an unknown outcome", WAITS, Answer::Unknown(Failure::unknown("")), false, Leaves::All),
        ("another holder", WAITS, busy(), false, Leaves::Nothing),
        ("another holder, with a request under way", WAITS, busy(), true, Leaves::Nothing),
        ("one of many held, and nothing under way", MANY, busy(), false, Leaves::Nothing),
        ("one of many held, and the others perhaps taken", MANY, busy(), true, Leaves::Refuse),
        ("servers that are away", WAITS, away(), true, Leaves::Earlier),
        ("many that cannot be taken at once", MANY, Answer::Separately, false, Leaves::Earlier),
        ("a worthless grant", WAITS, Answer::Failed(worthless()), false, Leaves::Refuse),
        ("a worthless grant of many", MANY, Answer::Failed(worthless()), true, Leaves::Refuse),
        ("a worthless take-over", BATON, Answer::Failed(worthless()), false, Leaves::All),
    ];
    for (what, terms, answer, in_flight, leaves) in rows {
        assert_eq!(terms.leaves(&answer, in_flight), leaves, "{what}");
    }
}
