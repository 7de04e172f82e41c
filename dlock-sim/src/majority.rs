//! Runs over a quorum: the nodes are stores that restart, forget and lose requests, each by itself.
//!
//! All of them are in one [`Store`](crate::lease::Store), under names of their own, so that they share the code and
//! nothing else: each has its clock, its connections and its faults. Locks of a quorum have no fences. The rules are
//! that no two owners believe to hold a lock at one moment, that every call ends in time, that nothing is left behind,
//! and that each lock can be had again once nothing fails any more.

use std::time::Duration;

use dlock_core::{Error, Locks};
use dlock_quorum::Quorum;
use futures_util::future::join_all;

use crate::backend::Leases;
use crate::exec::sleep;
use crate::lease::Command;
use crate::plan::{Majority, Plan};
use crate::world::{Event, World, read, tell, world};

/// What nodes keep beside locks: since when they remember.
const MARKS: [&str; 2] = ["dlock-quorum-memory-1", "dlock-quorum-memory-2"];

/// The names of all keys on all nodes, so that the number of one says on which node it is.
pub(crate) fn keys(plan: &Plan) -> Vec<String> {
    let Some(Majority { nodes, .. }) = plan.majority else { return Vec::new() };
    // Segments of a key are keys.
    let locks = (0..plan.keys).map(|key| format!("k{key}"));
    let segments = (0..plan.keys).flat_map(|key| (0..2).map(move |n| format!("k{key}#{n}")));
    let marks = MARKS.map(str::to_owned);
    let all = locks.chain(segments).chain(marks);
    all.flat_map(|key| (0..nodes).map(move |node| on_node(&key, node))).collect()
}

/// The name of a key on a node.
pub(crate) fn on_node(key: &str, node: usize) -> String {
    format!("{key} on node {node}")
}

/// A quorum as one process has it.
pub(crate) fn quorum(process: usize, engine: usize, majority: Majority) -> Result<Quorum, Error> {
    let Majority { nodes, durable, node_timeout, longest_lease } = majority;
    let quorum = Quorum::builder((0..nodes).map(|node| Leases::of_node(process, engine, node)))
        .with_node_timeout(Duration::from_millis(node_timeout))
        .with_longest_lease(Duration::from_millis(longest_lease));
    if durable { quorum.with_durable_nodes().build() } else { quorum.build() }
}

/// The operator vouches for empty nodes before any process runs, again until it is done. There is nothing to look at,
/// and the stores have no lists.
pub(crate) async fn bootstrap(majority: Majority) -> Result<(), Error> {
    let mut tries = 0;
    loop {
        let alive = world(|w| w.processes.iter().position(|process| process.alive));
        let done = quorum(alive.unwrap_or(0), 0, majority)?.force_bootstrap().await;
        tries += 1;
        if done.is_ok() || tries == 50 {
            return done.map(drop);
        }
        sleep(majority.longest_lease).await;
    }
}

/// Every lock can be had by every process that is left, once nothing fails any more and nodes vote again, though all
/// ask for it at once.
pub(crate) async fn can_be_had(plan: &Plan, engines: &[(usize, usize, Locks)]) {
    let Some(majority) = plan.majority else { return };
    // A mark whose answer was lost is left again after 5 s, and the second one may be late too.
    let wait = Duration::from_millis(4 * plan.lease + 2 * majority.longest_lease + plan.late + 12_000);
    for key in 0..plan.keys {
        let alive = engines.iter().filter(|(process, ..)| world(|w| w.processes[*process].alive));
        let all = alive.map(async |(process, _, locks)| {
            match locks.lock(format!("k{key}")).with_wait(wait).acquire().await {
                Ok(guard) => drop(guard.release().await),
                Err(error) => {
                    world(|w| w.violate(format!("p{process} cannot have k{key} any more: {error}")));
                }
            }
        });
        join_all(all).await;
    }
}

impl World {
    /// On which node of the quorum a key is.
    pub(crate) fn node(&self, key: usize) -> Option<usize> {
        self.plan.majority.map(|majority| key % majority.nodes)
    }

    /// The reading of the clock of the store that carries out a command.
    pub(crate) fn clock_for(&self, command: &Command) -> u64 {
        command.key().map_or_else(|| self.clock(None), |key| self.clock_of(key))
    }

    /// The reading of the clock of the store that has a key.
    pub(crate) fn clock_of(&self, key: usize) -> u64 {
        match self.node(key) {
            Some(node) => read(self.plan.drift[self.plan.processes + 1 + node]),
            None => self.clock(None),
        }
    }

    /// Which connection of a process a command goes over.
    pub(crate) fn connection_for(&mut self, command: &Command) -> usize {
        let connection = self.rng.usize(..self.plan.connections);
        match (self.plan.majority, command.key()) {
            (Some(Majority { nodes, .. }), Some(key)) => connection / nodes * nodes + key % nodes,
            _ => connection,
        }
    }

    /// Decides when nodes are down, and when they are empty.
    pub(crate) fn plan_node_faults(&mut self, r: &mut fastrand::Rng) {
        let Some(Majority { nodes, .. }) = self.plan.majority else { return };
        let (restarts, losses) = (self.plan.restarts, self.plan.losses);
        for _ in 0..restarts {
            let down = Event::NodeDown(r.usize(..nodes), r.u64(1..=self.plan.lease * 2));
            self.tasks.after(r.u64(0..self.plan.quiet_at), down);
        }
        for _ in 0..losses {
            let at = r.u64(0..self.plan.quiet_at);
            // Now and then all at once.
            let first = r.usize(..nodes);
            let count = [1, 1, 2, nodes][r.usize(..4)];
            for node in 0..count {
                self.tasks.after(at, Event::NodeEmpty((first + node) % nodes));
            }
        }
    }

    pub(crate) fn node_down(&mut self, node: usize, millis: u64) {
        tell!(self, None, "node {node} is down for {millis} ms");
        self.down.insert(node);
        self.tasks.after(millis, Event::NodeUp(node));
    }

    pub(crate) fn node_up(&mut self, node: usize) {
        if self.down.remove(&node) {
            tell!(self, None, "node {node} is up");
        }
    }

    pub(crate) fn node_empty(&mut self, node: usize) {
        tell!(self, None, "node {node} has forgotten everything");
        let Some(Majority { nodes, .. }) = self.plan.majority else { return };
        self.store.entries.retain(|key, _| key % nodes != node);
    }

    /// What is kept for locks on the nodes is over at the end; marks stay.
    pub(crate) fn is_of_a_lock(&self, key: usize) -> bool {
        !MARKS.iter().any(|mark| self.keys[key].starts_with(mark))
    }
}
