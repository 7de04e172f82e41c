//! Old proofs, leases that nobody wants, and waiters that are woken for nothing or never.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Backend, BatchAttempt, Claim, Mode, Renewed};
use dlock_core::{ErrorKind, Locks, Wait};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow, Grpc, Loss, Proxy};
use dlock_rig::servers::etcd::{EtcdAdministrator, EtcdCluster, EtcdServer};
use dlock_testkit::claim_request;

const LONG: Duration = Duration::from_secs(600);

async fn claim_as(etcd: &Etcd, key: &str, lease: Duration, waits: bool, mode: Mode) -> EtcdClaim {
    let mut request = claim_request(key, lease, waits).await.unwrap();
    request.mode = mode;
    etcd.claim(request)
}

async fn claim(etcd: &Etcd, key: &str, lease: Duration, waits: bool) -> EtcdClaim {
    claim_as(etcd, key, lease, waits, Mode::Exclusive).await
}

async fn is_granted(claim: &mut EtcdClaim) -> bool {
    matches!(claim.attempt().await.unwrap(), Attempt::Granted(_))
}

/// The length in seconds for which a lease was granted.
fn length(admin: &EtcdAdministrator, lease: i64) -> u64 {
    let text = admin.ctl(&["lease", "timetolive", &format!("{lease:x}")]);
    let rest = text.split("granted with TTL(").nth(1).unwrap_or_else(|| panic!("{text}"));
    rest.split('s').next().unwrap().parse().unwrap()
}

fn places(admin: &EtcdAdministrator, key: &str) -> usize {
    admin.entries(&format!("dlock/{key}/")).len()
}

/// A server with a proxy in front of it.
fn proxied() -> (EtcdServer, Proxy) {
    let server = EtcdServer::start().unwrap();
    let proxy = Proxy::speaking(Grpc::default(), server.address()).unwrap();
    (server, proxy)
}

/// Attempts until the claim is notified by nothing for a moment.
async fn settle(claim: &mut EtcdClaim) {
    loop {
        assert!(!is_granted(claim).await);
        if tokio::time::timeout(Duration::from_millis(700), claim.changed()).await.is_err() {
            return;
        }
    }
}

async fn woken(claim: &mut EtcdClaim, within: Duration) -> bool {
    tokio::time::timeout(within, claim.changed()).await.is_ok()
}

const fn permits(of: u32, take: u32) -> Mode {
    Mode::Permits { of, take }
}

#[tokio::test]
async fn a_number_of_permits_under_a_lease_of_the_pool_that_has_ended_leaves_one_lease() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let mut before = claim(&etcd, "another", Duration::from_secs(10), true).await;
    assert!(is_granted(&mut before).await);
    let _ = before.withdraw().await.unwrap();
    drop(before);
    for lease in server.admin().leases() {
        server.admin().revoke(lease);
    }
    let mut permit = claim_as(&etcd, "room", Duration::from_secs(10), true, permits(3, 1)).await;
    assert!(is_granted(&mut permit).await);
    let begun = Instant::now();
    while server.admin().leases().len() > 2 {
        let all = server.admin().leases();
        let lengths: Vec<_> = all.iter().map(|lease| length(&server.admin(), *lease)).collect();
        assert!(begun.elapsed() < Duration::from_secs(5), "leases of these lengths are left: {lengths:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let _ = permit.withdraw().await.unwrap();
}

#[tokio::test]
async fn a_renewal_that_a_release_cuts_off_leaves_no_lease_of_full_length() {
    let (server, proxy) = proxied();
    let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
    for _ in 0..5 {
        let mut claim = claim(&etcd, "room", LONG, true).await;
        assert!(is_granted(&mut claim).await);
        // What a release does to a renewal that is under way, which goes over to a lease of full length.
        proxy.lose_reply(1, "TXN", Loss::Cut);
        {
            let mut renewal = std::pin::pin!(claim.renew());
            tokio::select! {
                renewed = &mut renewal => println!("{renewed:?}"),
                () = proxy.wait_until_lost(proxy.lost() + 1) => {}
            }
        }
        while claim.withdraw().await.is_err() {}
        assert_eq!(places(&server.admin(), "room"), 0);
    }
    let all = server.admin().leases();
    let lengths: Vec<_> = all.iter().map(|lease| length(&server.admin(), *lease)).collect();
    let long = lengths.iter().filter(|length| **length >= LONG.as_secs()).count();
    assert!(long <= 1, "{lengths:?}");
}

#[tokio::test]
async fn a_downgrade_after_a_renewal_whose_answer_was_lost_lets_others_read() {
    let (server, proxy) = proxied();
    let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
    for lease in [LONG, Duration::from_secs(10)] {
        let mut claim = claim(&etcd, "room", lease, true).await;
        assert!(is_granted(&mut claim).await);
        proxy.lose_reply(1, "TXN", Loss::Cut);
        println!("{:?}", claim.renew().await);
        proxy.lose_reply(1, "TXN", Loss::Cut);
        println!("{:?}", claim.downgrade().await);
        println!("{:?}", claim.renew().await);
        while claim.downgrade().await.is_err() {}
        assert!(server.admin().entries("dlock/room/")[0].value.starts_with("mode=read "));
        assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
        // The lease of its key is in no pool.
        let held = server.admin().entries("dlock/room/")[0].lease;
        let mut others = Vec::new();
        for number in 0..6 {
            let mut other = claim_as(&etcd, &format!("other{number}"), lease, false, Mode::Exclusive).await;
            assert!(is_granted(&mut other).await);
            others.push(other);
        }
        let all = server.admin().entries("dlock/other");
        assert!(all.iter().all(|entry| entry.lease != held), "{all:?}");
        for other in others.iter_mut().chain([&mut claim]) {
            assert!(other.withdraw().await.unwrap().removed);
        }
    }
}

#[tokio::test]
async fn a_full_pool_of_leases_that_have_ended_refuses_no_lock() {
    let server = EtcdServer::start().unwrap();
    let locks = Locks::new(Etcd::connect(&server.url()).await.unwrap());
    for is_permit in [false, true] {
        let mut guards = Vec::new();
        for number in 0..64 {
            guards.push(locks.lock(format!("room{number}")).with_wait(Wait::No).acquire().await.unwrap());
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        for lease in server.admin().leases() {
            server.admin().revoke(lease);
        }
        let begun = Instant::now();
        let guard = if is_permit {
            locks.semaphore("seats", 3).with_wait(Wait::No).acquire().await.unwrap()
        } else {
            locks.lock("room").with_wait(Wait::No).acquire().await.unwrap()
        };
        guard.release().await.unwrap();
        println!("after {:?}, {} leases", begun.elapsed(), server.admin().leases().len());
    }
}

#[tokio::test]
async fn a_try_of_a_reader_that_dies_keeps_nobody_longer_than_a_waiter_does() {
    let (server, proxy) = proxied();
    let direct = Etcd::connect(&server.url()).await.unwrap();
    let mut holder = claim(&direct, "room", LONG, true).await;
    assert!(is_granted(&mut holder).await);
    for mode in [Mode::Exclusive, Mode::Shared] {
        for waits in [true, false] {
            let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
            proxy.lose_reply(1, "TXN", Loss::Silence);
            let lost = proxy.lost() + 1;
            let mut gone = claim_as(&etcd, "room", LONG, waits, mode).await;
            {
                let mut attempt = std::pin::pin!(gone.attempt());
                tokio::select! {
                    _ = &mut attempt => panic!("no answer comes"),
                    () = proxy.wait_until_lost(lost) => {}
                }
            }
            // The process is gone here.
            for entry in &server.admin().entries("dlock/room/")[1..] {
                let length = length(&server.admin(), entry.lease.unwrap());
                assert!(length <= 20, "{mode:?}, waits: {waits}: it stands before others for {length} s");
                assert!(server.admin().delete(&entry.key));
            }
            drop(gone);
        }
    }
}

#[tokio::test]
async fn a_proof_of_before_an_election_holds_for_a_grant_after_it() {
    let mut cluster = EtcdCluster::start().unwrap();
    let leader = cluster.wait_for_leader().unwrap();
    let other = (leader + 1) % 3;
    let proxy = Proxy::speaking(Grpc::default(), cluster.addresses()[other]).unwrap();
    let etcd = Etcd::connect(&cluster.url_through(&[proxy.address()])).await.unwrap();
    let lease = Duration::from_secs(12);
    let locks = Locks::builder(etcd).with_lease(lease).build().unwrap();
    let seen = Instant::now();
    locks.lock("another").acquire().await.unwrap().release().await.unwrap();
    cluster.server_mut(leader).kill();
    let guard = locks.lock("room").with_wait(Duration::from_secs(30)).acquire().await.unwrap();
    println!("granted {:?} after the proof", seen.elapsed());
    proxy.black_hole();
    guard.lost().await;
    let admin = cluster.servers()[other].admin();
    assert_eq!(admin.entries("dlock/room/").len(), 1, "the key ended before its holder learned of it");
}

#[tokio::test]
async fn an_acquire_that_arrives_late_by_the_first_server_takes_no_lock() {
    let server = EtcdServer::start().unwrap();
    let proxy = || Proxy::speaking(Grpc::default(), server.address()).unwrap();
    for mode in [Mode::Exclusive, Mode::Shared, permits(2, 1)] {
        for is_renewed in [false, true] {
            let (one, other) = (proxy(), proxy());
            let url = format!("etcd://{},{}", one.address(), other.address());
            let etcd = Etcd::connect(&url).await.unwrap();
            let mut before = claim_as(&etcd, "room", LONG, true, mode).await;
            assert!(is_granted(&mut before).await);
            let _ = before.withdraw().await.unwrap();
            drop(before);
            one.set(Direction::ToServer, Flow::Hold);
            let mut claim = claim_as(&etcd, "room", LONG, true, mode).await;
            let Attempt::Granted(grant) = claim.attempt().await.unwrap() else { panic!("it is free") };
            let entries = server.admin().entries("dlock/room/");
            assert_eq!(grant.fence.unwrap().get(), entries[0].create_revision.unsigned_abs());
            if is_renewed {
                assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
            }
            assert!(claim.withdraw().await.unwrap().removed);
            drop(claim);
            one.mend();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let left = server.admin().entries("dlock/room/");
            assert!(left.is_empty(), "{mode:?} {is_renewed}: {left:?}");
        }
    }
}

#[tokio::test]
async fn a_batch_is_woken_by_whatever_frees_the_lock_in_its_way() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let soon = Duration::from_secs(3);
    // A batch, by a lease that ends, by a key that was left, and by a waiter that goes.
    for way in 0..3 {
        let away = Etcd::connect(&server.url()).await.unwrap();
        let mut holder = claim(&away, "b", Duration::from_secs(3), true).await;
        assert!(is_granted(&mut holder).await);
        let (mut a, mut b) = (claim(&etcd, "a", LONG, true).await, claim(&etcd, "b", LONG, true).await);
        loop {
            let attempt = etcd.attempt_all(&mut [&mut a, &mut b]).await.unwrap();
            assert!(matches!(attempt, BatchAttempt::Busy { place: 1, .. }), "{way}: {attempt:?}");
            if !woken(&mut b, Duration::from_millis(500)).await {
                break;
            }
        }
        match way {
            0 => {}
            1 => drop(holder.leave(Duration::from_secs(2)).await.unwrap()),
            _ => drop(holder.withdraw().await.unwrap()),
        }
        assert!(woken(&mut b, Duration::from_secs(4) + soon).await, "{way}");
        let begun = Instant::now();
        while !matches!(
            etcd.attempt_all(&mut [&mut a, &mut b]).await.unwrap(),
            BatchAttempt::Granted(grants) if grants.len() == 2
        ) {
            assert!(begun.elapsed() < Duration::from_secs(8), "{way}");
            assert!(woken(&mut b, Duration::from_secs(6)).await, "{way}");
        }
        for claim in [&mut a, &mut b] {
            assert!(claim.withdraw().await.unwrap().removed);
        }
    }
}

#[tokio::test]
async fn a_batch_of_which_one_key_was_taken_away_is_granted_all_the_same() {
    let (server, proxy) = proxied();
    let etcd = Etcd::connect(&server.url_through(proxy.address())).await.unwrap();
    let (mut a, mut b) = (claim(&etcd, "a", LONG, true).await, claim(&etcd, "b", LONG, true).await);
    proxy.lose_reply(1, "TXN", Loss::Cut);
    let failure = etcd.attempt_all(&mut [&mut a, &mut b]).await.unwrap_err();
    assert_eq!(failure.kind(), ErrorKind::Unknown);
    assert!(server.admin().delete(&server.admin().keys("dlock/b/")[0]));
    let mut attempts = Vec::new();
    for _ in 0..5 {
        match etcd.attempt_all(&mut [&mut a, &mut b]).await {
            Ok(BatchAttempt::Granted(grants)) => {
                assert_eq!(grants.len(), 2);
                return;
            }
            other => attempts.push(other),
        }
    }
    panic!("{attempts:?}, where there is {:?}", server.admin().keys("dlock/"));
}

#[tokio::test]
async fn waiters_are_woken_by_all_that_lets_them_go_on() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let soon = Duration::from_secs(3);
    // A permit, by another number, and by a waiter before it that goes.
    let mut holder = claim_as(&etcd, "seats", LONG, true, permits(2, 1)).await;
    assert!(is_granted(&mut holder).await);
    let mut big = claim_as(&etcd, "seats", LONG, true, permits(2, 2)).await;
    let mut small = claim_as(&etcd, "seats", LONG, true, permits(2, 1)).await;
    settle(&mut big).await;
    settle(&mut small).await;
    let _ = big.withdraw().await.unwrap();
    assert!(woken(&mut small, soon).await && is_granted(&mut small).await);
    let mut third = claim_as(&etcd, "seats", LONG, true, permits(2, 1)).await;
    settle(&mut third).await;
    let locks = Locks::new(etcd.clone());
    assert_eq!(locks.resize_semaphore("seats", 3).await.unwrap(), Some(2));
    assert!(woken(&mut third, soon).await && is_granted(&mut third).await);
    for claim in [&mut holder, &mut small, &mut third] {
        assert!(claim.withdraw().await.unwrap().removed);
    }
    // A number that is deleted while permits are held.
    let mut holder = claim_as(&etcd, "seats", LONG, true, permits(3, 3)).await;
    assert!(is_granted(&mut holder).await);
    let mut waiter = claim_as(&etcd, "seats", LONG, true, permits(3, 1)).await;
    settle(&mut waiter).await;
    assert!(server.admin().delete("dlock/seats"));
    let mut late = claim_as(&etcd, "seats", LONG, true, permits(3, 1)).await;
    settle(&mut late).await;
    settle(&mut waiter).await;
    assert_eq!(holder.renew().await.unwrap(), Renewed::Extended);
    let _ = holder.withdraw().await.unwrap();
    assert!(woken(&mut waiter, soon).await && is_granted(&mut waiter).await);
    assert!(woken(&mut late, soon).await && is_granted(&mut late).await);
    for claim in [&mut waiter, &mut late] {
        assert!(claim.withdraw().await.unwrap().removed);
    }
}

#[tokio::test]
async fn keys_that_another_client_deletes_or_puts_cost_a_waiter_its_place_at_most() {
    let server = EtcdServer::start().unwrap();
    let (admin, etcd) = (server.admin(), Etcd::connect(&server.url()).await.unwrap());
    let mut holder = claim(&etcd, "room", LONG, true).await;
    assert!(is_granted(&mut holder).await);
    let (mut one, mut two) = (claim(&etcd, "room", LONG, true).await, claim(&etcd, "room", LONG, true).await);
    settle(&mut one).await;
    settle(&mut two).await;
    let keys = admin.keys("dlock/room/");
    // The one in the middle: the one behind it goes on to wait for the holder.
    assert!(admin.delete(&keys[1]));
    assert!(woken(&mut two, Duration::from_secs(3)).await);
    settle(&mut two).await;
    assert!(admin.delete(&keys[0]));
    assert!(woken(&mut two, Duration::from_secs(3)).await && is_granted(&mut two).await);
    assert_eq!(holder.renew().await.unwrap(), Renewed::Gone);
    let Attempt::Busy(busy) = one.attempt().await.unwrap() else { panic!("two hold it") };
    assert!(busy.requeued);
    // What was put anew by another client, without a lease, does not stay.
    for text in ["x", ""] {
        admin.put(&keys[2], text);
        for _ in 0..3 {
            println!("{:?}", two.renew().await);
        }
        let _ = two.withdraw().await.unwrap();
        println!("{text:?}: {:?}", admin.keys("dlock/room/"));
    }
    let _ = one.withdraw().await.unwrap();
}

#[tokio::test]
async fn a_user_who_may_only_read_gets_no_lock_and_no_place() {
    let server = EtcdServer::options().password("secret").user("shop", "hunter2", &[]).start().unwrap();
    let admin = server.admin();
    drop(admin.ctl(&["role", "grant-permission", "shop", "read", "dlock/", "--prefix"]));
    admin.put("dlock/room/other", "x");
    let etcd = Etcd::connect(&server.url_as("shop", "hunter2")).await.unwrap();
    for key in ["room", "free"] {
        for mode in [Mode::Exclusive, Mode::Shared, permits(2, 1)] {
            for waits in [true, false] {
                let mut claim = claim_as(&etcd, key, LONG, waits, mode).await;
                let answer = claim.attempt().await;
                println!("{key} {mode:?} {waits}: {answer:?}");
                let error = answer.unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Denied), "{error}");
            }
        }
    }
    assert_eq!(admin.keys("dlock/"), ["dlock/room/other"]);
}

#[tokio::test]
async fn tries_beside_waiters_keep_nobody_from_his_turn() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let mut holder = claim_as(&etcd, "room", LONG, true, Mode::Shared).await;
    assert!(is_granted(&mut holder).await);
    let end = Instant::now() + Duration::from_secs(5);
    let tries: Vec<_> = (0..4)
        .map(|_| {
            let etcd = etcd.clone();
            tokio::spawn(async move {
                let mut granted = 0;
                while Instant::now() < end {
                    let mut claim = claim_as(&etcd, "room", LONG, false, Mode::Shared).await;
                    granted += u32::from(is_granted(&mut claim).await);
                    let _ = claim.withdraw().await.unwrap();
                }
                granted
            })
        })
        .collect();
    let locks = Locks::new(etcd.clone());
    let mut turns = 0;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let waits = locks.lock("room").with_wait(Wait::For(Duration::from_secs(20)));
    let first = tokio::spawn(async move { waits.acquire().await.unwrap().release().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _ = holder.withdraw().await.unwrap();
    first.await.unwrap();
    while Instant::now() < end {
        let guard = locks.lock("room").with_wait(Wait::For(Duration::from_secs(20))).acquire().await.unwrap();
        guard.release().await.unwrap();
        turns += 1;
    }
    for tried in tries {
        println!("{} tries had it, {turns} turns", tried.await.unwrap());
    }
    assert_eq!(places(&server.admin(), "room"), 0);
}

#[tokio::test]
async fn a_server_that_falls_silent_costs_no_lock_however_many_leases_of_the_pool_are_kept_alive_by_it() {
    let server = EtcdServer::start().unwrap();
    let proxy = || Proxy::speaking(Grpc::default(), server.address()).unwrap();
    let (one, other) = (proxy(), proxy());
    let etcd = Etcd::connect(&format!("etcd://{},{}", one.address(), other.address())).await.unwrap();
    let lease = Duration::from_secs(60);
    let mut before = Vec::new();
    for number in 0..20 {
        let mut claim = claim(&etcd, &format!("another{number}"), lease, true).await;
        assert!(is_granted(&mut claim).await);
        for _ in 0..3 {
            assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
        }
        assert!(claim.withdraw().await.unwrap().removed);
        before.push(claim);
    }
    drop(before);
    let locks = Locks::builder(etcd).with_lease(lease).build().unwrap();
    let guard = locks.lock("room").acquire().await.unwrap();
    one.set(Direction::ToServer, Flow::Hold);
    let begun = Instant::now();
    let waited = tokio::time::timeout(Duration::from_secs(30), guard.lost()).await;
    assert!(waited.is_err(), "it was lost after {:?}: {:?}", begun.elapsed(), guard.check());
    guard.release().await.unwrap();
}
