//! Servers that die and come back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_rig::proxy::Arrivals;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::task::JoinSet;

use crate::support::{
    LONG, Proxied, SHORT, error_of, fence, locks, locks_at, places, soon, until, until_in_line, wait_for,
};

#[tokio::test]
async fn a_quick_restart_keeps_locks_and_waiters() {
    let mut server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let before = fence(&guard);
    let waiter = wait_for(&theirs, "room");
    until_in_line(server.admin(), "room", 2).await;
    server.kill();
    soon("the suspicion", guard.held().at_risk()).await;
    error_of(guard.check(), ErrorKind::Suspect);
    server.restart().unwrap();
    until("the lock", || guard.check().is_ok()).await;
    assert_eq!((fence(&guard), waiter.is_finished()), (before, false));
    guard.release().await.unwrap();
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    assert!(fence(&guard) > before);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_for_longer_than_a_session_ends_the_belief_although_the_node_is_still_there() {
    // Long enough for a look before the restarted server ends it.
    const SESSION: Duration = Duration::from_secs(3);
    let Proxied { mut server, proxy } = Proxied::start();
    let ours = locks_at(&[proxy.address()], SESSION).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let before = fence(&guard);
    // It gives the node up as soon as it has a connection again, which is not before the look.
    proxy.set_arrivals(Arrivals::Reset);
    server.kill();
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    server.restart().unwrap();
    assert_eq!(places(server.admin(), "room").len(), 1, "the server counts from its start");
    proxy.mend();
    // The session may go on, and the node with it, which is not the lock any more.
    error_of(guard.check(), ErrorKind::Lost);
    drop(guard);
    let theirs = locks(&server, LONG).await;
    let next = soon("the next holder", theirs.lock("room").acquire()).await.unwrap();
    assert!(fence(&next) > before);
    next.release().await.unwrap();
    soon("the lock", ours.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn restarts_in_the_middle_of_everything_leave_nothing() {
    let mut server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, Duration::from_secs(10)).await;
    let (over, sections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut tasks = JoinSet::new();
    for number in 0..16 {
        let (locks, over, sections) = (locks.clone(), Arc::clone(&over), Arc::clone(&sections));
        tasks.spawn(async move {
            while !over.load(Ordering::SeqCst) {
                match locks.lock(format!("room_{}", number % 4)).acquire().await {
                    Ok(guard) => {
                        sections.fetch_add(1, Ordering::SeqCst);
                        drop(guard.release().await);
                    }
                    Err(error) => assert!(error.is_retryable() || error.kind() == ErrorKind::Lost, "{error}"),
                }
            }
        });
    }
    for _ in 0..4 {
        let before = sections.load(Ordering::SeqCst);
        until("progress", || sections.load(Ordering::SeqCst) > before + 50).await;
        server.kill();
        // The clients go on meanwhile.
        server =
            tokio::task::spawn_blocking(move || server.restart().map(|()| server)).await.unwrap().unwrap();
    }
    over.store(true, Ordering::SeqCst);
    soon("the last rounds", tasks.join_all()).await;
    until("the clean-up", || locks.stats().background == 0 && locks.stats().held == 0).await;
    for number in 0..4 {
        let key = format!("room_{number}");
        until("the places to be left", || places(server.admin(), &key).is_empty()).await;
        soon("the lock", locks.lock(&key).acquire()).await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn fences_grow_when_the_transactions_of_an_epoch_run_out() {
    let mut server = ZooKeeperServer::start().unwrap();
    // The server begins with a snapshot of the log before, and continues with the number in its name.
    server.restart().unwrap();
    server.kill();
    let data = server.data();
    let mut newest = None;
    for file in std::fs::read_dir(&data).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        match name.strip_prefix("snapshot.") {
            Some(zxid) => newest = newest.max(Some(u64::from_str_radix(zxid, 16).unwrap())),
            None => std::fs::remove_file(data.join(name)).unwrap(),
        }
    }
    let newest = data.join(format!("snapshot.{:x}", newest.unwrap()));
    std::fs::rename(newest, data.join("snapshot.1ffffffe8")).unwrap();
    server.restart().unwrap();
    let locks = locks(&server, LONG).await;
    let mut fences = Vec::new();
    for _ in 0..20 {
        let guard = locks.lock("room").acquire().await.unwrap();
        fences.push(fence(&guard));
        guard.release().await.unwrap();
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:x?}");
    let epochs = [fences[0] >> 32, fences[19] >> 32];
    assert_eq!(epochs, [1, 2], "{fences:x?}");
}

#[tokio::test]
async fn a_backup_that_is_restored_ends_the_locks_and_lets_waiters_go_on() {
    let mut server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, SHORT).await;
    // In the backup somebody holds it whose session ends.
    let earlier = locks.lock("room").acquire().await.unwrap();
    let copy = |from: &Path, to: &Path| {
        std::fs::create_dir_all(to).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    };
    let data = server.data();
    let backup = data.with_file_name("backup");
    server.kill();
    copy(&data, &backup);
    server.restart().unwrap();
    drop(earlier.release().await);
    for _ in 0..30 {
        soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    }
    let guard = locks.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&locks, "room");
    until_in_line(server.admin(), "room", 2).await;
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    server.restart().unwrap();
    // Its session has seen what these servers have not, so that they refuse it.
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    let next = soon("the lock", waiter).await.unwrap().unwrap();
    next.check().unwrap();
    next.release().await.unwrap();
}
