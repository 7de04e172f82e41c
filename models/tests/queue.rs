//! Model (g): what holds, and what breaks when one assumption is dropped.

use dlock_models::explore::{holds, is_broken};
use dlock_models::queue::{IS_ASKED_FOR, Queue, Rules};

fn breaks(rules: Rules) {
    is_broken(Queue::small(rules), IS_ASKED_FOR);
}

#[test]
fn with_all_assumptions_no_wake_up_is_lost_and_no_queue_sleeps_for_long() {
    holds(Queue::small(Rules::default()));
}

#[test]
fn a_waiter_that_takes_its_news_with_it_leaves_the_others_asleep() {
    breaks(Rules { news_is_left: false, ..Rules::default() });
}

#[test]
fn a_waiter_that_does_not_compare_the_releases_sleeps_through_one() {
    breaks(Rules { join_compares: false, ..Rules::default() });
}

#[test]
fn a_notification_before_the_server_has_the_lock_is_lost() {
    breaks(Rules { notified_after: false, ..Rules::default() });
}
