//! What the tests have in common.

use std::time::Duration;

use dlock_core::{Guard, Locks, Wait};
use dlock_etcd::Etcd;
use dlock_rig::proxy::{Grpc, Proxy};
use dlock_rig::servers::etcd::{EtcdAdministrator, EtcdServer};
use tokio::task::JoinHandle;

/// How long anything may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A lease that a test waits for the end of.
pub(crate) const SHORT: Duration = Duration::from_secs(4);

pub(crate) async fn etcd(url: &str) -> Etcd {
    Etcd::connect(url).await.unwrap()
}

/// Locks with a lease that no test waits for the end of.
pub(crate) async fn locks(url: &str) -> Locks {
    Locks::builder(etcd(url).await).with_wait(Duration::from_secs(60)).build().unwrap()
}

pub(crate) async fn with_lease(url: &str, lease: Duration) -> Locks {
    Locks::builder(etcd(url).await).with_wait(Duration::from_secs(60)).with_lease(lease).build().unwrap()
}

/// A server with a proxy in front of it.
pub(crate) struct Proxied {
    pub(crate) server: EtcdServer,
    pub(crate) proxy: Proxy,
}

impl Proxied {
    pub(crate) fn start() -> Self {
        let server = EtcdServer::start().unwrap();
        let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
        Self { server, proxy }
    }

    pub(crate) fn url(&self) -> String {
        self.server.url_through(self.proxy.address())
    }
}

/// Waits in the background for `key`.
pub(crate) fn wait_for(locks: &Locks, key: &str) -> JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock(key).with_wait(Wait::Forever);
    tokio::spawn(async move { lock.acquire().await })
}

/// The keys of the claims on `key`, in their order.
pub(crate) fn places(admin: &EtcdAdministrator, key: &str) -> Vec<String> {
    admin.entries(&format!("dlock/{key}/")).into_iter().map(|entry| entry.key).collect()
}

pub(crate) async fn until_in_line(admin: &EtcdAdministrator, key: &str, count: usize) {
    until(&format!("a line of {count}"), || places(admin, key).len() == count).await;
}

/// Waits until the locks have nothing left to do, and nothing of `key` is left.
pub(crate) async fn until_clean(locks: &Locks, admin: &EtcdAdministrator, key: &str) {
    until("the clean-up", || locks.stats().background == 0 && places(admin, key).is_empty()).await;
}

/// Waits for what has to come.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not come within {PATIENCE:?}"),
    }
}

/// Waits until something holds that nobody tells of.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(what, wait).await;
}

pub(crate) fn fence(guard: &Guard) -> u64 {
    guard.fence().expect("every grant has a fence").get()
}
