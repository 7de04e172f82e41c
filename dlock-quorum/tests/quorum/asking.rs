//! Getting the lock, or not.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, Memory, Node, Wait};
use dlock_quorum::Quorum;
use dlock_testkit::cancel::every_await_point;
use tokio::time::Instant;

use crate::support::{KEY, durable, left_with_nothing, nodes, process, take, try_take, votes};

const NODE_TIMEOUT: Duration = Duration::from_millis(200);

/// What a node does when it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Free,
    Taken,
    Down,
    Hanging,
}

/// Every way in which so many nodes can be.
fn all_moods(count: u32) -> impl Iterator<Item = Vec<Mood>> {
    const MOODS: [Mood; 4] = [Mood::Free, Mood::Taken, Mood::Down, Mood::Hanging];
    (0..4_usize.pow(count)).map(move |mask| (0..count).map(|place| MOODS[mask >> (2 * place) & 3]).collect())
}

async fn a_round_ends_as_the_majority_says(moods: &[Mood]) {
    let count = |mood| moods.iter().filter(|of| **of == mood).count();
    let (needed, nodes) = (moods.len() / 2 + 1, nodes(moods.len()));
    let mut taken: Vec<Guard> = Vec::new();
    for (node, mood) in nodes.iter().zip(moods) {
        match mood {
            Mood::Free => {}
            Mood::Taken => taken.push(take(&Locks::new(node.clone())).await),
            Mood::Down => node.faults().set_unavailable(true),
            Mood::Hanging => node.faults().set_hanging(true),
        }
    }
    let locks = process(&nodes);
    let started = Instant::now();
    let answer = try_take(&locks).await;
    let took = started.elapsed();
    assert!(took <= NODE_TIMEOUT + Duration::from_millis(20), "{moods:?} took {took:?}");
    let (free, answering) = (count(Mood::Free), count(Mood::Free) + count(Mood::Taken));
    match answer {
        Ok(Some(guard)) => {
            assert!(free >= needed, "{moods:?} granted");
            assert!(took < Duration::from_millis(1), "it waited for {took:?} with {moods:?}");
            guard.check().expect("it was granted");
            guard.release().await.expect("a majority is there");
        }
        Ok(None) => assert!(free < needed && answering >= needed, "{moods:?} busy"),
        Err(error) => {
            assert!(answering < needed, "{moods:?}: {error}");
            let votes = votes(&error);
            assert_eq!((votes.took_part, votes.needed, votes.nodes), (answering, needed, moods.len()));
            let text = error.to_string();
            assert!(text.contains(if count(Mood::Down) > 0 { "memory" } else { "no answer" }));
            assert!(
                took >= NODE_TIMEOUT || !text.contains("no answer within"),
                "{moods:?}, {took:?}: {text}"
            );
        }
    }
    for node in &nodes {
        node.faults().set_unavailable(false);
        node.faults().set_hanging(false);
    }
    for guard in taken {
        guard.release().await.expect("nobody touched what others had");
    }
    left_with_nothing(&nodes);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_gets_the_lock_exactly_when_a_majority_is_free_in_time() {
    for count in 1..=5 {
        for moods in all_moods(count) {
            a_round_ends_as_the_majority_says(&moods).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_who_ask_once_at_the_same_moment_one_gets_it() {
    for round in 0..20 {
        let nodes = nodes(5);
        for node in &nodes {
            node.faults().set_delay(Duration::from_millis(2));
        }
        nodes[0].faults().set_unavailable(round % 2 == 1);
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let locks = process(&nodes);
            asking.spawn(async move { try_take(&locks).await.expect("a majority is there") });
        }
        let winners: Vec<_> = asking.join_all().await.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_that_hang_cost_one_node_timeout_and_not_one_each() {
    let nodes = nodes(5);
    let _other = take(&Locks::new(nodes[0].clone())).await;
    for node in &nodes[3..] {
        node.faults().set_hanging(true);
    }
    let quorum = durable(&nodes).with_node_timeout(Duration::from_millis(50)).build().unwrap();
    let started = Instant::now();
    let error = Locks::new(quorum).lock(KEY).with_wait(Wait::No).acquire().await.unwrap_err();
    let took = started.elapsed();
    assert_eq!(error.kind(), ErrorKind::Busy, "a majority answered: {error}");
    assert!(took >= Duration::from_millis(50) && took <= Duration::from_millis(70), "{took:?}");
}

#[tokio::test]
async fn a_wait_goes_on_while_the_majority_is_away_and_ends_when_it_is_back() {
    let nodes = nodes(3);
    let locks = process(&nodes);
    for node in &nodes[..2] {
        node.faults().set_unavailable(true);
    }
    let error = locks.lock(KEY).with_wait(Duration::from_millis(100)).acquire().await.unwrap_err();
    assert_eq!(votes(&error).took_part, 1);
    let lock = locks.lock(KEY);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::task::yield_now().await;
    nodes[0].faults().set_unavailable(false);
    waiter.await.unwrap().expect("two are a majority").release().await.unwrap();
    nodes[1].faults().set_unavailable(false);
    left_with_nothing(&nodes);
}

#[tokio::test]
async fn a_majority_that_refuses_for_good_is_not_asked_again() {
    let nodes = nodes(1);
    let quorum = Quorum::builder(nodes).with_longest_lease(Duration::from_secs(10)).build().unwrap();
    let error = Locks::new(quorum).lock(KEY).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("with_longest_lease"), "{error}");
}

#[test]
fn a_quorum_that_cannot_work_is_refused() {
    let memory = |count| (0..count).map(|_| Memory::new());
    let wrong = [
        (Quorum::builder(memory(0)), "0 nodes"),
        (Quorum::builder(memory(32)), "32 nodes"),
        (Quorum::builder(memory(3)).with_node_timeout(Duration::ZERO), "node timeout"),
        (Quorum::builder(memory(3)).with_node_timeout(Duration::from_secs(6)), "node timeout"),
        (Quorum::builder(memory(3)).with_longest_lease(Duration::ZERO), "longest lease"),
        (Quorum::builder(memory(3)).with_longest_lease(Duration::MAX), "longest lease"),
    ];
    for (builder, text) in wrong {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[tokio::test]
async fn nodes_of_several_kinds_make_a_quorum() {
    let (first, second, third) = (Memory::new(), Memory::new(), Memory::new());
    let made_by_url = Locks::new(second.clone());
    let inner = durable(std::slice::from_ref(&third)).build().unwrap();
    let mixed = [Node::from(first.clone()), Node::from(made_by_url.clone()), Node::from(inner)];
    let locks = Locks::new(Quorum::builder(mixed).with_durable_nodes().build().unwrap());
    let guard = take(&locks).await;
    assert_eq!((first.held(), second.held(), third.held()), (1, 1, 1));
    assert_eq!(
        (guard.fence(), locks.capabilities().fencing),
        (None, false),
        "no fence is better than a wrong one"
    );
    assert!(made_by_url.lock(KEY).try_acquire().await.unwrap().is_none(), "the node is taken for others too");
    guard.release().await.unwrap();
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(take(&made_by_url).await);
    left_with_nothing(&[first, second, third]);
}

#[tokio::test]
async fn an_error_says_that_it_is_of_a_quorum() {
    let nodes = nodes(3);
    for node in &nodes {
        node.faults().set_unavailable(true);
    }
    let error = try_take(&process(&nodes)).await.unwrap_err();
    assert!(error.to_string().contains("quorum"), "{error}");
    assert_eq!(error.backend(), Some("quorum"));
}

#[tokio::test]
async fn an_even_number_of_nodes_needs_more_than_half() {
    let nodes = nodes(2);
    let locks = process(&nodes);
    nodes[1].faults().set_unavailable(true);
    assert_eq!(votes(&try_take(&locks).await.unwrap_err()).needed, 2);
    left_with_nothing(&nodes[..1]);
}

#[tokio::test]
async fn an_acquire_dropped_at_any_await_leaves_nothing_on_any_node() {
    let nodes = nodes(5);
    for node in &nodes {
        node.faults().set_stepping(true);
    }
    let _taken = take(&Locks::new(nodes[4].clone())).await;
    for faulty in 0..3 {
        nodes[0].faults().set_unavailable(faulty == 1);
        nodes[0].faults().set_hanging(faulty == 2);
        let locks = process(&nodes);
        let lock = locks.lock(KEY);
        let points = every_await_point(
            || lock.try_acquire(),
            async |_cut, output| {
                drop(output.map(|result| result.expect("a majority is there").expect("and free")));
                let held = || nodes[1..4].iter().all(|node| node.held() == 0);
                super::support::until("giving everything back", held);
            },
        )
        .await;
        assert!(points >= 3, "{points}");
        nodes[0].faults().set_hanging(false);
    }
    nodes[0].faults().set_unavailable(false);
    left_with_nothing(&nodes[..4]);
}

#[tokio::test]
async fn the_holder_is_who_holds_a_majority() {
    let nodes = nodes(3);
    let quorum = durable(&nodes).build().unwrap();
    let locks = Locks::builder(quorum).with_label("ours").build().unwrap();
    assert!(locks.inspect(KEY).await.unwrap().is_none());
    let minority = Locks::builder(nodes[0].clone()).with_label("theirs").build().unwrap();
    let other = take(&minority).await;
    assert!(locks.inspect(KEY).await.unwrap().is_none(), "one of three is no holder");
    let guard = take(&locks).await;
    let holder = locks.inspect(KEY).await.unwrap().expect("it is held");
    assert_eq!((holder.label.as_deref(), holder.fence), (Some("ours"), None));
    assert!(holder.expires_in.is_some());
    nodes[1].faults().set_unavailable(true);
    let error = locks.inspect(KEY).await.unwrap_err();
    assert_eq!(votes(&error).took_part, 2, "the two that answer disagree, and the third decides");
    nodes[1].faults().set_unavailable(false);
    guard.release().await.unwrap();
    drop(other);
    left_with_nothing(&nodes);
}

#[test]
fn a_node_that_is_given_twice_is_refused() {
    let mut nodes = nodes(3);
    nodes[2] = nodes[0].clone();
    let error = durable(&nodes).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("node 3 is node 1 again"), "{error}");
    // The same locks lent, too.
    let lent = Locks::new(nodes[1].clone());
    let twice = [Node::from(lent), Node::from(nodes[1].clone())];
    assert_eq!(Quorum::new(twice).unwrap_err().kind(), ErrorKind::InvalidConfig);
}

/// Each node notes by a clock of its own since when the lock is held.
#[tokio::test]
async fn a_leader_that_goes_on_is_one_whichever_nodes_answer_first() {
    let nodes = nodes(3);
    let (ours, theirs) = (process(&nodes), process(&nodes));
    let mut changes = theirs.election(KEY).changes().with_interval(Duration::from_millis(50));
    assert!(changes.next().await.expect("an answer").is_none());
    let term = ours.election(KEY).campaign().next().await.expect("nobody else stands");
    assert!(changes.next().await.expect("an answer").is_some());
    for slow in [0, 1, 2, 0, 1, 2] {
        for (place, node) in nodes.iter().enumerate() {
            let delay = if place == slow { Duration::from_millis(20) } else { Duration::ZERO };
            node.faults().set_delay(delay);
        }
        let change = tokio::time::timeout(Duration::from_millis(200), changes.next()).await;
        assert!(change.is_err(), "{change:?}");
    }
    drop(term);
}
