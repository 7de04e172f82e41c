//! Clusters whose leader or members are away.

use std::time::{Duration, Instant};

use dlock_core::ErrorKind;
use dlock_core::backend::{Attempt, Backend, Claim, Renewed};
use dlock_rig::servers::etcd::{EtcdCluster, EtcdOptions};
use dlock_testkit::claim_request;

use crate::support::{etcd, locks, soon, until, until_clean, wait_for, with_lease};

/// The URL of a cluster in which this member is asked first.
fn url_from(cluster: &EtcdCluster, first: usize) -> String {
    let mut addresses = cluster.addresses();
    addresses.rotate_left(first);
    cluster.url_through(&addresses)
}

#[tokio::test]
async fn a_keep_alive_that_a_deposed_leader_answers_does_not_count() {
    let options = EtcdOptions::default().election(Duration::from_millis(200), Duration::from_secs(4));
    let cluster = EtcdCluster::start_with(&options).unwrap();
    let old = cluster.wait_for_leader().unwrap();
    let etcd = etcd(&url_from(&cluster, old)).await;
    let mut claim = etcd.claim(claim_request("room", Duration::from_secs(60), false).await.unwrap());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    // Its stream goes to the leader.
    assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
    // Parted before it is frozen, so that nothing waits for it in its connections.
    cluster.isolate(old);
    cluster.servers()[old].pause();
    until("another leader", || (0..3).any(|index| index != old && cluster.leads(index))).await;
    cluster.servers()[old].resume();
    until("the deposed leader", || cluster.leads(old)).await;
    let failure = claim.renew().await.unwrap_err();
    assert!(cluster.leads(old), "it believes that it leads");
    assert_eq!(failure.kind(), ErrorKind::Unknown, "{failure}");
    let renewed = async {
        loop {
            if let Ok(renewed) = claim.renew().await {
                return renewed;
            }
        }
    };
    assert_eq!(soon("a renewal by the others", renewed).await, Renewed::Extended);
    cluster.heal();
    assert!(claim.withdraw().await.unwrap().removed);
}

#[tokio::test]
async fn a_lock_outlives_its_leader_and_a_waiter_has_its_turn() {
    let mut cluster = EtcdCluster::start().unwrap();
    let leader = cluster.wait_for_leader().unwrap();
    let (ours, theirs) = (locks(&url_from(&cluster, leader)).await, locks(&url_from(&cluster, leader)).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until("its place", || cluster.admin().entries("dlock/room/").len() == 2).await;
    cluster.server_mut(leader).kill();
    guard.check().unwrap();
    let _ = soon("the release", guard.release()).await;
    let guard = soon("its turn", waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    until_clean(&theirs, &cluster.admin(), "room").await;
}

#[tokio::test]
async fn one_member_that_is_frozen_or_dead_keeps_nobody_from_a_lock() {
    let mut cluster = EtcdCluster::start().unwrap();
    let leader = cluster.wait_for_leader().unwrap();
    let other = (leader + 1) % 3;
    let ours = locks(&url_from(&cluster, other)).await;
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    for is_frozen in [true, false] {
        if is_frozen {
            cluster.servers()[other].pause();
        } else {
            cluster.server_mut(other).kill();
        }
        let begun = Instant::now();
        let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
        guard.release().await.unwrap();
        if is_frozen {
            cluster.servers()[other].resume();
        }
    }
    until_clean(&ours, &cluster.admin(), "room").await;
}

#[tokio::test]
async fn without_a_majority_a_holder_learns_of_its_loss_in_time() {
    let mut cluster = EtcdCluster::start().unwrap();
    let leader = cluster.wait_for_leader().unwrap();
    let lease = Duration::from_secs(6);
    let ours = with_lease(&url_from(&cluster, leader), lease).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    let begun = Instant::now();
    for index in (0..3).filter(|index| *index != leader) {
        cluster.server_mut(index).kill();
    }
    soon("the loss", guard.lost()).await;
    assert!(begun.elapsed() <= lease + Duration::from_secs(1), "{:?}", begun.elapsed());
}
