//! Model (e): where Redisson's `RLock` keeps its promises, and where it fails.

use dlock_models::explore::{all_of, until_broken};
use dlock_models::rlock::{COUNT_MATCHES, NOTHING_LEFT, ONE_INSIDE, RLock, Rules, Then, UNLOCK_FREES};

fn breaks(rules: Rules, property: &'static str) {
    let explored = until_broken(RLock::small(rules), property);
    println!("{explored}");
    assert!(!explored.story_of(property).is_empty());
}

#[test]
fn when_nothing_goes_wrong_it_keeps_its_promises() {
    let explored = all_of(RLock::small(Rules::default()));
    println!("{explored}");
    explored.assert_holds();
}

#[test]
fn an_unlock_that_is_made_again_under_its_latch_is_carried_out_once() {
    let explored = all_of(RLock::small(Rules { unlock_is_answered: false, ..Rules::default() }));
    println!("{explored}");
    explored.assert_holds();
}

#[test]
fn without_the_latch_an_unlock_that_is_made_again_ends_the_outer_section_too() {
    breaks(Rules { unlock_is_answered: false, latch: false, ..Rules::default() }, ONE_INSIDE);
}

#[test]
fn a_lock_whose_answer_is_lost_is_left_when_the_caller_gives_up() {
    breaks(Rules { lock_is_answered: false, ..Rules::default() }, NOTHING_LEFT);
}

#[test]
fn a_lock_whose_answer_is_lost_counts_twice_when_the_caller_calls_again() {
    let rules = Rules { lock_is_answered: false, then: Then::CallsAgain, ..Rules::default() };
    breaks(rules, COUNT_MATCHES);
}

#[test]
fn a_lock_that_counts_twice_is_left_after_every_section_was_left() {
    let rules = Rules { lock_is_answered: false, then: Then::CallsAgain, ..Rules::default() };
    breaks(rules, UNLOCK_FREES);
}

#[test]
fn a_process_that_stands_still_for_a_time_to_live_lets_two_in() {
    breaks(Rules { watchdog_runs: false, ..Rules::default() }, ONE_INSIDE);
}

#[test]
fn a_server_that_forgets_lets_two_in() {
    breaks(Rules { server_keeps: false, ..Rules::default() }, ONE_INSIDE);
}

#[test]
fn a_section_inside_one_whose_lock_was_lost_does_not_notice() {
    // The inner lock succeeds, with a count of one for two sections; its unlock lets others into the outer one.
    breaks(Rules { watchdog_runs: false, ..Rules::default() }, COUNT_MATCHES);
}
