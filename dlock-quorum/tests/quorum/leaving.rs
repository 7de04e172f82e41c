//! What is left on nodes that do not answer, and who knows of it.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait, keeper};
use dlock_quorum::Quorum;
use dlock_testkit::wire::{Wire, Wired};
use futures_util::future::join_all;

use crate::support::{KEY, left_with_nothing, nodes, process, short, take, try_take, until};

#[tokio::test]
async fn shutdown_waits_until_the_last_node_has_given_the_lock_back() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    until("the third vote", || nodes.iter().all(|node| node.held() == 1));
    nodes[2].faults().set_hanging(true);
    guard.release().await.unwrap();
    assert_eq!((locks.stats().background, nodes[2].held()), (1, 1));
    let ours = locks.clone();
    let shutdown = tokio::spawn(async move { ours.shutdown(Duration::from_secs(20)).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!shutdown.is_finished());
    nodes[2].faults().set_hanging(false);
    shutdown.await.unwrap().unwrap();
    assert_eq!(nodes[2].held(), 0);
    assert_eq!((locks.stats().background, locks.stats().abandoned), (0, 0));
}

#[tokio::test]
async fn a_shutdown_that_a_node_keeps_from_its_end_says_so() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    until("the third vote", || nodes.iter().all(|node| node.held() == 1));
    nodes[2].faults().set_hanging(true);
    guard.release().await.unwrap();
    let error = locks.shutdown(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("1 background releases"), "{error}");
    nodes[2].faults().set_hanging(false);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_release_waits_for_a_majority_that_is_slower_than_nodes_usually_are() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    for node in &nodes {
        // Nodes have 200 ms to answer an attempt.
        node.faults().set_delay(Duration::from_millis(300));
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_hangs_costs_little_and_comes_back() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    nodes[2].faults().set_hanging(true);
    for n in 0..200 {
        let lock =
            locks.lock(format!("{n}")).with_request_timeout(Duration::from_millis(20)).with_wait(Wait::No);
        lock.acquire().await.unwrap().release().await.unwrap();
        // As long as one request to a node may take.
        if n < 5 {
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    // Asked now and then, and not by everybody: what those left is all that is being released.
    let left = locks.stats().background;
    assert!(left < 20, "{left} of 200 are still being given back");
    nodes[2].faults().set_hanging(false);
    until("the clean-up", || locks.stats().background == 0);
    left_with_nothing(&nodes);
    for _ in 0..1_000 {
        let guard = take(&locks).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        let votes = nodes[2].held();
        guard.release().await.unwrap();
        if votes == 1 {
            return;
        }
    }
    panic!("it is not asked for its vote any more");
}

#[tokio::test]
async fn what_is_left_to_its_lease_on_a_node_with_too_much_to_release_is_counted() {
    const ALL: usize = 1_100;
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guards = join_all((0..ALL).map(|n| {
        let lock = locks.lock(format!("{n}"));
        async move { lock.acquire().await.unwrap() }
    }));
    let guards = guards.await;
    until("all votes", || nodes.iter().all(|node| node.held() == ALL));
    nodes[2].faults().set_hanging(true);
    for released in join_all(guards.into_iter().map(dlock_core::Guard::release)).await {
        released.unwrap();
    }
    let left = usize::try_from(locks.stats().abandoned).unwrap();
    assert!(left > 0 && left <= ALL - 1_024, "{left} of {ALL}");
    nodes[2].faults().set_hanging(false);
    until("the rest", || locks.stats().background == 0);
    assert_eq!((nodes[0].held(), nodes[1].held(), nodes[2].held()), (0, 0, left));
}

/// Keeps the thread that drives connections busy until this is dropped.
struct Blocked {
    _end: std::sync::mpsc::Sender<()>,
}

impl Blocked {
    fn begin() -> Self {
        let ((end, ends), (begin, begun)) = (std::sync::mpsc::channel::<()>(), std::sync::mpsc::channel());
        keeper::runtime().unwrap().spawn(async move {
            begin.send(()).unwrap();
            let _ = ends.recv();
        });
        begun.recv().unwrap();
        Self { _end: end }
    }
}

#[tokio::test]
async fn a_backend_that_blocks_the_thread_of_all_connections_holds_up_no_vote() {
    let nodes = nodes(3);
    nodes[2].faults().set_delay(Duration::from_millis(20));
    let locks = short(&nodes, Duration::from_secs(2));
    let blocked = Blocked::begin();
    let guard = take(&locks).await;
    until("a vote that nobody waits for", || nodes[2].held() == 1);
    nodes[2].delete(KEY);
    until("a vote that is asked for again", || nodes[2].held() == 1);
    nodes[2].faults().set_hanging(true);
    guard.release().await.unwrap();
    nodes[2].faults().set_hanging(false);
    left_with_nothing(&nodes);
    // Nodes that may forget are marked.
    let forgetful = Locks::new(Quorum::new(nodes.clone()).unwrap());
    try_take(&forgetful).await.unwrap_err();
    until("the marks", || nodes[..2].iter().all(|node| node.held() == 1));
    drop(blocked);
}

#[tokio::test]
async fn a_node_whose_code_panics_is_one_that_failed_and_keeps_nothing() {
    let (nodes, wire) = (nodes(3), Wire::default());
    let wired = nodes.iter().enumerate().map(|(place, node)| {
        let wire = if place == 2 { wire.clone() } else { Wire::default() };
        Wired::new(node.clone(), wire)
    });
    let quorum = Quorum::builder(wired).with_durable_nodes().build().unwrap();
    let locks = Locks::builder(quorum).with_lease(Duration::from_secs(90)).build().unwrap();
    // The attempt, and withdrawals.
    for panics in [1, 2, 5] {
        wire.panic_replies(panics);
        let guard = take(&locks).await;
        guard.release().await.unwrap();
        until("the clean-up", || locks.stats().background == 0);
        left_with_nothing(&nodes);
    }
    locks.shutdown(Duration::from_secs(20)).await.unwrap();
}
