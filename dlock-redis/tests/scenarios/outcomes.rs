//! Replies and requests that are lost.

use std::pin::Pin;

use dlock_core::{Error, ErrorKind};
use dlock_rig::proxy::Loss;

use crate::support::{HOUR, LONG, Proxied, SHORT, error_of, fence, held, is_counter, locks, soon, until};

#[tokio::test]
async fn a_grant_whose_reply_was_lost_is_adopted() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let locks = on.locks(LONG).await;
        locks.lock("before").acquire().await.unwrap().release().await.unwrap();
        on.server.command::<()>(&["CONFIG", "RESETSTAT"]);
        on.proxy.lose_reply(1, "EVALSHA", loss);
        let guard = locks.lock("room").acquire().await.unwrap();
        assert_eq!(on.proxy.lost(), 1);
        guard.check().unwrap();
        // Granted once: the second attempt found it.
        let stored: String = on.server.command(&["GET", "dlock:room"]);
        assert!(stored.contains(&format!(" {}+0 ", fence(&guard))), "{stored:?}");
        assert_eq!(locks.stats().rechecks, 1);
        guard.release().await.unwrap();
        assert_eq!(held(&on.server), [""; 0]);
    }
}

#[tokio::test]
async fn an_adopted_grant_has_its_full_lease() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    on.proxy.lose_reply(1, "EVALSHA", Loss::Silence);
    let guard = locks.lock("room").acquire().await.unwrap();
    let (left, believed): (u64, _) = (on.server.command(&["PTTL", "dlock:room"]), guard.remaining().unwrap());
    assert!(u128::from(left) >= believed.as_millis(), "{left} ms on the server, and {believed:?} believed");
}

/// Removes the fence from whatever is a lock, or part of one.
const REMOVE_FENCE: &str = "\
    local name = KEYS[1] \
    if redis.call('TYPE', name).ok == 'string' then \
      local value = string.gsub(redis.call('GET', name), ' %d+%+%d+ ', ' ', 1) \
      return redis.call('SET', name, value, 'KEEPTTL') \
    end \
    local all = redis.call('HGETALL', name) \
    for at = 1, #all, 2 do \
      if #all[at] >= 32 then \
        local value = string.gsub(all[at + 1], '%d%d%d%d%d%d+ ([a-z])', '%1', 1) \
        redis.call('HSET', name, all[at], value) \
      end \
    end";

#[tokio::test]
async fn a_grant_whose_fence_was_removed_before_it_was_adopted_is_refused_at_once_alone_and_in_a_batch() {
    for (parameters, prefix, has_readers) in [("", "dlock:", true), ("/?redisson=true", "dlock:", false)] {
        for mode in ["alone", "batch", "fair", "read"] {
            if mode == "read" && !has_readers {
                continue;
            }
            let on = Proxied::start();
            let locks = locks(&format!("{}{parameters}", on.url()), LONG).await;
            // The first lock in a mode tries the rights.
            let before = match mode {
                "fair" => locks.lock("before").with_fairness(true),
                "read" => locks.lock("before").read(),
                _ => locks.lock("before"),
            };
            before.acquire().await.unwrap().release().await.unwrap();
            let lock = locks.lock("b").with_wait(HOUR);
            let acquire: Pin<Box<dyn Future<Output = Option<Error>> + Send>> = match mode {
                "batch" => {
                    let batch = locks.lock_all(["a", "b", "c"]).with_wait(HOUR);
                    Box::pin(async move { batch.acquire().await.err() })
                }
                "fair" => Box::pin(async move { lock.with_fairness(true).acquire().await.err() }),
                "read" => Box::pin(async move { lock.read().acquire().await.err() }),
                _ => Box::pin(async move { lock.acquire().await.err() }),
            };
            // That of a batch is learned by its text.
            let script = if mode == "batch" { "EVAL" } else { "EVALSHA" };
            on.proxy.lose_reply(1, script, Loss::Silence);
            let acquire = tokio::spawn(acquire);
            soon("the loss of the reply", on.proxy.wait_until_lost(1)).await;
            on.server.command::<()>(&["EVAL", REMOVE_FENCE, "1", &format!("{prefix}b")]);
            let error = soon("the refusal", acquire).await.unwrap().expect("it has no fence");
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{mode}{parameters}: {error}");
            assert!(error.to_string().contains("removed the fence"), "{error}");
            until("the withdrawal", || on.server.keys().iter().all(|key| is_counter(key))).await;
        }
    }
}

#[tokio::test]
async fn a_request_that_never_arrived_is_made_again() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    on.proxy.lose_request(1, "EVALSHA");
    let guard = locks.lock("room").acquire().await.unwrap();
    assert_eq!(on.proxy.lost(), 1);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn without_a_recheck_a_lost_reply_is_an_unknown_outcome_that_is_withdrawn() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    on.proxy.lose_reply(1, "EVALSHA", Loss::Cut);
    let error = error_of(locks.lock("room").with_rechecks(0).acquire().await, ErrorKind::Unknown);
    assert!(error.maybe_held_for_at_most().is_some_and(|limit| limit <= LONG + LONG / 10), "{error}");
    until("the withdrawal", || held(&on.server).is_empty()).await;
}

#[tokio::test]
async fn a_renewal_whose_reply_was_lost_keeps_the_lock() {
    let on = Proxied::start();
    // A renewal whose reply is lost takes a third of it on a busy machine too.
    let locks = on.locks(SHORT * 3).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    for (count, loss) in [(1, Loss::Cut), (2, Loss::Silence)] {
        on.proxy.lose_reply(1, "EVALSHA", loss);
        soon("a renewal", on.proxy.wait_until_lost(count)).await;
        let renewals = locks.stats().renewals;
        until("the next renewal", || locks.stats().renewals > renewals).await;
    }
    guard.check().unwrap();
    assert_eq!(locks.stats().lost, 0);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_whose_reply_was_lost_takes_nothing_from_the_next_holder() {
    for loss in [Loss::Cut, Loss::Silence] {
        let on = Proxied::start();
        let (ours, theirs) = (on.locks(LONG).await, locks(&on.server.url(), LONG).await);
        let guard = ours.lock("room").acquire().await.unwrap();
        on.proxy.lose_reply(1, "EVALSHA", loss);
        // Whether it is confirmed by asking again is not the point.
        drop(soon("the release", guard.release()).await);
        let next = soon("the next holder", theirs.lock("room").acquire()).await.unwrap();
        until("the background work", || ours.stats().background == 0).await;
        next.check().unwrap();
        assert_eq!(held(&on.server), ["room"]);
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_release_that_never_arrived_is_made_up_for() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    on.proxy.lose_request(1, "EVALSHA");
    drop(soon("the release", guard.release()).await);
    until("the release", || held(&on.server).is_empty()).await;
}

#[tokio::test]
async fn every_lost_reply_of_many_leaves_each_lock_with_one_holder_or_none() {
    let on = Proxied::start();
    let locks = on.locks(LONG).await;
    for round in 0..40_u32 {
        on.proxy.lose_reply(
            u64::from(1 + round % 3),
            "EVALSHA",
            if round % 2 == 0 { Loss::Cut } else { Loss::Silence },
        );
        let guard = soon("the grant", locks.lock("room").acquire()).await;
        match guard {
            Ok(guard) => drop(guard.release().await),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
    on.proxy.mend();
    until("the clean-up", || held(&on.server).is_empty()).await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}
