//! Many readers, or one writer: sessions that end, crowds, other clients and other recipes.

use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperEnsemble, ZooKeeperServer};
use dlock_zk::Recipe;
use tokio::task::JoinSet;

use crate::support::{
    LONG, SHORT, builder, error_of, fence, locks, over, patient_locks, places, soon, until, wait_for,
};

/// Nodes of Curator's read-write lock.
const WRITES: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__";
const READS: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-__READ__";
const MUTEX: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";

async fn sharing_with_curator(server: &ZooKeeperServer) -> Locks {
    let builder = builder(&server.url(), LONG).with_recipe(Recipe::ReadWriteLock);
    over(builder.connect().await.unwrap())
}

async fn readers(locks: &Locks, count: usize) -> Vec<Guard> {
    let mut reading = JoinSet::new();
    for _ in 0..count {
        let lock = locks.lock("room").read().with_wait(LONG);
        reading.spawn(async move { lock.acquire().await });
    }
    soon("all readers", reading.join_all()).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test]
async fn a_thousand_readers_of_one_process_read_at_the_same_time_and_a_writer_follows() {
    const READERS: usize = 1_000;
    let server = ZooKeeperServer::start().unwrap();
    let [ours, theirs] = [patient_locks(server.address()).await, patient_locks(server.address()).await];
    let before = theirs.lock("room").acquire().await.unwrap();
    let wrote = fence(&before);
    let reading = tokio::spawn({
        let ours = ours.clone();
        async move { readers(&ours, READERS).await }
    });
    // No more of them wait with nodes of their own.
    until("the readers", || places(server.admin(), "room").len() == 17).await;
    before.release().await.unwrap();
    let reading = reading.await.unwrap();
    assert!(reading.iter().all(|guard| guard.check().is_ok() && fence(guard) > wrote));
    assert_eq!(theirs.occupancy("room").await.unwrap().holders.len(), READERS);
    let last = reading.iter().map(fence).max();
    let writer = wait_for(&theirs, "room");
    until("the writer", || places(server.admin(), "room").len() == READERS + 1).await;
    let mut releases = JoinSet::new();
    for guard in reading {
        assert!(!writer.is_finished(), "a writer beside readers");
        releases.spawn(guard.release());
    }
    soon("the releases", releases.join_all()).await.into_iter().for_each(Result::unwrap);
    let writer = soon("the writer", writer).await.unwrap().unwrap();
    assert!(Some(fence(&writer)) > last);
    writer.release().await.unwrap();
}

#[tokio::test]
async fn readers_whose_session_expires_make_room_for_a_writer_and_the_others_stay() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let expired = readers(&ours, 3).await;
    let kept = readers(&theirs, 2).await;
    let writer = wait_for(&theirs, "room");
    until("the writer", || places(server.admin(), "room").len() == 6).await;
    let session = server.admin().node(&format!("/dlock/room/{}", places(server.admin(), "room")[0])).unwrap();
    server.admin().expire(session.session.unwrap());
    for guard in &expired {
        soon("the loss", guard.lost()).await;
        error_of(guard.check(), ErrorKind::Lost);
    }
    assert!(kept.iter().all(|guard| guard.check().is_ok()) && !writer.is_finished());
    for guard in kept {
        guard.release().await.unwrap();
    }
    soon("the writer", writer).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn readers_and_writers_of_curator_are_waited_for() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = sharing_with_curator(&server).await;
    readers(&locks, 1).await.pop().unwrap().release().await.unwrap();
    let admin = server.admin();
    // It reads: we may, and may not write.
    let reads = admin.create(READS, b"10.0.0.1", NodeKind::PersistentSequential);
    let ours = readers(&locks, 2).await;
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    let writer = wait_for(&locks, "room");
    until("the writer", || places(admin, "room").len() == 4).await;
    for guard in ours {
        guard.release().await.unwrap();
    }
    assert!(!writer.is_finished());
    admin.delete(&reads);
    let writer = soon("the writer", writer).await.unwrap().unwrap();
    // It waits to write behind our writer, and keeps out those that come to read after it.
    let writes = admin.create(WRITES, b"10.0.0.1", NodeKind::PersistentSequential);
    writer.release().await.unwrap();
    assert!(locks.lock("room").read().try_acquire().await.unwrap().is_none());
    // It goes on reading, by a node with the number of its write lock.
    let turned = admin.create(&writes.replace("__WRIT__", "__READ__"), b"", NodeKind::Persistent);
    let next = wait_for(&locks, "room");
    until("the next writer", || places(admin, "room").len() == 3).await;
    admin.delete(&writes);
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(!next.is_finished(), "a writer beside a reader");
    admin.delete(&turned);
    soon("the next writer", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn nodes_of_the_other_recipe_are_granted_nothing_beside() {
    let server = ZooKeeperServer::start().unwrap();
    let (mutex, shared) = (locks(&server, LONG).await, sharing_with_curator(&server).await);
    mutex.lock("room").acquire().await.unwrap().release().await.unwrap();
    for (locks, foreign) in [(&mutex, WRITES), (&mutex, READS), (&shared, MUTEX)] {
        let node = server.admin().create(foreign, b"", NodeKind::PersistentSequential);
        for lock in [locks.lock("room"), locks.lock("room").read()] {
            let error = error_of(lock.try_acquire().await, ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(node.rsplit('/').next().unwrap()), "{error}");
        }
        server.admin().delete(&node);
        until("the clean-up", || places(server.admin(), "room").is_empty()).await;
    }
}

#[tokio::test]
async fn readers_and_writers_go_on_when_members_of_the_ensemble_die() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let zookeeper = builder(&ensemble.url(), LONG).connect().await.unwrap();
    let locks = over(zookeeper);
    let guards = readers(&locks, 20).await;
    let lock = locks.lock("room").with_wait(Wait::Forever);
    let writer = tokio::spawn(async move { lock.acquire().await });
    let leader = ensemble.wait_for_leader().unwrap();
    ensemble.server_mut(leader).kill();
    for guard in guards {
        let fenced = guard.fence();
        // Confirmed, or made up for in the background.
        drop(guard.release().await);
        assert!(fenced.is_some());
    }
    soon("the writer", writer).await.unwrap().unwrap().release().await.unwrap();
    readers(&locks, 20).await;
}
