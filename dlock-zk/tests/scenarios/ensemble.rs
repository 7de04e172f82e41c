//! An ensemble that loses members.

use std::time::Duration;

use dlock_core::ErrorKind;
use dlock_rig::servers::zookeeper::{Administrator, ZooKeeperEnsemble, ZooKeeperServer};
use dlock_zk::ZooKeeper;
use tokio::task::JoinSet;

use crate::support::{LONG, SHORT, before, error_of, fence, locks_at, over, places, soon, until, wait_for};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_costs_neither_a_lock_nor_a_place_in_line() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let addresses = ensemble.addresses();
    let (ours, theirs) = (locks_at(&addresses, LONG).await, locks_at(&addresses, LONG).await);
    for _ in 0..2 {
        let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        let mut line = Vec::new();
        for number in 0..4 {
            line.push(wait_for(if number % 2 == 0 { &ours } else { &theirs }, "room"));
            until("the next place", || places(ensemble.admin(), "room").len() == number + 2).await;
        }
        let (before, order) = (fence(&guard), places(ensemble.admin(), "room"));
        let leader = ensemble.leader().unwrap();
        ensemble.server_mut(leader).kill();
        ensemble.wait_for_leader().unwrap();
        until("the lock", || guard.check().is_ok()).await;
        assert_eq!((fence(&guard), places(ensemble.admin(), "room")), (before, order));
        let mut holder = guard;
        for waiter in line {
            assert!(!waiter.is_finished(), "out of turn");
            soon("the release", holder.release()).await.unwrap();
            let next = soon("its turn", waiter).await.unwrap().unwrap();
            holder = next;
        }
        holder.release().await.unwrap();
        ensemble.server_mut(leader).restart().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_deposed_and_still_answers_proves_nothing() {
    const TICK: Duration = Duration::from_millis(500);
    // The least session that is allowed, and a usual one.
    const SESSIONS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
    let ensemble = ZooKeeperEnsemble::start_over_proxies(&ZooKeeperServer::options().tick(TICK)).unwrap();
    let leader = ensemble.leader().unwrap();
    let theirs = locks_at(&[ensemble.addresses()[(leader + 1) % 3]], LONG).await;
    let mut held = Vec::new();
    for (room, session) in SESSIONS.into_iter().enumerate() {
        let ours = ZooKeeper::builder(&format!("zk://{}", ensemble.addresses()[leader]));
        let ours = over(ours.with_session_timeout(session).with_tick_time(TICK).connect().await.unwrap());
        let key = format!("room_{room}");
        let guard = ours.lock(&key).acquire().await.unwrap();
        let waiter = wait_for(&theirs, &key);
        until("the waiter", || places(ensemble.admin(), &key).len() == 2).await;
        held.push((guard, waiter));
    }
    for (guard, _) in &held {
        guard.check().unwrap();
    }
    assert_eq!(ensemble.strand_leader(), leader);
    for (guard, waiter) in held {
        let next = soon("the next holder", waiter).await.unwrap().unwrap();
        error_of(guard.check(), ErrorKind::Lost);
        assert!(ensemble.leads(leader), "it answers, and believes that it leads");
        next.check().unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_member_is_replaced_by_another_of_the_list() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let follower = (ensemble.leader().unwrap() + 1) % 3;
    // The first of the list is where the session begins.
    let mut addresses = ensemble.addresses();
    addresses.swap(0, follower);
    let locks = locks_at(&addresses, LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    ensemble.server_mut(follower).kill();
    until("the lock over another server", || guard.check().is_ok()).await;
    guard.release().await.unwrap();
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
    assert_eq!(places(ensemble.admin(), "room"), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_locks_are_lost_in_time_and_acquires_fail() {
    // The third one goes on to answer what changes nothing.
    let options = ZooKeeperServer::options().property("readonlymode.enabled", "true");
    let mut ensemble = ZooKeeperEnsemble::start_with(&options).unwrap();
    let locks = locks_at(&ensemble.addresses(), SHORT).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let leader = ensemble.leader().unwrap();
    for server in [leader, (leader + 1) % 3] {
        ensemble.server_mut(server).kill();
    }
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    let rest = Administrator::of(ensemble.addresses()[(leader + 2) % 3]);
    until("the server to be read-only", || {
        rest.try_word("srvr").is_ok_and(|state| state.contains("Mode: read-only"))
    })
    .await;
    let error = locks.lock("other").with_wait(SHORT / 3).acquire().await.expect_err("nobody serves");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
    ensemble.server_mut(leader).restart().unwrap();
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_only_their_server_knows_of_have_to_be_upgraded() {
    let options = ZooKeeperServer::options().setting("localSessionsEnabled", "true");
    let ensemble = ZooKeeperEnsemble::start_with(&options).unwrap();
    let locks = locks_at(&ensemble.addresses(), LONG).await;
    let error = error_of(locks.lock("room").acquire().await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("localSessionsUpgradingEnabled"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sees_only_a_frozen_member_loses_its_lock_before_the_others_can_have_it() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let follower = (ensemble.leader().unwrap() + 1) % 3;
    let proxy = before(&ensemble.servers()[follower]);
    let ours = locks_at(&[proxy.address()], SHORT).await;
    let others: Vec<_> =
        (0..3).filter(|index| *index != follower).map(|index| ensemble.addresses()[index]).collect();
    let theirs = locks_at(&others, LONG).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until("the waiter", || places(ensemble.admin(), "room").len() == 2).await;
    ensemble.servers()[follower].pause();
    let next = soon("the next holder", waiter).await.unwrap().unwrap();
    error_of(guard.check(), ErrorKind::Lost);
    ensemble.servers()[follower].resume();
    guard.release().await.expect_err("there is nothing left to release");
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_over_all_members_exclude_each_other_while_the_leader_dies() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let inside = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (held, mut first_held) = tokio::sync::mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for address in ensemble.addresses() {
        let mut addresses = ensemble.addresses();
        addresses.retain(|other| *other != address);
        addresses.insert(0, address);
        clients.push(locks_at(&addresses, LONG).await);
    }
    let mut tasks = JoinSet::new();
    for locks in clients.iter().cycle().take(9) {
        let (lock, inside) = (locks.lock("room").with_wait(LONG), std::sync::Arc::clone(&inside));
        let held = held.clone();
        tasks.spawn(async move {
            let mut fences = Vec::new();
            while fences.len() < 20 {
                let Ok(guard) = lock.acquire().await else { continue };
                assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two holders");
                held.send(()).unwrap();
                tokio::task::yield_now().await;
                inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                fences.push(fence(&guard));
                drop(guard.release().await);
            }
            fences
        });
    }
    soon("the first section", first_held.recv()).await.unwrap();
    let leader = ensemble.leader().unwrap();
    ensemble.server_mut(leader).kill();
    // A holder whose server died and who finds no other in time keeps the rest waiting until his session ends.
    let fences = tokio::time::timeout(LONG * 6, tasks.join_all()).await.expect("all sections");
    assert!(fences.iter().all(|one| one.is_sorted_by(|a, b| a < b)), "{fences:?}");
    let mut all: Vec<_> = fences.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 180, "every grant has a fence of its own");
    ensemble.wait_for_leader().unwrap();
}
