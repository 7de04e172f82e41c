//! Many batches at once, in opposite orders.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{BatchGuard, Locks, Memory};

use super::Process;
use super::rounds::rounds;

const TASKS: u64 = 8;
const ROUNDS: usize = 300;

/// Who is inside, by key.
type Inside = Arc<Mutex<HashMap<String, u64>>>;

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
