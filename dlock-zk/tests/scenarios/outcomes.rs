//! Replies and requests that are lost.

use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim};
use dlock_core::{ErrorKind, Guard, Locks};
use dlock_rig::proxy::Loss;
use dlock_testkit::claim_request;

use crate::support::{
    LONG, Proxied, builder, error_of, fence, locks, places, soon, until_clean, until_in_line, wait_for,
};

/// A session whose connection is given up when it is silent for two fifths of this.
const SESSION: Duration = Duration::from_secs(4);

/// Takes `room` although a reply is lost: asks for it until after a silent connection was given up.
async fn patiently(locks: &Locks) -> Guard {
    let lock = locks.lock("room").with_request_timeout(SESSION);
    soon("the lock", lock.acquire()).await.unwrap()
}

#[tokio::test]
async fn a_node_whose_creation_was_not_confirmed_is_adopted() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let locks = on.locks(SESSION).await;
        locks.lock("room").acquire().await.unwrap().release().await.unwrap();
        let creations = on.proxy.requests()["CREATE"];
        on.proxy.lose_reply(1, "CREATE", loss);
        let guard = patiently(&locks).await;
        assert_eq!((on.proxy.lost(), on.proxy.requests()["CREATE"]), (1, creations + 1), "created once");
        guard.check().unwrap();
        let line = places(on.server.admin(), "room");
        assert_eq!(line.len(), 1, "{line:?}");
        let node = on.server.admin().node(&format!("/dlock/room/{}", line[0])).unwrap();
        assert_eq!(u64::try_from(node.czxid), Ok(fence(&guard)));
        guard.release().await.unwrap();
        until_clean(&locks, on.server.admin(), &["room"]).await;
    }
}

#[tokio::test]
async fn a_waiter_whose_creation_was_not_confirmed_keeps_its_place() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    let guard = theirs.lock("room").acquire().await.unwrap();
    on.proxy.lose_reply(1, "CREATE", Loss::Cut);
    let early = wait_for(&ours, "room");
    until_in_line(on.server.admin(), "room", 2).await;
    assert_eq!(on.proxy.lost(), 1);
    let late = wait_for(&theirs, "room");
    until_in_line(on.server.admin(), "room", 3).await;
    guard.release().await.unwrap();
    let guard = soon("the lock", early).await.unwrap().unwrap();
    assert!(!late.is_finished(), "out of turn");
    guard.release().await.unwrap();
    soon("the lock", late).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_creation_that_never_arrived_is_made_again_once() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    on.proxy.lose_request(1, "CREATE");
    let guard = soon("the lock", locks.lock("room").acquire()).await.unwrap();
    assert_eq!((on.proxy.lost(), places(on.server.admin(), "room").len()), (1, 1));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_creation_of_a_session_that_ended_meanwhile_is_neither_adopted_nor_left() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    on.proxy.lose_reply(1, "CREATE", Loss::Silence);
    let waiter = wait_for(&locks, "room");
    soon("the loss of the reply", on.proxy.wait_until_lost(1)).await;
    on.server.admin().expire_all();
    let line = match soon("the outcome", waiter).await.unwrap() {
        Ok(guard) => {
            guard.check().unwrap();
            let line = places(on.server.admin(), "room");
            guard.release().await.unwrap();
            line.len()
        }
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unknown), "{error}");
            1
        }
    };
    assert_eq!(line, 1);
    until_clean(&locks, on.server.admin(), &["room"]).await;
}

#[tokio::test]
async fn without_a_recheck_a_lost_reply_is_an_unknown_outcome_that_is_withdrawn() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    on.proxy.lose_reply(1, "CREATE", Loss::Cut);
    error_of(locks.lock("room").with_rechecks(0).acquire().await, ErrorKind::Unknown);
    until_clean(&locks, on.server.admin(), &["room"]).await;
}

#[tokio::test]
async fn a_list_whose_reply_was_lost_is_asked_for_again() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let locks = on.locks(SESSION).await;
        locks.lock("room").acquire().await.unwrap().release().await.unwrap();
        on.proxy.lose_reply(1, "GETCHILDREN", loss);
        let guard = patiently(&locks).await;
        assert_eq!((on.proxy.lost(), places(on.server.admin(), "room").len()), (1, 1));
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_release_whose_reply_or_request_was_lost_takes_nothing_from_the_next_holder() {
    for request in [true, false] {
        let on = Proxied::start();
        let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
        let guard = ours.lock("room").acquire().await.unwrap();
        let next = wait_for(&theirs, "room");
        until_in_line(on.server.admin(), "room", 2).await;
        if request {
            on.proxy.lose_request(1, "DELETE");
        } else {
            on.proxy.lose_reply(1, "DELETE", Loss::Cut);
        }
        // Whether it is confirmed by asking again is not the point.
        drop(soon("the release", guard.release()).await);
        let next = soon("the next holder", next).await.unwrap().unwrap();
        until_in_line(on.server.admin(), "room", 1).await;
        next.check().unwrap();
        next.release().await.unwrap();
        until_clean(&ours, on.server.admin(), &["room"]).await;
    }
}

#[tokio::test]
async fn every_lost_reply_of_many_leaves_each_lock_with_one_holder_or_none() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    for round in 0..40_u32 {
        let name = ["CREATE", "GETCHILDREN", "DELETE", "SYNC"][round as usize % 4];
        on.proxy.lose_reply(
            u64::from(1 + round % 3),
            name,
            if round % 8 < 6 { Loss::Cut } else { Loss::Silence },
        );
        match soon("the outcome", locks.lock("room").acquire()).await {
            Ok(guard) => drop(guard.release().await),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    on.proxy.mend();
    on.proxy.cut();
    until_clean(&locks, on.server.admin(), &["room"]).await;
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_claim_whose_deletion_was_not_confirmed_takes_no_later_deletion_of_its_node_for_its_own() {
    let on = Proxied::start();
    let theirs = locks(&on.server, LONG).await;
    let guard = theirs.lock("room").acquire().await.unwrap();
    let zookeeper = builder(&format!("zk://{}", on.proxy.address()), LONG).connect().await.unwrap();
    let mut claim = zookeeper.claim(claim_request("room", LONG, false).await.unwrap());
    on.proxy.lose_reply(1, "DELETE", Loss::Cut);
    // It does not wait, and so leaves at once.
    assert!(matches!(claim.attempt().await, Ok(Attempt::Busy(_))));
    assert_eq!(on.proxy.lost(), 1);
    guard.release().await.unwrap();
    soon("the lock", async {
        while !matches!(claim.attempt().await, Ok(Attempt::Granted(_))) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let line = places(on.server.admin(), "room");
    assert_eq!(line.len(), 1, "{line:?}");
    on.server.admin().delete(&format!("/dlock/room/{}", line[0]));
    assert!(!claim.withdraw().await.unwrap().removed);
}
