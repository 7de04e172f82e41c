//! Administrators and clients of several quorums on the same nodes, in random orders.
#![expect(clippy::future_not_send, reason = "all of them are polled on the thread of the test")]

use std::cell::{Cell, RefCell};
use std::time::Duration;

use dlock_core::{Guard, Locks, ManualClock, Memory};
use dlock_quorum::Quorum;
use fastrand::Rng;
use futures_util::future::join_all;

use crate::support::{nodes_on, try_take};

/// Every two have nodes in common: of others nothing would be known.
const QUORUMS: [&[usize]; 6] =
    [&[0, 1, 2], &[2, 3, 4], &[4, 5, 0], &[0, 1, 2, 3, 4], &[0, 2, 4], &[0, 1, 2, 4, 5]];

struct World {
    random: RefCell<Rng>,
    clock: ManualClock,
    nodes: Vec<Memory>,
    /// Which quorums were set up: they have clients from then on.
    is_set_up: [Cell<bool>; QUORUMS.len()],
    held: RefCell<Vec<(Locks, Guard)>>,
    grants: Cell<usize>,
    changes: Cell<usize>,
}

impl World {
    fn new(seed: u64) -> Self {
        let clock = ManualClock::stopped();
        let nodes = nodes_on(&clock.clock(), 6);
        nodes.iter().for_each(|node| node.faults().set_stepping(true));
        Self {
            random: RefCell::new(Rng::with_seed(seed)),
            clock,
            nodes,
            is_set_up: Default::default(),
            held: RefCell::default(),
            grants: Cell::new(0),
            changes: Cell::new(0),
        }
    }

    fn below(&self, bound: usize) -> usize {
        self.random.borrow_mut().usize(..bound)
    }

    /// As another process has it.
    fn quorum(&self, which: usize) -> Quorum {
        Quorum::new(QUORUMS[which].iter().map(|place| self.nodes[*place].clone())).unwrap()
    }

    async fn turns(&self, most: usize) {
        for _ in 0..self.below(most) {
            tokio::task::yield_now().await;
        }
    }

    /// Sets a quorum up, or is killed meanwhile.
    async fn administrate(&self) {
        let (which, before) = (self.below(QUORUMS.len()), self.below(QUORUMS.len()));
        let (quorum, other) = (self.quorum(which), self.quorum(before));
        let setting_up = async {
            match self.below(3) {
                0 => quorum.bootstrap().await,
                1 => quorum.bootstrap_after(&other).await,
                _ => other.suspend().await.map(|_| Vec::new()),
            }
        };
        let patience = if self.below(4) == 0 { 60 } else { 2_000 };
        tokio::select! {
            biased;
            done = setting_up => {
                if done.is_ok_and(|done| !done.is_empty()) {
                    self.is_set_up[which].set(true);
                    self.changes.set(self.changes.get() + 1);
                }
            }
            () = async { for _ in 0..patience { tokio::task::yield_now().await } } => {}
        }
    }

    async fn lock(&self, seed: u64) {
        let set_up: Vec<_> = (0..QUORUMS.len()).filter(|which| self.is_set_up[*which].get()).collect();
        let which = set_up[self.below(set_up.len())];
        let locks = Locks::new(self.quorum(which));
        if let Ok(Some(guard)) = try_take(&locks).await
            && guard.check().is_ok()
        {
            let believers = self.held.borrow().iter().filter(|(_, other)| other.check().is_ok()).count();
            assert_eq!(believers, 0, "two holders, one of quorum {which}, by seed {seed}");
            self.held.borrow_mut().push((locks, guard));
            self.grants.set(self.grants.get() + 1);
        }
    }

    async fn act(&self, seed: u64) {
        match self.below(10) {
            0..4 => self.administrate().await,
            4..7 => self.lock(seed).await,
            7 | 8 => self.held.borrow_mut().clear(),
            _ => {
                let node = &self.nodes[self.below(self.nodes.len())];
                node.faults().set_unavailable(self.below(2) == 0);
                self.clock.advance(Duration::from_secs([0, 1, 11, 61, 181][self.below(5)]));
            }
        }
    }
}

#[tokio::test]
async fn whatever_administrators_do_without_force_there_are_no_two_holders() {
    let (mut grants, mut changes) = (0, 0);
    for seed in 0..rounds() {
        let world = World::new(seed);
        world.quorum(0).bootstrap().await.unwrap();
        world.is_set_up[0].set(true);
        let people = (0..5).map(async |_| {
            for _ in 0..8 {
                world.turns(40).await;
                world.act(seed).await;
            }
        });
        join_all(people).await;
        grants += world.grants.get();
        changes += world.changes.get();
    }
    println!("{grants} grants, {changes} changes");
    assert!(grants > 0 && changes > 0);
}

/// More of them by hand.
fn rounds() -> u64 {
    std::env::var("DLOCK_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(200)
}
