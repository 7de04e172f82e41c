//! Model (a): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{Until, explore, holds, is_broken};
use dlock_models::lease::{Lease, ONE_BELIEVER, Rules, Server, WRITES_GO_FORWARD};

fn breaks(rules: Rules, property: &'static str) {
    is_broken(Lease::small(rules), property);
}

/// Explores every state, though the other promise may be broken in some.
fn still_holds_in(model: Lease, property: &str) {
    let explored = explore(model, Until::Everything, |_, _| {});
    println!("{explored}");
    assert!(explored.complete && !explored.broken.contains_key(property), "{explored}");
}

#[test]
fn with_all_assumptions_both_promises_hold() {
    holds(Lease::small(Rules::default()));
}

#[test]
fn without_a_bound_on_the_drift_two_believe() {
    breaks(Rules { bounded_drift: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn without_a_bound_on_the_drift_the_fenced_writes_stay_in_order() {
    // How long the lease is makes no difference to the order of fences.
    let rules = Rules { bounded_drift: false, ..Rules::default() };
    still_holds_in(Lease { lease: 2, ..Lease::small(rules) }, WRITES_GO_FORWARD);
}

#[test]
fn a_deadline_that_counts_from_the_answer_lets_two_believe() {
    breaks(Rules { deadline_from_send: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_release_that_does_not_look_at_the_token_lets_two_believe() {
    let rules = Rules { release_checks_token: false, ..Rules::default() };
    is_broken(Lease { attempts: 1, ..Lease::large(rules) }, ONE_BELIEVER);
}

#[test]
fn a_renewal_that_makes_the_lock_anew_lets_two_believe() {
    let rules = Rules { renewal_checks_token: false, ..Rules::default() };
    is_broken(Lease { attempts: 1, lease: 2, ..Lease::large(rules) }, ONE_BELIEVER);
}

#[test]
fn a_token_that_is_asked_for_again_after_it_was_withdrawn_lets_two_believe() {
    breaks(Rules { withdrawn_token_is_dead: false, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_server_that_forgets_its_locks_lets_two_believe() {
    breaks(Rules { server: Server::ForgetsLocks, ..Rules::default() }, ONE_BELIEVER);
}

#[test]
fn a_server_that_forgets_its_locks_keeps_the_fenced_writes_in_order_while_its_fences_go_on() {
    let rules = Rules { server: Server::ForgetsLocks, ..Rules::default() };
    still_holds_in(Lease { lease: 2, ..Lease::small(rules) }, WRITES_GO_FORWARD);
}

#[test]
fn a_server_that_forgets_its_fences_lets_writes_go_back() {
    breaks(Rules { server: Server::ForgetsFences, ..Rules::default() }, WRITES_GO_FORWARD);
}

#[test]
fn fences_that_are_drawn_after_the_grant_let_writes_go_back_when_clocks_drift() {
    let rules = Rules { fence_with_grant: false, bounded_drift: false, ..Rules::default() };
    is_broken(Lease { lease: 2, attempts: 1, in_flight: 1, ..Lease::small(rules) }, WRITES_GO_FORWARD);
}

#[test]
fn without_the_check_at_the_resource_a_late_write_goes_back_although_only_one_believes() {
    // That only one believes is shown above, where the resource makes no difference.
    breaks(Rules { resource_checks_fence: false, ..Rules::default() }, WRITES_GO_FORWARD);
}
