//! The order of fences.

use dlock_testkit::checkers::fence_order;
use dlock_testkit::history::{Event, HeldAs, Op, Outcome};

fn event(op: Op, hold: u64, fence: u64, at: (u64, u64), valid_until: u64) -> Event {
    Event {
        process: 0,
        hold,
        key: "k".into(),
        op,
        invoked: at.0,
        returned: at.1,
        outcome: Outcome::Ok,
        fence: Some(fence),
        valid_until: Some(valid_until),
        held_as: HeldAs::Alone,
    }
}

fn whats(events: &[Event]) -> Vec<&'static str> {
    fence_order(events).inversions.iter().map(|inversion| inversion.what).collect()
}

#[test]
fn grants_one_after_the_other_with_growing_fences_and_gaps_are_fine() {
    let mut events = Vec::new();
    for n in 0..100 {
        let at = n * 10;
        events.push(event(Op::Acquire, n, n * 3 + 1, (at, at + 2), at + 1_000));
        events.push(event(Op::Release, n, n * 3 + 1, (at + 5, at + 6), 0));
    }
    let verdict = fence_order(&events);
    assert_eq!((verdict.grants, verdict.inversions.len()), (100, 0), "{verdict:?}");
}

#[test]
fn a_takeover_after_the_promised_time_is_fine_and_before_it_is_not() {
    let late = [event(Op::Acquire, 0, 1, (0, 1), 100), event(Op::Acquire, 1, 2, (50, 100), 200)];
    assert!(whats(&late).is_empty());
    let early = [event(Op::Acquire, 0, 1, (0, 1), 100), event(Op::Acquire, 1, 2, (50, 99), 200)];
    assert_eq!(whats(&early), ["granted while the grant before was still good"]);
    // A check that was fine in between shows that the promise was renewed.
    let renewed = [late[0].clone(), event(Op::Check, 0, 1, (60, 61), 150), late[1].clone()];
    assert_eq!(whats(&renewed), ["granted while the grant before was still good"]);
}

#[test]
fn equal_fences_are_found() {
    let events = [
        event(Op::Acquire, 0, 7, (0, 1), 10),
        event(Op::Release, 0, 7, (2, 3), 0),
        event(Op::Acquire, 1, 7, (4, 5), 20),
    ];
    assert_eq!(whats(&events), ["two grants have the same fence"]);
}

#[test]
fn a_fence_that_went_back_is_found_also_when_it_is_not_the_neighbour() {
    let events = [
        event(Op::Acquire, 0, 9, (0, 1), 2),
        event(Op::Acquire, 1, 8, (20, 40), 21),
        event(Op::Acquire, 2, 3, (50, 51), 52),
    ];
    let inversions = fence_order(&events).inversions;
    assert!(inversions.iter().any(|inversion| inversion.fences == (3, 8)), "{inversions:?}");
    assert!(inversions.iter().any(|inversion| inversion.fences == (3, 9)), "{inversions:?}");
}

#[test]
fn other_keys_have_fences_of_their_own() {
    let mut other = event(Op::Acquire, 1, 1, (20, 21), 30);
    other.key = "other".into();
    assert!(whats(&[event(Op::Acquire, 0, 1, (0, 1), 100), other]).is_empty());
}
