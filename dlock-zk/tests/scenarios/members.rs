//! Servers without a vote, and an ensemble whose members change.

use dlock_core::ErrorKind;
use dlock_rig::servers::zookeeper::{Administrator, ZooKeeperEnsemble, ZooKeeperServer};

use crate::support::{LONG, SHORT, error_of, fence, locks_at, places, soon, until, wait_for};

/// The number of the server that observes.
const OBSERVER: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_observes_serves_locks_as_the_members_do() {
    let ensemble = ZooKeeperEnsemble::start_observed(&ZooKeeperServer::options()).unwrap();
    let (members, observer) = (&ensemble.addresses()[..OBSERVER], &ensemble.addresses()[OBSERVER..]);
    let (ours, theirs) = (locks_at(observer, SHORT).await, locks_at(members, LONG).await);
    // So often that nothing is listed any more.
    for _ in 0..8 {
        ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    }
    let guard = soon("their lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(ours.lock("room").try_acquire().await.unwrap().is_none(), "two holders");
    let waiter = wait_for(&ours, "room");
    until("the waiter", || places(ensemble.admin(), "room").len() == 2).await;
    guard.release().await.unwrap();
    let guard = soon("our turn", waiter).await.unwrap().unwrap();
    let waiter = wait_for(&theirs, "room");
    until("the waiter", || places(ensemble.admin(), "room").len() == 2).await;
    ensemble.servers()[OBSERVER].pause();
    let next = soon("the next holder", waiter).await.unwrap().unwrap();
    error_of(guard.check(), ErrorKind::Lost);
    ensemble.servers()[OBSERVER].resume();
    assert!(fence(&next) > fence(&guard));
    next.release().await.unwrap();
    soon("our lock", ours.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_removal_of_a_server_costs_its_clients_neither_a_lock_nor_a_place_in_line() {
    let options = ZooKeeperServer::options().setting("reconfigEnabled", "true");
    let ensemble = ZooKeeperEnsemble::start_observed(&options).unwrap();
    let addresses = ensemble.addresses();
    let admin = Administrator::of(addresses[OBSERVER]);
    let theirs = locks_at(&addresses[OBSERVER..], LONG).await;
    for leads in [false, true] {
        let removed = (0..OBSERVER).find(|&server| ensemble.leads(server) == leads).unwrap();
        // They know no other server.
        let ours = locks_at(&[addresses[removed]], LONG).await;
        let mut holder = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        let mut waiters = Vec::new();
        for locks in [&ours, &theirs] {
            waiters.push(wait_for(locks, "room"));
            until("the next waiter", || places(admin, "room").len() == waiters.len() + 1).await;
        }
        let member = member(admin, removed);
        // Without its leader the ensemble may not get to answer.
        assert!(admin.reconfigure("", &(removed + 1).to_string()).is_ok() || leads);
        for waiter in waiters {
            until("the lock", || holder.check().is_ok()).await;
            assert!(!waiter.is_finished(), "two holders");
            // An election may be longer than a request.
            drop(soon("the release", holder.release()).await);
            holder = soon("its turn", waiter).await.unwrap().unwrap();
        }
        until("the lock", || holder.check().is_ok()).await;
        let back = format!("{member};{}", addresses[removed]);
        until("the server to be back", || admin.reconfigure(&back, "").is_ok()).await;
        until("the lock", || holder.check().is_ok()).await;
        drop(soon("the release", holder.release()).await);
        until("the end of the line", || places(admin, "room").is_empty()).await;
        assert_eq!((ours.stats().lost, theirs.stats().lost), (0, 0));
    }
}

/// What configures a server, without the address for clients.
fn member(admin: Administrator, server: usize) -> String {
    let node = admin.node("/zookeeper/config").unwrap();
    let all = String::from_utf8(node.data).unwrap();
    let own = all.lines().find(|line| line.starts_with(&format!("server.{}=", server + 1))).unwrap();
    own.split(';').next().unwrap().to_owned()
}
