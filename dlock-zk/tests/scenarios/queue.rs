//! Long lines, and lines that change in unexpected ways.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::{ErrorKind, Guard};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::support::{
    LONG, each_has_its_turn, error_of, fence, locks, patient_locks, places, soon, until, until_in_line,
    wait_for,
};

/// A place of another library's client.
const FOREIGN: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

/// On more than one thread: the administrator's questions block theirs, and nobody who waits is to go unpolled by that.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_release_wakes_one_waiter_of_two_hundred_and_each_watches_one_other_and_itself() {
    const CLIENTS: usize = 13;
    const WAITERS: usize = CLIENTS * 16;
    let server = ZooKeeperServer::start().unwrap();
    let mut holder = locks(&server, LONG).await.lock("room").acquire().await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel::<Guard>();
    for _ in 0..CLIENTS {
        let locks = locks(&server, LONG).await;
        for _ in 0..16 {
            let (lock, tell) = (locks.lock("room").with_wait(LONG), tell.clone());
            tokio::spawn(async move { tell.send(lock.acquire().await.unwrap()) });
        }
    }
    until_in_line(server.admin(), "room", WAITERS + 1).await;
    let line = places(server.admin(), "room");
    let nodes: Vec<_> =
        line.iter().map(|place| server.admin().node(&format!("/dlock/room/{place}")).unwrap()).collect();
    for (turn, node) in nodes.iter().enumerate().skip(1) {
        holder.release().await.unwrap();
        holder = soon("the next holder", told.recv()).await.unwrap();
        assert_eq!(Ok(fence(&holder)), u64::try_from(node.czxid), "turn {turn}");
        assert!(told.is_empty(), "one at a time");
        // Each watches its own node and the one before it, and the holder its own after a while.
        let watched: HashSet<_> =
            (turn + 1..=WAITERS).flat_map(|n| [(nodes[n].session, n), (nodes[n].session, n - 1)]).collect();
        until("everybody to watch", || server.admin().watches() >= watched.len() as u64).await;
        let others = server.admin().watches() - watched.len() as u64;
        assert!(others <= 1, "nobody else was woken, and nobody watches more");
    }
    holder.release().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_place_in_the_middle_grants_nothing() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    for _ in 0..5 {
        let before = server.admin().create(FOREIGN, b"", NodeKind::PersistentSequential);
        let waiter = wait_for(&locks, "room");
        until("the waiter's watches and the holder's", || server.admin().watches() == 3).await;
        server.admin().delete(&before);
        // It looks again, and watches the holder from now on.
        until_in_line(server.admin(), "room", 2).await;
        assert!(!waiter.is_finished());
        waiter.abort();
        until("the place to be left", || places(server.admin(), "room").len() == 1).await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_client_in_front_is_waited_for_and_behind_is_not() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    let front = server.admin().create(FOREIGN, b"", NodeKind::PersistentSequential);
    let waiter = wait_for(&locks, "room");
    until_in_line(server.admin(), "room", 2).await;
    let behind = server.admin().create(FOREIGN, b"", NodeKind::PersistentSequential);
    server.admin().delete(&front);
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(places(server.admin(), "room"), [behind.rsplit('/').next().unwrap()]);
}

#[tokio::test]
async fn the_nodes_of_other_libraries_are_waited_for() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    // As go-zookeeper and kazoo name theirs.
    for name in ["_c_0123456789abcdef0123456789abcdef-lock-", "0123456789abcdef0123456789abcdef__lock__"] {
        let front =
            server.admin().create(&format!("/dlock/room/{name}"), b"", NodeKind::PersistentSequential);
        assert!(locks.lock("room").try_acquire().await.unwrap().is_none(), "{name} has it");
        let waiter = wait_for(&locks, "room");
        until_in_line(server.admin(), "room", 2).await;
        server.admin().delete(&front);
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_numbered_node_of_an_unknown_recipe_grants_nothing_and_is_named() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    let name = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__";
    let writer = server.admin().create(name, b"", NodeKind::PersistentSequential);
    let error = error_of(locks.lock("room").acquire().await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains(writer.rsplit('/').next().unwrap()), "{error}");
    until("our node to go", || places(server.admin(), "room").len() == 1).await;
    server.admin().delete(&writer);
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn directories_that_vanish_all_the_time_fail_no_acquire() {
    let server = ZooKeeperServer::options().container_check(Duration::from_millis(1)).start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let mut tasks = JoinSet::new();
    for number in 0..4 {
        let lock = if number % 2 == 0 { &ours } else { &theirs }.lock(format!("room_{}", number / 2));
        tasks.spawn(async move {
            let mut last = 0;
            for _ in 0..100 {
                let guard = lock.acquire().await.unwrap();
                assert!(fence(&guard) > last);
                last = fence(&guard);
                guard.release().await.unwrap();
            }
        });
    }
    soon("all rounds", async {
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    })
    .await;
    until("the end of the directories", || server.admin().children("/dlock") == ["%sessions"]).await;
}

#[tokio::test]
async fn waiters_of_one_key_do_not_delay_those_of_another() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let guard = locks.lock("busy").acquire().await.unwrap();
    let waiters: Vec<_> = (0..50).map(|_| wait_for(&locks, "busy")).collect();
    // The holder's is one of them.
    until_in_line(server.admin(), "busy", 16).await;
    for _ in 0..50 {
        locks.lock("idle").acquire().await.unwrap().release().await.unwrap();
    }
    guard.release().await.unwrap();
    each_has_its_turn(waiters).await;
}

#[tokio::test]
async fn a_directory_with_thousands_of_other_children_serves_its_lock() {
    const CHILDREN: usize = 20_000;
    let server = ZooKeeperServer::start().unwrap();
    let locks = patient_locks(server.address()).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let client = zookeeper::Client::connect(&server.address().to_string()).await.unwrap();
    let options = zookeeper::CreateMode::Persistent.with_acls(zookeeper::Acls::anyone_all());
    for thousand in 0..CHILDREN / 1_000 {
        let mut writer = client.new_multi_writer();
        for number in 0..1_000 {
            let path = format!("/dlock/room/configuration_of_a_service_{}", thousand * 1_000 + number);
            writer.add_create(&path, b"", &options).unwrap();
        }
        writer.commit().await.unwrap();
    }
    let waiters: Vec<_> = (0..40).map(|_| wait_for(&locks, "room")).collect();
    guard.check().unwrap();
    guard.release().await.unwrap();
    each_has_its_turn(waiters).await;
    assert_eq!(locks.stats().lost, 0);
}
