//! Model (c): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::handoff::{Handoff, ONE_BELIEVER, Reservation, Rules, WRITES_GO_FORWARD};

fn breaks(rules: Rules, property: &'static str) {
    is_broken(Handoff::small(rules), property);
}

#[test]
fn with_all_assumptions_both_promises_hold() {
    holds(Handoff::small(Rules::default()));
}

#[test]
fn writes_stay_in_order_whatever_clocks_do() {
    let rules = Rules { clocks_agree: false, ..Rules::default() };
    holds(Handoff { attempts: 1, ..Handoff::small(rules) });
}

#[test]
fn writes_stay_in_order_although_an_administrator_takes_the_lock_away() {
    let rules = Rules { forced: true, ..Rules::default() };
    holds(Handoff { attempts: 1, ..Handoff::small(rules) });
}

#[test]
fn fences_that_are_not_reserved_let_writes_go_back() {
    breaks(Rules { reservation: Reservation::Never, ..Rules::default() }, WRITES_GO_FORWARD);
}

#[test]
fn fences_that_are_reserved_only_by_the_release_let_writes_go_back() {
    breaks(Rules { reservation: Reservation::AtRelease, ..Rules::default() }, WRITES_GO_FORWARD);
}

#[test]
fn a_pass_beyond_the_block_lets_writes_go_back() {
    breaks(Rules { stays_in_block: false, ..Rules::default() }, WRITES_GO_FORWARD);
}

#[test]
fn one_that_adopts_and_takes_the_block_for_as_large_as_it_asked_last_lets_writes_go_back() {
    breaks(Rules { adoption_tells_block: false, ..Rules::default() }, WRITES_GO_FORWARD);
}

#[test]
fn a_pass_that_counts_the_lease_anew_lets_two_believe() {
    let rules = Rules { pass_keeps_deadline: false, ..Rules::default() };
    // Of a lease of two ticks, none is left after a tick that a pass could count anew.
    is_broken(Handoff { lease: 3, ..Handoff::small(rules) }, ONE_BELIEVER);
}
