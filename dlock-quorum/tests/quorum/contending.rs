//! Several who want the lock at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Locks, Memory};
use dlock_quorum::Quorum;
use dlock_testkit::wire::{Wire, Wired};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{KEY, durable, left_with_nothing, nodes, process, take, try_take, until};

/// Nodes so far away that those who ask at the same moment meet on the way.
fn distant(count: usize) -> Vec<Memory> {
    let nodes = nodes(count);
    for (place, node) in nodes.iter().enumerate() {
        node.faults().set_delay(Duration::from_micros(1_500 + 300 * place as u64));
    }
    nodes
}

/// All `clients` start at once, each with a connection of its own; how long it took until one had the lock.
async fn race(nodes: &[Memory], clients: usize, inside: &Arc<AtomicBool>) -> Duration {
    let start = Arc::new(Barrier::new(clients));
    let mut racing = JoinSet::new();
    for _ in 0..clients {
        let (locks, start, inside) = (process(nodes), Arc::clone(&start), Arc::clone(inside));
        racing.spawn(async move {
            start.wait().await;
            let started = Instant::now();
            let guard = locks.lock(KEY).acquire().await.expect("its turn comes");
            let took = started.elapsed();
            assert!(!inside.swap(true, Ordering::SeqCst), "two at once");
            tokio::task::yield_now().await;
            guard.check().expect("it is held");
            inside.store(false, Ordering::SeqCst);
            guard.release().await.expect("it was held");
            took
        });
    }
    racing.join_all().await.into_iter().min().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_vote_comes_to_a_winner() {
    let inside = Arc::new(AtomicBool::new(false));
    for clients in [3, 10] {
        let nodes = distant(5);
        let mut times = Vec::new();
        for _ in 0..15 {
            times.push(race(&nodes, clients, &inside).await);
        }
        times.sort_unstable();
        // They meet on the way in most rounds; a round is about 3 ms.
        let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
        eprintln!("{clients} clients: a winner after {median:.1?} in the median and {most:.1?} at the most");
        left_with_nothing(&nodes);
    }
}

/// A process, and its ways to the nodes, of which those that `reaches` names are free and the others hang.
fn through_wires(nodes: &[Memory], reaches: [usize; 2]) -> (Locks, Vec<Wire>) {
    let wires: Vec<_> = nodes.iter().map(|_| Wire::default()).collect();
    for (place, wire) in wires.iter().enumerate() {
        if !reaches.contains(&place) {
            wire.hang();
        }
    }
    let ways = nodes.iter().zip(&wires).map(|(node, wire)| Wired::new(node.clone(), wire.clone()));
    let quorum = Quorum::builder(ways).with_durable_nodes().with_node_timeout(Duration::from_secs(2));
    (Locks::new(quorum.build().expect("a sound quorum")), wires)
}

#[tokio::test]
async fn of_two_who_have_half_of_the_votes_each_the_one_with_the_first_gets_the_rest() {
    let nodes = nodes(5);
    nodes[4].faults().set_unavailable(true);
    let (first, first_wires) = through_wires(&nodes, [0, 1]);
    let (second, second_wires) = through_wires(&nodes, [2, 3]);
    let asking = [first, second].map(|locks| tokio::spawn(async move { try_take(&locks).await }));
    while nodes[..4].iter().any(|node| node.held() == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for wire in first_wires.iter().chain(&second_wires) {
        wire.mend();
    }
    let [first, second] = asking;
    let guard = first.await.unwrap().unwrap().expect("it insists");
    assert!(second.await.unwrap().unwrap().is_none(), "it gives its votes back");
    guard.check().unwrap();
    guard.release().await.unwrap();
    left_with_nothing(&nodes[..4]);
}

#[tokio::test(start_paused = true)]
async fn who_has_the_first_node_insists_for_longer_than_others_need_to_give_theirs_back() {
    let nodes = nodes(5);
    nodes[4].faults().set_unavailable(true);
    let others = [&nodes[2], &nodes[3]].map(|node| Locks::new(node.clone()));
    let theirs = [take(&others[0]).await, take(&others[1]).await];
    let locks = process(&nodes);
    let asking = tokio::spawn(async move { try_take(&locks).await });
    // Many times what it takes to ask.
    tokio::time::sleep(Duration::from_millis(20)).await;
    for other in &others {
        assert!(other.force_release(KEY).await.unwrap());
    }
    let guard = asking.await.unwrap().unwrap().expect("it insists");
    guard.release().await.unwrap();
    drop(theirs);
    left_with_nothing(&nodes[..4]);
}

#[tokio::test]
async fn a_vote_that_comes_too_late_is_given_back_while_the_caller_waits_on() {
    let nodes = nodes(3);
    let other = take(&Locks::new(nodes[0].clone())).await;
    nodes[1].faults().set_unavailable(true);
    // Half of it is the way there, and the whole of it is more than the node timeout.
    nodes[2].faults().set_delay(Duration::from_millis(300));
    let lock = process(&nodes).lock(KEY);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let comes_and_goes = async {
        for wanted in [1, 0] {
            while nodes[2].held() != wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), comes_and_goes).await.expect("the vote comes, and goes");
    assert!(!waiter.is_finished());
    nodes[2].faults().set_delay(Duration::ZERO);
    nodes[1].faults().set_unavailable(false);
    drop(other);
    waiter.await.unwrap().expect("its turn comes").release().await.unwrap();
    until("giving everything back", || nodes.iter().all(|node| node.held() == 0));
}

#[test]
fn a_node_that_answers_late_is_heard_although_the_runtime_of_the_caller_is_gone() {
    let nodes = nodes(3);
    // Half of it is the way there.
    nodes[2].faults().set_delay(Duration::from_millis(800));
    let quorum = durable(&nodes).with_node_timeout(Duration::from_secs(5)).build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = runtime.block_on(async { take(&Locks::new(quorum)).await });
    assert_eq!(nodes[2].held(), 0, "the other two were enough");
    drop(runtime);
    until("the vote of the third", || nodes[2].held() == 1);
    drop(guard);
    left_with_nothing(&nodes);
}
