//! Writers that go on as readers: what stands where, watches, fenced writes, sessions that end, other clients.

use dlock_core::{ErrorKind, Locks};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::zookeeper::{NodeKind, ZooKeeperServer};
use dlock_zk::{Recipe, ZooKeeper};

use crate::support::{
    LONG, Proxied, SHORT, builder, error_of, fence, lock_nodes, locks, over, places, soon, until, wait_for,
};

/// Nodes of Curator's read-write lock.
const WRITES: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__";
const READS: &str = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-__READ__";

async fn of(server: &ZooKeeperServer, recipe: Recipe) -> (ZooKeeper, Locks) {
    let zookeeper = builder(&server.url(), LONG).with_recipe(recipe).connect().await.unwrap();
    (zookeeper.clone(), over(zookeeper))
}

#[tokio::test]
async fn the_node_of_a_reader_takes_the_place_and_the_number_of_the_writers() {
    let server = ZooKeeperServer::start().unwrap();
    for (recipe, mark) in [(Recipe::Mutex, "-read-lock-"), (Recipe::ReadWriteLock, "-__READ__")] {
        let (_, locks) = of(&server, recipe).await;
        let key = format!("room_{mark}");
        let mut guard = locks.lock(&key).acquire().await.unwrap();
        let before = places(server.admin(), &key);
        guard.downgrade().await.unwrap();
        let after = places(server.admin(), &key);
        assert_eq!((before.len(), after.len()), (1, 1));
        assert!(after[0].contains(mark), "{after:?}");
        assert_eq!(before[0][before[0].len() - 10..], after[0][after[0].len() - 10..], "the same number");
        assert_eq!(locks.inspect(&key).await.unwrap().unwrap().fence, guard.fence(), "it keeps its fence");
        guard.release().await.unwrap();
        assert_eq!(lock_nodes(server.admin()), 0);
    }
}

#[tokio::test]
async fn writers_of_all_processes_that_wait_are_not_let_in_by_a_downgrade() {
    let server = ZooKeeperServer::start().unwrap();
    for recipe in [Recipe::Mutex, Recipe::ReadWriteLock] {
        let (ours, theirs) = (of(&server, recipe).await.1, of(&server, recipe).await.1);
        let mut guard = ours.lock("room").acquire().await.unwrap();
        let (near, far) = (wait_for(&ours, "room"), wait_for(&theirs, "room"));
        until("the writers", || places(server.admin(), "room").len() == 3).await;
        guard.downgrade().await.unwrap();
        // Both have looked at the queue again, and watch the new node and their own.
        until("the watches", || server.admin().watches() >= 4).await;
        guard.check().unwrap();
        assert!(!near.is_finished() && !far.is_finished(), "a writer beside a reader");
        let last = fence(&guard);
        guard.release().await.unwrap();
        let (first, second) = tokio::join!(
            async {
                let guard = soon("a writer", near).await.unwrap().unwrap();
                let fence = fence(&guard);
                guard.release().await.unwrap();
                fence
            },
            async {
                let guard = soon("a writer", far).await.unwrap().unwrap();
                let fence = fence(&guard);
                guard.release().await.unwrap();
                fence
            }
        );
        assert!(first > last && second > last);
        until("the end", || lock_nodes(server.admin()) == 0).await;
    }
}

#[tokio::test]
async fn a_lock_that_was_watched_before_its_downgrade_is_kept_and_watched_after_it() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let mut guard = locks.lock("room").acquire().await.unwrap();
    until("the watch", || server.admin().watches() > 0).await;
    guard.downgrade().await.unwrap();
    until("the watch on the new node", || server.admin().watches() > 0).await;
    guard.check().unwrap();
    assert!(locks.force_release("room").await.unwrap());
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    error_of(guard.release().await, ErrorKind::NotHeld);
    assert_eq!(lock_nodes(server.admin()), 0);
}

#[tokio::test]
async fn what_is_written_by_the_fence_of_a_downgraded_lock_is_carried_out_until_it_is_released() {
    let server = ZooKeeperServer::start().unwrap();
    let (zookeeper, locks) = of(&server, Recipe::Mutex).await;
    server.admin().create("/data", b"0", NodeKind::Persistent);
    let mut guard = locks.lock("room").acquire().await.unwrap();
    let fence = guard.fence().unwrap();
    guard.downgrade().await.unwrap();
    assert!(zookeeper.fenced_write(fence).set_data("/data", "1").commit().await.unwrap());
    guard.release().await.unwrap();
    assert!(!zookeeper.fenced_write(fence).set_data("/data", "2").commit().await.unwrap());
}

#[tokio::test]
async fn a_downgrade_whose_answer_is_lost_with_the_connection_has_happened_once() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    let mut guard = ours.lock("room").acquire().await.unwrap();
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let downgrading = guard.downgrade();
    let cut = async {
        until("the node", || places(on.server.admin(), "room").iter().any(|name| name.contains("read")))
            .await;
        on.proxy.set(Direction::ToClient, Flow::Drop);
        on.proxy.cut();
        on.proxy.set(Direction::ToClient, Flow::Pass);
    };
    let (downgraded, ()) = tokio::join!(downgrading, cut);
    if let Err(error) = downgraded {
        assert!(error.is_retryable(), "{error}");
    }
    // It is asked again in the background, and finds that it reads.
    until("its good state", || guard.check().is_ok()).await;
    let beside = soon("a reader", theirs.lock("room").read().acquire()).await.unwrap();
    assert_eq!(places(on.server.admin(), "room").len(), 2);
    guard.release().await.unwrap();
    beside.release().await.unwrap();
    until("the end", || lock_nodes(on.server.admin()) == 0).await;
}

/// The release finds the writer's node gone, and what it sends to delete the reader's is lost with the connection.
#[tokio::test]
async fn a_release_that_is_lost_after_a_downgrade_without_an_answer_leaves_no_reader() {
    let on = Proxied::start();
    let ours = on.locks(LONG).await;
    let mut guard = ours.lock("room").acquire().await.unwrap();
    on.proxy.set(Direction::ToClient, Flow::Hold);
    tokio::select! {
        downgraded = guard.downgrade() => panic!("without an answer: {downgraded:?}"),
        () = until("the reader's node", || {
            places(on.server.admin(), "room").iter().any(|name| name.contains("read"))
        }) => {}
    }
    let deletions = || on.proxy.requests().get("DELETE").copied().unwrap_or_default();
    let before = deletions();
    on.proxy.lose_request(2, "DELETE");
    let release = async {
        if let Err(error) = guard.release().await {
            assert!(error.is_retryable(), "{error}");
        }
    };
    let answers = async {
        until("the deletion of the writer's node", || deletions() > before).await;
        on.proxy.set(Direction::ToClient, Flow::Pass);
    };
    tokio::join!(release, answers);
    until("the end of the reader's node", || places(on.server.admin(), "room").is_empty()).await;
    assert_eq!(on.proxy.lost(), 1, "the deletion of the reader's node");
    until("the clean-up", || ours.stats().background == 0).await;
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_session_that_expires_while_a_downgrade_is_under_way_leaves_nothing() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(SHORT).await, locks(&on.server, LONG).await);
    let mut guard = ours.lock("room").acquire().await.unwrap();
    let writer = wait_for(&theirs, "room");
    until("the writer", || places(on.server.admin(), "room").len() == 2).await;
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let (downgraded, ()) = tokio::join!(guard.downgrade(), async {
        let admin = on.server.admin();
        let node = admin.node(&format!("/dlock/room/{}", places(admin, "room")[0])).unwrap();
        admin.expire(node.session.unwrap());
    });
    downgraded.unwrap_err();
    on.proxy.mend();
    soon("the loss", guard.lost()).await;
    drop(guard);
    soon("the writer", writer).await.unwrap().unwrap().release().await.unwrap();
    until("the end", || lock_nodes(on.server.admin()) == 0).await;
}

#[tokio::test]
async fn readers_of_curator_come_in_and_its_writers_wait() {
    let server = ZooKeeperServer::start().unwrap();
    let (_, locks) = of(&server, Recipe::ReadWriteLock).await;
    let mut guard = locks.lock("room").acquire().await.unwrap();
    let admin = server.admin();
    // A reader stands behind, then a writer; Curator's rules decide by the numbers and the kinds before them.
    let reads = admin.create(READS, b"10.0.0.1", NodeKind::PersistentSequential);
    guard.downgrade().await.unwrap();
    let before = |name: &str| {
        let number = |name: &str| name[name.len() - 10..].to_owned();
        let own = number(name);
        admin.children("/dlock/room").into_iter().filter(move |other| number(other) < own).collect::<Vec<_>>()
    };
    assert!(
        before(&reads).iter().all(|name| !name.contains("__WRIT__")),
        "no writer stands before the reader"
    );
    let writes = admin.create(WRITES, b"10.0.0.1", NodeKind::PersistentSequential);
    assert_eq!(before(&writes).len(), 2, "the writer waits for both");
    guard.release().await.unwrap();
    for node in [reads, writes] {
        admin.delete(&node);
    }
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}
