//! Batches over stores, prefixes and quorums at once, by tasks that are aborted at any moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{Batch, Lock, Locks, Memory, Node};
use dlock_quorum::Quorum;

use super::rounds::rounds;

/// The stores behind everything; the last three make a quorum.
type Stores = [Memory; 5];

/// How one process reaches the stores: itself, behind a prefix, twice, and by majority. What `reversed` builds first,
/// the other builds last.
fn process(stores: &Stores, reversed: bool) -> [Locks; 5] {
    let build = |n: usize| match n {
        0 => Locks::new(stores[0].clone()),
        1 => Locks::builder(stores[0].clone()).with_prefix("p:").build().unwrap(),
        2 => Locks::new(stores[1].clone()),
        3 => {
            let mut nodes: Vec<Node> = stores[2..].iter().cloned().map(Node::from).collect();
            nodes.rotate_left(usize::from(reversed));
            Locks::new(Quorum::builder(nodes).with_durable_nodes().build().unwrap())
        }
        _ => Locks::new(stores[1].clone()),
    };
    let mut built: Vec<_> = (0..5).map(|n| if reversed { 4 - n } else { n }).map(build).collect();
    if reversed {
        built.reverse();
    }
    built.try_into().unwrap()
}

/// Which way a key is taken, and what the lock is called. Ways 2 and 4 are one store; `p:k1` without the prefix is `k1`
/// with it.
fn lock(locks: &[Locks; 5], key: &str, by: u64) -> (Lock, String) {
    let number = u64::from(key.as_bytes()[1] - b'0');
    match number % 4 {
        0 if by.is_multiple_of(2) => (locks[0].lock(format!("p:{key}")), format!("0 p:{key}")),
        0 => (locks[1].lock(key), format!("0 p:{key}")),
        1 if by.is_multiple_of(2) => (locks[2].lock(key), format!("1 {key}")),
        1 => (locks[4].lock(key), format!("1 {key}")),
        2 => (locks[3].lock(key), format!("q {key}")),
        _ => (locks[0].lock(key), format!("0 {key}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_all_kinds_neither_deadlock_nor_overlap_nor_leave_anything() {
    let stores: Stores = [0; 5].map(|_| Memory::new());
    let processes = [process(&stores, false), process(&stores, true)];
    let inside: Arc<Mutex<HashMap<String, u64>>> = Arc::default();
    let tasks: Vec<_> = (0..8)
        .map(|task: u64| {
            let (locks, inside) = (processes[task as usize % 2].clone(), Arc::clone(&inside));
            tokio::spawn(async move {
                for (round, keys) in rounds(task, 60).enumerate() {
                    let (wanted, names): (Vec<_>, Vec<_>) =
                        keys.iter().map(|key| lock(&locks, key, task + round as u64)).unzip();
                    let batch = Batch::of(wanted).with_wait(Duration::from_secs(60));
                    if round % 5 == 4 {
                        // Somebody who is cancelled in the middle.
                        let patience = Duration::from_micros(fastrand::u64(0..3_000));
                        drop(tokio::time::timeout(patience, batch.run(std::future::pending::<()>())).await);
                        continue;
                    }
                    let body = async {
                        for name in &names {
                            let other = inside.lock().unwrap().insert(name.clone(), task);
                            assert_eq!(other, None, "{name} is held twice");
                        }
                        tokio::task::yield_now().await;
                        for name in &names {
                            assert_eq!(inside.lock().unwrap().remove(name), Some(task));
                        }
                    };
                    batch.run(body).await.unwrap_or_else(|error| panic!("task {task}: {error}"));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let settled = async {
        while stores.iter().any(|store| store.held() > 0) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(20), settled).await.is_ok(), "something is left");
    for locks in processes.iter().flatten() {
        assert_eq!((locks.stats().held, locks.stats().lost), (0, 0));
    }
}

/// A batch inside a body, inside tasks that took the scope along, of which some are aborted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_tasks_that_took_a_scope_along_end_with_the_last_of_them() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    for _ in 0..20 {
        let tasks = locks
            .lock_all(["a", "b", "c"])
            .run(async {
                let spawn = |n: u64| {
                    let batch = locks.lock_all(["b", "c", &format!("own-{n}")]);
                    tokio::spawn(dlock_core::in_current_scope(async move {
                        let body = async {
                            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
                            dlock_core::current_hold().unwrap().check().unwrap();
                        };
                        batch.run(body).await.unwrap();
                    }))
                };
                let tasks: Vec<_> = (0..8).map(spawn).collect();
                tokio::task::yield_now().await;
                tasks.iter().step_by(3).for_each(tokio::task::JoinHandle::abort);
                tasks
            })
            .await
            .unwrap();
        for task in tasks {
            let ended = task.await;
            assert!(ended.is_ok() || ended.unwrap_err().is_cancelled());
        }
        let settled = async {
            while memory.held() > 0 || locks.stats().held > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(20), settled).await.is_ok(), "something is left");
    }
}
