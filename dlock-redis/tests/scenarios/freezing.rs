//! Servers that freeze, and networks that swallow packets.

use std::time::Duration;

use dlock_core::{ErrorKind, Lock, Wait};
use dlock_redis::Redis;
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::redis::RedisServer;
use tokio::task::JoinSet;

use crate::support::{HOUR, LONG, Proxied, SHORT, error_of, fence, held, locks, over, soon, until};

#[tokio::test]
async fn acquires_that_gave_up_on_a_frozen_server_leave_nothing_once_it_thaws() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let mut acquires = JoinSet::new();
    for number in 0..200 {
        let lock = locks.lock(format!("room_{number}")).with_wait(Duration::from_millis(300));
        acquires.spawn(async move { lock.acquire().await });
    }
    for result in acquires.join_all().await {
        let error = result.expect_err("the server is frozen");
        // Those whose request was never sent know that they have nothing.
        let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable, ErrorKind::TimedOut];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
    server.resume();
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

/// Alone, by readers, and in line.
const MODES: [fn(Lock) -> Lock; 3] = [|lock| lock, Lock::read, |lock| lock.with_fairness(true)];

#[tokio::test]
async fn only_requests_that_were_sent_to_a_frozen_server_are_asked_about_again() {
    for mode in MODES {
        let server = RedisServer::start().unwrap();
        let locks = locks(&server.url(), LONG).await;
        mode(locks.lock("before")).acquire().await.unwrap().release().await.unwrap();
        server.pause();
        let mut acquires = JoinSet::new();
        for number in 0..2_000 {
            let lock = mode(locks.lock(format!("room_{number}")).with_wait(Wait::Forever));
            // Whether the release is answered in time is no matter.
            acquires.spawn(async move { lock.acquire().await.map(drop) });
        }
        // So many fit into the calls that are under way; the others wait in this process and were sent nowhere.
        until("a request without an answer", || locks.stats().rechecks > 0).await;
        server.resume();
        for result in acquires.join_all().await {
            result.unwrap();
        }
        let rechecks = locks.stats().rechecks;
        assert!(rechecks < 1_000, "{rechecks} of 2000 were asked about again");
    }
}

#[tokio::test]
async fn what_waits_for_its_turn_on_a_connection_that_falls_silent_goes_over_the_next_one() {
    for (mode, count) in MODES.into_iter().zip([100, 600, 600]) {
        let on = Proxied::start();
        let locks = on.locks(HOUR).await;
        mode(locks.lock("before")).acquire().await.unwrap().release().await.unwrap();
        on.proxy.lose_reply(1, "EVALSHA", dlock_rig::proxy::Loss::Silence);
        let mut acquires = JoinSet::new();
        for number in 0..count {
            let lock = mode(locks.lock(format!("room_{number}")).with_wait(Wait::Forever));
            acquires.spawn(async move { lock.acquire().await });
        }
        let guards = soon("the locks", acquires.join_all()).await;
        assert!(guards.iter().all(Result::is_ok));
    }
}

#[tokio::test]
async fn acquires_that_were_dropped_on_a_frozen_server_leave_nothing_once_it_thaws() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let mut acquires = JoinSet::new();
    for number in 0..200 {
        let lock = locks.lock(format!("room_{number}"));
        acquires.spawn(async move {
            tokio::time::timeout(Duration::from_millis(number), lock.acquire()).await.is_ok()
        });
    }
    assert!(!acquires.join_all().await.contains(&true), "the server is frozen");
    server.resume();
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_request_that_arrives_after_its_connection_was_given_up_is_withdrawn_again() {
    let on = Proxied::start();
    // Long enough that the orphan would be seen, and short enough to wait for.
    let locks = on.locks(Duration::from_secs(4)).await;
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let error = locks.lock("room").with_wait(Wait::No).acquire().await.expect_err("nothing arrives");
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    drop(locks);
    on.proxy.mend();
    until("the clean-up", || held(&on.server).is_empty()).await;
    let theirs = crate::support::locks(&on.server.url(), LONG).await;
    soon("the lock", theirs.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_holder_on_a_frozen_server_knows_that_its_lease_is_over_without_asking() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), SHORT).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let (first, lost) = (fence(&guard), guard.held());
    server.pause();
    soon("the loss", lost.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    server.resume();
    let next = soon("the next holder", theirs.lock("room").acquire()).await.unwrap();
    assert!(fence(&next) > first);
    error_of(guard.release().await, ErrorKind::NotHeld);
    next.check().unwrap();
    assert_eq!(held(&server), ["room"]);
}

#[tokio::test]
async fn stalls_shorter_than_the_lease_lose_nothing() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), Duration::from_millis(1500)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    for _ in 0..4 {
        server.pause();
        // The stall itself is what is tested: half a lease, then the other half to recover.
        tokio::time::sleep(Duration::from_millis(500)).await;
        server.resume();
        let renewals = locks.stats().renewals;
        until("the next renewal", || locks.stats().renewals > renewals).await;
    }
    guard.check().unwrap();
    assert_eq!(locks.stats().lost, 0);
}

#[tokio::test]
async fn a_black_hole_ends_and_the_same_client_goes_on() {
    let on = Proxied::start();
    let locks = on.locks(SHORT).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    on.proxy.black_hole();
    locks.lock("room").with_wait(Duration::from_millis(300)).acquire().await.expect_err("nothing passes");
    on.proxy.mend();
    let guard = soon("the lock", locks.lock("room").acquire()).await.unwrap();
    guard.release().await.unwrap();
    until("the clean-up", || locks.stats().background == 0 && held(&on.server).is_empty()).await;
}

#[tokio::test]
async fn a_connection_that_stays_silent_for_good_is_replaced() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    on.proxy.lose_reply(1, "EVALSHA", dlock_rig::proxy::Loss::Silence);
    drop(locks.lock("room").with_rechecks(0).acquire().await);
    let connections = on.proxy.traffic().connections;
    let guard = soon("the lock", locks.lock("other").acquire()).await.unwrap();
    guard.release().await.unwrap();
    until("the clean-up", || held(&on.server).is_empty()).await;
    assert!(on.proxy.traffic().connections > connections, "another connection");
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable() {
    let on = Proxied::start();
    on.proxy.black_hole();
    let error = error_of(Redis::connect(&on.url()).await, ErrorKind::Unavailable);
    assert!(error.is_retryable());
    let redis = Redis::builder(&on.url()).with_connect_timeout(Duration::from_millis(200)).build().unwrap();
    let locks = over(redis, LONG);
    error_of(locks.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_wait_is_over_in_time_although_the_server_hangs() {
        let server = RedisServer::start().unwrap();
        let locks = locks(&server.url(), LONG).await;
        server.pause();
        let waits = [Wait::No, Duration::from_millis(50).into(), Duration::from_millis(400).into()];
        for wait in waits {
            let started = std::time::Instant::now();
            let error = locks.lock("room").with_wait(wait).acquire().await.expect_err("the server is frozen");
            // One that waited behind the clean-up of the one before was never sent.
            let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable, ErrorKind::TimedOut];
            assert!(kinds.contains(&error.kind()), "{error}");
            // The wait, a request for each of the two attempts, and generous room for a busy machine.
            assert!(
                started.elapsed() < Duration::from_secs(4),
                "{:?} for a wait of {wait:?}",
                started.elapsed()
            );
        }
    }
}
