//! The conformance suite notices backends that break a rule.

use std::time::Duration;

use dlock_core::{Memory, Result};
use dlock_testkit::conformance::{self, Arguments, Harness, Trial};
use dlock_testkit::mutants::{Mutant, Mutation};

struct Broken(Mutant<Memory>);

impl Broken {
    fn by(mutation: Mutation) -> Self {
        Self(Mutant::new(Memory::new(), mutation))
    }
}

impl Harness for Broken {
    type Backend = Mutant<Memory>;

    async fn open(&self) -> Result<Mutant<Memory>> {
        Ok(self.0.clone())
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(450)
    }
}

/// The cases that each mutant has to fail.
fn caught_by(mutation: Mutation) -> &'static [&'static str] {
    match mutation {
        Mutation::GrantsToEverybody => &[
            "a_held_lock_is_busy_for_others_and_for_its_own_process",
            "an_unprotected_counter_of_parallel_tasks_is_exact",
            "bodies_on_several_processes_never_overlap",
        ],
        Mutation::ReleasesForeignLocks => &[
            "releasing_after_a_loss_is_not_held_and_leaves_the_successor_alone",
            "dropping_after_a_loss_leaves_the_successor_alone",
        ],
        Mutation::ForgetsToRelease => {
            &["a_released_lock_is_free_for_another_process", "a_dropped_guard_is_given_back_soon"]
        }
        Mutation::ForgetsToLeave => &["a_released_lock_stays_taken_for_as_long_as_it_is_held_at_least"],
        Mutation::LengthensWhatIsLeft => &["a_key_that_is_left_already_is_left_for_no_longer"],
        Mutation::ReleasesNothingHappily => &["releasing_a_lock_that_was_deleted_is_not_held"],
        Mutation::RenewalRecreates | Mutation::RenewalBelievesItself => {
            &["a_deleted_lock_is_noticed_by_the_next_renewal"]
        }
        Mutation::RenewalDoesNothing => &["renewal_keeps_a_lock_for_many_leases"],
        Mutation::RenewsOnTheCallersRuntime => {
            &["a_blocked_runtime_does_not_lose_the_lock", "a_runtime_that_is_gone_does_not_lose_the_lock"]
        }
        Mutation::OverstatesTheLease => &["a_holder_that_cannot_renew_knows_before_anybody_else_gets_in"],
        Mutation::RetriesWithAnotherToken => &["an_acquire_whose_reply_is_lost_adopts_its_own_grant"],
        Mutation::LeavesUnknownsBehind => &[
            "without_rechecks_a_lost_reply_is_unknown_and_cleaned_up",
            "a_stalled_request_that_arrives_late_leaves_no_lock",
        ],
        Mutation::NeverSaysSent => &["an_answer_that_does_not_come_leaves_an_unknown_outcome_and_no_lock"],
        Mutation::WaitsInAnAttempt => &["a_held_lock_is_busy_for_others_and_for_its_own_process"],
        Mutation::FenceStandsStill | Mutation::FenceFalls => &[
            "every_grant_has_a_higher_fence_than_the_one_before",
            "fences_follow_the_order_of_the_critical_sections",
            "a_fence_grows_after_the_lock_was_deleted",
        ],
        Mutation::ReservesNothing => &["sections_that_follow_each_other_have_higher_fences_each"],
        Mutation::AdoptionMovesTheFence => &["a_grant_that_is_adopted_has_one_fence"],
        Mutation::FoldsCase | Mutation::TrimsKeys => &["keys_that_look_alike_are_different_locks"],
        Mutation::CutsLongKeys => &["keys_of_the_full_length_differ_by_their_last_byte"],
        Mutation::HidesTheHolder => &["the_holder_tells_host_process_label_and_time"],
        Mutation::ListsOneHolder => &["the_list_of_holders_has_every_lock_that_is_held_and_no_other"],
        Mutation::ForcesNothing => &[
            "a_lock_released_by_force_is_free_for_others",
            "a_release_by_force_is_noticed_by_the_holder_and_its_fence_is_superseded",
        ],
        Mutation::ForcesWhoever => &[
            "a_release_by_force_of_who_was_seen_leaves_the_next_holder_alone",
            "a_release_by_force_of_who_was_seen_frees_the_lock_once",
        ],
        Mutation::LooksAndForces => {
            &["each_release_by_force_of_who_was_seen_takes_the_lock_from_that_one_alone"]
        }
        Mutation::TearsBatches => &["a_batch_that_finds_a_key_busy_takes_none_of_the_others"],
        Mutation::TakesTheFirstOfABatch => &["every_lock_of_a_batch_is_held_until_its_release"],
        Mutation::ReadersExclude => &["readers_of_all_processes_hold_a_lock_at_the_same_time"],
        Mutation::ForgetsToDowngrade => &[
            "a_writer_that_becomes_a_reader_lets_readers_in_and_no_writer",
            "readers_that_wait_come_in_when_the_writer_becomes_a_reader",
        ],
        Mutation::DowngradesByReleasing => &["a_downgraded_lock_is_known_as_a_readers"],
        Mutation::PrefersNobody => &["a_writer_that_waits_keeps_new_readers_out"],
        Mutation::CountsOnePermit => &["several_permits_are_taken_all_or_none"],
        Mutation::HasPermitsForAll => &[
            "there_are_as_many_permits_as_were_said_for_all_processes_together",
            "a_process_that_says_another_number_is_told",
        ],
        Mutation::TakesOverFromAnybody => &[
            "a_copy_of_a_baton_that_comes_second_is_refused_and_told_who_has_the_lock",
            "of_many_copies_of_a_baton_at_once_one_has_the_lock",
        ],
        Mutation::TakesOverWhatIsFree => {
            &["a_baton_that_nobody_takes_over_ends_with_its_time_and_touches_nobody_after_it"]
        }
        Mutation::TakesOverUnderTheOldFence => {
            &["a_lock_goes_through_many_hands_with_a_higher_fence_in_each"]
        }
        Mutation::AnnouncesNothing => {
            &["where_it_is_announced_who_leads_observers_see_it_long_before_they_ask_again"]
        }
        other => panic!("{other:?} has no case that catches it"),
    }
}

fn is_caught(mutation: Mutation, name: &str) -> std::result::Result<(), String> {
    let case = conformance::cases().find(|case| case.name() == name);
    let case = case.ok_or_else(|| format!("there is no case {name}"))?;
    let limit = Duration::from_secs(30);
    case.run(Broken::by(Mutation::Sound), limit).map_err(|why| format!("fails on a sound backend: {why}"))?;
    // Nothing would come but the limit.
    let limit = if mutation == Mutation::AnnouncesNothing { Duration::from_secs(3) } else { limit };
    match case.run(Broken::by(mutation), limit) {
        Ok(()) => Err(format!("{name} passes although the backend is broken")),
        Err(_) => Ok(()),
    }
}

fn main() {
    let arguments = Arguments::from_args();
    // A case that fails says so in the test's own words.
    std::panic::set_hook(Box::new(|_| {}));
    let mut tests = Vec::new();
    for mutation in Mutation::ALL {
        for &name in caught_by(mutation) {
            tests.push(Trial::test(format!("{mutation:?}::{name}"), move || Ok(is_caught(mutation, name)?)));
        }
    }
    conformance::run(&arguments, tests).exit();
}
