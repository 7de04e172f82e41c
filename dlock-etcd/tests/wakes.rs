//! Attacks on what an attempt leaves out: proofs, reads, and news of keys that are added.

use std::time::{Duration, Instant};

use dlock_core::backend::{Attempt, Backend, BatchAttempt, Claim, Renewed};
use dlock_core::{ErrorKind, Key, Locks, Wait};
use dlock_etcd::{Etcd, EtcdClaim};
use dlock_rig::proxy::{Direction, Flow, Grpc, Proxy};
use dlock_rig::servers::etcd::EtcdServer;
use dlock_testkit::claim_request;

/// How long anything may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(60);

fn proxy(server: &EtcdServer) -> Proxy {
    Proxy::speaking(Grpc::default(), server.address()).unwrap()
}

async fn claim(etcd: &Etcd, key: &str, lease: Duration, waits: bool) -> EtcdClaim {
    etcd.claim(claim_request(key, lease, waits).await.unwrap())
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not come");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_new_semaphore_that_finds_its_lease_ended_leaves_no_lease_of_days() {
    const ROUNDS: usize = 3;
    let server = EtcdServer::start().unwrap();
    // So short that no renewal goes over to a longer one.
    let lease = Duration::from_secs(12);
    let locks =
        Locks::builder(Etcd::connect(&server.url()).await.unwrap()).with_lease(lease).build().unwrap();
    let of_numbers = || -> Vec<i64> {
        let numbers = server.admin().entries("dlock/room").into_iter();
        numbers.filter_map(|entry| entry.lease).collect()
    };
    for round in 0..ROUNDS {
        // Its lease is in the pool from here on, with a proof that counts.
        locks.lock("another").acquire().await.unwrap().release().await.unwrap();
        let numbers = of_numbers();
        for lease in server.admin().leases() {
            if !numbers.contains(&lease) {
                server.admin().revoke(lease);
            }
        }
        let guard = locks.semaphore(format!("room{round}"), 2).acquire().await.unwrap();
        guard.release().await.unwrap();
        // That of the claim, which is in the pool, is the only other one once those made in vain have ended.
        let numbers = of_numbers();
        let begun = Instant::now();
        loop {
            let mut others = server.admin().leases();
            others.retain(|lease| !numbers.contains(lease));
            if others.len() <= 1 {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(5), "{} leases of nothing", others.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test]
async fn a_grant_under_an_old_proof_ends_before_its_key() {
    let server = EtcdServer::start().unwrap();
    let way = proxy(&server);
    let etcd = Etcd::connect(&format!("etcd://{}", way.address())).await.unwrap();
    let lease = Duration::from_secs(8);
    let clock = dlock_core::Clock::system();
    let mut first = claim(&etcd, "another", lease, true).await;
    let proven = clock.now();
    assert!(matches!(first.attempt().await, Ok(Attempt::Granted(_))));
    assert!(first.withdraw().await.unwrap().removed);
    drop(first);
    let mut second = claim(&etcd, "second", lease, true).await;
    let before = clock.now();
    let Ok(Attempt::Granted(grant)) = second.attempt().await else { panic!("nobody has it") };
    let counts = grant.proven_at.expect("the proof of the lease");
    assert!(counts >= proven && counts < before, "{counts:?} {before:?}");
    assert!(second.withdraw().await.unwrap().removed);
    drop(second);
    let mut claim = claim(&etcd, "room", lease, true).await;
    way.set(Direction::ToServer, Flow::Hold);
    let attempt = tokio::spawn(async move {
        let attempt = claim.attempt().await;
        (claim, attempt)
    });
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = clock.now();
    way.mend();
    let (mut claim, attempt) = attempt.await.unwrap();
    match attempt {
        Ok(Attempt::Granted(grant)) => {
            let counts = grant.proven_at.expect("an old proof");
            assert!(counts >= proven && counts < before, "{counts:?} {before:?}");
        }
        Ok(Attempt::Busy(_)) => panic!("nobody has it"),
        Err(failure) => assert_eq!(failure.kind(), ErrorKind::Unknown),
    }
    let _ = claim.withdraw().await.unwrap();
    assert!(server.admin().entries("dlock/room/").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_leases_of_parts_of_seconds_are_never_held_twice() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let server = EtcdServer::start().unwrap();
    for millis in [700, 1_500] {
        let inside = Arc::new(AtomicU32::new(0));
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let locks = Locks::builder(Etcd::connect(&server.url()).await.unwrap())
                .with_lease(Duration::from_millis(millis))
                .with_wait(Wait::For(PATIENCE))
                .build()
                .unwrap();
            let inside = Arc::clone(&inside);
            tasks.push(tokio::spawn(async move {
                for round in 0..4 {
                    let Ok(guard) = locks.lock("room").acquire().await else { continue };
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    // A hold that was lost is over, and may be another's.
                    assert!(others == 0 || guard.check().is_err(), "two hold it");
                    if round == 1 {
                        tokio::time::sleep(Duration::from_millis(millis)).await;
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard.release().await);
                }
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_lock_that_was_waited_for_is_held_without_a_watch() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let locks = Locks::builder(etcd).with_wait(Wait::For(PATIENCE)).build().unwrap();
    let mut guards = Vec::new();
    for number in 0..6 {
        let directory = format!("dlock/room{number}/");
        server.admin().put(&format!("{directory}another"), "");
        let lock = locks.lock(format!("room{number}"));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until("the waiter", || server.admin().entries(&directory).len() == 2).await;
        assert!(server.admin().delete(&format!("{directory}another")));
        guards.push(waiter.await.unwrap().unwrap());
    }
    let begun = Instant::now();
    // The stream has one of its own.
    while server.admin().watches() > 1 {
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{} watches, and no waiter",
            server.admin().watches()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_key_whose_name_begins_with_that_of_a_directory_is_no_news_for_it() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    server.admin().put("dlock/room/another", "");
    let mut batch = claim(&etcd, "room", Duration::from_secs(60), true).await;
    for _ in 0..2 {
        assert!(matches!(etcd.attempt_all(&mut [&mut batch]).await, Ok(BatchAttempt::Busy { .. })));
        drop(tokio::time::timeout(Duration::from_secs(1), batch.changed()).await);
    }
    server.admin().put("dlock/room-2/another", "");
    assert!(server.admin().delete("dlock/room-2/another"));
    let told = tokio::time::timeout(Duration::from_secs(1), batch.changed()).await;
    assert!(told.is_err(), "a lock of another name woke it");
    assert!(server.admin().delete("dlock/room/another"));
    tokio::time::timeout(PATIENCE, batch.changed()).await.expect("it is told").unwrap();
}

#[tokio::test]
async fn a_waiter_behind_a_key_that_is_left_or_put_anew_has_its_turn() {
    let server = EtcdServer::start().unwrap();
    let etcd = Etcd::connect(&server.url()).await.unwrap();
    let lease = Duration::from_secs(30);
    let mut holder = claim(&etcd, "room", lease, true).await;
    assert!(matches!(holder.attempt().await, Ok(Attempt::Granted(_))));
    let mut batch = claim(&etcd, "room", lease, true).await;
    assert!(matches!(etcd.attempt_all(&mut [&mut batch]).await, Ok(BatchAttempt::Busy { .. })));
    let mut waiter = claim(&etcd, "room", lease, true).await;
    assert!(matches!(waiter.attempt().await, Ok(Attempt::Busy(_))));
    // To a lease of full length, and to that of a key that stays taken.
    assert_eq!(holder.renew().await.unwrap(), Renewed::Extended);
    assert!(holder.leave(Duration::from_secs(3)).await.unwrap().removed);
    drop(holder);
    let begun = Instant::now();
    loop {
        match waiter.attempt().await.unwrap() {
            Attempt::Granted(_) => break,
            Attempt::Busy(_) => drop(tokio::time::timeout(PATIENCE, waiter.changed()).await),
        }
        assert!(begun.elapsed() < PATIENCE);
    }
    assert!(begun.elapsed() > Duration::from_secs(2), "the key was to stay taken");
    let _ = waiter.withdraw().await.unwrap();
    loop {
        match etcd.attempt_all(&mut [&mut batch]).await.unwrap() {
            BatchAttempt::Granted(_) => break,
            _ => drop(tokio::time::timeout(PATIENCE, batch.changed()).await),
        }
        assert!(begun.elapsed() < PATIENCE);
    }
    let _ = batch.withdraw().await.unwrap();
    assert!(server.admin().entries("dlock/room/").is_empty());
}

#[tokio::test]
async fn attempts_for_a_new_semaphore_that_fail_leave_no_lease_of_days() {
    let server = EtcdServer::start().unwrap();
    let way = proxy(&server);
    let etcd = Etcd::connect(&format!("etcd://{}", way.address())).await.unwrap();
    let locks = Locks::builder(etcd).with_wait(Wait::For(Duration::from_secs(20))).build().unwrap();
    locks.lock("another").acquire().await.unwrap().release().await.unwrap();
    // The step that stores the number never arrives; the request before it does.
    way.lose_request(2, "TXN");
    let guard = locks.semaphore("room", 2).acquire().await.unwrap();
    assert_eq!(way.lost(), 1);
    guard.release().await.unwrap();
    let begun = Instant::now();
    loop {
        let long = server.admin().leases().into_iter().filter(|lease| {
            server.admin().ctl(&["lease", "timetolive", &format!("{lease:x}")]).contains("TTL(180000s)")
        });
        let long = long.count();
        if long <= 1 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{long} leases of 50 hours for one number");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Tests that bound real time.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_batch_that_joins_the_watch_of_another_misses_no_release() {
        let server = EtcdServer::start().unwrap();
        let (one, other) = (proxy(&server), proxy(&server));
        let url = format!("etcd://{},{}", one.address(), other.address());
        let etcd = Etcd::connect(&url).await.unwrap();
        let lease = Duration::from_secs(60);
        server.admin().put("dlock/room/another", "");
        // Its watch goes by the first way.
        let mut early = claim(&etcd, "room", lease, true).await;
        for _ in 0..2 {
            assert!(matches!(etcd.attempt_all(&mut [&mut early]).await, Ok(BatchAttempt::Busy { .. })));
            drop(tokio::time::timeout(Duration::from_secs(1), early.changed()).await);
        }
        // The requests go by the other way from here on.
        one.set(Direction::ToServer, Flow::Hold);
        drop(etcd.inspect(&Key::new("room").unwrap()).await.unwrap());
        one.mend();
        assert!(matches!(etcd.attempt_all(&mut [&mut early]).await, Ok(BatchAttempt::Busy { .. })));
        let mut late = claim(&etcd, "room", lease, true).await;
        other.set(Direction::ToClient, Flow::Delay(Duration::from_millis(700)));
        let asked = other.requests().get("TXN").copied();
        let attempt = {
            let etcd = etcd.clone();
            tokio::spawn(async move {
                let attempt = etcd.attempt_all(&mut [&mut late]).await;
                (late, attempt)
            })
        };
        until("the attempt", || other.requests().get("TXN").copied() > asked).await;
        // The server has looked by then, and its answer is on its way.
        assert!(server.admin().delete("dlock/room/another"));
        tokio::time::timeout(PATIENCE, early.changed()).await.expect("the first is told").unwrap();
        let (mut late, attempt) = attempt.await.unwrap();
        match attempt.unwrap() {
            BatchAttempt::Busy { .. } => {
                let told = tokio::time::timeout(Duration::from_secs(2), late.changed()).await;
                assert!(told.is_ok(), "nobody tells the second that the room is free");
            }
            other => panic!("it was to find the room taken: {other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_change_of_a_semaphore_reaches_those_that_wait() {
        let server = EtcdServer::start().unwrap();
        let ours = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let theirs = Locks::new(Etcd::connect(&server.url()).await.unwrap());
        let held = theirs.semaphore("room", 2).take(2).acquire().await.unwrap();
        let waiters: Vec<_> = (0..40)
            .map(|_| {
                let permit = ours.semaphore("room", 2).with_wait(Wait::Forever);
                tokio::spawn(async move {
                    let guard = permit.acquire().await.unwrap();
                    guard.release().await.unwrap();
                })
            })
            .collect();
        until("a waiter", || server.admin().entries("dlock/room/").len() > 1).await;
        let begun = Instant::now();
        held.release().await.unwrap();
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "40 turns took {:?}", begun.elapsed());
    }
}
