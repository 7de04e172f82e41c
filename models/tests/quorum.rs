//! Model (d): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::quorum::{ONE_BELIEVER, Quorum, Rules};

fn breaks(model: Quorum) {
    is_broken(model, ONE_BELIEVER);
}

#[test]
fn a_majority_of_nodes_that_abstain_after_they_forgot_has_one_believer() {
    holds(Quorum::small(Rules::default()));
}

#[test]
fn half_of_the_nodes_are_no_majority() {
    breaks(Quorum { nodes: 2, needed: 1, restarts: 0, ..Quorum::small(Rules::default()) });
}

#[test]
fn a_node_that_votes_as_soon_as_it_is_back_lets_two_believe() {
    breaks(Quorum::small(Rules { abstains: None, ..Rules::default() }));
}

#[test]
fn a_node_that_abstains_for_less_than_the_longest_lease_lets_two_believe() {
    breaks(Quorum::small(Rules { abstains: Some(1), ..Rules::default() }));
}

#[test]
fn a_look_for_the_mark_before_the_vote_lets_two_believe() {
    breaks(Quorum::small(Rules { looks_after_vote: false, ..Rules::default() }));
}

#[test]
fn a_validity_that_counts_from_the_end_of_the_round_lets_two_believe() {
    let rules = Rules { valid_from_start: false, ..Rules::default() };
    breaks(Quorum { restarts: 0, ..Quorum::small(rules) });
}

#[test]
fn a_node_that_comes_back_with_an_old_copy_of_its_data_lets_two_believe() {
    breaks(Quorum::small(Rules { forgets_all: false, ..Rules::default() }));
}

#[test]
fn a_token_that_is_used_again_after_it_was_withdrawn_lets_two_believe() {
    let rules = Rules { fresh_tokens: false, ..Rules::default() };
    breaks(Quorum { rounds: vec![2, 1], restarts: 0, lease: 1, ..Quorum::small(rules) });
}

#[test]
fn a_renewal_that_counts_a_vote_that_did_not_count_lets_two_believe() {
    let rules = Rules { renews_counted_votes: false, ..Rules::default() };
    breaks(Quorum { renewals: 1, ..Quorum::small(rules) });
}
