//! Keeping the lock, losing it, giving it back.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};

use crate::support::{KEY, left_with_nothing, nodes, process, short, take, try_take, until, votes};

const LEASE: Duration = Duration::from_millis(900);

fn renewed(locks: &Locks, times: u64) {
    let seen = locks.stats().renewals;
    until("the renewals", || locks.stats().renewals >= seen + times);
}

#[tokio::test]
async fn a_minority_that_goes_away_costs_nothing() {
    let nodes = nodes(5);
    let locks = short(&nodes, LEASE);
    let guard = take(&locks).await;
    nodes[1].faults().set_unavailable(true);
    nodes[3].faults().set_hanging(true);
    renewed(&locks, 4);
    guard.check().expect("three of five keep it");
    assert_eq!(locks.stats().failed_renewals, 0);
    assert!(try_take(&process(&nodes)).await.unwrap().is_none());
    guard.release().await.expect("three of five took it back");
    nodes[1].faults().set_unavailable(false);
    nodes[3].faults().set_hanging(false);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_majority_that_is_slower_than_the_node_timeout_keeps_the_lock_while_a_minority_hangs() {
    let nodes = nodes(3);
    let locks = short(&nodes, LEASE);
    let guard = take(&locks).await;
    nodes[2].faults().set_hanging(true);
    // A node has 60 ms by itself, and a renewal 120 ms.
    for node in &nodes[..2] {
        node.faults().set_delay(Duration::from_millis(80));
    }
    renewed(&locks, 4);
    guard.check().expect("two of three keep it, if not as quickly");
    nodes[2].faults().set_hanging(false);
    guard.release().await.expect("two of three took it back");
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_majority_that_goes_away_costs_the_lock_before_anybody_else_can_have_it() {
    for hanging in [false, true] {
        let nodes = nodes(3);
        let locks = short(&nodes, LEASE);
        let guard = take(&locks).await;
        renewed(&locks, 1);
        for node in &nodes[..2] {
            node.faults().set_unavailable(!hanging);
            node.faults().set_hanging(hanging);
        }
        until("the warning", || guard.held().is_at_risk());
        until("the loss", || guard.check().is_err());
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        // By the nodes' own reckoning it is still held: the holder knew first.
        assert!(nodes.iter().filter(|node| node.held() > 0).count() >= 2);
        for node in &nodes {
            node.faults().set_unavailable(false);
            node.faults().set_hanging(false);
        }
        drop(guard);
        left_with_nothing(&nodes);
    }
}

#[tokio::test]
async fn a_lock_deleted_on_a_majority_is_lost_at_the_next_renewal() {
    let nodes = nodes(3);
    let locks = short(&nodes, LEASE);
    let guard = take(&locks).await;
    assert!(nodes[0].delete(KEY) && nodes[2].delete(KEY));
    until("the loss", || guard.check().is_err());
    let error = guard.check().unwrap_err();
    assert!(error.to_string().contains("no longer has it"), "not by a renewal: {error}");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_release_tells_whether_the_lock_was_still_held_by_a_majority() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    assert!(nodes[0].delete(KEY));
    guard.release().await.expect("two of three had it");
    let guard = take(&locks).await;
    assert!(nodes[0].delete(KEY) && nodes[1].delete(KEY));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_lock_taken_away_on_a_majority_is_lost_at_once() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    nodes[1].lose(KEY);
    guard.check().expect("two of three have it");
    nodes[0].lose(KEY);
    let error = guard.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("node 1 (memory)"), "{error}");
    assert_eq!(locks.stats().renewals, 0, "nobody had to ask");
}

#[tokio::test]
async fn a_node_that_comes_back_is_given_the_lock_again_by_a_renewal() {
    let nodes = nodes(3);
    let locks = short(&nodes, LEASE);
    nodes[2].faults().set_unavailable(true);
    let guard = take(&locks).await;
    nodes[2].faults().set_unavailable(false);
    until("healing", || nodes[2].held() == 1);
    assert!(nodes[0].delete(KEY), "one that lost it");
    until("healing", || nodes[0].held() == 1);
    // It is as good as any other now.
    nodes[1].faults().set_unavailable(true);
    renewed(&locks, 4);
    guard.check().expect("the two that were healed keep it");
    nodes[1].faults().set_unavailable(false);
    guard.release().await.unwrap();
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_lock_that_is_lost_is_not_healed() {
    let nodes = nodes(3);
    let locks = short(&nodes, LEASE);
    let guard = take(&locks).await;
    let others: Vec<_> = [0, 1]
        .map(|place| {
            assert!(nodes[place].delete(KEY));
            Locks::new(nodes[place].clone())
        })
        .into();
    let successors = [take(&others[0]).await, take(&others[1]).await];
    until("the loss", || guard.check().is_err());
    drop(guard);
    until("giving back", || nodes[2].held() == 0);
    for successor in successors {
        successor.release().await.expect("it was left alone");
    }
}

#[tokio::test]
async fn a_release_that_no_majority_confirms_is_an_error_and_is_made_up_for() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    nodes[0].faults().set_unavailable(true);
    nodes[2].faults().set_hanging(true);
    let error = guard.release().await.unwrap_err();
    assert_eq!(votes(&error).took_part, 1);
    nodes[0].faults().set_unavailable(false);
    nodes[2].faults().set_hanging(false);
    left_with_nothing(&nodes);
    until("the background work", || locks.stats().background == 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_long_for_a_minority() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let guard = take(&locks).await;
    nodes[1].faults().set_hanging(true);
    tokio::time::timeout(Duration::from_millis(150), guard.release())
        .await
        .expect("it is over long before the node timeout of 200 ms")
        .expect("two of three confirmed it");
    let again = take(&locks).await;
    again.check().expect("two of three are free");
    again.release().await.unwrap();
    nodes[1].faults().set_hanging(false);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn lost_replies_of_a_minority_leave_nothing() {
    let nodes = nodes(5);
    for round in 0..40 {
        let locks = process(&nodes);
        for step in 0..2 {
            nodes[(round + step) % 5].faults().drop_replies(1 + round % 3);
        }
        let guard = take(&locks).await;
        guard.check().unwrap();
        for step in 0..2 {
            nodes[(round + 2 + step) % 5].faults().drop_requests(round % 2);
        }
        guard.release().await.expect("a majority confirmed it");
        for node in &nodes {
            node.faults().drop_replies(0);
            node.faults().drop_requests(0);
        }
        left_with_nothing(&nodes);
    }
}
