//! Waiters, and the messages that wake them.

use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::redis::RedisServer;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{LONG, Proxied, error_of, held, locks, soon, until};

fn wait_for(locks: &Locks, key: &str) -> JoinHandle<dlock_core::Result<Guard>> {
    let lock = locks.lock(key).with_wait(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

async fn until_heard(server: &RedisServer) {
    until("the waiter to listen", || !server.channels().is_empty()).await;
}

#[tokio::test]
async fn a_waiter_whose_subscription_is_killed_goes_on_and_listens_again() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    for _ in 0..3 {
        until_heard(&server).await;
        assert_eq!(server.command::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]), 1, "one connection listens");
    }
    until_heard(&server).await;
    assert!(!waiter.is_finished());
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    until("the channel to be left", || server.channels().is_empty()).await;
}

#[tokio::test]
async fn a_release_while_the_subscription_is_cut_is_not_missed() {
    let on = Proxied::start();
    let (ours, theirs) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    for _ in 0..5 {
        let guard = ours.lock("room").acquire().await.unwrap();
        let waiter = wait_for(&theirs, "room");
        until_heard(&on.server).await;
        on.proxy.cut();
        guard.release().await.unwrap();
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_that_ends_without_a_message_is_found_by_asking() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until_heard(&server).await;
    server.command::<()>(&["DEL", "dlock:room"]);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    drop(guard);
}

#[tokio::test]
async fn a_waiter_that_may_not_listen_asks_instead() {
    let server =
        RedisServer::options().user("deaf", "pw", &["~*", "+@all", "-subscribe", "&*"]).start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url_as("deaf", "pw"), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until("the refusal", || server.denials() > 0).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_subscription_that_falls_silent_costs_time_and_no_progress() {
    let on = Proxied::start();
    let (ours, theirs) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until_heard(&on.server).await;
    on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_far_has_its_turn_beside_a_process_that_is_near() {
    let on = Proxied::start();
    let (near, far) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let lock = near.lock("room").with_wait(LONG);
        tasks.spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
                guard.release().await.unwrap();
            }
        });
    }
    until("some sections", || near.stats().handoffs > 10).await;
    for direction in [Direction::ToClient, Direction::ToServer] {
        on.proxy.set(direction, Flow::Delay(Duration::from_millis(20)));
    }
    for _ in 0..2 {
        let guard = soon("its turn", far.lock("room").with_wait(LONG * 2).acquire()).await.unwrap();
        guard.release().await.unwrap();
    }
    tasks.abort_all();
}

#[tokio::test]
async fn who_may_not_listen_leaves_a_mark_all_the_same() {
    let server =
        RedisServer::options().user("deaf", "pw", &["~*", "+@all", "-subscribe", "&*"]).start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url_as("deaf", "pw"), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    let is_marked = || server.command::<String>(&["GET", "dlock:room"]).ends_with(" !");
    until("the mark", is_marked).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn one_connection_listens_for_all_waiters_and_none_when_nobody_waits() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let mut guards = Vec::new();
    let mut waiters = JoinSet::new();
    for number in 0..60 {
        guards.push(ours.lock(format!("room_{number}")).acquire().await.unwrap());
        for _ in 0..3 {
            let lock = theirs.lock(format!("room_{number}")).with_wait(LONG);
            waiters.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
        }
    }
    until("every channel", || server.channels().len() == 60).await;
    let listening: String = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    assert_eq!(listening.lines().count(), 1, "{listening}");
    for guard in guards {
        guard.release().await.unwrap();
    }
    soon("everybody's turn", async { while waiters.join_next().await.is_some() {} }).await;
    until("the channels to be left", || server.channels().is_empty()).await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn messages_for_nothing_cost_a_request_and_grant_nothing() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until_heard(&server).await;
    let channel = server.channels().remove(0);
    for _ in 0..50 {
        server.command::<u32>(&["PUBLISH", &channel, "0"]);
    }
    assert!(!waiter.is_finished());
    guard.check().unwrap();
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_that_leaves_while_the_connection_for_messages_is_opened_leaves_no_channel() {
    let on = Proxied::start();
    let (ours, theirs) = (locks(&on.server.url(), LONG).await, on.locks(LONG).await);
    theirs.lock("before").acquire().await.unwrap().release().await.unwrap();
    let _guards = [ours.lock("room").acquire().await.unwrap(), ours.lock("other").acquire().await.unwrap()];
    let before = on.proxy.traffic().connections;
    on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
    let waiter = wait_for(&theirs, "room");
    until("the connection", || on.proxy.traffic().connections > before).await;
    waiter.abort();
    assert!(waiter.await.unwrap_err().is_cancelled());
    on.proxy.mend();
    let waiter = wait_for(&theirs, "other");
    until_heard(&on.server).await;
    until("the channel to be left", || on.server.channels() == ["dlock:other"]).await;
    waiter.abort();
}

#[tokio::test]
async fn nobody_is_notified_where_nobody_waits_and_the_last_reader_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(locks(&server.url(), LONG).await);
    }
    let published = || server.command_calls().get("publish").copied();
    // Whether a client may publish is asked when it connects, and for readers before its first share.
    for client in &clients {
        client.lock("other").read().acquire().await.unwrap().release().await.unwrap();
    }
    let before = published();
    for _ in 0..3 {
        let one = clients[0].lock("page").read().acquire().await.unwrap();
        let other = clients[1].lock("page").read().acquire().await.unwrap();
        assert!(clients[2].lock("page").try_acquire().await.unwrap().is_none());
        one.release().await.unwrap();
        assert!(clients[2].lock("page").try_acquire().await.unwrap().is_none());
        other.release().await.unwrap();
        assert_eq!(held(&server), [""; 0]);
    }
    assert_eq!(published(), before);
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_waiter_is_woken_by_the_release_of_another_client() {
        let server = RedisServer::start().unwrap();
        let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
        // Without the message the waiter would ask about once a second: not twenty times in this short time.
        let started = std::time::Instant::now();
        for _ in 0..20 {
            let guard = ours.lock("room").acquire().await.unwrap();
            let waiter = wait_for(&theirs, "room");
            until_heard(&server).await;
            guard.release().await.unwrap();
            soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
        }
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn a_busy_error_names_a_holder_also_when_the_newest_of_several_has_left() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let page = async || ours.lock("page").read().acquire().await;
    let mut readers = vec![page().await.unwrap(), page().await.unwrap(), page().await.unwrap()];
    let refused = async |fair: bool| {
        let lock = theirs.lock("page").with_fairness(fair).with_wait(Wait::No);
        let error = error_of(lock.acquire().await, ErrorKind::Busy);
        error.holder().map(|holder| (holder.mode, holder.pid))
    };
    while let Some(newest) = readers.pop() {
        // The answer to one is remembered for the next: each kind is first once.
        let fair = readers.len() == 1;
        assert_eq!(refused(fair).await, Some((Mode::Shared, Some(std::process::id()))), "{fair}");
        newest.release().await.unwrap();
    }
    let permits = async || ours.semaphore("gpu", 2).acquire().await;
    let (first, newest) = (permits().await.unwrap(), permits().await.unwrap());
    newest.release().await.unwrap();
    let all = theirs.semaphore("gpu", 2).take(2).with_wait(Wait::No).acquire().await;
    let error = error_of(all, ErrorKind::Busy);
    assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()), "{error}");
    first.release().await.unwrap();
}

/// Nor is anything left of the many questions that it has asked.
#[tokio::test]
async fn an_observer_of_an_election_has_one_subscription_and_leaves_none() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let interval = LONG * 10;
    let mut observers: Vec<_> =
        (0..3).map(|_| theirs.election("room").changes().with_interval(interval)).collect();
    for observer in &mut observers {
        assert!(observer.next().await.unwrap().is_none());
    }
    until_heard(&server).await;
    assert_eq!(server.channels(), ["dlock:room#term"]);
    let term = ours.election("room").campaign().next().await.unwrap();
    for observer in &mut observers {
        assert!(soon("the term", observer.next()).await.unwrap().is_some());
    }
    // What was missed meanwhile is asked about once the server tells again.
    assert_eq!(server.command::<u32>(&["CLIENT", "KILL", "TYPE", "pubsub"]), 1, "one connection listens");
    term.resign().await.unwrap();
    for observer in &mut observers {
        assert!(soon("its end", observer.next()).await.unwrap().is_none());
    }
    drop(observers);
    until("the channel to be left", || server.channels().is_empty()).await;
}
