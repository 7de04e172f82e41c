//! Many at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::Wait;
use dlock_core::backend::{Attempt, Backend, Claim};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use dlock_testkit::claim_request;
use tokio::task::JoinSet;

use crate::support::{
    LONG, Proxied, builder, lock_nodes, locks, patient_locks, places, poll_once, soon, until, until_in_line,
    wait_for,
};

/// How many nodes a process has in one queue at the most.
const NODES: usize = 16;

#[tokio::test]
async fn a_crowd_of_one_process_has_few_nodes_and_gets_its_turn_in_order() {
    const WAITERS: usize = 300;
    let on = Proxied::start();
    let locks = patient_locks(on.proxy.address()).await;
    let other = locks.lock("other").acquire().await.unwrap();
    let guard = locks.lock("room").acquire().await.unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        let (lock, served) = (locks.lock("room").with_wait(Wait::Forever), Arc::clone(&served));
        let mut acquire = Box::pin(async move { lock.acquire().await });
        // In line from here on, in this order.
        assert!(poll_once(&mut acquire).is_none());
        waiters.spawn(async move {
            let guard = acquire.await.unwrap();
            let turn = served.fetch_add(1, Ordering::SeqCst);
            guard.release().await.unwrap();
            (number, turn)
        });
    }
    until_in_line(on.server.admin(), "room", NODES).await;
    guard.release().await.unwrap();
    let turns = soon("everybody's turn", waiters.join_all()).await;
    for (number, turn) in turns {
        // Those who have nodes come in the order in which the servers made them, which is that of the requests.
        assert_eq!(number, turn);
    }
    assert!(on.proxy.requests()["CREATE"] < 2 * WAITERS as u64);
    other.check().unwrap();
    assert_eq!(locks.stats().lost, 0);
    until("the end of the line", || places(on.server.admin(), "room").is_empty()).await;
}

#[tokio::test]
async fn acquires_that_are_dropped_before_their_turn_are_never_sent() {
    const DROPPED: usize = 2_000;
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let other = locks.lock("other").acquire().await.unwrap();
    let before = on.proxy.requests()["CREATE"];
    // However long this thread is held up, no more is sent than may be under way.
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let mut acquires = Vec::new();
    for number in 0..DROPPED {
        let lock = locks.lock(format!("room_{}", number % 500));
        let mut acquire = Box::pin(async move { lock.acquire().await });
        assert!(poll_once(&mut acquire).is_none());
        acquires.push(acquire);
    }
    drop(acquires);
    on.proxy.mend();
    soon("a free lock", locks.lock("free").acquire()).await.unwrap().release().await.unwrap();
    until("the clean-up", || locks.stats().background == 0).await;
    until("the nodes to go", || lock_nodes(on.server.admin()) == 1).await;
    let sent = on.proxy.requests()["CREATE"] - before;
    assert!(sent < 150, "{sent} creations");
    other.check().unwrap();
}

#[tokio::test]
async fn the_first_acquires_of_a_session_send_nothing_when_they_are_dropped() {
    const DROPPED: usize = 2_000;
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let mut acquires: Vec<_> = (0..DROPPED)
        .map(|number| {
            let lock = locks.lock(format!("room_{number}"));
            Box::pin(async move { lock.acquire().await })
        })
        .collect();
    on.proxy.set(Direction::ToClient, Flow::Hold);
    for acquire in &mut acquires {
        assert!(poll_once(acquire).is_none());
    }
    drop(acquires);
    on.proxy.mend();
    soon("a free lock", locks.lock("free").acquire()).await.unwrap().release().await.unwrap();
    until("the clean-up", || locks.stats().background == 0).await;
    // The session's own node with its directories.
    let sent = on.proxy.requests()["CREATE"];
    assert!(sent < 15, "{sent} creations");
}

#[tokio::test]
async fn waiters_at_rest_never_list_the_queue() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let waiters: Vec<_> = (0..100).map(|_| wait_for(&locks, "room")).collect();
    until_in_line(on.server.admin(), "room", NODES).await;
    let count = |name: &str| on.proxy.requests().get(name).copied().unwrap_or_default();
    let (lists, looks) = (count("GETCHILDREN"), count("EXISTS"));
    until("their own looks", || count("EXISTS") >= looks + NODES as u64).await;
    assert_eq!(count("GETCHILDREN"), lists);
    for waiter in waiters {
        waiter.abort();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn callers_that_never_look_at_their_answers_keep_nobody_else_waiting() {
    const CALLERS: usize = 400;
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    let (mut acquires, mut guards) = (Vec::new(), Vec::new());
    for number in 0..CALLERS {
        let lock = locks.lock(format!("room_{number}"));
        let mut acquire = Box::pin(async move { lock.acquire().await });
        match poll_once(&mut acquire) {
            None => acquires.push(acquire),
            // This thread was held up.
            Some(guard) => guards.push(guard),
        }
    }
    for round in 0..3 {
        soon("a free lock", locks.lock(format!("free_{round}")).acquire())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    // Nothing is lost for those either.
    let mut tasks = JoinSet::new();
    acquires.into_iter().for_each(|acquire| drop(tasks.spawn(acquire)));
    guards.extend(soon("the others", tasks.join_all()).await);
    assert_eq!(guards.into_iter().filter_map(Result::ok).count(), CALLERS);
}

#[tokio::test]
async fn crowds_of_several_processes_all_get_their_turn_and_no_other_lock_is_at_risk() {
    const PROCESSES: usize = 4;
    const WAITERS: usize = 60;
    let server = ZooKeeperServer::start().unwrap();
    let holder = locks(&server, LONG).await;
    let guard = holder.lock("room").acquire().await.unwrap();
    let (mut all, mut others, mut waiters) = (Vec::new(), Vec::new(), JoinSet::new());
    for process in 0..PROCESSES {
        let locks = locks(&server, LONG).await;
        others.push(locks.lock(format!("other_{process}")).acquire().await.unwrap());
        for _ in 0..WAITERS {
            let lock = locks.lock("room").with_wait(Wait::Forever);
            waiters.spawn(async move { lock.acquire().await?.release().await });
        }
        all.push(locks);
    }
    until_in_line(server.admin(), "room", 1 + PROCESSES * NODES).await;
    guard.release().await.unwrap();
    let turns = soon("everybody's turn", waiters.join_all()).await;
    assert_eq!(turns.into_iter().filter_map(Result::ok).count(), PROCESSES * WAITERS);
    others.iter().for_each(|other| other.check().unwrap());
    assert!(all.iter().all(|locks| locks.stats().lost == 0));
}

/// Otherwise it would ask again and again for as long as the others are not answered.
#[tokio::test]
async fn a_waiter_that_is_notified_while_all_requests_are_under_way_waits_for_its_turn() {
    /// How many claims of a session have requests under way at the most.
    const REQUESTS: usize = 128;
    let on = Proxied::start();
    let guard = locks(&on.server, LONG).await.lock("room").acquire().await.unwrap();
    let zookeeper = builder(&format!("zk://{}", on.proxy.address()), LONG).connect().await.unwrap();
    let mut waiter = zookeeper.claim(claim_request("room", LONG, true).await.unwrap());
    assert!(matches!(waiter.attempt().await, Ok(Attempt::Busy(_))));
    // The node before is changed and stays, so that the queue has to be looked at.
    let first = places(on.server.admin(), "room").remove(0);
    on.server.admin().set_data(&format!("/dlock/room/{first}"), b"something else");
    soon("the notification", waiter.changed()).await.unwrap();
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let mut others = Vec::new();
    for number in 0..REQUESTS {
        let request = claim_request(&format!("other_{number}"), LONG, true).await.unwrap();
        others.push(zookeeper.claim(request));
    }
    let mut attempts: Vec<_> = others.iter_mut().map(|other| Box::pin(other.attempt())).collect();
    assert!(attempts.iter_mut().all(|attempt| poll_once(attempt).is_none()));
    assert!(matches!(soon("an outcome", waiter.attempt()).await, Ok(Attempt::Busy(_))));
    let mut changed = Box::pin(waiter.changed());
    assert!(poll_once(&mut changed).is_none(), "its turn has not come");
    on.proxy.mend();
    soon("its turn", changed).await.unwrap();
    // From here on it is notified as before.
    assert!(matches!(soon("an outcome", waiter.attempt()).await, Ok(Attempt::Busy(_))));
    guard.release().await.unwrap();
    soon("the notification", waiter.changed()).await.unwrap();
    assert!(matches!(soon("an outcome", waiter.attempt()).await, Ok(Attempt::Granted(_))));
    assert!(waiter.withdraw().await.unwrap().removed);
}

#[tokio::test]
async fn a_holder_is_listed_however_often_others_of_its_key_come_and_go() {
    const OTHERS: usize = 20;
    let on = Proxied::start();
    let ours = patient_locks(on.proxy.address()).await;
    let theirs = patient_locks(on.server.address()).await;
    let permits = theirs.semaphore("room", 100);
    let guard = permits.acquire().await.unwrap();
    let mut others = JoinSet::<()>::new();
    for _ in 0..OTHERS {
        let permits = permits.clone();
        others.spawn(async move {
            loop {
                permits.acquire().await.unwrap().release().await.unwrap();
            }
        });
    }
    // Long enough that of those who are seen some are gone when they are looked at.
    on.proxy.set(Direction::ToServer, Flow::Delay(Duration::from_millis(20)));
    for look in 0..10 {
        let holders = ours.holders().await.unwrap();
        assert!(holders.iter().any(|(_, holder)| holder.fence == guard.fence()), "look {look}: {holders:?}");
    }
    others.shutdown().await;
    guard.release().await.unwrap();
}
