//! Grants under leases of the pool, which count from an earlier proof.

use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim, Grant, Renewed};
use dlock_core::{Clock, ErrorKind, Wait};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::etcd::{EtcdAdministrator, EtcdServer};
use dlock_testkit::claim_request;

use crate::support::{
    Proxied, SHORT, etcd, locks, places, soon, until, until_clean, until_in_line, wait_for, with_lease,
};

async fn granted(etcd: &Etcd, key: &str, lease: Duration) -> (EtcdClaim, Grant) {
    let mut claim = etcd.claim(claim_request(key, lease, true).await.unwrap());
    match claim.attempt().await.unwrap() {
        Attempt::Granted(grant) => (claim, grant),
        Attempt::Busy(busy) => panic!("{busy:?}"),
    }
}

fn calls(admin: &EtcdAdministrator, method: &str) -> u64 {
    admin.calls().get(method).copied().unwrap_or(0)
}

#[tokio::test]
async fn sections_that_follow_each_other_cost_two_transactions_each() {
    let server = EtcdServer::start().unwrap();
    let ours = with_lease(&server.url(), Duration::from_secs(300)).await;
    // A claim that does not wait has a lease of full length.
    let lock = ours.lock("room").with_wait(Wait::No);
    lock.acquire().await.unwrap().release().await.unwrap();
    let of = |method| calls(&server.admin(), method);
    let before = (of("Txn"), of("LeaseGrant"));
    for _ in 0..20 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    assert_eq!((of("Txn"), of("LeaseGrant")), (before.0 + 40, before.1));
    assert_eq!(of("LeaseKeepAlive"), 0, "its one lease was made just now");
}

#[tokio::test]
async fn a_grant_counts_from_the_last_proof_of_its_lease_and_an_old_one_is_made_anew() {
    let server = EtcdServer::start().unwrap();
    let (etcd, lease) = (etcd(&server.url()).await, Duration::from_secs(15));
    let (mut claim, first) = granted(&etcd, "room", lease).await;
    let _ = claim.withdraw().await.unwrap();
    drop(claim);
    let (mut claim, second) = granted(&etcd, "room", lease).await;
    assert_eq!(second.proven_at, first.proven_at, "nothing was proven since");
    let _ = claim.withdraw().await.unwrap();
    drop(claim);
    tokio::time::sleep(lease / 7).await;
    let now = Clock::system().now();
    let (mut claim, third) = granted(&etcd, "room", lease).await;
    assert!(third.proven_at >= Some(now), "the proof was older than an eighth of the lease");
    let _ = claim.withdraw().await.unwrap();
}

#[tokio::test]
async fn a_lease_shorter_than_a_second_is_not_believed_in_for_the_second_that_the_servers_count() {
    let server = EtcdServer::start().unwrap();
    let (etcd, lease) = (etcd(&server.url()).await, Duration::from_millis(200));
    let (mut claim, first) = granted(&etcd, "room", lease).await;
    let _ = claim.withdraw().await.unwrap();
    drop(claim);
    // An eighth of the second has not passed, and one of the lease has.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (mut claim, second) = granted(&etcd, "room", lease).await;
    assert!(second.proven_at > first.proven_at);
    let _ = claim.withdraw().await.unwrap();
}

#[tokio::test]
async fn a_holder_under_an_earlier_proof_knows_of_its_loss_before_another_one_holds() {
    let on = Proxied::start();
    let (ours, theirs) = (with_lease(&on.url(), SHORT).await, locks(&on.server.url()).await);
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    tokio::time::sleep(SHORT / 10).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let next = wait_for(&theirs, "room");
    soon("the loss", guard.lost()).await;
    assert!(!next.is_finished(), "it was granted before the loss");
    soon("its turn", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_put_that_arrives_after_the_end_of_its_proven_lease_takes_no_lock() {
    let on = Proxied::start();
    let (etcd, lease) = (etcd(&on.url()).await, Duration::from_secs(2));
    let (mut before, _) = granted(&etcd, "another", lease).await;
    let _ = before.withdraw().await.unwrap();
    drop(before);
    let leases = on.server.admin().leases();
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let mut claim = etcd.claim(claim_request("room", lease, true).await.unwrap());
    assert_eq!(claim.attempt().await.unwrap_err().kind(), ErrorKind::Unknown);
    until("the end of the lease", || on.server.admin().leases() != leases).await;
    on.proxy.mend();
    let withdrawal = soon("the withdrawal", async {
        loop {
            if let Ok(withdrawal) = claim.withdraw().await {
                return withdrawal;
            }
        }
    });
    assert!(!withdrawal.await.removed);
    assert!(claim.is_clean() && places(&on.server.admin(), "room").is_empty());
}

#[tokio::test]
async fn a_grant_whose_lease_is_revoked_under_an_earlier_proof_is_lost_at_its_first_renewal() {
    let server = EtcdServer::start().unwrap();
    let ours = locks(&server.url()).await;
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    let guard = ours.lock("room").acquire().await.unwrap();
    server.admin().leases().into_iter().for_each(|lease| server.admin().revoke(lease));
    soon("the loss", guard.lost()).await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test]
async fn what_was_granted_without_a_read_can_be_renewed_downgraded_left_and_withdrawn() {
    let server = EtcdServer::start().unwrap();
    let (etcd, lease) = (etcd(&server.url()).await, Duration::from_secs(30));
    let entry = |key: &str| server.admin().entries(&format!("dlock/{key}/")).remove(0);
    let (mut claim, grant) = granted(&etcd, "a", lease).await;
    let created = entry("a").create_revision;
    assert_eq!(grant.fence.unwrap().get(), created.unsigned_abs());
    let short = entry("a").lease;
    assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
    assert_ne!(entry("a").lease, short, "its first renewal is for the full lease");
    assert_eq!(claim.downgrade().await.unwrap(), Renewed::Extended);
    assert_eq!(entry("a").create_revision, created);
    assert!(claim.withdraw().await.unwrap().removed);

    let (mut claim, _) = granted(&etcd, "b", lease).await;
    assert_eq!(claim.downgrade().await.unwrap(), Renewed::Extended);
    assert!(entry("b").value.starts_with("mode=read"), "{:?}", entry("b"));
    assert!(claim.withdraw().await.unwrap().removed);

    let (mut claim, _) = granted(&etcd, "c", lease).await;
    assert!(claim.leave(Duration::from_secs(5)).await.unwrap().removed);
    assert!(entry("c").value.starts_with("left=1"), "{:?}", entry("c"));
}

#[tokio::test]
async fn a_newcomer_wakes_no_waiter_for_permits_and_a_release_or_a_larger_number_wakes_them() {
    let server = EtcdServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url()).await, locks(&server.url()).await);
    let guard = ours.semaphore("room", 1).acquire().await.unwrap();
    let wait = || {
        let permit = theirs.semaphore("room", 1).with_wait(Wait::Forever);
        tokio::spawn(async move { permit.acquire().await })
    };
    let mut waiters = vec![wait()];
    until_in_line(&server.admin(), "room", 2).await;
    // Two for each: the attempt, and another one when its watch has begun. On a busy machine places are renewed too.
    let before = calls(&server.admin(), "Txn");
    for count in 3..=12 {
        waiters.push(wait());
        until_in_line(&server.admin(), "room", count).await;
    }
    let sent = calls(&server.admin(), "Txn") - before;
    assert!(sent <= 45, "{sent} transactions for 10 newcomers");
    assert_eq!(ours.resize_semaphore("room", 2).await.unwrap(), Some(1));
    let first = soon("the turn of the first", waiters.remove(0)).await;
    // These asked for one of 1.
    drop((first, guard));
    for waiter in waiters {
        drop(soon("an end", waiter).await);
    }
    until_clean(&theirs, &server.admin(), "room").await;
}
