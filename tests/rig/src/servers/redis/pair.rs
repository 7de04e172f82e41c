//! A master and a replica that takes over when the test says so.

use std::net::SocketAddr;

use super::{RedisServer, ServerError};
use crate::proxy::{Direction, Flow, Proxy};

/// A master and its replica, with a proxy between them, and one in front of whoever is the master.
///
/// For failovers at which the replica does not know everything: killing the master is not enough for that on one host,
/// since what it has sent arrives all the same.
#[derive(Debug)]
pub struct RedisPair {
    master: RedisServer,
    replica: RedisServer,
    replication: Proxy,
    front: Proxy,
}

impl RedisPair {
    /// A master whose replica follows it and acknowledges what it gets.
    ///
    /// # Errors
    ///
    /// When `redis-server` is missing or does not start, or no proxy can be had.
    pub fn start() -> Result<Self, ServerError> {
        let proxy = |address| Proxy::start(address).map_err(|error| ServerError::because("a proxy", &error));
        let master = RedisServer::start()?;
        let replication = proxy(master.address())?;
        let replica = RedisServer::options().replica_of(replication.address()).start()?;
        let front = proxy(master.address())?;
        // In its first second a replica acknowledges nothing.
        master.wait_for_a_replica()?;
        Ok(Self { master, replica, replication, front })
    }

    /// The server that is the master at the start.
    #[must_use]
    pub fn master(&self) -> &RedisServer {
        &self.master
    }

    /// The server that takes over.
    #[must_use]
    pub fn replica(&self) -> &RedisServer {
        &self.replica
    }

    /// Where whoever is the master is reached.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.front.address()
    }

    /// `redis://` of [`address`](Self::address).
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// From now on the replica learns nothing, and neither side notices.
    pub fn black_hole_the_replication(&self) {
        self.replication.set(Direction::ToClient, Flow::Hold);
    }

    /// The replica becomes the master, and new connections go to it. Old ones stay.
    ///
    /// # Panics
    ///
    /// When the replica does not answer.
    pub fn promote(&self) {
        self.replica.command::<()>(&["REPLICAOF", "NO", "ONE"]);
        self.front.retarget(self.replica.address());
    }

    /// The master dies, and the replica takes over.
    ///
    /// # Panics
    ///
    /// When the replica does not answer.
    pub fn fail_over(&mut self) {
        self.master.kill();
        self.promote();
        self.front.cut();
    }
}
