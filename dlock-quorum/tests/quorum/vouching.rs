//! Vouching for nodes on which somebody may hold a lock.

use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Locks, ManualClock, Memory};
use dlock_quorum::{NodeSetup, Quorum, QuorumInUse};

use crate::support::{KEY, nodes_on, take, try_take, until};

const LONGEST: Duration = Duration::from_secs(60);
const MARKS: [&str; 2] = ["dlock-quorum-memory-1", "dlock-quorum-memory-2"];

/// Nodes on a clock that only the test moves.
struct Fleet {
    clock: ManualClock,
    nodes: Vec<Memory>,
}

impl Fleet {
    fn new(count: usize) -> Self {
        let clock = ManualClock::stopped();
        Self { nodes: nodes_on(&clock.clock(), count), clock }
    }

    fn some(&self, places: &[usize]) -> Vec<Memory> {
        places.iter().map(|place| self.nodes[*place].clone()).collect()
    }

    fn quorum(&self, places: &[usize]) -> Quorum {
        Quorum::new(self.some(places)).unwrap()
    }

    async fn founded(&self, places: &[usize]) -> Quorum {
        let quorum = self.quorum(places);
        quorum.bootstrap().await.unwrap();
        quorum
    }

    fn forget(&self, place: usize) {
        for key in MARKS.into_iter().chain([KEY]) {
            self.nodes[place].delete(key);
        }
    }

    /// A lock of a quorum of these nodes, on those alone whose places are in `on`: the others do not answer.
    async fn held(&self, quorum: &Quorum, places: &[usize], on: &[usize]) -> (Locks, Guard) {
        let others = || places.iter().filter(|place| !on.contains(place));
        others().for_each(|place| self.nodes[*place].faults().set_unavailable(true));
        let locks = Locks::builder(quorum.clone()).with_label("first").build().unwrap();
        let guard = take(&locks).await;
        others().for_each(|place| self.nodes[*place].faults().set_unavailable(false));
        (locks, guard)
    }

    /// Lets the holder renew, and sees that it believes.
    fn renews(&self, guard: &Guard) {
        for _ in 0..3 {
            self.clock.advance(Duration::from_secs(11));
            until("the renewal", || guard.remaining().is_some_and(|left| left > Duration::from_secs(25)));
            guard.check().expect("it renews");
        }
    }
}

fn in_use(error: &Error) -> &QuorumInUse {
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.unwrap_or_else(|| panic!("it lists the locks: {error}"))
}

/// A change of members: those of before, on which of them the lock is, and those of after.
type Shape = (&'static str, &'static [usize], &'static [usize], &'static [usize]);

const SHAPES: [Shape; 7] = [
    ("a superset", &[0, 1, 2], &[0, 1, 2], &[0, 1, 2, 3, 4, 5, 6]),
    ("a superset, and one is without the lock", &[0, 1, 2], &[0, 1], &[0, 1, 2, 3, 4]),
    ("a subset", &[0, 1, 2, 3, 4], &[2, 3, 4], &[0, 1, 2]),
    ("a subset without the lock", &[0, 1, 2, 3, 4], &[2, 3, 4], &[0, 1]),
    ("two others", &[0, 1, 2], &[0, 1, 2], &[2, 3, 4]),
    ("two others, and one is without the lock", &[0, 1, 2], &[0, 1], &[2, 3, 4]),
    ("one other", &[0, 1, 2], &[0, 1], &[1, 2, 3]),
];

#[tokio::test]
async fn other_members_get_no_votes_while_a_lock_is_held_that_they_might_not_know_of() {
    for (shape, before, on, after) in SHAPES {
        let fleet = Fleet::new(7);
        let old = fleet.founded(before).await;
        let (_locks, guard) = fleet.held(&old, before, on).await;
        let new = fleet.quorum(after);
        let theirs = Locks::new(new.clone());
        let error = new.bootstrap().await.expect_err(shape);
        let seen: Vec<_> = (1..).zip(after).filter(|(_, place)| on.contains(place)).map(|(n, _)| n).collect();
        if seen.is_empty() {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{shape}: {error}");
            assert!(error.to_string().contains("dlock quorum change"), "{error}");
        } else {
            let locks = &in_use(&error).locks;
            assert_eq!((locks.len(), locks[0].key.as_str(), &locks[0].nodes), (1, KEY, &seen), "{shape}");
            assert_eq!(locks[0].holder.label.as_deref(), Some("first"));
            let text = error.to_string();
            assert!(text.contains("--force") && text.contains(&format!("node {}", seen[0])), "{text}");
        }
        assert!(try_take(&theirs).await.is_err(), "{shape}: a second holder");
        fleet.renews(&guard);
        assert!(new.bootstrap().await.is_err(), "{shape}");
        assert!(try_take(&theirs).await.is_err(), "{shape}: a second holder");
        // It was refused without taking votes away.
        let other = Locks::new(old.clone()).lock("other").acquire().await.expect(shape);
        other.release().await.unwrap();
        guard.check().unwrap();
    }
}

#[tokio::test]
async fn by_force_a_lock_that_is_held_is_granted_again() {
    // Without these the test of the refusals would show nothing.
    for (shape, before, on, after) in SHAPES {
        let fleet = Fleet::new(7);
        let old = fleet.founded(before).await;
        let (_locks, guard) = fleet.held(&old, before, on).await;
        let new = fleet.quorum(after);
        assert_eq!(new.force_bootstrap().await.unwrap().len(), after.len());
        let known = after.iter().filter(|place| on.contains(place)).count();
        let second = try_take(&Locks::new(new)).await.unwrap();
        assert_eq!(second.is_some(), after.len() - known > after.len() / 2, "{shape}");
        guard.check().unwrap();
    }
}

#[tokio::test]
async fn a_longest_lease_is_not_changed_while_a_lock_is_held() {
    let fleet = Fleet::new(3);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&old, &[0, 1, 2], &[0, 1, 2]).await;
    let shorter = Quorum::builder(fleet.nodes.clone()).with_longest_lease(LONGEST / 2).build().unwrap();
    let error = shorter.bootstrap().await.unwrap_err();
    assert_eq!(in_use(&error).locks[0].nodes, [1, 2, 3]);
    fleet.renews(&guard);
    guard.release().await.unwrap();
    assert_eq!(shorter.bootstrap().await.unwrap(), [NodeSetup::Repaired; 3]);
    drop(take(&Locks::new(shorter)).await);
}

#[tokio::test]
async fn members_change_once_all_locks_are_released() {
    for (shape, before, on, after) in SHAPES {
        let fleet = Fleet::new(7);
        let old = fleet.founded(before).await;
        let (locks, guard) = fleet.held(&old, before, on).await;
        guard.release().await.unwrap();
        locks.shutdown(Duration::from_secs(20)).await.unwrap();
        let new = fleet.quorum(after);
        let common = before.iter().filter(|place| after.contains(place)).count();
        let is_seen = common >= before.len() - before.len() / 2;
        match new.bootstrap().await {
            Ok(_) => assert!(is_seen, "{shape}"),
            Err(error) => {
                assert!(!is_seen && error.kind() == ErrorKind::InvalidConfig, "{shape}: {error}");
                new.bootstrap_after(&old).await.expect(shape);
            }
        }
        drop(take(&Locks::new(new)).await);
        let error = try_take(&Locks::new(old)).await.expect_err(shape);
        assert_ne!(error.kind(), ErrorKind::Busy, "{shape}: {error}");
    }
}

#[tokio::test]
async fn members_that_are_all_others_are_set_up_where_those_of_before_can_be_asked() {
    let fleet = Fleet::new(6);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&old, &[0, 1, 2], &[0, 1, 2]).await;
    let new = fleet.quorum(&[3, 4, 5]);
    let error = new.bootstrap_after(&old).await.unwrap_err();
    let locks = &in_use(&error).locks;
    assert!(locks[0].nodes.is_empty() && locks[0].nodes_before == [1, 2, 3], "{error}");
    assert!(error.to_string().contains("node 1 of before"), "{error}");
    assert!(try_take(&Locks::new(new.clone())).await.is_err());
    fleet.nodes[1].faults().set_unavailable(true);
    assert_eq!(in_use(&new.bootstrap_after(&old).await.unwrap_err()).locks[0].nodes_before, [1, 3]);
    fleet.nodes[0].faults().set_unavailable(true);
    let error = new.bootstrap_after(&old).await.unwrap_err();
    assert_eq!(in_use(&error).locks[0].nodes_before, [3], "what is seen is named first: {error}");
    fleet.nodes[0].faults().set_unavailable(false);
    fleet.nodes[1].faults().set_unavailable(false);
    fleet.renews(&guard);
    guard.release().await.unwrap();
    fleet.nodes[1..3].iter().for_each(|node| node.faults().set_unavailable(true));
    let error = new.bootstrap_after(&old).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "one of three cannot speak for the others: {error}");
    fleet.nodes[1].faults().set_unavailable(false);
    new.bootstrap_after(&old).await.unwrap();
    drop(take(&Locks::new(new)).await);
    assert!(
        try_take(&Locks::new(old)).await.is_err(),
        "those of before get nothing, also of the one that was away"
    );
}

#[tokio::test]
async fn a_quorum_is_not_replaced_by_one_that_nothing_tells_from_it() {
    let fleet = Fleet::new(6);
    let named = |places: &[usize]| Quorum::builder(fleet.some(places)).with_name("shop").build().unwrap();
    let old = named(&[0, 1, 2]);
    old.bootstrap().await.unwrap();
    let error = named(&[3, 4, 5]).bootstrap_after(&old).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("another name"), "{error}");
    assert_eq!(named(&[2, 1, 0]).bootstrap_after(&old).await.unwrap(), [NodeSetup::Kept; 3]);
}

#[tokio::test]
async fn of_members_without_a_mark_nothing_is_known() {
    // What the documentation says, and what `bootstrap_after` is for.
    let fleet = Fleet::new(6);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&old, &[0, 1, 2], &[0, 1, 2]).await;
    let new = fleet.founded(&[3, 4, 5]).await;
    drop(take(&Locks::new(new)).await);
    guard.check().unwrap();
}

#[tokio::test]
async fn a_node_that_forgot_a_lock_is_not_vouched_for_while_the_others_have_it() {
    let fleet = Fleet::new(3);
    let quorum = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&quorum, &[0, 1, 2], &[1, 2]).await;
    fleet.forget(2);
    let error = quorum.bootstrap().await.unwrap_err();
    assert_eq!(in_use(&error).locks[0].nodes, [2], "{error}");
    assert!(!matches!(try_take(&Locks::new(quorum.clone())).await, Ok(Some(_))), "a second holder");
    guard.check().unwrap();
    // Where the others have forgotten it too, a mark that is left says that there was a quorum.
    fleet.forget(1);
    let error = quorum.bootstrap().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("1 of its 3 nodes remember"), "{error}");
    guard.check().unwrap();
    assert_eq!(quorum.force_bootstrap().await.unwrap()[..2], [NodeSetup::Kept, NodeSetup::Marked]);
}

#[tokio::test]
async fn a_node_that_cannot_be_asked_is_no_node_without_locks() {
    let fleet = Fleet::new(5);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&old, &[0, 1, 2], &[1, 2]).await;
    let new = fleet.quorum(&[0, 1, 2, 3, 4]);
    fleet.nodes[1].faults().set_unavailable(true);
    fleet.nodes[2].faults().set_unavailable(true);
    let error = new.bootstrap().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("node 2 (memory)") && error.to_string().contains("--force"),
        "{error}"
    );
    fleet.nodes[1].faults().set_unavailable(false);
    // An answer that is lost, whichever it is, is none.
    for lost in [1, 2, 3] {
        fleet.nodes[2].faults().set_unavailable(false);
        fleet.nodes[2].faults().drop_replies(lost);
        assert!(new.bootstrap().await.is_err());
        fleet.nodes[2].faults().drop_replies(0);
        assert!(try_take(&Locks::new(new.clone())).await.is_err(), "a second holder");
    }
    guard.check().unwrap();
}

#[tokio::test]
async fn a_quorum_that_was_suspended_gets_its_votes_back_whatever_is_held() {
    let fleet = Fleet::new(5);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (locks, guard) = fleet.held(&old, &[0, 1, 2], &[0, 1]).await;
    old.suspend().await.unwrap();
    let error = locks.lock("other").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    // Suspended nodes still say of which quorum they were, also when that is done again.
    let (new, third) = (fleet.quorum(&[2, 3, 4]), Locks::new(fleet.nodes[2].clone()));
    for refused in [ErrorKind::InvalidConfig, ErrorKind::Busy] {
        new.suspend().await.unwrap();
        assert_eq!(new.bootstrap().await.unwrap_err().kind(), refused);
        // The renewal gives the lock to the third too, which is then seen there.
        fleet.clock.advance(Duration::from_secs(11));
        until("the renewal", || guard.remaining().is_some_and(|left| left > Duration::from_secs(25)));
        // That goes on when the majority has answered.
        while third.inspect(guard.key()).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    assert_eq!(old.bootstrap().await.unwrap(), [NodeSetup::Repaired; 3]);
    guard.check().unwrap();
    drop(locks.lock("other").acquire().await.expect("they vote again"));
    let second = Locks::new(old);
    assert!(try_take(&second).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_granted_between_the_look_and_the_marks_is_seen() {
    // Each request of the administrator takes turns of the executor, in which clients take and release the lock.
    let mut refusals = 0;
    for round in 0..60 {
        let fleet = Fleet::new(5);
        let old = fleet.founded(&[0, 1, 2]).await;
        for node in &fleet.nodes {
            node.faults().set_stepping(true);
        }
        let new = fleet.quorum(&[1, 2, 3, 4]);
        let administrator = async { new.bootstrap().await };
        let client = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            fleet.nodes[2].faults().set_unavailable(true);
            let locks = Locks::new(old.clone());
            let guard = try_take(&locks).await;
            fleet.nodes[2].faults().set_unavailable(false);
            (locks, guard)
        };
        let (done, (_locks, guard)) = tokio::join!(administrator, client);
        fleet.nodes.iter().for_each(|node| node.faults().set_stepping(false));
        let theirs = Locks::new(new.clone());
        let second = try_take(&theirs).await;
        if let Ok(Some(guard)) = &guard
            && guard.check().is_ok()
        {
            assert!(!matches!(second, Ok(Some(_))), "two holders, in round {round}");
            refusals += usize::from(done.is_err());
        }
    }
    assert!(refusals > 0, "no grant was in time to be seen");
}

#[tokio::test]
async fn of_two_administrators_one_is_refused() {
    let fleet = Fleet::new(5);
    for node in &fleet.nodes {
        node.faults().set_stepping(true);
    }
    for (one, other) in [([0, 1, 2], [2, 3, 4]), ([2, 3, 4], [0, 1, 2])] {
        let (one, other) = (fleet.quorum(&one), fleet.quorum(&other));
        let (first, second) = tokio::join!(one.bootstrap(), other.bootstrap());
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        let (done, refused) = if first.is_ok() { (&one, &other) } else { (&other, &one) };
        let error = first.and(second).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.to_string().contains("another administrator"), "{error}");
        assert!(done.marks().await.iter().all(Result::is_ok));
        let error = refused.bootstrap().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "it is the other's now: {error}");
        drop(take(&Locks::new(done.clone())).await);
        (0..5).for_each(|place| fleet.forget(place));
    }
}

#[tokio::test]
async fn a_quorum_is_not_replaced_twice_at_once_by_members_that_have_nothing_in_common() {
    let mut refused = 0;
    for turns in 0..80 {
        let fleet = Fleet::new(6);
        let old = fleet.founded(&[0, 1, 2]).await;
        fleet.nodes.iter().for_each(|node| node.faults().set_stepping(true));
        let longer = Quorum::builder(fleet.some(&[0, 1, 2])).with_longest_lease(2 * LONGEST).build().unwrap();
        let others = fleet.quorum(&[3, 4, 5]);
        let later = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            longer.bootstrap().await
        };
        let (one, other) = tokio::join!(others.bootstrap_after(&old), later);
        refused += usize::from(one.is_err() || other.is_err());
        let mut guards = Vec::new();
        for quorum in [longer, others] {
            let locks = Locks::new(quorum);
            guards.extend(try_take(&locks).await.ok().flatten().map(|guard| (locks, guard)));
        }
        assert!(guards.len() < 2, "two holders, after {turns} turns: {one:?} {other:?}");
    }
    assert!(refused > 0, "they never were at work at once");
}

#[tokio::test]
async fn a_node_that_answers_late_is_waited_for_and_one_that_hangs_is_not_vouched_for() {
    let fleet = Fleet::new(5);
    let old = fleet.founded(&[0, 1, 2]).await;
    let (_locks, guard) = fleet.held(&old, &[0, 1, 2], &[0, 2]).await;
    let new = fleet.quorum(&[1, 2, 3]);
    fleet.nodes[2].faults().set_delay(Duration::from_millis(50));
    assert_eq!(in_use(&new.bootstrap().await.unwrap_err()).locks[0].nodes, [2]);
    fleet.nodes[2].faults().set_delay(Duration::ZERO);
    fleet.nodes[2].faults().set_hanging(true);
    // Nothing else waits: the time that the administrator would wait passes at once.
    tokio::time::pause();
    let error = new.bootstrap().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("node 2 (memory)"), "{error}");
    tokio::time::resume();
    fleet.nodes[2].faults().set_hanging(false);
    assert!(try_take(&Locks::new(new)).await.is_err(), "a second holder");
    guard.check().unwrap();
}
