//! Many runs: a series that is always the same, and one for each commit.

use std::sync::atomic::{AtomicU64, Ordering};

use dlock_sim::{Outcome, current_seed, run, run_batons, run_jobs, run_modes, run_quorums, seed_of};

/// An unoptimised build makes one run in the time of ten or more.
const RUNS: u64 = if cfg!(debug_assertions) { 250 } else { 20_000 };

/// Beside those of other locks.
const RUNS_OF_MODES: u64 = RUNS / 5;

/// Beside those of other locks.
const RUNS_OF_BATONS: u64 = RUNS / 4;

/// They last longer than others, and wait for more.
const RUNS_OF_JOBS: u64 = RUNS / 10;

/// They send requests to several nodes.
const RUNS_OF_QUORUMS: u64 = RUNS / 4;

fn all_pass(series: u64, runs: u64, run: fn(u64, bool) -> Outcome) {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let broken = std::thread::scope(|scope| {
        let work = || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= runs {
                    return None;
                }
                let seed = seed_of(series, n);
                if let Some(what) = run(seed, false).violation {
                    next.store(runs, Ordering::Relaxed);
                    return Some(format!("seed {seed:016x} (run {n} of series {series:x}): {what}"));
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().find_map(|worker| worker.join().unwrap())
    });
    if let Some(broken) = broken {
        panic!(
            "{broken}\nreplay it with `cargo run --release -p dlock-sim -- --seed <its seed> --trace`, and --jobs, --modes, \
             --quorums or --batons for theirs"
        );
    }
}

#[test]
fn no_rule_is_broken_in_a_series_that_is_always_the_same() {
    all_pass(0x646c_6f63_6b00, RUNS, run);
    all_pass(0x646c_6f63_6b00, RUNS_OF_MODES, run_modes);
    all_pass(0x646c_6f63_6b00, RUNS_OF_JOBS, run_jobs);
    all_pass(0x646c_6f63_6b00, RUNS_OF_QUORUMS, run_quorums);
    all_pass(0x646c_6f63_6b00, RUNS_OF_BATONS, run_batons);
}

/// The gate names the series by the commit that it tests: each commit has seeds of its own, and the same ones each
/// time. `dlock-sim --fresh` makes a new series.
#[test]
fn no_rule_is_broken_in_the_series_of_the_commit() {
    let series = std::env::var("DLOCK_SERIES").unwrap_or_else(|_| "636f6d6d6974".to_owned());
    let series = u64::from_str_radix(&series, 16).expect("DLOCK_SERIES is a hexadecimal number");
    for (run, of) in [
        (run as fn(u64, bool) -> Outcome, 3),
        (run_modes, 15),
        (run_jobs, 30),
        (run_quorums, 12),
        (run_batons, 12),
    ] {
        all_pass(series, RUNS / of, run);
    }
}

/// The store loses the hand-over with its newest writes, and a repeated request of the giver makes it again.
#[test]
fn a_baton_is_good_after_a_repeated_request_to_leave_reaches_a_store_that_lost_the_first() {
    let outcome = run_batons(0xead8_c28c_0b89_035f, true);
    assert!(outcome.story.contains("the store goes on with an old copy"), "another seed is needed");
    assert_eq!(outcome.violation, None);
}

/// An administrator frees a lock whose baton was given, and an attempt and a request to leave the lock arrive that the
/// giver had sent seconds before.
#[test]
fn a_baton_is_good_again_where_late_requests_of_the_giver_take_and_leave_a_lock_that_was_freed() {
    let outcome = run_batons(0xe172_6b0a_c7ab_76d7, true);
    assert!(outcome.story.contains("an administrator frees"), "another seed is needed");
    assert_eq!(outcome.violation, None);
}

#[test]
fn a_baton_of_the_next_section_is_good_where_the_batch_of_the_section_before_could_not_be_handed_over() {
    let outcome = run_batons(0xfa4c_2df7_5920_de78, true);
    assert!(outcome.story.contains("hands nothing over: lost"), "another seed is needed");
    assert_eq!(outcome.violation, None);
}

#[test]
fn the_same_seed_is_the_same_story_byte_for_byte() {
    for n in 0..20 {
        let seed = seed_of(7, n);
        let first = run(seed, true);
        // Also after others on the same thread, and on another one.
        let _ = run(seed_of(8, n), false);
        let second = run(seed, true);
        let third = std::thread::spawn(move || run(seed, true)).join().unwrap();
        assert_eq!(first.story, second.story);
        assert_eq!(first.story, third.story);
        assert!(!first.story.is_empty());
        assert_eq!(current_seed(), seed);
        assert_eq!(run_quorums(seed, true).story, run_quorums(seed, true).story);
        assert_eq!(run_batons(seed, true).story, run_batons(seed, true).story);
    }
}

#[test]
fn the_runs_are_full_of_trouble() {
    let mut total = dlock_sim::Summary::default();
    (0..200).for_each(|n| total.add(&run(seed_of(9, n), false).summary));
    assert!(total.grants > 400 && total.busy > 400 && total.beliefs > 400, "{total:?}");
    assert!(total.handoffs > 8, "{total:?}");
    assert!(total.faults > 120 && total.lost > 20, "{total:?}");
    let mut quorums = dlock_sim::Summary::default();
    (0..80).for_each(|n| quorums.add(&run_quorums(seed_of(9, n), false).summary));
    assert!(quorums.busy > 400 && quorums.beliefs > 400 && quorums.faults > 80, "{quorums:?}");
    let mut jobs = dlock_sim::Summary::default();
    (0..40).for_each(|n| jobs.add(&run_jobs(seed_of(9, n), false).summary));
    assert!(jobs.firings > 60 && jobs.skipped > 60 && jobs.terms > 20, "{jobs:?}");
    let mut modes = dlock_sim::Summary::default();
    (0..80).for_each(|n| modes.add(&run_modes(seed_of(9, n), false).summary));
    assert!(modes.beliefs > 400 && modes.downgrades > 8 && modes.turns > 8, "{modes:?}");
    let mut batons = dlock_sim::Summary::default();
    (0..80).for_each(|n| batons.add(&run_batons(seed_of(9, n), false).summary));
    assert!(batons.given > 80 && batons.taken_over > 40 && batons.retracted > 8, "{batons:?}");
    assert!(jobs.killed > 0 && jobs.again > 3, "{jobs:?}");
}
