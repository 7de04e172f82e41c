//! Keys that stay taken after their release.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use dlock_core::{Error, ErrorKind, Guard, Locks, Outcome};
use dlock_rig::proxy::Loss;
use dlock_rig::servers::zookeeper::{Administrator, NodeKind, ZooKeeperEnsemble, ZooKeeperServer};
use dlock_testkit::cancel::poll_n_then_drop;
use dlock_zk::{Acl, AuthId, Permission, Recipe, ZooKeeper};
use tokio::task::JoinHandle;

use crate::support::{
    LONG, Proxied, SHORT, before, builder, error_of, fence, locks, locks_at, over, patient_locks, places,
    soon, until, until_in_line, wait_for,
};

/// Long enough to be there for the whole test.
const HOUR: Duration = Duration::from_secs(3_600);

/// Leaves `key` taken for so long.
async fn leave(locks: &Locks, key: &str, least: Duration) {
    locks.lock(key).with_hold_at_least(least).acquire().await.unwrap().release().await.unwrap();
}

/// Releases the lock when it comes; its fence.
fn in_turn(waiter: JoinHandle<dlock_core::Result<Guard>>) -> JoinHandle<u64> {
    tokio::spawn(async {
        let guard = waiter.await.unwrap().unwrap();
        let fence = fence(&guard);
        guard.release().await.unwrap();
        fence
    })
}

/// Whether only what nobody owns stands in line.
fn only_left(admin: Administrator, key: &str) -> bool {
    let places = places(admin, key);
    places.len() == 1 && places[0].contains("-left-")
}

/// They watch the node before their own, and take its end for their turn.
#[tokio::test]
async fn who_stands_behind_a_holder_that_leaves_its_key_taken_waits_until_the_end_in_the_same_order() {
    for recipe in [Recipe::Mutex, Recipe::ReadWriteLock] {
        let server = ZooKeeperServer::start().unwrap();
        let with = async || over(builder(&server.url(), LONG).with_recipe(recipe).connect().await.unwrap());
        let (ours, theirs, others) = (with().await, with().await, with().await);
        let least = Duration::from_millis(700);
        let (granted, turns) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let guard = ours.lock("room").with_hold_at_least(least).acquire().await.unwrap();
        let mut waiters = Vec::new();
        for place in 0..6 {
            let (locks, turns) = (if place % 2 == 0 { &theirs } else { &others }, Arc::clone(&turns));
            let waiter = wait_for(locks, "room");
            until("the line", || {
                server.admin().children("/dlock/room").len() == 2 + place
                    && server.admin().watches() > place as u64
            })
            .await;
            waiters.push(tokio::spawn(async move {
                let guard = waiter.await.unwrap().unwrap();
                let turn = (turns.fetch_add(1, Ordering::SeqCst), granted.elapsed());
                guard.release().await.unwrap();
                turn
            }));
        }
        guard.release().await.unwrap();
        for (place, waiter) in waiters.into_iter().enumerate() {
            let (turn, passed) = soon("the turn", waiter).await.unwrap();
            assert_eq!(turn, place, "in order");
            assert!(passed >= least, "after {passed:?}");
        }
    }
}

#[tokio::test]
async fn a_release_whose_reply_or_request_is_lost_leaves_the_key_taken_once() {
    for (request, loss) in [(true, Loss::Cut), (false, Loss::Cut), (false, Loss::Silence)] {
        let on = Proxied::start();
        let (ours, theirs) = (on.locks(Duration::from_secs(4)).await, locks(&on.server, LONG).await);
        let guard = ours.lock("room").with_hold_at_least(HOUR).acquire().await.unwrap();
        let next = wait_for(&theirs, "room");
        until_in_line(on.server.admin(), "room", 2).await;
        match request {
            true => on.proxy.lose_request(1, "MULTI"),
            false => on.proxy.lose_reply(1, "MULTI", loss),
        }
        // Whether it is confirmed by asking again is not the point.
        drop(soon("the release", guard.release()).await);
        until("the release", || places(on.server.admin(), "room")[0].contains("-left-")).await;
        until("the end of the clean-up", || ours.stats().background == 0).await;
        let line = places(on.server.admin(), "room");
        assert!(line.len() == 2 && !line[1].contains("-left-"), "{line:?}");
        assert_eq!(on.proxy.lost(), 1);
        assert!(!next.is_finished());
        assert!(theirs.force_release("room").await.unwrap());
        soon("the next holder", next).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_release_that_is_dropped_at_any_await_leaves_the_key_taken() {
    let server = ZooKeeperServer::start().unwrap();
    let locks = locks(&server, LONG).await;
    let lock = locks.lock("room").with_hold_at_least(HOUR);
    for polls in 0..6 {
        let guard = soon("the lock", lock.acquire()).await.unwrap();
        let released = poll_n_then_drop(guard.release(), polls).await;
        assert!(released.is_none_or(|it| it.is_ok()));
        until(&format!("the release after {polls} polls"), || {
            locks.stats().background == 0 && only_left(server.admin(), "room")
        })
        .await;
        assert!(locks.force_release("room").await.unwrap());
    }
}

#[tokio::test]
async fn every_lost_reply_of_many_leaves_the_key_taken_or_fails_the_acquire() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    for round in 0..30_u64 {
        let name = ["MULTI", "CREATE", "SETDATA", "EXISTS", "DELETE", "GETCHILDREN"][round as usize % 6];
        on.proxy.lose_reply(1 + round % 2, name, Loss::Cut);
        let acquired = soon("the outcome", ours.lock("room").with_hold_at_least(HOUR).acquire()).await;
        let (mut held, mut released) = (false, false);
        match acquired {
            Ok(guard) => {
                held = true;
                match soon("the release", guard.release()).await {
                    Ok(()) => released = true,
                    Err(error) => {
                        assert!(error.is_retryable() || error.kind() == ErrorKind::Unknown, "{error}");
                    }
                }
            }
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        assert!(!released || only_left(on.server.admin(), "room"), "after {name} of round {round}");
        on.proxy.mend();
        until("the clean-up", || ours.stats().background == 0).await;
        assert_eq!(theirs.force_release("room").await.unwrap(), held, "after {name} of round {round}");
    }
}

#[tokio::test]
async fn a_job_whose_session_ends_before_the_reply_to_its_release_is_done_and_stays_done() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, locks(&on.server, LONG).await);
    let expired = on.server.admin().sessions();
    let job = |locks: &Locks| locks.once("room").with_window(HOUR);
    let body = async {
        on.proxy.lose_reply(1, "MULTI", Loss::Silence);
        Ok::<_, Error>(())
    };
    let run = job(&ours);
    let run = run.run(body);
    let meanwhile = async {
        on.proxy.wait_until_lost(1).await;
        until("what is left", || only_left(on.server.admin(), "room")).await;
        expired.iter().for_each(|session| on.server.admin().expire(*session));
    };
    let (outcome, ()) = soon("the job", async { tokio::join!(run, meanwhile) }).await;
    assert_eq!(outcome.unwrap(), Outcome::Ran(()));
    assert!(job(&theirs).run(async { Ok::<_, Error>(()) }).await.unwrap().is_skipped());
}

#[tokio::test]
async fn a_job_whose_session_ends_before_its_release_is_lost_and_leaves_nothing() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, LONG).await, locks(&server, LONG).await);
    let guard = ours.lock("room").with_hold_at_least(HOUR).acquire().await.unwrap();
    server.admin().expire_all();
    soon("the loss", guard.lost()).await;
    error_of(guard.release().await, ErrorKind::NotHeld);
    let outcome = theirs.once("room").with_window(HOUR).run(async { Ok::<_, Error>(7) }).await.unwrap();
    assert_eq!(outcome, Outcome::Ran(7));
}

#[tokio::test]
async fn what_a_process_left_that_has_ended_is_removed_by_who_comes_after_its_end_or_by_force() {
    let server = ZooKeeperServer::start().unwrap();
    let theirs = locks(&server, LONG).await;
    for force in [false, true] {
        let ours = locks(&server, SHORT).await;
        let least = if force { HOUR } else { Duration::from_millis(500) };
        let guard = ours.lock("room").with_hold_at_least(least).acquire().await.unwrap();
        let left = fence(&guard);
        guard.release().await.unwrap();
        drop(ours.shutdown(Duration::from_secs(5)).await);
        drop(ours);
        until("the end of the session", || server.admin().sessions().len() == 1).await;
        assert!(only_left(server.admin(), "room"));
        let waiters: Vec<_> = (0..3).map(|_| in_turn(wait_for(&theirs, "room"))).collect();
        if force {
            until_in_line(server.admin(), "room", 4).await;
            assert!(theirs.force_release("room").await.unwrap());
        }
        for waiter in waiters {
            assert!(soon("the lock", waiter).await.unwrap() > left);
        }
        assert_eq!(places(server.admin(), "room"), [""; 0]);
    }
}

#[tokio::test]
async fn pruning_deletes_what_is_over_of_all_keys_and_nothing_else() {
    let server = ZooKeeperServer::start().unwrap();
    let theirs = builder(&server.url(), LONG).connect().await.unwrap();
    let ours = locks(&server, SHORT).await;
    let held = over(theirs.clone()).lock("held").acquire().await.unwrap();
    let keys: Vec<_> = (0..150).map(|firing| format!("firing/{firing}")).collect();
    for key in &keys {
        leave(&ours, key, Duration::from_secs(1)).await;
    }
    leave(&ours, "room", HOUR).await;
    drop(ours.shutdown(Duration::from_secs(5)).await);
    drop(ours);
    let mut pruned = 0;
    while over(theirs.clone()).holders().await.unwrap().len() > 2 {
        pruned += theirs.prune().await.unwrap();
    }
    pruned += theirs.prune().await.unwrap();
    assert!(pruned > 0, "they were not over when their process ended");
    let nodes =
        keys.iter().map(|key| server.admin().try_children(&format!("/dlock/%{}", key.replace('/', "%2F"))));
    assert_eq!(nodes.map(|nodes| nodes.map_or(0, |nodes| nodes.len())).sum::<usize>(), 0);
    assert!(only_left(server.admin(), "room"));
    assert_eq!(theirs.prune().await.unwrap(), 0);
    held.check().unwrap();
    held.release().await.unwrap();
}

/// Which is an ended one, by the servers' clock.
#[tokio::test]
async fn readers_and_permits_wait_for_what_is_left_or_are_refused_and_pass_what_is_over() {
    let server = ZooKeeperServer::start().unwrap();
    let theirs = locks(&server, LONG).await;
    let ours = locks(&server, SHORT).await;
    leave(&ours, "read", Duration::from_millis(400)).await;
    leave(&ours, "permits", HOUR).await;
    leave(&ours, "over", Duration::from_millis(1)).await;
    drop(ours.shutdown(Duration::from_secs(5)).await);
    drop(ours);
    assert!(theirs.lock("read").read().try_acquire().await.unwrap().is_none());
    let readers = [theirs.lock("read").read(), theirs.lock("read").read()];
    for reader in &readers {
        soon("a reader", reader.acquire()).await.unwrap().release().await.unwrap();
    }
    let permits = |key: &str| theirs.semaphore(key, 2);
    error_of(permits("permits").acquire().await, ErrorKind::Conflict);
    soon("a permit", permits("over").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_may_not_be_written_keeps_the_key_taken_until_it_may_be_released() {
    let server = ZooKeeperServer::start().unwrap();
    let no_write = Acl::new(Permission::READ | Permission::CREATE | Permission::DELETE, AuthId::anyone());
    let builder = builder(&server.url(), LONG).with_acl([no_write]);
    let ours = over(builder.connect().await.unwrap());
    let theirs = locks(&server, LONG).await;
    let least = Duration::from_millis(500);
    let granted = Instant::now();
    let guard = ours.lock("room").with_hold_at_least(least).acquire().await.unwrap();
    let denied = error_of(guard.release().await, ErrorKind::Denied);
    assert!(denied.to_string().contains("/dlock/room"), "{denied}");
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(granted.elapsed() >= least, "after {:?}", granted.elapsed());
    next.release().await.unwrap();
}

/// Whose data may not be read has its time in its name.
#[tokio::test]
async fn what_another_user_left_is_waited_for_by_who_may_not_read_it() {
    let server = ZooKeeperServer::start().unwrap();
    let anyone = || Acl::new(Permission::READ | Permission::CREATE | Permission::DELETE, AuthId::anyone());
    let own = || Acl::new(Permission::ALL, AuthId::authed());
    let of = async |user: &str| {
        let url = server.url().replace("zk://", &format!("zk://{user}:secret@"));
        let builder: ZooKeeper =
            builder(&url, LONG).with_acl([own()]).with_parent_acl([anyone()]).connect().await.unwrap();
        over(builder)
    };
    let (ours, theirs) = (of("ours").await, of("theirs").await);
    let least = Duration::from_millis(500);
    let granted = Instant::now();
    let guard = ours.lock("room").with_hold_at_least(least).acquire().await.unwrap();
    guard.release().await.unwrap();
    assert!(theirs.lock("room").try_acquire().await.unwrap().is_none());
    let next = soon("the lock", theirs.lock("room").acquire()).await.unwrap();
    assert!(granted.elapsed() >= least, "after {:?}", granted.elapsed());
    next.release().await.unwrap();
}

#[tokio::test]
async fn one_of_a_crowd_that_waits_removes_what_is_over_and_all_have_their_turn() {
    const EACH: usize = 20;
    let on = Proxied::start();
    let crowd = || patient_locks(on.proxy.address());
    let crowds = [crowd().await, crowd().await];
    let ours = locks(&on.server, SHORT).await;
    let guard = ours.lock("room").with_hold_at_least(Duration::from_secs(2)).acquire().await.unwrap();
    // Longer than a lock is held without a watch on its node.
    until("the watch", || on.server.admin().watches() == 1).await;
    guard.release().await.unwrap();
    until("no watch", || on.server.admin().watches() == 0).await;
    drop(ours.shutdown(Duration::from_secs(5)).await);
    drop(ours);
    let waiters: Vec<_> = crowds.iter().flat_map(|of| (0..EACH).map(|_| wait_for(of, "room"))).collect();
    for turn in waiters.into_iter().map(in_turn).collect::<Vec<_>>() {
        soon("the turn", turn).await.unwrap();
    }
    // One of each, and one more. A slow machine lets some come after the end, who look too.
    let deletions = on.proxy.requests()["DELETE"];
    assert!((41..48).contains(&deletions), "{deletions} deletions of {} nodes and what was left", 2 * EACH);
}

/// The next leader counts on from the time that the one before has written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_stands_until_its_end_when_its_process_is_cut_off_and_the_leader_is_killed() {
    let mut ensemble = ZooKeeperEnsemble::start().unwrap();
    let addresses = ensemble.addresses();
    let proxy = before(&ensemble.servers()[0]);
    let ours = locks_at(&[proxy.address()], SHORT).await;
    let theirs = locks_at(&addresses, LONG).await;
    let least = Duration::from_secs(4);
    let granted = Instant::now();
    let guard = ours.lock("room").with_hold_at_least(least).acquire().await.unwrap();
    let early = wait_for(&theirs, "room");
    until("the waiter", || places(ensemble.admin(), "room").len() == 2).await;
    guard.release().await.unwrap();
    proxy.black_hole();
    let leader = ensemble.leader().unwrap();
    ensemble.server_mut(leader).kill();
    ensemble.wait_for_leader().unwrap();
    let late = wait_for(&theirs, "room");
    for waiter in [early, late] {
        let guard = soon("the lock", waiter).await.unwrap().unwrap();
        assert!(granted.elapsed() >= least, "after {:?}", granted.elapsed());
        guard.release().await.unwrap();
    }
}

/// Which was in the queue before the release, and takes it for a lock.
#[tokio::test]
async fn what_is_over_is_removed_by_who_stands_behind_a_client_that_does_not_know_it() {
    let server = ZooKeeperServer::start().unwrap();
    let (ours, theirs) = (locks(&server, SHORT).await, locks(&server, LONG).await);
    let guard = ours.lock("room").with_hold_at_least(Duration::from_secs(2)).acquire().await.unwrap();
    let curator = "/dlock/room/_c_01234567-89ab-cdef-0123-456789abcdef-lock-";
    let curator = server.admin().create(curator, b"", NodeKind::PersistentSequential);
    let waiter = in_turn(wait_for(&theirs, "room"));
    until("the line", || server.admin().children("/dlock/room").len() == 3 && server.admin().watches() >= 2)
        .await;
    let left = fence(&guard);
    guard.release().await.unwrap();
    drop(ours.shutdown(Duration::from_secs(5)).await);
    drop(ours);
    let is_first = || curator.ends_with(&places(server.admin(), "room")[0]);
    assert!(!is_first(), "it was released too late to leave anything");
    until("the end of what was left", is_first).await;
    assert!(!waiter.is_finished());
    server.admin().delete(&curator);
    assert!(soon("the lock", waiter).await.unwrap() > left);
}
