//! Connections that break, and servers that freeze.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait, keeper};
use dlock_rig::proxy::{Arrivals, Direction, Flow};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use tokio::task::JoinSet;

use crate::support::{
    LONG, Proxied, SHORT, before, builder, error_of, fence, lock_nodes, locks, locks_at, over, places, soon,
    until, until_clean, until_in_line, wait_for,
};

#[tokio::test]
async fn a_lock_is_suspect_as_long_as_its_connection_is_gone_and_then_the_same_one_again() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let (held, before) = (guard.held(), fence(&guard));
    for _ in 0..3 {
        on.proxy.set_arrivals(Arrivals::Reset);
        on.proxy.cut();
        soon("the suspicion", held.at_risk()).await;
        error_of(guard.check(), ErrorKind::Suspect);
        on.proxy.mend();
        until("the lock", || guard.check().is_ok()).await;
    }
    assert_eq!((fence(&guard), places(on.server.admin(), "room").len()), (before, 1));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_was_deleted_while_the_connection_was_gone_is_never_held_again() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    on.proxy.set_arrivals(Arrivals::Reset);
    on.proxy.cut();
    soon("the suspicion", guard.held().at_risk()).await;
    on.server.admin().delete(&format!("/dlock/room/{}", places(on.server.admin(), "room")[0]));
    on.proxy.mend();
    let looks = async {
        while guard.check().is_err_and(|error| error.kind() == ErrorKind::Suspect) {
            tokio::task::yield_now().await;
        }
    };
    soon("certainty", looks).await;
    error_of(guard.check(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_connection_that_is_back_before_anybody_looked_was_lost_all_the_same() {
    let on = Proxied::start();
    // By itself nobody looks at a lock for a third of that.
    let locks = on.locks(LONG * 10).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    let count = |name: &str| on.proxy.requests().get(name).copied().unwrap_or_default();
    until("the watch on its node", || on.server.admin().watches() == 1).await;
    let (connects, looks) = (count("CONNECT"), count("EXISTS"));
    let (go_on, held_up) = std::sync::mpsc::channel::<()>();
    // Whoever notes the state of connections is held up meanwhile, and the other tests are for no longer than this.
    let hold_up = async move {
        let _ = held_up.recv_timeout(Duration::from_millis(400));
    };
    keeper::runtime().unwrap().spawn(hold_up);
    on.proxy.cut();
    until("the next connection", || count("CONNECT") > connects && count("SETWATCHES") > 0).await;
    // On a busy machine the first one may come too late.
    soon("an answer over it", async { while locks.inspect("room").await.is_err() {} }).await;
    drop(go_on);
    until("a look at the lock over the new connection", || count("EXISTS") > looks).await;
    until("certainty", || guard.check().is_ok()).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_keeps_its_place_over_cuts_of_its_connection() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    let guard = theirs.lock("room").acquire().await.unwrap();
    let early = wait_for(&ours, "room");
    until_in_line(on.server.admin(), "room", 2).await;
    let late = wait_for(&theirs, "room");
    until_in_line(on.server.admin(), "room", 3).await;
    let line = places(on.server.admin(), "room");
    for round in 1..=3 {
        on.proxy.cut();
        until("the next connection", || on.proxy.requests()["CONNECT"] > round).await;
    }
    assert_eq!(places(on.server.admin(), "room"), line);
    on.proxy.cut();
    guard.release().await.unwrap();
    let guard = soon("the lock", early).await.unwrap().unwrap();
    assert!(!late.is_finished(), "out of turn");
    guard.release().await.unwrap();
    soon("the lock", late).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_release_while_the_connection_is_cut_is_not_missed() {
    let on = Proxied::start();
    let (ours, theirs) = (locks(&on.server, LONG).await, on.locks(LONG).await);
    for _ in 0..5 {
        let guard = ours.lock("room").acquire().await.unwrap();
        let waiter = wait_for(&theirs, "room");
        until_in_line(on.server.admin(), "room", 2).await;
        on.proxy.set_arrivals(Arrivals::Reset);
        on.proxy.cut();
        guard.release().await.unwrap();
        on.proxy.mend();
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_lock_is_lost_before_the_server_can_give_it_away() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(SHORT).await, locks(&on.server, LONG).await);
    for _ in 0..3 {
        let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
        let waiter = wait_for(&theirs, "room");
        until_in_line(on.server.admin(), "room", 2).await;
        on.proxy.black_hole();
        let next = soon("the next holder", waiter).await.unwrap().unwrap();
        // Whoever looks now finds the old one's belief gone for long.
        error_of(guard.check(), ErrorKind::Lost);
        next.release().await.unwrap();
        on.proxy.mend();
        on.proxy.cut();
    }
}

#[tokio::test]
async fn a_frozen_server_ends_the_belief_in_time_and_its_locks_are_not_given_to_two() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let waiter = wait_for(&theirs, "room");
    until_in_line(server.admin(), "room", 2).await;
    server.pause();
    soon("the loss", guard.lost()).await;
    error_of(guard.check(), ErrorKind::Lost);
    server.resume();
    // The server may let the session go on, now that it is back.
    error_of(guard.release().await, ErrorKind::NotHeld);
    let next = soon("the next holder", waiter).await.unwrap().unwrap();
    next.check().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn acquires_that_gave_up_or_were_dropped_on_a_frozen_server_leave_nothing_once_it_thaws() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let mut acquires = JoinSet::new();
    for number in 0..100 {
        let lock = locks.lock(format!("given_up_{number}")).with_wait(Duration::from_millis(300));
        acquires.spawn(async move { lock.acquire().await.is_ok() });
        let lock = locks.lock(format!("dropped_{number}"));
        acquires.spawn(async move {
            tokio::time::timeout(Duration::from_millis(number), lock.acquire())
                .await
                .is_ok_and(|it| it.is_ok())
        });
    }
    assert!(!acquires.join_all().await.contains(&true), "the server is frozen");
    server.resume();
    until("the clean-up", || locks.stats().background == 0).await;
    // By its own count: of all locks at once.
    until("the nodes to go", || lock_nodes(server.admin()) == 0).await;
    locks.lock("dropped_7").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_arrives_after_it_was_given_up_is_withdrawn_again() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    on.proxy.set(Direction::ToServer, Flow::Hold);
    let error = locks.lock("room").with_wait(Wait::No).acquire().await.expect_err("nothing arrives");
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    on.proxy.mend();
    until_clean(&locks, on.server.admin(), &["room"]).await;
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn another_server_of_the_list_is_used_when_the_rest_is_silent() {
    let on = Proxied::start();
    let silent = [before(&on.server), before(&on.server)];
    for proxy in &silent {
        proxy.set_arrivals(Arrivals::BlackHole);
    }
    let servers = [silent[0].address(), silent[1].address(), on.proxy.address()];
    // Each picks servers at random, so that some pick silent ones again and again.
    let mut clients = JoinSet::new();
    for number in 0..12 {
        clients.spawn(async move {
            let locks = locks_at(&servers, SHORT).await;
            let guard = soon("the lock", locks.lock(format!("room_{number}")).acquire()).await.unwrap();
            guard.release().await.unwrap();
        });
    }
    clients.join_all().await;
}

#[tokio::test]
async fn a_server_that_never_answers_is_unavailable() {
    let on = Proxied::start();
    on.proxy.black_hole();
    let locks = over(builder(&format!("zk://{}", on.proxy.address()), SHORT).build().unwrap());
    let error = error_of(locks.lock("room").with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
    assert!(error.is_retryable());
    on.proxy.mend();
    on.proxy.cut();
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn servers_that_are_away_are_tried_again_and_again_without_long_pauses() {
    let on = Proxied::start();
    let locks = on.locks(Duration::from_secs(4)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    on.proxy.set_arrivals(Arrivals::Reset);
    on.proxy.cut();
    let before = on.proxy.traffic().connections;
    // Pauses that double would leave time for seven until the session ends.
    until("the tries", || on.proxy.traffic().connections >= before + 30).await;
    on.proxy.mend();
    drop(guard);
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_time_that_an_attempt_waits_for_a_connection_is_none_of_its_request() {
    let on = Proxied::start();
    let limit = Duration::from_secs(2);
    let locks = on.locks(LONG).await;
    let lock = locks.lock("room").with_request_timeout(limit);
    // Its session knows by it that the connection is gone: what was written before is a request that was sent.
    let other = locks.lock("other").acquire().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let creations = on.proxy.requests()["CREATE"];
    on.proxy.set_arrivals(Arrivals::Reset);
    on.proxy.cut();
    soon("the suspicion", other.held().at_risk()).await;
    let acquire = tokio::spawn(async move { lock.acquire().await });
    // Half of it without a connection, and then more than half of it without an answer.
    tokio::time::sleep(limit / 2).await;
    on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(100)));
    on.proxy.set_arrivals(Arrivals::Accept);
    until("the request", || on.proxy.requests()["CREATE"] > creations).await;
    on.proxy.set(Direction::ToClient, Flow::Hold);
    tokio::time::sleep(limit * 6 / 10).await;
    on.proxy.set(Direction::ToClient, Flow::Pass);
    let guard = soon("the grant", acquire).await.unwrap().unwrap();
    assert_eq!(locks.stats().rechecks, 0);
    guard.release().await.unwrap();
}

/// Bound real time from above. The gate leaves them out.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_wait_is_over_in_time_although_the_server_hangs() {
        let server = ZooKeeperServer::start().unwrap();
        let locks = locks(&server, LONG).await;
        server.pause();
        for wait in [Wait::No, Duration::from_millis(50).into(), Duration::from_millis(400).into()] {
            let started = std::time::Instant::now();
            let error = locks.lock("room").with_wait(wait).acquire().await.expect_err("the server is frozen");
            assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
            // The wait, a request for each of the attempts, and generous room for a busy machine.
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "{:?} for a wait of {wait:?}",
                started.elapsed()
            );
        }
    }

    #[tokio::test]
    async fn doctor_finds_a_session_whose_proof_of_life_is_not_answered_and_asks_the_servers_all_the_same() {
        let on = Proxied::start();
        let locks = on.locks(LONG).await;
        locks.lock("room").acquire().await.unwrap().release().await.unwrap();
        on.proxy.set(Direction::ToClient, Flow::Hold);
        let findings = locks.diagnose().await.unwrap();
        let of = |subject| findings.iter().filter(|finding| finding.subject == subject).count();
        assert_eq!(of("session"), 1, "{findings:?}");
        let address = on.proxy.address().to_string();
        assert!(findings.iter().any(|finding| finding.found.contains(&address)), "{findings:?}");
        on.proxy.set(Direction::ToClient, Flow::Pass);
        let findings = locks.diagnose().await.unwrap();
        assert!(findings.iter().all(|finding| finding.subject != "session"), "{findings:?}");
    }
}

#[test]
fn a_diagnosis_needs_no_io_of_its_callers_runtime() {
    let server = ZooKeeperServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let locks = locks(&server, LONG).await;
        let findings = locks.diagnose().await.unwrap();
        let answered = findings.iter().any(|finding| finding.found.contains("version"));
        assert!(answered, "{findings:?}");
    });
}
