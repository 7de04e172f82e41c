//! The map of a cluster: which server is responsible for which hash slot.
//!
//! | the map | becomes so by | a request for a slot |
//! |---|---|---|
//! | unknown | `new` | waits for the map to be read |
//! | current | `adopt` | goes to the master of the slot |
//! | stale | `distrust`, or a `MOVED` | waits for the map to be read; if that fails, goes by the old one |

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Entropy, Mutex, within};
use redis::Value;

use super::node::{Address, Node};
use super::open::Opener;
use super::sentinel::answer;
use super::wire::WireOptions;
use crate::error::Redirect;
use crate::keys::SLOTS;
use crate::url::Endpoint;

/// A cluster, and its map as far as it is known.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Endpoint>,
    opener: Opener,
    options: WireOptions,
    map: Mutex<Map>,
    /// Held by the task that reads the map, while the others wait for its result.
    refreshing: tokio::sync::Mutex<()>,
    /// The source of the order in which servers are asked.
    entropy: Entropy,
}

#[derive(Default)]
struct Map {
    nodes: HashMap<Endpoint, Arc<Node>>,
    /// The master of each slot. Empty until the map was read once.
    masters: Vec<Option<Arc<Node>>>,
    /// The number of times that the map was read.
    version: u64,
    /// `true` if a request found the map to be wrong since it was read.
    stale: bool,
}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("nodes", &self.nodes.keys())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A range of slots and its master.
type Range = (u16, u16, Endpoint);

impl Cluster {
    /// Creates the cluster of these seeds. No server is asked.
    pub(crate) fn new(seeds: Vec<Endpoint>, opener: Opener, options: WireOptions) -> Self {
        let refreshing = tokio::sync::Mutex::default();
        Self { seeds, opener, options, map: Mutex::default(), refreshing, entropy: Entropy::new() }
    }

    /// Returns the master of a slot. Reads the map first if it is unknown or stale.
    pub(crate) async fn master_of(&self, slot: u16, patience: Duration) -> Result<Arc<Node>, Failure> {
        // The version is taken with the decision to read: a map that another task reads meanwhile is used as it is.
        let seen = {
            let map = self.map.lock();
            if !map.stale
                && let Some(node) = map.master_of(slot)
            {
                return Ok(node);
            }
            map.version
        };
        // Dropped when the time is up, and `refreshing` is unlocked by that: another task begins to read anew.
        let refreshed = Box::pin(within(patience, self.refresh(seen))).await;
        // An old map is better than none: a server that is not responsible any more redirects the request.
        if let Some(node) = self.map.lock().master_of(slot) {
            return Ok(node);
        }
        match refreshed {
            Some(Ok(())) => {
                Err(Failure::unavailable(format!("no server of the cluster serves the hash slot {slot}")))
            }
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::unavailable(format!("no map of the cluster within {patience:?}"))),
        }
    }

    /// Returns the master of a slot by the map as it is.
    pub(crate) fn known_master_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.lock().master_of(slot)
    }

    /// Returns the server that a redirection names, and notes it in the map.
    pub(crate) fn redirected(&self, redirect: &Redirect, from: &Endpoint) -> Arc<Node> {
        let endpoint = beside(from, &redirect.host, redirect.port);
        let mut map = self.map.lock();
        // An `ASK` is for one request only: the slot still belongs to the server that sent it.
        if !redirect.ask {
            map.stale = true;
        }
        // Also a server that the map does not have yet: a slot may move to a master that was added since.
        let node = self.node(&mut map, &endpoint);
        // The one slot is corrected at once. The rest of the map is read anew before the next request, since slots
        // seldom move alone.
        if !redirect.ask
            && let Some(master) = map.masters.get_mut(usize::from(redirect.slot))
        {
            *master = Some(Arc::clone(&node));
        }
        node
    }

    /// Marks the map as stale: a server of it does not do what it should.
    pub(crate) fn distrust(&self) {
        // The map itself stays: while no server can be read from, it is the best that is known.
        self.map.lock().stale = true;
    }

    /// Returns a random server of the map.
    pub(crate) async fn any(&self) -> Result<Endpoint, Failure> {
        let (seen, stale) = {
            let map = self.map.lock();
            (map.version, map.stale || map.nodes.is_empty())
        };
        if stale {
            self.refresh(seen).await?;
        }
        // The servers of the map are its masters. Where a listener cannot reach one of them, `Listening::broken`
        // distrusts the map, so that the next choice is made from a new one.
        let nodes: Vec<Endpoint> = self.map.lock().nodes.keys().cloned().collect();
        match nodes.len() {
            0 => Err(Failure::unavailable("no server of the cluster is known")),
            known => Ok(nodes[self.entropy.below(known)].clone()),
        }
    }

    /// Reads the map again, and returns all masters that serve slots.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Node>>, Failure> {
        // Read anew in any case: an administrator's list must not miss a server because no request has found the map
        // stale.
        let seen = self.map.lock().version;
        self.refresh(seen).await?;
        let map = self.map.lock();
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for master in map.masters.iter().flatten() {
            if !masters.iter().any(|known| Arc::ptr_eq(known, master)) {
                masters.push(Arc::clone(master));
            }
        }
        Ok(masters)
    }

    pub(crate) fn close(&self) {
        for node in self.map.lock().nodes.values() {
            node.close();
        }
    }

    pub(crate) const fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Returns the node of an address. A node keeps its connections from map to map.
    fn node(&self, map: &mut Map, endpoint: &Endpoint) -> Arc<Node> {
        let make = || {
            Arc::new(Node::new(Address::Fixed(endpoint.clone()), self.opener.clone(), self.options.clone()))
        };
        Arc::clone(map.nodes.entry(endpoint.clone()).or_insert_with(make))
    }

    /// Reads the map from the first server that has one, unless another task did so since version `seen`. The servers
    /// of the map and the seeds are asked in random order, so that no server gets the requests of all clients.
    async fn refresh(&self, seen: u64) -> Result<(), Failure> {
        let _refreshing = self.refreshing.lock().await;
        let mut sources: Vec<Endpoint> = {
            let map = self.map.lock();
            // The mutex of `refreshing` was waited for: the task before this one may have read the map.
            if map.version != seen {
                return Ok(());
            }
            map.nodes.keys().chain(&self.seeds).cloned().collect()
        };
        // The seeds are among them, since all servers of an old map may have been replaced.
        self.entropy.shuffle(&mut sources);
        let mut last = Failure::unavailable("no server of the cluster is known");
        for source in sources {
            // One after the other, and not at once: in most cases the first answers, and each try opens a connection.
            match self.read_from(&source).await {
                Ok(ranges) => {
                    self.adopt(&ranges);
                    return Ok(());
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Reads the map from one server, over a connection of its own.
    async fn read_from(&self, source: &Endpoint) -> Result<Vec<Range>, Failure> {
        // A map is read too seldom for the connection to be kept.
        let opened = self.opener.open(source, |_| {}).await?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let reply = answer(&opened.connection, &question, self.opener.timeout(), source).await?;
        let ranges = read(&reply, source)
            .ok_or_else(|| Failure::unavailable(format!("{source}: malformed map of the cluster")))?;
        // A server that was reset, or has not joined yet, answers with an empty map; the next source is asked.
        if ranges.is_empty() {
            return Err(Failure::unavailable(format!("{source}: the cluster serves no slots")));
        }
        Ok(ranges)
    }

    /// Puts a new map in place of the old one. Nodes that serve no slot are dropped with their connections.
    fn adopt(&self, ranges: &[Range]) {
        let mut map = self.map.lock();
        // Made anew, so that a slot which no server serves any more has no master left from the old map.
        map.masters = vec![None; usize::from(SLOTS)];
        for (from, to, endpoint) in ranges {
            let node = self.node(&mut map, endpoint);
            for slot in *from..=*to {
                if let Some(master) = map.masters.get_mut(usize::from(slot)) {
                    *master = Some(Arc::clone(&node));
                }
            }
        }
        let used: HashSet<&Endpoint> = ranges.iter().map(|(.., endpoint)| endpoint).collect();
        // Requests under way keep their connections by their routes, and may still withdraw over these.
        map.nodes.retain(|endpoint, _| used.contains(endpoint));
        map.version += 1;
        map.stale = false;
    }
}

impl Map {
    fn master_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.masters.get(usize::from(slot))?.clone()
    }
}

/// Reads the reply to `CLUSTER SLOTS`.
fn read(reply: &Value, source: &Endpoint) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    ranges
        .iter()
        .map(|range| {
            let Value::Array(parts) = range else { return None };
            let [Value::Int(from), Value::Int(to), Value::Array(master), ..] = parts.as_slice() else {
                return None;
            };
            let host = match master.first()? {
                Value::BulkString(host) => std::str::from_utf8(host).ok()?,
                Value::SimpleString(host) => host,
                // A server that does not know its own address is where it was asked.
                Value::Nil => "",
                _ => return None,
            };
            let Value::Int(port) = master.get(1)? else { return None };
            // Redis 7 writes `?` for a name that it does not know.
            let host = if host == "?" { "" } else { host };
            Some((
                // A slot or port out of range makes the whole reply malformed, rather than a map with a hole.
                (*from).try_into().ok()?,
                (*to).try_into().ok()?,
                beside(source, host, (*port).try_into().ok()?),
            ))
        })
        .collect()
}

/// Returns the address of a server that another one names: reached by the same kind of connection, and on the same host
/// if none is named.
fn beside(source: &Endpoint, host: &str, port: u16) -> Endpoint {
    match source {
        Endpoint::Tcp { host: own, tls, .. } => {
            let host = if host.is_empty() { own } else { host };
            Endpoint::Tcp { host: host.to_owned(), port, tls: *tls }
        }
        // A server behind a socket of the file system names the others by their addresses, which are reached by TCP.
        Endpoint::Unix(_) => Endpoint::Tcp { host: host.to_owned(), port, tls: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: true }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(from: i64, to: i64, host: Value, port: i64) -> Value {
        Value::Array(vec![
            Value::Int(from),
            Value::Int(to),
            Value::Array(vec![host, Value::Int(port), bulk("id"), Value::Array(vec![])]),
            Value::Array(vec![bulk("replica"), Value::Int(1)]),
        ])
    }

    #[test]
    fn the_map_names_the_master_of_each_range() {
        let reply = Value::Array(vec![
            range(0, 5460, bulk("10.0.0.1"), 7000),
            range(5461, 10_922, bulk(""), 7001),
            range(10_923, 16_383, Value::Nil, 7002),
        ]);
        let ranges = read(&reply, &tcp("seed", 1)).unwrap();
        assert_eq!(ranges[0], (0, 5460, tcp("10.0.0.1", 7000)));
        assert_eq!(ranges[1], (5461, 10_922, tcp("seed", 7001)), "an empty host is the one that was asked");
        assert_eq!(ranges[2].2, tcp("seed", 7002));
    }

    #[test]
    fn nonsense_is_no_map() {
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 70_000, bulk("a"), 1)]),
            Value::Array(vec![range(0, 1, bulk("a"), 70_000)]),
        ] {
            assert_eq!(read(&reply, &tcp("seed", 1)), None, "{reply:?}");
        }
    }
}
