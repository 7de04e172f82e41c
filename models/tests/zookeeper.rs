//! Model (b): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::zookeeper::{FENCES_GROW, NO_ORPHAN, ONE_BELIEVER, Proof, Queue, Rules};

#[test]
fn with_a_committed_write_as_the_proof_of_life_one_believes() {
    holds(Queue::split(Rules::default()));
}

#[test]
fn a_node_of_an_earlier_session_is_never_mistaken_for_one_of_the_present_one() {
    holds(Queue::sessions(Rules::default()));
}

#[test]
fn with_sync_as_the_proof_of_life_two_believe() {
    is_broken(Queue::split(Rules { proof: Proof::Sync, ..Rules::default() }), ONE_BELIEVER);
}

#[test]
fn a_holder_that_proves_by_sync_goes_on_believing_beside_a_deposed_leader() {
    is_broken(Queue::split(Rules { proof: Proof::SyncOfHolders, ..Rules::default() }), ONE_BELIEVER);
}

#[test]
fn a_grant_after_a_sync_is_not_safe_although_holders_prove_by_a_committed_write() {
    is_broken(Queue::split(Rules { proof: Proof::CommitOfHolders, ..Rules::default() }), ONE_BELIEVER);
}

#[test]
fn a_proof_that_is_trusted_for_the_whole_timeout_lets_two_believe() {
    is_broken(Queue { trusted_for: 3, ..Queue::split(Rules::default()) }, ONE_BELIEVER);
}

#[test]
fn a_node_of_an_earlier_session_that_is_adopted_lets_two_believe() {
    let rules = Rules { adopts_own_session_only: false, ..Rules::default() };
    is_broken(Queue::sessions(rules), ONE_BELIEVER);
}

#[test]
fn a_creation_that_is_made_again_without_a_look_waits_behind_itself() {
    is_broken(Queue::sessions(Rules { looks_for_mark: false, ..Rules::default() }), NO_ORPHAN);
}

#[test]
fn the_number_in_the_name_is_no_fence() {
    is_broken(Queue::sessions(Rules { fence_is_transaction: false, ..Rules::default() }), FENCES_GROW);
}
