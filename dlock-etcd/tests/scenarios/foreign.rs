//! Keys of other clients in the directory of a lock.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait};
use dlock_etcd::Etcd;
use dlock_rig::servers::etcd::EtcdServer;

use crate::support::{locks, soon, until_in_line, wait_for};

#[tokio::test]
async fn a_key_of_gos_mutex_is_waited_for_and_shown() {
    let server = EtcdServer::start().unwrap();
    let (admin, ours) = (server.admin(), locks(&server.url()).await);
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    // Its name is that of its lease, and it has no value.
    admin.put("dlock/room/694d7a1b2c3d4e5f", "");
    let error = ours.lock("room").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("694d7a1b2c3d4e5f"), "{error}");
    for try_it in [ours.lock("room").read(), ours.lock("room")] {
        let error = try_it.with_wait(Duration::from_millis(300)).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
    let error = ours.semaphore("room", 3).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    let held = ours.holders().await.unwrap();
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].0.as_str(), held[0].1.label.as_deref()), ("room", Some("694d7a1b2c3d4e5f")));
    let waiter = wait_for(&ours, "room");
    until_in_line(&admin, "room", 2).await;
    let queue = etcd.queue("room").await.unwrap();
    assert_eq!((queue.len(), queue[1].pid), (2, Some(std::process::id())));
    // A leader of Go's election proclaims a value.
    admin.put("dlock/room/694d7a1b2c3d4e5f", "replica 7");
    assert_eq!(ours.inspect("room").await.unwrap().unwrap().label.as_deref(), Some("replica 7"));
    admin.delete("dlock/room/694d7a1b2c3d4e5f");
    soon("its turn", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_key_of_another_client_behind_ours_changes_nothing_and_can_be_released_by_force_when_it_holds() {
    let server = EtcdServer::start().unwrap();
    let (admin, ours) = (server.admin(), locks(&server.url()).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    admin.put("dlock/room/x/y", "strange");
    guard.check().unwrap();
    assert_eq!(ours.waiters("room").await.unwrap().len(), 1);
    guard.release().await.unwrap();
    assert!(ours.lock("room").try_acquire().await.unwrap().is_none());
    assert!(ours.force_release("room").await.unwrap());
    ours.lock("room").with_wait(Wait::No).acquire().await.unwrap().release().await.unwrap();
}
