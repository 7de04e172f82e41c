//! Model (e): what holds, and what breaks when one assumption is dropped.

use dlock_models::baton::{Baton, ENDS_IN_TIME, FENCES_GROW, ONE_BELIEVER, Rules, TAKEN_ONCE};
use dlock_models::explore::{holds, is_broken};

fn breaks(rules: Rules, property: &'static str) {
    is_broken(Baton::small(rules), property);
}

#[test]
fn with_all_assumptions_all_promises_hold() {
    holds(Baton::small(Rules::default()));
}

#[test]
fn a_giver_that_believes_until_the_answer_lets_two_believe() {
    breaks(Rules { closes_first: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_key_that_is_left_under_the_givers_own_token_is_lengthened_by_a_renewal_that_arrives_late() {
    breaks(Rules { leaves_another_token: false, ..Rules::default() }, ENDS_IN_TIME);
}

#[test]
fn a_taker_that_does_not_compare_the_token_lets_two_believe() {
    breaks(Rules { compares_token: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_taker_that_makes_a_lock_which_has_ended_anew_lets_a_baton_be_taken_over_twice() {
    breaks(Rules { never_creates: false, ..Rules::default() }, TAKEN_ONCE);
}

#[test]
fn a_taker_without_a_fence_of_its_own_has_that_of_the_giver() {
    breaks(Rules { draws_fence: false, ..Rules::default() }, FENCES_GROW);
}

#[test]
fn a_lock_that_stays_under_the_batons_token_is_taken_over_by_each_copy() {
    breaks(Rules { swaps_token: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_request_that_leaves_the_key_anew_for_longer_undoes_that_it_was_retracted() {
    breaks(Rules { never_lengthens: false, ..Rules::default() }, ENDS_IN_TIME);
}
