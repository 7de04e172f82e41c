//! Three members of etcd, of which the one that leads is hit.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_rig::proxy::{Grpc, Proxy};
use dlock_rig::servers::ServerError;
use dlock_rig::servers::etcd::{EtcdCluster, EtcdOptions, EtcdServer};

use crate::Failed;

/// Settings with which leases are as short as they get, which is a second.
pub(crate) fn options() -> EtcdOptions {
    EtcdServer::options().election(Duration::from_millis(50), Duration::from_millis(500))
}

#[derive(Debug)]
pub(crate) struct Cluster {
    members: EtcdCluster,
    /// How many proxies there were.
    proxies: AtomicUsize,
}

impl Cluster {
    pub(crate) fn start() -> Result<Self, Failed> {
        Ok(Self { members: EtcdCluster::start_with(&options())?, proxies: AtomicUsize::new(0) })
    }

    /// The leader; any member where nobody leads.
    fn leader(&self) -> usize {
        self.members.leader().unwrap_or_default()
    }

    pub(crate) fn pause(&self) {
        self.members.servers()[self.leader()].pause();
    }

    pub(crate) fn resume(&self) {
        for server in self.members.servers().iter().filter(|server| !server.is_running()) {
            server.resume();
        }
    }

    /// Kills the leader and starts it again.
    pub(crate) fn restart(&mut self) -> Result<(), ServerError> {
        let leader = self.leader();
        self.members.server_mut(leader).restart()
    }

    /// Parts the leader from the others, but not from its clients.
    pub(crate) fn part(&self) {
        self.members.isolate(self.leader());
    }

    pub(crate) fn join(&self) {
        self.members.heal();
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.members.servers()[0].address()
    }

    pub(crate) fn url(&self) -> String {
        self.members.url()
    }

    /// A way to one of the members, each time to another one, and the URL of it and the others.
    pub(crate) fn proxy(&self) -> Result<(Proxy, String), Failed> {
        let mut addresses = self.members.addresses();
        let of = self.proxies.fetch_add(1, Ordering::Relaxed) % addresses.len();
        let proxy = Proxy::speaking(Grpc::default(), addresses[of])?;
        addresses[of] = proxy.address();
        let url = self.members.url_through(&addresses);
        Ok((proxy, url))
    }
}
