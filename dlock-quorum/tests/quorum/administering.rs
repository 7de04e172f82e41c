//! Who holds what, and taking it away.

use std::time::Duration;

use dlock_core::{ErrorKind, Forced, Locks, ManualClock, Memory};
use dlock_quorum::Quorum;
use dlock_testkit::wire::{Wire, Wired};

use crate::support::{KEY, durable, left_with_nothing, nodes, process, short, take, try_take, votes};

async fn listed(locks: &Locks) -> dlock_core::Result<Vec<String>> {
    Ok(locks.holders().await?.into_iter().map(|(key, _)| key.as_str().to_owned()).collect())
}

fn set_unavailable(nodes: &[Memory], away: bool) {
    nodes.iter().for_each(|node| node.faults().set_unavailable(away));
}

#[tokio::test]
async fn what_a_majority_holds_is_listed_and_what_a_minority_has_is_not() {
    let nodes = nodes(3);
    let locks = Locks::builder(durable(&nodes).build().unwrap()).with_label("ours").build().unwrap();
    let guard = take(&locks).await;
    let other = Locks::new(nodes[0].clone()).lock("of one node").acquire().await.unwrap();
    let held = locks.holders().await.unwrap();
    let [(key, holder)] = &*held else { panic!("{held:?}") };
    assert_eq!((key.as_str(), holder.label.as_deref(), holder.fence), (KEY, Some("ours"), None));
    assert!(holder.expires_in.is_some());
    set_unavailable(&nodes[1..2], true);
    let error = locks.holders().await.unwrap_err();
    assert_eq!(votes(&error).took_part, 2, "the one that is away decides about one of the keys");
    other.release().await.unwrap();
    assert_eq!(listed(&locks).await.unwrap(), [KEY], "two of three are enough");
    set_unavailable(&nodes[1..2], false);
    guard.release().await.unwrap();
    assert!(listed(&locks).await.unwrap().is_empty());
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_lock_is_said_to_be_held_for_as_long_as_a_majority_holds_it() {
    const LEASE: Duration = Duration::from_secs(60);
    let clocks: [ManualClock; 3] = std::array::from_fn(|_| ManualClock::stopped());
    let nodes: Vec<_> = clocks.iter().map(|clock| Memory::with_clock(clock.clock())).collect();
    let locks = short(&nodes, LEASE);
    let _guard = take(&locks).await;
    // The lease ends on one node after the other, and one does not answer: two of three have it until the earlier end.
    for (clock, passed) in clocks.iter().zip([1, 2, 3]) {
        clock.advance(Duration::from_secs(passed));
    }
    set_unavailable(&nodes[2..], true);
    let holder = locks.inspect(KEY).await.unwrap().expect("it is held");
    assert_eq!(holder.expires_in, Some(LEASE - Duration::from_secs(2)));
}

#[tokio::test]
async fn marks_of_memory_are_no_locks_of_anybody() {
    let nodes = nodes(3);
    let quorum = Quorum::new(nodes.clone()).unwrap();
    quorum.bootstrap().await.unwrap();
    assert!(nodes.iter().all(|node| node.held() == 1), "each has a mark");
    let locks = Locks::new(quorum);
    let guard = take(&locks).await;
    assert_eq!(listed(&locks).await.unwrap(), [KEY]);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_is_taken_away_by_force_while_a_minority_is_away() {
    let nodes = nodes(5);
    let (ours, theirs) = (short(&nodes, Duration::from_secs(2)), process(&nodes));
    let stuck = take(&ours).await;
    set_unavailable(&nodes[3..], true);
    assert!(theirs.force_release(KEY).await.unwrap());
    let next = take(&theirs).await;
    set_unavailable(&nodes[3..], false);
    tokio::time::timeout(Duration::from_secs(20), stuck.lost()).await.expect("it learns of the loss");
    assert_eq!(stuck.check().unwrap_err().kind(), ErrorKind::Lost);
    next.check().unwrap();
    next.release().await.unwrap();
    drop(stuck);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_release_by_force_that_no_majority_confirms_is_an_error_and_can_be_done_again() {
    let nodes = nodes(5);
    let locks = process(&nodes);
    let stuck = take(&locks).await;
    set_unavailable(&nodes, true);
    let error = locks.force_release(KEY).await.unwrap_err();
    assert_eq!(votes(&error).took_part, 0, "nothing was changed");
    set_unavailable(&nodes[..2], false);
    let error = locks.force_release(KEY).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "two have freed it: {error}");
    assert!(error.to_string().contains("do it again"), "{error}");
    set_unavailable(&nodes, false);
    assert!(locks.force_release(KEY).await.unwrap(), "the other three had it");
    assert!(!locks.force_release(KEY).await.unwrap());
    drop(stuck);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn what_only_a_minority_has_is_cleared_away_and_was_held_by_nobody() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    let lost = take(&Locks::new(nodes[2].clone())).await;
    assert!(!locks.force_release(KEY).await.unwrap());
    left_with_nothing(&nodes);
    assert!(try_take(&locks).await.unwrap().is_some());
    drop(lost);
}

#[tokio::test]
async fn a_holder_that_was_seen_is_released_on_all_nodes_that_answer_and_nobody_after_it() {
    let nodes = nodes(5);
    let (ours, theirs) = (process(&nodes), process(&nodes));
    let stuck = take(&ours).await;
    let seen = theirs.occupancy(KEY).await.unwrap().holders;
    set_unavailable(&nodes[4..], true);
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::Released);
    set_unavailable(&nodes[4..], false);
    let held: Vec<_> = nodes.iter().map(Memory::held).collect();
    assert_eq!(held, [0, 0, 0, 0, 1]);
    let next = take(&ours).await;
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::HeldByOthers);
    next.check().unwrap();
    assert!(theirs.inspect(KEY).await.unwrap().is_some(), "a vote that was left is no majority");
    next.release().await.unwrap();
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::Free);
    drop(stuck);
    left_with_nothing(&nodes);
}

/// Nobody knows then whether the lock is free.
#[tokio::test]
async fn a_release_of_who_was_seen_that_too_few_nodes_answer_may_be_repeated() {
    let nodes = nodes(3);
    let (ours, theirs) = (process(&nodes), process(&nodes));
    let stuck = take(&ours).await;
    let seen = theirs.occupancy(KEY).await.unwrap().holders;
    set_unavailable(&nodes[1..], true);
    let error = theirs.force_release_of(KEY, &seen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "one node may have freed it: {error}");
    set_unavailable(&nodes, true);
    let error = theirs.force_release_of(KEY, &seen).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuorumNotReached);
    set_unavailable(&nodes, false);
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::Released);
    drop(stuck);
    left_with_nothing(&nodes);
}

/// Its vote would keep the next one from a majority while another node is away.
#[tokio::test]
async fn a_node_that_is_slow_is_waited_for_by_who_looks_whom_to_release() {
    let nodes = nodes(3);
    let (ours, theirs) = (process(&nodes), process(&nodes));
    let _stuck = take(&ours).await;
    nodes[2].faults().set_stepping(true);
    let seen = theirs.occupancy(KEY).await.unwrap().holders;
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::Released);
    let held: Vec<_> = nodes.iter().map(Memory::held).collect();
    assert_eq!(held, [0, 0, 0]);
}

/// Nodes, one of which is freed when the holder has the one before again.
struct FreedOneByOne {
    nodes: Vec<Memory>,
    wires: [Wire; 3],
    holder: Locks,
    operator: Locks,
}

impl FreedOneByOne {
    fn new() -> Self {
        let (nodes, wires) = (nodes(3), <[Wire; 3]>::default());
        let ways = nodes.iter().zip(&wires).map(|(node, wire)| Wired::new(node.clone(), wire.clone()));
        let quorum = Quorum::builder(ways).with_durable_nodes().with_node_timeout(Duration::from_secs(5));
        let operator = Locks::builder(quorum.build().unwrap()).with_lease(Duration::from_secs(300));
        let operator = operator.with_request_timeout(Duration::from_secs(60)).build().unwrap();
        Self { holder: short(&nodes, Duration::from_millis(1_500)), nodes, wires, operator }
    }

    async fn force<T>(&self, force: impl Future<Output = T>) -> T {
        self.wires[1..].iter().for_each(Wire::hang);
        let held = async |place: usize, count| {
            while self.nodes[place].held() != count {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let healing = async {
            for place in [0, 1] {
                held(place, 0).await;
                held(place, 1).await;
                self.wires[place + 1].mend();
            }
        };
        let both = async { tokio::join!(force, healing).0 };
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("the holder renews")
    }
}

#[tokio::test]
async fn a_holder_that_kept_its_majority_while_nodes_were_freed_is_not_said_to_be_released() {
    let stage = FreedOneByOne::new();
    let stuck = take(&stage.holder).await;
    let seen = stage.operator.occupancy(KEY).await.unwrap().holders;
    let error = stage.force(stage.operator.force_release_of(KEY, &seen)).await.unwrap_err();
    stuck.check().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("look who holds it"), "{error}");
    let error = stage.force(stage.operator.force_release(KEY)).await.unwrap_err();
    stuck.check().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let seen = stage.operator.occupancy(KEY).await.unwrap().holders;
    assert_eq!(stage.operator.force_release_of(KEY, &seen).await.unwrap(), Forced::Released);
    assert!(stage.operator.inspect(KEY).await.unwrap().is_none());
    drop(stuck);
    left_with_nothing(&stage.nodes);
}

#[tokio::test]
async fn a_release_by_force_that_reaches_nodes_late_leaves_the_next_holder_its_votes() {
    let FreedOneByOne { nodes, wires, holder, operator } = FreedOneByOne::new();
    let stuck = take(&holder).await;
    wires[1..].iter().for_each(Wire::keep_withdrawals);
    let taken = async {
        while nodes[0].held() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let _ = stuck.release().await;
        let next = take(&process(&nodes)).await;
        assert_eq!(nodes.iter().map(Memory::held).collect::<Vec<_>>(), [1, 1, 1]);
        wires.iter().for_each(Wire::mend);
        next
    };
    let (forced, next) = tokio::join!(operator.force_release(KEY), taken);
    assert!(forced.unwrap(), "it was held when it was looked at");
    assert_eq!(nodes.iter().map(Memory::held).collect::<Vec<_>>(), [1, 1, 1], "votes of the next holder");
    next.release().await.unwrap();
    left_with_nothing(&nodes);
}

/// Also where one node may take longer to answer than the whole.
#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_keeps_no_operator_from_seeing_and_releasing_what_the_others_hold() {
    let nodes = nodes(3);
    let ours = process(&nodes);
    let quorum = durable(&nodes).with_node_timeout(Duration::from_secs(5)).build().unwrap();
    let theirs = Locks::builder(quorum).with_lease(Duration::from_secs(6)).build().unwrap();
    let _stuck = take(&ours).await;
    nodes[2].faults().set_hanging(true);
    let seen = theirs.occupancy(KEY).await.unwrap().holders;
    assert_eq!(seen.len(), 1);
    assert_eq!(theirs.force_release_of(KEY, &seen).await.unwrap(), Forced::Released);
    assert!(!theirs.force_release(KEY).await.unwrap(), "one node is no majority");
    nodes[1].faults().set_hanging(true);
    assert_eq!(votes(&theirs.inspect(KEY).await.unwrap_err()).took_part, 1);
    assert_eq!(votes(&theirs.occupancy(KEY).await.unwrap_err()).took_part, 1);
}
