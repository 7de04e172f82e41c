//! Model (f): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::shares::{EXCLUDES, Rules, Shares, WAKES, Want};

/// A store that reads first, and writes what it judged where nothing has changed.
fn in_two_steps() -> Rules {
    Rules { at_once: false, ..Rules::default() }
}

#[test]
fn readers_and_a_writer_exclude_each_other_and_wake() {
    holds(Shares { attempts: [2, 1], in_flight: 3, ..Shares::readers(Rules::default()) });
}

#[test]
fn permits_are_enough_and_claims_wake() {
    holds(Shares { attempts: [2, 1], in_flight: 3, ..Shares::permits(Rules::default()) });
}

#[test]
fn readers_and_a_writer_exclude_each_other_and_wake_in_a_store_that_compares_what_it_has_read() {
    holds(Shares::readers(in_two_steps()));
}

#[test]
fn permits_are_enough_and_claims_wake_in_a_store_that_compares_what_it_has_read() {
    holds(Shares::permits(in_two_steps()));
}

#[test]
fn a_step_that_writes_whatever_has_changed_lets_a_writer_believe_beside_a_reader() {
    is_broken(Shares::readers(Rules { compares_row: false, ..in_two_steps() }), EXCLUDES);
    is_broken(Shares::permits(Rules { compares_row: false, ..in_two_steps() }), EXCLUDES);
}

#[test]
fn a_step_that_leaves_the_row_of_the_key_as_it_was_lets_a_waiter_oversleep() {
    let wants = vec![Want::Permits(1); 3];
    is_broken(Shares { wants, ..Shares::permits(Rules { touches_row: false, ..in_two_steps() }) }, WAKES);
}

#[test]
fn a_release_that_does_not_notify_lets_a_waiter_oversleep() {
    is_broken(Shares::readers(Rules { notifies: false, ..Rules::default() }), WAKES);
}

#[test]
fn a_waiter_that_does_not_mark_the_row_oversleeps() {
    is_broken(Shares::readers(Rules { marks: false, ..Rules::default() }), WAKES);
}
