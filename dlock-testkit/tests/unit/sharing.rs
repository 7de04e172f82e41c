//! Readers, writers and permits.

use dlock_testkit::checkers::{Misplaced, sharing};
use dlock_testkit::history::{Event, HeldAs, Op, Outcome};

/// A hold that is believed in, and promised, from one moment to another.
fn held(hold: u64, held_as: HeldAs, fence: u64, (from, to): (u64, u64)) -> [Event; 2] {
    [(Op::Acquire, from), (Op::Check, to)].map(|(op, at)| Event {
        process: 0,
        hold,
        key: "k".into(),
        op,
        invoked: at,
        returned: at,
        outcome: Outcome::Ok,
        fence: Some(fence),
        valid_until: Some(to),
        held_as,
    })
}

fn whats(misplaced: &[Misplaced]) -> Vec<&'static str> {
    misplaced.iter().map(|misplaced| misplaced.what).collect()
}

#[test]
fn readers_between_writers_are_fine_with_fences_in_any_order_among_them() {
    let events = [
        held(0, HeldAs::Alone, 1, (0, 10)),
        held(1, HeldAs::Reader, 3, (10, 40)),
        held(2, HeldAs::Reader, 2, (20, 30)),
        held(3, HeldAs::Alone, 4, (40, 50)),
    ];
    let verdict = sharing(&events.concat());
    assert_eq!((verdict.holds, verdict.most), (4, 2));
    assert!(verdict.beside.is_empty() && verdict.inversions.is_empty(), "{verdict:?}");
}

#[test]
fn a_writer_beside_a_reader_is_found_and_so_is_a_reader_beside_a_writer() {
    for [first, second] in [[HeldAs::Alone, HeldAs::Reader], [HeldAs::Reader, HeldAs::Alone]] {
        let events = [held(0, first, 1, (0, 10)), held(1, second, 2, (9, 20))];
        let verdict = sharing(&events.concat());
        assert_eq!(verdict.beside.len(), 1, "{verdict:?}");
        assert_eq!(whats(&verdict.inversions), [Misplaced::TOO_EARLY]);
    }
}

#[test]
fn a_readers_fence_on_the_wrong_side_of_a_writers_is_found() {
    let late = [held(0, HeldAs::Alone, 1, (0, 10)), held(1, HeldAs::Reader, 1, (20, 30))];
    assert_eq!(whats(&sharing(&late.concat()).inversions), ["the fence of one who holds it alone"]);
    let back = [held(0, HeldAs::Alone, 2, (0, 10)), held(1, HeldAs::Reader, 1, (20, 30))];
    let what = "the lower fence was asked for after the higher one was granted";
    assert!(whats(&sharing(&back.concat()).inversions).contains(&what));
}

#[test]
fn one_permit_too_many_is_found_and_as_many_as_there_are_are_fine() {
    let permits = |taken| HeldAs::Permits { taken, of: 3 };
    let fine =
        [held(0, permits(2), 1, (0, 10)), held(1, permits(1), 2, (5, 15)), held(2, permits(2), 3, (10, 20))];
    let verdict = sharing(&fine.concat());
    assert!(verdict.beside.is_empty() && verdict.inversions.is_empty(), "{verdict:?}");
    let over =
        [held(0, permits(2), 1, (0, 10)), held(1, permits(1), 2, (5, 15)), held(2, permits(1), 3, (9, 20))];
    assert_eq!(whats(&sharing(&over.concat()).beside), ["more permits than there are"]);
}
