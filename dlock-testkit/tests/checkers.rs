//! The checkers acquit a sound backend and catch broken ones, on real work among faults.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{Locks, Memory};
use dlock_rig::register::RegisterServer;
use dlock_rig::worker::{Way, Work, work};
use dlock_testkit::checkers::{FenceOrder, Overlaps, Updates, fence_order, lost_updates, overlap};
use dlock_testkit::history;
use dlock_testkit::mutants::{Mutant, Mutation};
use dlock_testkit::register::Register;
use dlock_testkit::wire::{Wire, Wired};

const LEASE: Duration = Duration::from_millis(150);

/// Three processes that work on one register, one after the other cut off for longer than a lease.
async fn run(mutation: Mutation, register: Register) -> (FenceOrder, Overlaps, Updates) {
    let directory = tempfile::tempdir().unwrap();
    let server = RegisterServer::start(register).await.unwrap();
    let store = Mutant::new(Memory::new(), mutation);
    let stop = &*Box::leak(Box::new(AtomicBool::new(false)));
    let (mut wires, mut works) = (Vec::new(), Vec::new());
    for process in 0..3 {
        let wire = Wire::default();
        let builder = Locks::builder(Wired::new(store.clone(), wire.clone()));
        let locks = builder.with_lease(LEASE).with_label(process.to_string()).build().unwrap();
        let task = Work {
            process,
            key: "k".into(),
            register: server.address(),
            // Longer than a lease, so that a section outlives one that cannot be renewed.
            pause_ms: (250, 350),
            seed: u64::from(process),
            history: directory.path().join(format!("{process}.jsonl")),
            way: Way::Alone,
            tasks: 1,
        };
        wires.push(wire);
        works.push(tokio::spawn(async move { work(&locks, &task, stop).await }));
    }
    let observer = Locks::new(store);
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..14 {
        tokio::time::sleep(Duration::from_millis(random.u64(10..60))).await;
        // The holder has something to lose.
        let holder = observer.inspect("k").await.unwrap().and_then(|holder| holder.label);
        let at = holder.and_then(|label| label.parse().ok()).unwrap_or_else(|| random.usize(0..3));
        let wire: &Wire = &wires[at];
        wire.cut();
        tokio::time::sleep(LEASE * 3 / 2).await;
        wire.mend();
    }
    stop.store(true, Ordering::SeqCst);
    for work in works {
        work.await.unwrap().unwrap();
    }
    let mut events = Vec::new();
    for process in 0..3 {
        events.extend(history::read(directory.path().join(format!("{process}.jsonl"))).unwrap());
    }
    let verdicts = (fence_order(&events), overlap(&events));
    assert!(verdicts.0.grants >= 5 && verdicts.1.holds >= 5, "too little was done to check: {verdicts:?}");
    (verdicts.0, verdicts.1, lost_updates(&server.register().record()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_backend_is_acquitted_and_the_fence_stops_stale_writes() {
    let (fences, overlaps, updates) = run(Mutation::Sound, Register::fenced()).await;
    assert!(fences.inversions.is_empty(), "{fences:?}");
    assert!(overlaps.overlaps.is_empty(), "{overlaps:?}");
    assert_eq!((updates.stale_accepted, updates.lost_updates), (0, 0), "{updates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_faults_lose_updates_without_a_fence() {
    let (fences, overlaps, updates) = run(Mutation::Sound, Register::unfenced()).await;
    assert!(fences.inversions.is_empty() && overlaps.overlaps.is_empty(), "{fences:?} {overlaps:?}");
    assert!(updates.stale_accepted > 0 && updates.lost_updates > 0, "the faults did not bite: {updates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_that_are_let_in_side_by_side_overlap() {
    for mutation in
        [Mutation::GrantsToEverybody, Mutation::OverstatesTheLease, Mutation::ReleasesForeignLocks]
    {
        let (_, overlaps, _) = run(mutation, Register::unfenced()).await;
        assert!(!overlaps.overlaps.is_empty(), "{mutation:?} got away");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_that_do_not_grow_are_out_of_order_and_lose_updates() {
    for mutation in [Mutation::FenceStandsStill, Mutation::FenceFalls] {
        let (fences, overlaps, _) = run(mutation, Register::unfenced()).await;
        assert!(!fences.inversions.is_empty(), "{mutation:?} got away");
        assert!(overlaps.overlaps.is_empty(), "the exclusion is not what is broken: {overlaps:?}");
    }
    let (_, _, updates) = run(Mutation::FenceStandsStill, Register::fenced()).await;
    assert!(updates.lost_updates > 0, "a fence that stands still fences nothing: {updates:?}");
}
