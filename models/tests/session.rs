//! Model (h): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::session::{ONE_HOLDER, Rules, Session};

fn breaks(rules: Rules) {
    is_broken(Session::one_waiter(rules), ONE_HOLDER);
}

#[test]
fn with_all_assumptions_a_lock_that_a_session_keeps_has_one_holder() {
    holds(Session::one_waiter(Rules::default()));
    holds(Session::two_waiters(Rules::default()));
}

#[test]
fn without_a_lease_of_grace_a_record_that_was_forgotten_gives_two_holders() {
    breaks(Rules { grace: false, ..Rules::default() });
}

#[test]
fn a_lock_that_is_taken_away_from_whoever_has_it_is_taken_from_the_next_holder() {
    is_broken(Session::two_waiters(Rules { compares: false, ..Rules::default() }), ONE_HOLDER);
}

#[test]
fn a_session_that_counts_from_the_answer_outlives_its_record() {
    // The answer has to be later than a look, and earlier than the deadline before it.
    let rules = Rules { deadline_from_send: false, ..Rules::default() };
    is_broken(Session { lease: 3, ticks: 6, ..Session::one_waiter(rules) }, ONE_HOLDER);
}
