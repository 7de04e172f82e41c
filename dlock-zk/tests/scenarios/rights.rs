//! What servers do not allow, and what others have left there.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
use dlock_zk::{Acl, AuthId, Permission};

use crate::support::{
    LONG, builder, error_of, lock_nodes, locks, over, soon, until, until_in_line, wait_for,
};

/// A node of another library's client.
const FOREIGN: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

async fn free(locks: &Locks, key: &str) {
    soon("a free lock", locks.lock(key).acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_another_client_wrote_into_its_node_is_shown_in_part() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    free(&locks, "room").await;
    server.admin().create(FOREIGN, &[b'x'; 900_000], NodeKind::PersistentSequential);
    let busy = error_of(locks.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Busy);
    assert!(busy.to_string().len() < 5_000, "{} bytes", busy.to_string().len());
    let holder = locks.inspect("room").await.unwrap().unwrap();
    assert!(holder.label.is_some_and(|label| label.starts_with('x') && label.len() < 5_000));
}

#[tokio::test]
async fn a_node_that_may_not_be_deleted_is_named_and_goes_with_its_session() {
    let server = ZooKeeperServer::start().unwrap();
    let read_and_create = Acl::new(Permission::READ | Permission::CREATE, AuthId::anyone());
    let ours = over(builder(&server.url(), LONG).with_parent_acl([read_and_create]).connect().await.unwrap());
    let theirs = locks(&server, LONG).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let denied = error_of(guard.release().await, ErrorKind::Denied);
    assert!(denied.to_string().contains("/dlock/room"), "{denied}");
    let waiter = wait_for(&theirs, "room");
    until_in_line(server.admin(), "room", 2).await;
    drop(ours.shutdown(Duration::from_secs(5)).await);
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    assert_eq!(lock_nodes(server.admin()), 1);
}

#[tokio::test]
async fn a_quota_that_is_used_up_refuses_acquires_and_takes_no_lock_away() {
    let server = ZooKeeperServer::options().property("zookeeper.enforceQuota", "true").start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    free(&locks, "hall").await;
    let admin = server.admin();
    admin.create("/zookeeper/quota/dlock", b"", NodeKind::Persistent);
    let now = 6;
    let limits = format!("count=-1,bytes=-1;byteHardLimit=-1;countHardLimit={now}");
    admin.create("/zookeeper/quota/dlock/zookeeper_stats", b"count=0,bytes=0", NodeKind::Persistent);
    admin.create("/zookeeper/quota/dlock/zookeeper_limits", limits.as_bytes(), NodeKind::Persistent);
    let mut guards = Vec::new();
    let refused = loop {
        match locks.lock(format!("key_{}", guards.len())).acquire().await {
            Ok(guard) => guards.push(guard),
            Err(error) => break error,
        }
        assert!(guards.len() < 50, "the quota is not enforced");
    };
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    guard.check().unwrap();
    guard.release().await.unwrap();
    for guard in guards {
        guard.release().await.unwrap();
    }
    until("the clean-up", || lock_nodes(admin) == 0).await;
}
