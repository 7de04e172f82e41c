//! A cluster of three masters with a replica each.

use std::collections::BTreeSet;

use redis::FromRedisValue;

use super::{RedisOptions, RedisServer, START, ServerError, is_at_least_7, wait_until};
use crate::servers::Ports;

/// Three masters and three replicas. Node `i` and node `i + 3` belong together; which of them is the master can change.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// A slot that is being moved, see [`RedisCluster::begin_migration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Migration {
    slot: u16,
    from: usize,
    to: usize,
}

const MASTERS: usize = 3;
const SLOTS: u16 = 16_384;

impl RedisCluster {
    /// A cluster that is ready for commands, and whose replicas follow their masters.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing, does not start, or the cluster does not come together.
    pub fn start() -> Result<Self, ServerError> {
        Self::start_with(RedisOptions::default())
    }

    /// A cluster of nodes with these options. One master takes over about a second after another one died.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing, does not start, or the cluster does not come together.
    pub fn start_with(options: RedisOptions) -> Result<Self, ServerError> {
        let node = |_| {
            let options = options.clone().argument("cluster-enabled", "yes");
            // Before 7 it is the port of the clients and 10 000.
            let options = match is_at_least_7() {
                true => options.argument("cluster-port", &Ports::free().to_string()),
                false => options,
            };
            options
                .argument("cluster-node-timeout", "1000")
                .argument("cluster-replica-validity-factor", "0")
                .argument("cluster-allow-replica-migration", "no")
                .start()
        };
        let cluster = Self { nodes: (0..2 * MASTERS).map(node).collect::<Result<_, _>>()? };
        cluster.join()?;
        Ok(cluster)
    }

    fn join(&self) -> Result<(), ServerError> {
        let masters = u16::try_from(MASTERS).unwrap_or(SLOTS);
        for (index, node) in (0..masters).zip(&self.nodes) {
            let first = (SLOTS / masters) * index;
            let last = if index + 1 == masters { SLOTS - 1 } else { first + SLOTS / masters - 1 };
            node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            let slots: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
            let words = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str));
            node.command::<()>(&words.collect::<Vec<_>>());
        }
        for node in &self.nodes[1..] {
            let port = node.port().to_string();
            let bus: Vec<String> = node.command(&["CONFIG", "GET", "cluster-port"]);
            let words =
                ["CLUSTER", "MEET", "127.0.0.1", &port].into_iter().chain(bus.get(1).map(|bus| &**bus));
            self.nodes[0].command::<()>(&words.collect::<Vec<_>>());
        }
        wait_until(START, || {
            let known = |node: &RedisServer| {
                node.command::<String>(&["CLUSTER", "NODES"]).matches("connected").count()
            };
            let all = self.nodes.iter().all(|node| known(node) == self.nodes.len());
            all.then_some(()).ok_or_else(|| "the nodes do not all know each other".to_owned())
        })?;
        for (master, replica) in self.nodes.iter().zip(&self.nodes[MASTERS..]) {
            replica.command::<()>(&["CLUSTER", "REPLICATE", &id(master)]);
        }
        self.wait_until_ok()
    }

    /// Waits until every living node says that the cluster is whole and every replica follows its master.
    ///
    /// # Errors
    ///
    /// When that takes too long.
    pub fn wait_until_ok(&self) -> Result<(), ServerError> {
        wait_until(START, || {
            for node in self.living() {
                let info: String = node.command(&["CLUSTER", "INFO"]);
                if !info.contains("cluster_state:ok") || !info.contains("cluster_slots_ok:16384") {
                    return Err(format!("node at {}: {info}", node.port()));
                }
                if node.info("role") == "slave" && node.info("master_link_status") != "up" {
                    return Err(format!("the replica at {} has not found its master", node.port()));
                }
            }
            Ok(())
        })
    }

    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    /// Its nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// A node.
    ///
    /// # Panics
    ///
    /// When there are fewer.
    pub fn node_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// `redis+cluster://` with every node.
    #[must_use]
    pub fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Which node is the master for `key` at the moment, as the nodes themselves see it.
    ///
    /// # Panics
    ///
    /// When no living node is.
    #[must_use]
    pub fn master_of(&self, key: &str) -> usize {
        let slot = self.slot_of(key);
        let serves = |node: &RedisServer| {
            if !node.is_running() {
                return false;
            }
            let nodes: String = node.command(&["CLUSTER", "NODES"]);
            let Some(myself) = nodes.lines().find(|line| line.contains("myself,master")) else {
                return false;
            };
            myself.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(f), Ok(l)) if (f..=l).contains(&slot))
            })
        };
        self.nodes.iter().position(serves).unwrap_or_else(|| panic!("nobody serves slot {slot}"))
    }

    /// The replica of the pair that node `index` belongs to, or its master when it is the replica.
    #[must_use]
    pub fn partner_of(&self, index: usize) -> usize {
        (index + MASTERS) % (2 * MASTERS)
    }

    /// The slot of `key`.
    ///
    /// # Panics
    ///
    /// When no node answers.
    #[must_use]
    pub fn slot_of(&self, key: &str) -> u16 {
        self.living().next().expect("a living node").command(&["CLUSTER", "KEYSLOT", key])
    }

    /// Runs one command as the administrator on the master for `key`.
    ///
    /// # Panics
    ///
    /// When it fails.
    #[track_caller]
    pub fn command_at<T: FromRedisValue>(&self, key: &str, words: &[&str]) -> T {
        self.nodes[self.master_of(key)].command(words)
    }

    /// Every key of every master, in order.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        let masters = self.living().filter(|node| node.info("role") == "master");
        let keys: BTreeSet<String> = masters.flat_map(RedisServer::keys).collect();
        keys.into_iter().collect()
    }

    /// Makes the replica of `master` the master, in an orderly way, and waits for it.
    ///
    /// # Errors
    ///
    /// When that takes too long.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    pub fn handoff(&self, master: usize) -> Result<(), ServerError> {
        self.nodes[self.partner_of(master)].command::<()>(&["CLUSTER", "FAILOVER"]);
        self.wait_for_failover(master)
    }

    /// Waits until the replica of `master`, which is dead or steps down, has taken over.
    ///
    /// # Errors
    ///
    /// When that takes too long.
    ///
    /// # Panics
    ///
    /// When a living node does not answer.
    pub fn wait_for_failover(&self, master: usize) -> Result<(), ServerError> {
        let (old, successor) = (&self.nodes[master], &self.nodes[self.partner_of(master)]);
        wait_until(START, || {
            let stepped_down = !old.is_running() || old.info("role") == "slave";
            let taken_over = successor.info("role") == "master";
            let done = (stepped_down && taken_over).then_some(());
            done.ok_or_else(|| format!("stepped down: {stepped_down}, taken over: {taken_over}"))
        })?;
        self.wait_until_ok()
    }

    /// Begins to move the slot of `key` to another master: keys that are not there any more are asked for elsewhere
    /// (`ASK`) until [`finish_migration`](Self::finish_migration).
    ///
    /// # Panics
    ///
    /// When a node does not answer, or the slot is there already.
    pub fn begin_migration(&self, key: &str, to: usize) -> Migration {
        let (slot, from) = (self.slot_of(key), self.master_of(key));
        assert_ne!(from, to, "the slot is there already");
        let number = slot.to_string();
        self.nodes[to].command::<()>(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &id(&self.nodes[from])]);
        self.nodes[from].command::<()>(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &id(&self.nodes[to])]);
        Migration { slot, from, to }
    }

    /// Moves what is in the slot at the moment.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    pub fn migrate_keys(&self, migration: Migration) {
        let Migration { slot, from, to } = migration;
        loop {
            let keys: Vec<String> =
                self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "100"]);
            if keys.is_empty() {
                return;
            }
            let port = self.nodes[to].port().to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            self.nodes[from].command::<()>(&words);
        }
    }

    /// Moves what is left in the slot, and tells every master who serves it now.
    ///
    /// # Panics
    ///
    /// When a node does not answer.
    pub fn finish_migration(&self, migration: Migration) {
        self.migrate_keys(migration);
        let Migration { slot, from, to } = migration;
        let owner = id(&self.nodes[to]);
        let others = (0..self.nodes.len()).filter(|&index| index != from && index != to);
        for index in [to, from].into_iter().chain(others) {
            let node = &self.nodes[index];
            if node.is_running() && node.info("role") == "master" {
                node.command::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &owner]);
            }
        }
    }
}

fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"])
}
