//! One order for all processes, whatever they built first and however they reach a lock.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Batch, Locks, Memory, Node, Prefixed, Wait};
use dlock_quorum::Quorum;
use tokio::sync::Barrier;

use super::Process;

/// A store behind a prefix, and quorums of the same nodes in another order: the places of one process.
type Stores = [Memory; 3];

fn quorum(stores: &Stores, order: [usize; 3]) -> Locks {
    let nodes = order.map(|n| Node::from(stores[n].clone()));
    Locks::new(Quorum::builder(nodes).with_durable_nodes().build().unwrap())
}

fn prefixed(memory: &Memory, prefix: &str) -> Locks {
    Locks::builder(memory.clone()).with_prefix(prefix).build().unwrap()
}

fn keys(locks: [&Locks; 2], order: [usize; 2]) -> Vec<String> {
    let named = order.map(|n| locks[n].lock(["first", "second"][n]));
    Batch::of(named).keys().map(str::to_owned).collect()
}

#[test]
fn the_order_does_not_depend_on_which_locks_were_built_first() {
    let stores = [Memory::new(), Memory::new()];
    let one = stores.clone().map(Locks::new);
    let mut other = [stores[1].clone(), stores[0].clone()].map(Locks::new);
    other.reverse();
    for order in [[0, 1], [1, 0]] {
        assert_eq!(keys([&one[0], &one[1]], order), keys([&other[0], &other[1]], order));
    }
}

/// Two processes that build their locks in opposite orders, and take the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_built_their_locks_in_opposite_orders_do_not_deadlock() {
    let stores = [Memory::new(), Memory::new()];
    let build = |n: usize| Process::over(&stores[n], false).locks;
    let (a, b) = (build(0), build(1));
    let (d, c) = (build(1), build(0));
    let begin = Arc::new(Barrier::new(2));
    let tasks = [[a, b], [c, d]].map(|[first, second]| {
        let begin = Arc::clone(&begin);
        tokio::spawn(async move {
            for _ in 0..300 {
                let batch = Batch::of([first.lock("k"), second.lock("k")]);
                begin.wait().await;
                // In a deadlock it would be the whole wait.
                let guard = batch.with_wait(Duration::from_secs(30)).acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        })
    });
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_is_reached_through_two_locks_is_one_lock() {
    for in_one_step in [true, false] {
        let memory = Memory::new();
        let [one, other] = [0, 1].map(|_| Process::over(&memory, in_one_step).locks);
        let batch = Batch::of([one.lock("b"), other.lock("a"), other.lock("b"), one.lock("c")]);
        assert_eq!(batch.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        let guard = batch.with_wait(Wait::No).acquire().await.unwrap();
        assert_eq!(memory.held(), 3);
        assert_eq!((one.stats().held, other.stats().held), (2, 1), "through that which was given first");
        guard.release().await.unwrap();
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test]
async fn a_key_behind_a_prefix_is_the_lock_that_it_names_in_the_store() {
    let memory = Memory::new();
    let (plain, shop, s) = (Locks::new(memory.clone()), prefixed(&memory, "shop:"), prefixed(&memory, "s"));
    let twice =
        Locks::builder(Prefixed::new(memory.clone(), "sh").unwrap()).with_prefix("op:").build().unwrap();
    let same = [plain.lock("shop:k"), shop.lock("k"), s.lock("hop:k"), twice.lock("k")];
    let guard = Batch::of(same).with_wait(Wait::No).acquire().await.unwrap();
    assert_eq!(memory.held(), 1);
    guard.release().await.unwrap();
    let others = [plain.lock("k"), shop.lock("k"), Locks::new(Memory::new()).lock("k")];
    let guard = Batch::of(others).acquire().await.unwrap();
    assert_eq!(guard.fences().count(), 3);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn quorums_of_the_same_nodes_are_one_place_and_of_others_another() {
    let stores: Stores = [0; 3].map(|_| Memory::new());
    let (one, turned) = (quorum(&stores, [0, 1, 2]), quorum(&stores, [2, 0, 1]));
    let guard = Batch::of([one.lock("k"), turned.lock("k")]).with_wait(Wait::No).acquire().await.unwrap();
    assert_eq!(guard.fences().count(), 1);
    guard.release().await.unwrap();
    let others: Stores = [0; 3].map(|_| Memory::new());
    let behind = |prefix: &str| {
        let nodes = others.clone().map(|node| Prefixed::new(node, prefix).unwrap());
        Locks::new(Quorum::builder(nodes).with_durable_nodes().build().unwrap())
    };
    let different =
        [one.lock("k"), quorum(&others, [0, 1, 2]).lock("k"), behind("a:").lock("k"), behind("b:").lock("k")];
    let guard = Batch::of(different).with_wait(Wait::No).acquire().await.unwrap();
    assert_eq!(guard.fences().count(), 4);
    guard.release().await.unwrap();
}
