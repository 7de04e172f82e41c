//! Many batches at once, in opposite orders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock::{BatchGuard, Locks, Memory};

use super::Process;

const TASKS: u64 = 8;
const ROUNDS: usize = 1_000;
const KEYS: usize = 10;

/// Who is inside, by key.
type Inside = Arc<Mutex<HashMap<String, u64>>>;

/// The keys of each round: two to eight, in an order of chance.
fn rounds(task: u64, rounds: usize) -> impl Iterator<Item = Vec<String>> {
    let mut random = fastrand(task);
    (0..rounds).map(move |_| {
        let mut keys: Vec<String> = (0..KEYS).map(|n| format!("k{n}")).collect();
        for n in (1..KEYS).rev() {
            keys.swap(n, random(n as u64 + 1) as usize);
        }
        keys.truncate(2 + random(7) as usize);
        keys
    })
}

async fn take(locks: &Locks, task: u64, keys: &[String]) -> BatchGuard {
    let batch = locks.lock_all(keys).with_wait(Duration::from_secs(60));
    batch.acquire().await.unwrap_or_else(|error| panic!("task {task}: {error}"))
}

async fn contend(locks: Locks, task: u64, inside: Inside) {
    for keys in rounds(task, ROUNDS) {
        let guard = take(&locks, task, &keys).await;
        for key in &keys {
            let other = inside.lock().unwrap().insert(key.clone(), task);
            assert_eq!(other, None, "{key} is held twice");
        }
        tokio::task::yield_now().await;
        for key in &keys {
            assert_eq!(inside.lock().unwrap().remove(key), Some(task));
        }
        guard.release().await.unwrap();
    }
}

/// The same among processes, of which who is inside makes a file.
#[cfg(feature = "sqlite")]
pub(crate) async fn contend_between(locks: Locks, task: u64, inside: std::path::PathBuf) {
    for keys in rounds(task, 32) {
        let guard = take(&locks, task, &keys).await;
        for key in &keys {
            let made = std::fs::File::create_new(inside.join(key));
            assert!(made.is_ok(), "{key} is held twice: {made:?}");
        }
        tokio::task::yield_now().await;
        for key in &keys {
            std::fs::remove_file(inside.join(key)).unwrap();
        }
        guard.release().await.unwrap();
    }
}

/// A generator of its own for each task, so that a run can be repeated.
fn fastrand(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_never_deadlock() {
    for in_one_step in [true, false] {
        let memory = Memory::new();
        // Half of the tasks are another process.
        let processes = [0, 1].map(|_| Process::over(&memory, in_one_step));
        let inside = Inside::default();
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let locks = processes[task as usize % 2].locks.clone();
                tokio::spawn(contend(locks, task, Arc::clone(&inside)))
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        for process in processes {
            process.settled().await;
            assert_eq!(process.locks.stats().lost, 0);
        }
    }
}

/// One wants all keys while others take each of them in turn, so that in one step there is hardly a moment for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_does_not_starve_among_single_locks() {
    let memory = Memory::new();
    let process = Process::over(&memory, true);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let holders: Vec<_> = (0..4)
        .flat_map(|key| [key, key])
        .map(|key| {
            let (locks, stop) = (process.locks.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                    locks
                        .lock(format!("k{key}"))
                        .run(tokio::time::sleep(Duration::from_millis(1)))
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for _ in 0..5 {
        let batch = process.locks.lock_all((0..4).map(|key| format!("k{key}")));
        batch.with_wait(Duration::from_secs(60)).acquire().await.unwrap().release().await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for holder in holders {
        holder.await.unwrap();
    }
    process.settled().await;
}
