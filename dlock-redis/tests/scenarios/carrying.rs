//! Locks that are handed over by a baton.

use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim, Mode};
use dlock_core::{Baton, ErrorKind, Fence, Guard, Locks};
use dlock_redis::Redis;
use dlock_rig::proxy::{Direction, Flow, Loss};
use dlock_rig::servers::redis::RedisServer;
use dlock_testkit::claim_request;
use tokio::task::JoinHandle;

use crate::fairness::{LONGEST, wait_behind_any};
use crate::support::{HOUR, LONG, Proxied, error_of, fence, held, locks, over, soon, until};

/// One of two copies, which both come at once.
async fn taken_by_one(takers: [&Locks; 2], baton: &Baton) -> Guard {
    let (one, other) = tokio::join!(takers[0].take_over(baton), takers[1].take_over(baton));
    let (guard, refused) = if one.is_ok() { (one, other) } else { (other, one) };
    error_of(refused, ErrorKind::NotHeld);
    guard.unwrap()
}

/// Each baton goes to two processes, connections end before answers come, and the giver writes late each time.
#[tokio::test]
async fn a_lock_goes_through_hundreds_of_hands_in_two_copies_over_a_wire_that_loses_answers() {
    let on = Proxied::start();
    let mut processes = Vec::new();
    for _ in 0..3 {
        processes.push(on.locks(LONG).await);
    }
    let resource = Redis::connect(&on.server.url()).await.unwrap();
    let mut guard = processes[0].lock("order").acquire().await.unwrap();
    for number in 0..300_usize {
        if number % 3 == 0 {
            // The hand-over's, or one of the two take-overs'.
            on.proxy.lose_reply(1 + number as u64 / 3 % 3, "EVAL", Loss::Cut);
        }
        let before = fence(&guard);
        let baton = guard.hand_over().await.unwrap();
        error_of(guard.check(), ErrorKind::NotHeld);
        let takers = [&processes[number % 3], &processes[(number + 1) % 3]];
        let next = soon("one of the takers", taken_by_one(takers, &baton)).await;
        next.check().unwrap();
        assert!(fence(&next) > before, "{} after {before}", fence(&next));
        assert!(resource.fenced_set("stock", "new", Fence::new(fence(&next))).await.unwrap());
        assert!(!resource.fenced_set("stock", "old", Fence::new(before)).await.unwrap());
        guard = next;
    }
    assert!(on.proxy.lost() >= 90, "{} were lost", on.proxy.lost());
    guard.release().await.unwrap();
    until("the clean-up", || !held(&on.server).iter().any(|key| key == "order")).await;
}

#[tokio::test]
async fn a_hand_over_and_a_take_over_are_one_request_each() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(LONG).await, on.locks(LONG).await);
    for locks in [&ours, &theirs] {
        locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    }
    let guard = ours.lock("order").acquire().await.unwrap();
    let count = || on.proxy.requests().get("EVAL").copied().unwrap_or_default();
    let before = count();
    let baton = guard.hand_over().await.unwrap();
    assert_eq!(count() - before, 1);
    let guard = theirs.take_over(&baton).await.unwrap();
    assert_eq!(count() - before, 2);
    guard.release().await.unwrap();
}

/// The mark that somebody listens, which the release looks at.
#[tokio::test]
async fn who_waits_through_a_hand_over_is_notified_of_the_takers_release() {
    let on = Proxied::start();
    let (ours, theirs) = (on.locks(HOUR).await, over(Redis::connect(&on.url()).await.unwrap(), HOUR));
    let guard = ours.lock("order").acquire().await.unwrap();
    let waiter = locks(&on.server.url(), HOUR).await.lock("order").with_wait(HOUR);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let stored = || on.server.command::<String>(&["GET", "dlock:order"]);
    until("the mark of the waiter", || stored().ends_with(" !")).await;
    let baton = guard.hand_over().await.unwrap();
    until("the mark of the waiter on what was left", || stored().ends_with(" !")).await;
    let guard = theirs.take_over(&baton).await.unwrap();
    assert!(stored().ends_with(" !"), "{}", stored());
    guard.release().await.unwrap();
    soon("the waiter", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn those_in_line_keep_their_places_over_a_hand_over_and_the_first_is_told_of_the_takers_release() {
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    let guard = clients[0].lock("room").acquire().await.unwrap();
    let mut waiters = Vec::new();
    for number in [0, 1, 1, 0] {
        waiters.push(wait_behind_any(&server, &clients[number]).await);
    }
    let baton = guard.hand_over().await.unwrap();
    let left = clients[0].inspect("room").await.unwrap().unwrap();
    assert!(left.left_behind, "{left}");
    let guard = clients[1].take_over(&baton).await.unwrap();
    let mut connection = server.admin();
    let mut told = connection.as_pubsub();
    told.psubscribe("dlock:room#*").unwrap();
    told.set_read_timeout(Some(LONG)).unwrap();
    served_in_order(&clients[0], guard, waiters).await;
    told.get_message().expect("a message to the first in line");
    assert_eq!(held(&server), [""; 0]);
}

/// Each has the lock at the release of the one before, and nobody else does.
async fn served_in_order(
    locks: &Locks,
    mut guard: Guard,
    waiters: Vec<JoinHandle<dlock_core::Result<Guard>>>,
) {
    for waiter in waiters {
        guard.release().await.unwrap();
        assert!(locks.lock("room").try_acquire().await.unwrap().is_none(), "it is another one's turn");
        guard = soon("its turn", waiter).await.unwrap().unwrap();
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_taker_says_of_itself_what_there_is_room_for_before_those_in_line() {
    let server = RedisServer::start().unwrap();
    let ours = locks(&server.url(), LONG).await;
    let redis = Redis::connect(&server.url()).await.unwrap();
    let labelled = Locks::builder(redis).with_label("=".repeat(64)).with_lease(LONG).build().unwrap();
    let guard = ours.lock("room").acquire().await.unwrap();
    let value = || server.command::<String>(&["GET", "dlock:room"]);
    let mut waiters = Vec::new();
    while value().len() < LONGEST {
        waiters.push(wait_behind_any(&server, &ours).await);
    }
    let baton = guard.hand_over().await.unwrap();
    let guard = labelled.take_over(&baton).await.unwrap();
    assert!(value().len() < 512, "{}", value());
    let shown = ours.inspect("room").await.unwrap().unwrap();
    assert_eq!((shown.fence, shown.label), (guard.fence(), None), "there was no room for the label");
    assert!(shown.host.is_some());
    served_in_order(&ours, guard, waiters).await;
    assert_eq!(held(&server), [""; 0]);
}

/// A time that the server cannot keep is none to it, and no lock can be left for that.
#[tokio::test]
async fn a_key_is_left_for_less_than_the_server_can_keep() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut claim = redis.claim(claim_request("order", LONG, false).await.unwrap());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    assert!(claim.leave(Duration::from_nanos(300)).await.unwrap().removed);
    until("its end", || held(&server).is_empty()).await;
}

#[tokio::test]
async fn where_a_lock_is_gone_nothing_is_left_whatever_stands_there() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let mut claim = redis.claim(claim_request("order", LONG, false).await.unwrap());
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    for data in [None, Some("LPUSH"), Some("APPEND")] {
        server.command::<()>(&["DEL", "dlock:order"]);
        if let Some(command) = data {
            server.command::<()>(&[command, "dlock:order", "data of others"]);
        }
        assert!(!claim.leave(LONG).await.unwrap().removed, "{data:?}");
        assert_eq!(held(&server).len(), usize::from(data.is_some()), "{data:?}");
    }
}

/// Otherwise they would wait for as long as it was left at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_told_when_a_hand_over_is_taken_back() {
    let on = Proxied::start();
    let ours = over(Redis::connect(&on.url()).await.unwrap(), HOUR);
    let guard = ours.lock("order").acquire().await.unwrap();
    let waiter = locks(&on.server.url(), HOUR).await.lock("order").with_wait(HOUR);
    let waiter = tokio::spawn(async move { waiter.acquire().await });
    let stored = || on.server.command::<String>(&["GET", "dlock:order"]);
    until("the mark of the waiter", || stored().ends_with(" !")).await;
    let mut connection = on.server.admin();
    let mut told = connection.as_pubsub();
    told.subscribe("dlock:order").unwrap();
    told.set_read_timeout(Some(LONG)).unwrap();
    on.proxy.set(Direction::ToClient, Flow::Hold);
    let handing = tokio::spawn(guard.hand_over().into_future());
    until("the key to be left", || stored().contains(" left=1 ")).await;
    told.get_message().expect("a message to those who wait");
    handing.abort();
    on.proxy.mend();
    told.get_message().expect("a message that it is left for no longer");
    soon("the waiter", waiter).await.unwrap().unwrap().release().await.unwrap();
}

/// Those who hold it may be several, whom another script knows.
#[tokio::test]
async fn a_baton_that_is_of_no_use_any_more_says_who_has_the_lock_however_it_is_held() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let baton = ours.lock("order").acquire().await.unwrap().hand_over().await.unwrap();
    ours.take_over(&baton).await.unwrap().release().await.unwrap();
    let refused = || async { error_of(theirs.take_over(&baton).await, ErrorKind::NotHeld) };
    let text = refused().await.to_string();
    assert!(
        text.contains("the lock is not held: the baton was taken over before and the lock released"),
        "{text}"
    );
    let permits = Mode::Permits { of: 2, take: 1 };
    let order = || ours.lock("order");
    for (number, mode) in [Mode::Exclusive, Mode::Exclusive, Mode::Shared, permits].into_iter().enumerate() {
        let guard = match number {
            0 => order().acquire().await,
            1 => order().with_fairness(true).acquire().await,
            2 => order().read().acquire().await,
            _ => ours.semaphore("order", 2).acquire().await,
        };
        let guard = guard.unwrap();
        let error = refused().await;
        assert!(error.to_string().contains("somebody else has the lock"), "{error}");
        let holder = error.holder().expect("who has it");
        assert_eq!((holder.fence, holder.mode), (guard.fence(), mode), "{error}");
        guard.release().await.unwrap();
        server.command::<u32>(&["DEL", "dlock:order"]);
    }
    server.command::<u32>(&["HSET", "dlock:order", "data", "of others"]);
    let error = refused().await;
    assert!(error.to_string().contains("not a lock of dlock"), "{error}");
}

/// A reader's share, or two of three permits.
async fn part(locks: &Locks, of_semaphore: bool) -> Guard {
    let permits = locks.semaphore("order", 3).take(2);
    let taken =
        if of_semaphore { permits.acquire().await } else { locks.lock("order").read().acquire().await };
    taken.unwrap()
}

/// No part is taken, by attempts that do not wait.
async fn is_free(server: &RedisServer, locks: &Locks, of_semaphore: bool) {
    let permits = locks.semaphore("order", 3).take(3);
    let all =
        if of_semaphore { permits.try_acquire().await } else { locks.lock("order").try_acquire().await };
    all.unwrap().expect("nobody has a part").release().await.unwrap();
    server.command::<u32>(&["DEL", "dlock:order"]);
}

/// A step is a script, of which the server carries out what comes before the command that it refuses.
#[tokio::test]
async fn a_right_that_is_missing_neither_uses_up_the_baton_of_a_share_nor_keeps_others_out() {
    let server = RedisServer::options().user("locks", "pw", &["~*", "&*", "+@all"]).start().unwrap();
    let set = |right: &str| server.command::<()>(&["ACL", "SETUSER", "locks", right]);
    let (ours, theirs) = (locks(&server.url_as("locks", "pw"), LONG).await, locks(&server.url(), LONG).await);
    for right in ["hmget", "hget", "hset", "hdel", "pttl", "pexpire", "incr", "set"] {
        for of_semaphore in [false, true] {
            let guard = part(&ours, of_semaphore).await;
            set(&format!("-{right}"));
            let baton = guard.hand_over().for_at_most(HOUR).await;
            set("+@all");
            if let Ok(baton) = baton {
                theirs.take_over(&baton).await.unwrap().release().await.unwrap();
            }
            until("the clean-up", || ours.stats().background == 0).await;
            is_free(&server, &theirs, of_semaphore).await;

            let baton = part(&theirs, of_semaphore).await.hand_over().for_at_most(HOUR).await.unwrap();
            set(&format!("-{right}"));
            let taken = ours.take_over(&baton).await;
            set("+@all");
            until("the clean-up", || ours.stats().background == 0).await;
            let guard = match taken {
                Ok(guard) => guard,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Denied, "without {right}: {error}");
                    let again = ours.take_over(&baton).await;
                    again.unwrap_or_else(|error| panic!("without {right} it was used up: {error}"))
                }
            };
            guard.release().await.unwrap();
            is_free(&server, &theirs, of_semaphore).await;
        }
    }
}

#[tokio::test]
async fn a_server_that_is_full_has_shares_handed_over_and_refuses_a_take_over_without_using_up_the_baton() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    for of_semaphore in [false, true] {
        let guard = part(&locks, of_semaphore).await;
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let baton = guard.hand_over().await.unwrap();
        locks.take_over(&baton).await.expect_err("there is no memory for it");
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        locks.take_over(&baton).await.unwrap().release().await.unwrap();
        is_free(&server, &locks, of_semaphore).await;
    }
}

#[tokio::test]
async fn those_in_line_behind_a_reader_come_after_the_taker_or_after_the_time_of_the_baton() {
    let server = RedisServer::start().unwrap();
    let clients = [locks(&server.url(), LONG).await, locks(&server.url(), LONG).await];
    let room = || clients[0].lock("room");
    for is_taken in [true, false] {
        let guard = room().read().acquire().await.unwrap();
        let mut waiters = Vec::new();
        for number in [0, 1, 1] {
            waiters.push(wait_behind_any(&server, &clients[number]).await);
        }
        let time = if is_taken { HOUR } else { Duration::from_millis(500) };
        let baton = guard.hand_over().for_at_most(time).await.unwrap();
        assert!(room().read().try_acquire().await.unwrap().is_none(), "others came before");
        let guard = if is_taken {
            clients[1].take_over(&baton).await.unwrap()
        } else {
            soon("its turn", waiters.remove(0)).await.unwrap().unwrap()
        };
        error_of(clients[0].take_over(&baton).await, ErrorKind::NotHeld);
        served_in_order(&clients[0], guard, waiters).await;
        assert_eq!(held(&server), [""; 0]);
    }
}

/// Each request arrives when something else has happened meanwhile.
#[tokio::test]
async fn a_late_request_for_a_share_changes_nothing() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let stored = || {
        let fields =
            server.command::<std::collections::BTreeMap<String, String>>(&["HGETALL", "dlock:order"]);
        (fields, server.command::<i64>(&["PTTL", "dlock:order"]) > 60_000)
    };
    for mode in [Mode::Shared, Mode::Permits { of: 3, take: 2 }] {
        let claim = async |left| {
            let mut request = claim_request("order", LONG, false).await.unwrap();
            (request.mode, request.takes_over) = (mode, left);
            let left = request.token.left_behind();
            (redis.claim(request), left)
        };
        let ((mut giver, first), (mut other, _)) = (claim(None).await, claim(None).await);
        assert!(matches!(giver.attempt().await, Ok(Attempt::Granted(_))));
        if mode == Mode::Shared {
            assert!(matches!(other.attempt().await, Ok(Attempt::Granted(_))));
        }
        assert!(giver.leave(HOUR).await.unwrap().removed);
        let (mut taker, second) = claim(Some(first)).await;
        let (mut copy, _) = claim(Some(first)).await;
        assert!(matches!(taker.attempt().await, Ok(Attempt::Granted(_))));
        let mut late = async |takers: &mut [&mut <Redis as Backend>::Claim]| {
            let before = stored();
            assert!(!giver.leave(HOUR).await.unwrap().removed);
            for taker in takers {
                assert!(matches!(taker.attempt().await, Ok(Attempt::Busy(_))));
            }
            assert_eq!(stored(), before);
        };
        late(&mut [&mut copy]).await;
        assert!(taker.leave(HOUR).await.unwrap().removed);
        late(&mut [&mut copy, &mut taker]).await;
        let (mut last, _) = claim(Some(second)).await;
        assert!(matches!(last.attempt().await, Ok(Attempt::Granted(_))));
        late(&mut [&mut copy, &mut taker]).await;
        let _ = last.withdraw().await.unwrap();
        late(&mut [&mut copy, &mut taker, &mut last]).await;
        let _ = other.withdraw().await.unwrap();
        late(&mut [&mut copy, &mut taker, &mut last]).await;
        server.command::<u32>(&["DEL", "dlock:order"]);
    }
}

/// Its token is no owner that could be carried there.
#[tokio::test]
async fn in_redissons_form_a_lock_stays_where_it_is() {
    let on = Proxied::start();
    let redisson = locks(&format!("{}?redisson=true", on.server.url()), LONG).await;
    let guard = redisson.lock("order").acquire().await.unwrap();
    error_of(guard.hand_over().await, ErrorKind::Unsupported);
    guard.check().unwrap();
    guard.release().await.unwrap();
}
