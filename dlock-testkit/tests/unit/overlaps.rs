//! Holds that overlap.

use dlock_testkit::checkers::{Overlap, overlap};
use dlock_testkit::history::{Event, HeldAs, Op, Outcome};

fn event(op: Op, process: u32, invoked: u64, outcome: Outcome) -> Event {
    Event {
        process,
        hold: 0,
        key: "k".into(),
        op,
        invoked,
        returned: invoked + 1,
        outcome,
        fence: None,
        valid_until: None,
        held_as: HeldAs::Alone,
    }
}

#[test]
fn holds_one_after_the_other_do_not_overlap() {
    let events = [
        event(Op::Acquire, 0, 0, Outcome::Ok),
        event(Op::Check, 0, 10, Outcome::Ok),
        event(Op::Release, 0, 20, Outcome::Ok),
        event(Op::Acquire, 1, 15, Outcome::Ok),
        event(Op::Check, 1, 30, Outcome::Ok),
        // Knows that it was lost.
        event(Op::Check, 1, 50, Outcome::Fail),
        event(Op::Acquire, 2, 40, Outcome::Ok),
        event(Op::Check, 2, 60, Outcome::Ok),
    ];
    let verdict = overlap(&events);
    assert_eq!((verdict.holds, verdict.overlaps.len()), (3, 0), "{verdict:?}");
}

#[test]
fn a_holder_that_still_believes_overlaps_with_its_successor() {
    let events = [
        event(Op::Acquire, 0, 0, Outcome::Ok),
        event(Op::Acquire, 1, 19, Outcome::Ok),
        event(Op::Check, 1, 22, Outcome::Ok),
        event(Op::Check, 0, 30, Outcome::Ok),
    ];
    let overlaps = overlap(&events).overlaps;
    assert_eq!(overlaps, [Overlap { key: "k".into(), holds: [(0, 0), (1, 0)], for_ns: 2 }]);
}

#[test]
fn a_long_hold_overlaps_with_each_that_comes_in_between() {
    let mut events = vec![event(Op::Acquire, 0, 0, Outcome::Ok), event(Op::Check, 0, 100, Outcome::Ok)];
    for process in 1..4 {
        events.push(event(Op::Acquire, process, u64::from(process) * 10, Outcome::Ok));
        events.push(event(Op::Check, process, u64::from(process) * 10 + 5, Outcome::Ok));
    }
    assert_eq!(overlap(&events).overlaps.len(), 3);
}
