//! Nodes that lose their data.

use std::time::Duration;

use dlock_core::{Backend, ErrorKind, Key, Locks, ManualClock, Memory};
use dlock_quorum::{NodeSetup, Quorum};

use crate::support::{KEY, nodes, nodes_on, process, try_take, until};

const MARKS: [&str; 2] = ["dlock-quorum-memory-1", "dlock-quorum-memory-2"];
const LEASE: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3_600);

fn process_that_checks(nodes: &[Memory]) -> Locks {
    Locks::new(Quorum::new(nodes.to_vec()).unwrap())
}

async fn founded(nodes: &[Memory]) -> Locks {
    let quorum = Quorum::new(nodes.to_vec()).unwrap();
    quorum.bootstrap().await.unwrap();
    Locks::new(quorum)
}

fn restart_empty(node: &Memory) {
    for key in MARKS.into_iter().chain([KEY]) {
        node.delete(key);
    }
}

fn is_marked(node: &Memory) -> bool {
    node.held() > 0
}

#[tokio::test]
async fn a_node_that_forgot_its_vote_does_not_give_it_to_another() {
    for checking in [true, false] {
        let nodes = nodes(3);
        let ours = founded(&nodes).await;
        nodes[1].faults().set_unavailable(true);
        let guard = try_take(&ours).await.unwrap().expect("two of three are free");
        restart_empty(&nodes[2]);
        nodes[1].faults().set_unavailable(false);
        let theirs = if checking { process_that_checks(&nodes) } else { process(&nodes) };
        for _ in 0..if checking { 100 } else { 1 } {
            let second = try_take(&theirs).await.unwrap();
            assert_eq!(second.is_none(), checking, "two holders, unless somebody looks");
            guard.check().expect("the lease still runs");
        }
        drop(guard);
    }
}

#[tokio::test]
async fn a_node_that_forgot_votes_again_once_no_lease_can_be_left() {
    let clock = ManualClock::running();
    let nodes = nodes_on(&clock.clock(), 3);
    let ours = founded(&nodes).await;
    nodes[1].faults().set_unavailable(true);
    let guard = try_take(&ours).await.unwrap().expect("two of three are free");
    restart_empty(&nodes[2]);
    let theirs = process_that_checks(&nodes);
    let error = try_take(&theirs).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuorumNotReached);
    assert!(
        error.to_string().contains("node 3 (memory)") && error.to_string().contains("does not vote"),
        "{error}"
    );
    until("the mark", || is_marked(&nodes[2]));
    clock.advance(LEASE);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(guard);
    assert!(try_take(&theirs).await.is_err(), "the lease of another may be longer");
    clock.advance(LONGEST - LEASE);
    drop(try_take(&theirs).await.unwrap().expect("the third has remembered for long enough"));
}

#[tokio::test]
async fn a_node_that_forgot_is_not_counted_by_who_it_forgot() {
    let nodes = nodes(3);
    let quorum = Quorum::new(nodes.clone()).unwrap();
    quorum.bootstrap().await.unwrap();
    let ours = Locks::builder(quorum).with_lease(Duration::from_millis(900)).build().unwrap();
    nodes[1].faults().set_unavailable(true);
    let guard = try_take(&ours).await.unwrap().expect("two of three are free");
    restart_empty(&nodes[2]);
    until("the loss", || guard.check().is_err());
    assert_eq!(nodes[2].held(), 0, "nothing was written to it again");
}

#[tokio::test]
async fn a_renewal_does_not_count_a_node_that_may_have_forgotten_anothers_vote() {
    let nodes = nodes(3);
    let quorum = Quorum::new(nodes.clone()).unwrap();
    quorum.bootstrap().await.unwrap();
    restart_empty(&nodes[2]);
    let ours = Locks::builder(quorum).with_lease(Duration::from_millis(900)).build().unwrap();
    let guard = try_take(&ours).await.unwrap().expect("two of three remember");
    let key = Key::new(KEY).unwrap();
    assert!(nodes[2].inspect(&key).await.unwrap().is_some(), "it voted too, and was not counted");
    nodes[1].faults().set_unavailable(true);
    until("the loss", || guard.check().is_err());
}

#[tokio::test]
async fn new_nodes_vote_after_the_longest_lease_or_when_somebody_vouches_for_them() {
    let clock = ManualClock::running();
    let nodes = nodes_on(&clock.clock(), 3);
    let locks = process_that_checks(&nodes);
    let error = try_take(&locks).await.unwrap_err();
    assert!(error.to_string().contains("for another 60.0s"), "{error}");
    until("the marks", || nodes.iter().all(is_marked));
    clock.advance(LONGEST - Duration::from_secs(5));
    let error = try_take(&locks).await.unwrap_err();
    assert!(
        error.to_string().contains("for another 5.0s") || error.to_string().contains("for another 4."),
        "{error}"
    );
    clock.advance(Duration::from_secs(5));
    drop(try_take(&locks).await.unwrap().expect("they have remembered for long enough"));

    let others = nodes_on(&clock.clock(), 3);
    let locks = founded(&others).await;
    drop(try_take(&locks).await.unwrap().expect("somebody vouched for them"));
    founded(&others).await;
}

#[tokio::test]
async fn somebody_who_vouches_is_told_what_was_done_also_when_a_client_was_there_before() {
    let nodes = nodes(3);
    let locks = process_that_checks(&nodes);
    try_take(&locks).await.unwrap_err();
    until("the marks", || nodes.iter().all(is_marked));
    restart_empty(&nodes[0]);
    let quorum = Quorum::new(nodes.clone()).unwrap();
    let [marked, repaired] = [NodeSetup::Marked, NodeSetup::Repaired];
    assert_eq!(quorum.bootstrap().await.unwrap(), [marked, repaired, repaired]);
    drop(try_take(&locks).await.unwrap().expect("somebody vouched for them"));
    assert_eq!(quorum.bootstrap().await.unwrap(), [NodeSetup::Kept; 3]);
    let durable = Quorum::builder(nodes).with_durable_nodes().build().unwrap();
    assert_eq!(durable.bootstrap().await.unwrap(), [NodeSetup::Durable; 3]);
}

#[tokio::test]
async fn marks_are_left_again_before_they_run_out() {
    let clock = ManualClock::running();
    let nodes = nodes_on(&clock.clock(), 3);
    founded(&nodes).await;
    for _ in 0..8 {
        clock.advance(DAY * 16);
        // Whoever comes by sees to them.
        let locks = process_that_checks(&nodes);
        let guard = try_take(&locks).await.unwrap().expect("they remember");
        guard.release().await.unwrap();
        until("the next marks", || nodes.iter().all(|node| node.held() == 2));
        locks.shutdown(Duration::from_secs(5)).await.unwrap();
    }
    clock.advance(DAY * 31);
    assert!(
        try_take(&process_that_checks(&nodes)).await.is_err(),
        "nobody came by for so long that they ran out"
    );
}

#[tokio::test]
async fn a_minority_that_forgot_is_no_trouble_and_heals() {
    let clock = ManualClock::running();
    let nodes = nodes_on(&clock.clock(), 3);
    let locks = founded(&nodes).await;
    restart_empty(&nodes[0]);
    let guard = try_take(&locks).await.unwrap().expect("two of three remember");
    guard.check().unwrap();
    guard.release().await.unwrap();
    until("giving back", || nodes.iter().all(|node| node.held() == 1));
    clock.advance(LONGEST);
    nodes[1].faults().set_unavailable(true);
    drop(try_take(&locks).await.unwrap().expect("it votes again"));
}
