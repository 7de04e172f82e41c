//! The servers, and the routing of requests to them.
//!
//! ```text
//!  Servers::carry_out(command)
//!    | the node of the slot: the one server, or the master by the map of the cluster
//!    v
//!  Node::route             a connection of the calling runtime, else of another one;
//!    |                     Node::replaced if an answer is overdue on it
//!    v
//!  Servers::exchange       Track::before, then Connection::carry_out
//!    |- answered           done
//!    |- not sent           once more
//!    |- MOVED, ASK         once more at the named server, MOST_REDIRECTIONS tries in all
//!    '- else               a failure; a server that is in doubt is looked up again
//! ```

mod cluster;
mod connection;
mod follow;
mod messages;
mod node;
mod open;
mod queue;
mod role;
mod sentinel;
mod track;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use redis::{Cmd, Value};
use tokio::runtime::Handle;

use self::cluster::Cluster;
pub(crate) use self::connection::Connection;
pub(crate) use self::messages::{ANSWER, MessageConnection, in_time};
use self::node::Address;
pub(crate) use self::node::{Node, Route};
pub(crate) use self::open::Opener;
use self::sentinel::Sentinels;
pub(crate) use self::track::{Track, Untracked};
pub(crate) use self::wire::Reply;
use self::wire::WireOptions;
use crate::command::{Command, Question};
use crate::config::Config;
use crate::error::{Fault, senseless};
use crate::format::Format;
use crate::request::{Answer, CallNumber};
use crate::tracking::Tracking;
use crate::url::{Endpoint, Topology};

/// The most tries of one request: it follows the servers of a cluster to wherever they send it.
const MOST_REDIRECTIONS: usize = 5;

/// The servers that keep the locks. Finds the server for each request.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Arc<Node>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Creates the servers of a configuration. No connection is opened.
    pub(crate) fn new(config: &Config, format: Format, tracking: &Arc<Tracking>) -> Self {
        let opener = Opener::to_servers(config);
        let together = !config.cluster;
        let (replicas, tracking) = (config.replicas, Arc::clone(tracking));
        let options = WireOptions { format, together, replicas, tracking };
        let one = |at| Self::One(Arc::new(Node::new(at, opener.clone(), options.clone())));
        match config.target.topology.clone() {
            Topology::Single(endpoint) => one(Address::Fixed(endpoint)),
            Topology::Sentinel { sentinels, service } => {
                let sentinels = Sentinels::new(sentinels, service, Opener::to_sentinels(config));
                one(Address::Sentinels(Box::new(sentinels)))
            }
            Topology::Cluster(seeds) => Self::Cluster(Box::new(Cluster::new(seeds, opener, options))),
        }
    }

    /// Returns the server that is responsible for a slot.
    pub(crate) async fn node(&self, slot: u16, patience: Duration) -> Result<Arc<Node>, Failure> {
        match self {
            Self::One(node) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.master_of(slot, patience).await,
        }
    }

    /// Opens a connection of this runtime to the server of a slot, in the background, unless there is one.
    pub(crate) fn prepare(&self, slot: u16, runtime: &Handle) {
        let node = match self {
            Self::One(node) => Some(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.known_master_of(slot),
        };
        if let Some(node) = node {
            node.prepare(runtime);
        }
    }

    /// Carries out a command on the server that is responsible for it, over a connection of the calling runtime or, if
    /// it gets none, of another one. Rare steps are boxed here and below: each request allocates its whole future.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the command may still be carried out on the last connection that `track` knows.
    pub(crate) async fn carry_out(
        &self,
        command: Command<'_>,
        patience: Duration,
        track: &mut impl Track,
    ) -> Result<Reply, Failure> {
        let mut node = self.node(command.slot(), patience).await?;
        let mut asking = false;
        // Each is repeated once: the second connection is a fresh one, and a third would be no better.
        let (mut unsent, mut was_replica) = (0, false);
        for _ in 0..MOST_REDIRECTIONS {
            let route = match node.route(patience).await {
                // The other end may have vanished without closing the connection. A request behind the overdue answer
                // would wait as long.
                Ok(route) if track.awaits(&route.connection) => {
                    Box::pin(node.replaced(route, patience)).await
                }
                Ok(route) => route,
                Err(failure) => {
                    self.distrust();
                    return Err(failure);
                }
            };
            if route.connection.is_replica() && !command.suits_replicas() && !was_replica {
                // The role was read when the connection was opened, and the server may have been promoted since.
                // Nothing was sent: the connection is replaced once, and the role read again.
                was_replica = true;
                route.connection.end();
                continue;
            }
            let fault = match self.exchange(&route, command, (asking, patience), track).await {
                Ok(reply) => return Ok(reply),
                Err(fault) => fault,
            };
            // Before redirections: some refusals are answers, which their caller handles by another request.
            if let Some(answer) = command.answer_to(&fault) {
                return Ok(Reply { answer, acknowledged: 0 });
            }
            match (&fault, self, fault.redirect()) {
                // A request that was certainly not sent may be repeated. Any other fault without a redirection leaves
                // it to the engine, which knows whether the outcome matters.
                (Fault::Unsent(_), _, _) if unsent == 0 => unsent += 1,
                (_, Self::Cluster(cluster), Some(redirect)) => {
                    node = cluster.redirected(&redirect, &Box::pin(node.endpoint()).await?);
                    asking = redirect.ask;
                }
                _ => return Err(self.failed(&route, fault)),
            }
        }
        Err(Failure::unavailable("the servers of the cluster do not agree on who serves the slot"))
    }

    /// Sends a call that takes no lock, and returns its value.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the call is carried out if it was sent already.
    pub(crate) async fn ask(&self, question: &Question<'_>, patience: Duration) -> Result<Value, Failure> {
        match self.carry_out(Command::Ask(question), patience, &mut Untracked).await?.answer {
            Answer::Value(value) => Ok(*value),
            _ => Err(senseless()),
        }
    }

    /// Returns all servers that grant locks.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Node>>, Failure> {
        match self {
            Self::One(node) => Ok(vec![Arc::clone(node)]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// Sends calls that change nothing to one server, all at once.
    pub(crate) async fn ask_at(
        &self,
        node: &Node,
        patience: Duration,
        calls: impl IntoIterator<Item = impl FnOnce(CallNumber) -> Cmd>,
    ) -> Result<Vec<Result<Value, Fault>>, Failure> {
        let route = node.route(patience).await?;
        route.connection.ask_all(calls).await.map_err(|fault| self.failed(&route, fault))
    }

    /// Sends one command to a server, not as a numbered call, for example a `SCAN`.
    pub(crate) async fn plain(
        &self,
        node: &Node,
        patience: Duration,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        let route = node.route(patience).await?;
        let reply = route.connection.client().send_packed_command(command).await;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| self.failed(&route, Fault::of(error)))
    }

    /// Follows the sentinels on dlock's own thread for as long as these servers are in use.
    pub(crate) fn watch(&self) -> Result<(), Failure> {
        match self {
            Self::One(node) if node.sentinels().is_some() => {
                dlock_core::keeper::runtime()?.spawn(follow::follow(Arc::downgrade(node)));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Carries out a command on a given connection. If its caller is dropped before the answer, the connection has to
    /// show within `patience` that it is alive.
    pub(crate) async fn exchange(
        &self,
        route: &Route,
        command: Command<'_>,
        (asking, patience): (bool, Duration),
        track: &mut impl Track,
    ) -> Result<Reply, Fault> {
        // A replica that accepts writes would grant a lock that no master knows of. It is never asked for one.
        if route.connection.is_replica() && !command.suits_replicas() {
            return Err(Fault::Refused("READONLY by its own word".into()));
        }
        // Noted before anything is sent, as this future may be dropped at the await below: an attempt that is in no
        // account could not be withdrawn.
        track.before(route);
        let probe = ProbeOnDrop(Some((route, patience)));
        let result = route.connection.carry_out(command, asking).await;
        probe.cancel();
        match result {
            // The outcome is open: the request stays in the account.
            Err(Fault::Cut(_)) => {}
            Err(Fault::Unsent(_)) => track.unsent(route),
            _ => track.after(route),
        }
        result
    }

    /// Decides what a fault means for the requests that follow, and returns the failure of this one.
    fn failed(&self, route: &Route, fault: Fault) -> Failure {
        match (&fault, fault.code()) {
            // The role was read when the connection was opened a moment ago, and the next request reads it again.
            (_, Some("READONLY")) if route.connection.is_replica() => {}
            // The server is not the master any more, and the master has to be looked up.
            (_, Some("READONLY" | "MASTERDOWN")) => {
                route.connection.end();
                self.distrust();
            }
            (Fault::Cut(_) | Fault::Unsent(_), _) | (_, Some("CLUSTERDOWN")) => self.distrust(),
            _ => {}
        }
        fault.into_failure()
    }

    /// Looks the servers up again before they are used next.
    pub(crate) fn distrust(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.distrust();
        }
    }

    /// Returns a server to listen for messages at: on a cluster every server forwards them.
    pub(crate) async fn any(&self) -> Result<Endpoint, Failure> {
        match self {
            Self::One(node) => node.endpoint().await,
            Self::Cluster(cluster) => cluster.any().await,
        }
    }

    pub(crate) fn opener(&self) -> &Opener {
        match self {
            Self::One(node) => node.opener(),
            Self::Cluster(cluster) => cluster.opener(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One(node) => node.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

/// Probes the connection of a request whose caller is dropped before the answer.
struct ProbeOnDrop<'a>(Option<(&'a Route, Duration)>);

impl ProbeOnDrop<'_> {
    fn cancel(mut self) {
        self.0 = None;
    }
}

impl Drop for ProbeOnDrop<'_> {
    fn drop(&mut self) {
        if let Some((route, patience)) = self.0 {
            route.runtime.doubt(&route.connection, patience);
        }
    }
}
