//! What the tests have in common.

use std::net::SocketAddr;
use std::time::Duration;

use dlock_core::{Guard, Locks, Wait};
pub(crate) use dlock_rig::expect::{error_of, fence, soon, until};
use dlock_rig::proxy::{Jute, Proxy};
use dlock_rig::servers::zookeeper::{Administrator, ZooKeeperServer};
use dlock_zk::{ZooKeeper, ZooKeeperBuilder};
use tokio::task::{JoinHandle, JoinSet};

/// A session that no test waits for the end of.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A session that a test waits for the end of.
pub(crate) const SHORT: Duration = Duration::from_millis(1_500);

/// Locks of a session of their own, at the server or the servers at these addresses.
pub(crate) async fn locks_at(addresses: &[SocketAddr], session: Duration) -> Locks {
    let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
    let url = format!("zk://{}", addresses.join(","));
    over(builder(&url, session).connect().await.unwrap())
}

/// For servers with the ticks of this test kit.
pub(crate) fn builder(url: &str, session: Duration) -> ZooKeeperBuilder {
    ZooKeeper::builder(url).with_session_timeout(session).with_tick_time(Duration::from_millis(100))
}

/// Locks that give up a request soon, so that what is made to fail fails soon.
pub(crate) fn over(zookeeper: ZooKeeper) -> Locks {
    with_request_timeout(zookeeper, Duration::from_millis(500))
}

/// Locks for crowds, none of whose requests is meant to fail on a busy machine.
pub(crate) async fn patient_locks(address: SocketAddr) -> Locks {
    let zookeeper = builder(&format!("zk://{address}"), LONG).connect().await.unwrap();
    with_request_timeout(zookeeper, Duration::from_secs(10))
}

fn with_request_timeout(zookeeper: ZooKeeper, limit: Duration) -> Locks {
    let builder = Locks::builder(zookeeper).with_wait(Duration::from_secs(20));
    builder.with_request_timeout(limit).build().unwrap()
}

pub(crate) async fn locks(server: &ZooKeeperServer, session: Duration) -> Locks {
    locks_at(&[server.address()], session).await
}

/// A server with a proxy in front of it.
pub(crate) struct Proxied {
    pub(crate) server: ZooKeeperServer,
    pub(crate) proxy: Proxy,
}

impl Proxied {
    pub(crate) fn start() -> Self {
        let server = ZooKeeperServer::start().unwrap();
        let proxy = before(&server);
        Self { server, proxy }
    }

    pub(crate) async fn locks(&self, session: Duration) -> Locks {
        locks_at(&[self.proxy.address()], session).await
    }
}

/// A proxy in front of a server.
pub(crate) fn before(server: &ZooKeeperServer) -> Proxy {
    Proxy::speaking(Jute::default(), server.address()).unwrap()
}

/// Waits in the background for `key`.
pub(crate) fn wait_for(locks: &Locks, key: &str) -> JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock(key).with_wait(Wait::Forever);
    tokio::spawn(async move { lock.acquire().await })
}

/// Has all waiters of a lock take and release it, in whatever order they come: one whose place was lost with a reply
/// stands behind the others.
pub(crate) async fn each_has_its_turn(waiters: Vec<JoinHandle<dlock_core::Result<Guard>>>) {
    let take = |waiter: JoinHandle<dlock_core::Result<Guard>>| async move {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    };
    let turns: JoinSet<()> = waiters.into_iter().map(take).collect();
    soon("the turn of all", turns.join_all()).await;
}

/// The places in line for `key`, in order.
pub(crate) fn places(admin: Administrator, key: &str) -> Vec<String> {
    let mut places = admin.children(&format!("/dlock/{key}"));
    places.sort_by_key(|place| place.rsplit('-').next().map(str::to_owned));
    places
}

/// How many nodes of locks there are, of all keys, by the server's own count.
pub(crate) fn lock_nodes(admin: Administrator) -> u64 {
    let proofs = admin.children("/dlock/%sessions").len() as u64;
    admin.figure("zk_ephemerals_count").saturating_sub(proofs)
}

/// Waits until so many stand in line for `key`, and each one but the first watches another and its own node. The server
/// counts what two of one session watch once.
pub(crate) async fn until_in_line(admin: Administrator, key: &str, count: usize) {
    let all_watch = || places(admin, key).len() == count && (count == 1 || admin.watches() >= count as u64);
    until(&format!("a line of {count}"), all_watch).await;
}

/// Polls once.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

/// Waits until the locks have nothing left to do, and no place in line for any of `keys` is left.
pub(crate) async fn until_clean(locks: &Locks, admin: Administrator, keys: &[&str]) {
    until("the clean-up", || {
        locks.stats().background == 0 && keys.iter().all(|key| places(admin, key).is_empty())
    })
    .await;
}
