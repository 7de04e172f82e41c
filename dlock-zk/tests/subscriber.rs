//! A subscriber that panics at an event of the client library, which ends the session's tasks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::proxy::Proxy;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_zk::ZooKeeper;
use tracing::span::{Attributes, Record};
use tracing::{Event, Id, Metadata, Subscriber};

const STRIKE: &str = "the subscriber panics";

static STRIKES: AtomicBool = AtomicBool::new(false);

struct Panicking;

impl Subscriber for Panicking {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("zookeeper_client")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(7)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        if STRIKES.swap(false, Ordering::SeqCst) {
            panic!("{STRIKE}");
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_session_whose_client_library_panicked_loses_its_locks_and_others_go_on() {
    tracing::subscriber::set_global_default(Panicking).unwrap();
    let server = ZooKeeperServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let zookeeper =
        ZooKeeper::builder(&format!("zk://{}", proxy.address())).with_tick_time(Duration::from_millis(100));
    let locks = Locks::new(zookeeper.with_session_timeout(Duration::from_secs(2)).connect().await.unwrap());
    let guard = locks.lock("room").acquire().await.unwrap();
    let lock = locks.lock("room").with_wait(Wait::Forever);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    while server.admin().watches() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // So often that its directory is watched.
    let free = locks.lock("free").with_wait(Duration::from_secs(30));
    for _ in 0..8 {
        free.acquire().await.unwrap().release().await.unwrap();
    }
    STRIKES.store(true, Ordering::SeqCst);
    free.acquire().await.unwrap().release().await.unwrap();
    assert!(!STRIKES.load(Ordering::SeqCst), "nothing was said");
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(guard.release().await);
    let next = tokio::time::timeout(Duration::from_secs(30), waiter).await.unwrap().unwrap().unwrap();
    // Of the loss of its connection it tells nobody then.
    STRIKES.store(true, Ordering::SeqCst);
    proxy.cut();
    next.lost().await;
    let free = tokio::time::timeout(Duration::from_secs(30), free.acquire()).await.unwrap().unwrap();
    assert!(!STRIKES.load(Ordering::SeqCst), "nothing was said");
    free.release().await.unwrap();
}
