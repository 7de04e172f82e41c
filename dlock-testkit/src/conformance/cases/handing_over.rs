//! A hot key: from section to section inside a process, and between processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{ErrorKind, Fence, Guard};
use tokio::task::JoinSet;

use super::cases;
use crate::conformance::expect::{give_back, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    sections_that_follow_each_other_have_higher_fences_each: Fences, Busy;
    waiters_that_are_cancelled_while_the_lock_goes_on_are_passed_by: Nothing, Busy;
    another_process_gets_in_while_one_goes_on: Nothing, Busy;
    a_section_that_follows_another_is_entered_again: Nothing, Easy;
    without_handoff_every_section_releases_the_lock: Nothing, Easy;
    a_process_that_is_cut_off_in_a_line_of_sections_is_superseded: Lease & Fences, Timed;
}

/// What the sections of one key saw, in their order.
#[derive(Clone, Default)]
struct Sections {
    inside: Arc<AtomicBool>,
    fences: Arc<Mutex<Vec<Option<Fence>>>>,
}

impl Sections {
    async fn pass(&self, guard: Guard) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two are inside");
        self.fences.lock().expect("not poisoned").push(guard.fence());
        tokio::task::yield_now().await;
        guard.check().expect("it is held");
        assert!(self.inside.swap(false, Ordering::SeqCst), "two are inside");
        give_back(guard).await;
    }

    /// Has so many tasks of `process` take the lock so often.
    fn spawn(&self, tasks: &mut JoinSet<()>, process: &Process, key: &str, count: (usize, usize)) {
        for _ in 0..count.0 {
            let (lock, sections) = (process.locks.lock(key), self.clone());
            tasks.spawn(async move {
                for _ in 0..count.1 {
                    sections.pass(lock.acquire().await.expect("its turn comes")).await;
                }
            });
        }
    }

    fn count(&self) -> usize {
        self.fences.lock().expect("not poisoned").len()
    }
}

async fn all_end(mut tasks: JoinSet<()>) {
    while let Some(task) = tasks.join_next().await {
        task.expect("no task failed");
    }
}

/// Passed on, or acquired anew, here or there.
async fn sections_that_follow_each_other_have_higher_fences_each(stage: Stage) {
    let processes = [stage.process().await, stage.process().await];
    let (key, sections, mut tasks) = (stage.key(), Sections::default(), JoinSet::new());
    processes.iter().for_each(|process| sections.spawn(&mut tasks, process, &key, (6, 5)));
    all_end(tasks).await;
    let fences = sections.fences.lock().expect("not poisoned");
    assert_eq!(fences.len(), 60);
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

/// At whatever moment they go: nobody is forgotten, and nothing is left.
async fn waiters_that_are_cancelled_while_the_lock_goes_on_are_passed_by(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (sections, mut tasks) = (Sections::default(), JoinSet::new());
    sections.spawn(&mut tasks, &ours, &key, (4, 10));
    for n in 0..60 {
        let lock = ours.locks.lock(&key);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        for _ in 0..n % 7 {
            tokio::task::yield_now().await;
        }
        waiter.abort();
        drop(waiter.await);
    }
    all_end(tasks).await;
    assert_eq!(sections.count(), 40);
    theirs.sees_free_soon(&key).await;
    until("the end of all clean-ups", || ours.locks.stats().background == 0).await;
}

/// However many want it here, the one there has its turn.
async fn another_process_gets_in_while_one_goes_on(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (got_in, mut tasks) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    let sections = Sections::default();
    for _ in 0..6 {
        let (lock, sections, got_in) = (ours.locks.lock(&key), sections.clone(), Arc::clone(&got_in));
        tasks.spawn(async move {
            while !got_in.load(Ordering::SeqCst) {
                sections.pass(lock.acquire().await.expect("its turn comes")).await;
            }
        });
    }
    until("some sections", || sections.count() > 6).await;
    for _ in 0..3 {
        let guard = soon("its turn", theirs.locks.lock(&key).acquire()).await.expect("it is not refused");
        sections.pass(guard).await;
    }
    got_in.store(true, Ordering::SeqCst);
    all_end(tasks).await;
}

/// Its owner is the section, and not the process.
async fn a_section_that_follows_another_is_entered_again(stage: Stage) {
    let (process, key, mut tasks) = (stage.process().await, stage.key(), JoinSet::new());
    for _ in 0..6 {
        let lock = process.locks.lock(&key);
        tasks.spawn(async move {
            let inside = lock.clone();
            let body = lock.run_with(|held| async move {
                let again = inside.acquire().await.expect("it is the owner");
                assert_eq!(again.fence(), held.fence());
                give_back(again).await;
                tokio::task::yield_now().await;
                inside.run_with(|again| async move { again.fence() }).await.expect("it is the owner")
                    == held.fence()
            });
            assert!(body.await.expect("its turn comes"));
        });
    }
    all_end(tasks).await;
    assert!(process.take(&key).await.release().await.is_ok());
}

/// For those who want to see each section on the server.
async fn without_handoff_every_section_releases_the_lock(stage: Stage) {
    let process = stage.process_with(|builder| builder.with_handoff(false)).await;
    let (key, sections, mut tasks) = (stage.key(), Sections::default(), JoinSet::new());
    sections.spawn(&mut tasks, &process, &key, (4, 3));
    all_end(tasks).await;
    assert_eq!((sections.count(), process.locks.stats().handoffs), (12, 0));
    assert!(process.wire.withdrawals() >= 12);
}

/// What is left of its fences is never used.
async fn a_process_that_is_cut_off_in_a_line_of_sections_is_superseded(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let (fences, mut tasks) = (Arc::new(Mutex::new(Vec::new())), JoinSet::new());
    for _ in 0..4 {
        let (lock, fences) = (ours.locks.lock(&key), Arc::clone(&fences));
        tasks.spawn(async move {
            loop {
                let Ok(guard) = lock.acquire().await else { return };
                tokio::time::sleep(Duration::from_micros(500)).await;
                if guard.check().is_ok() {
                    fences.lock().expect("not poisoned").push(guard.fence());
                }
                match guard.release().await {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::InvalidConfig => panic!("{error}"),
                    // Cut off.
                    Err(_) => return,
                }
            }
        });
    }
    until("some sections", || fences.lock().expect("not poisoned").len() > 8).await;
    ours.wire.cut();
    let guard = theirs.take_soon(&key).await;
    let last = fences.lock().expect("not poisoned").iter().copied().max().expect("there were sections");
    assert!(guard.fence() > last, "{:?} after {last:?}", guard.fence());
    tasks.abort_all();
    give_back(guard).await;
}
