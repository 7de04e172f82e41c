//! What the engine does when it is not known whether a request took effect.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::lifecycle::On;
use crate::owners::poll_once;
use crate::script::{Answer, Call, Scripted};
use dlock_core::backend::{Capabilities, Validity};
use dlock_core::{Clock, ErrorKind, Failure, Locks, ManualClock, Memory, Wait};
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(30);

fn granted() -> Answer {
    Answer::Grant(Validity::Lease(LEASE))
}

fn lost_reply() -> Answer {
    Answer::Fail(Failure::unknown("the connection was lost after the request was sent"))
}

#[tokio::test]
async fn rechecks_are_bounded_and_the_claim_is_then_withdrawn_in_the_background() {
    let backend = Scripted::new([lost_reply(), lost_reply(), granted()]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").with_rechecks(1).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    let left = error.maybe_held_for_at_most().unwrap();
    assert!(left > LEASE && left < LEASE * 2, "{left:?}");
    backend
        .wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Attempt(_), Call::Withdraw(w)] if a == w))
        .await;
}

#[tokio::test]
async fn a_recheck_is_made_even_when_the_caller_does_not_wait() {
    let backend = Scripted::new([lost_reply(), granted()]);
    let locks = Locks::new(backend.clone());
    let _guard = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap();
}

#[tokio::test]
async fn a_request_without_an_answer_is_an_unknown_outcome() {
    let backend = Scripted::new([Answer::Hang, granted()]);
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_request_timeout(Duration::from_millis(20));
    let _guard = lock.acquire().await.unwrap();
    assert_eq!(locks.stats().rechecks, 1);
}

#[tokio::test]
async fn a_recheck_that_could_not_be_made_leaves_the_outcome_unknown() {
    let refused = Answer::Fail(Failure::unavailable("connection refused"));
    let backend = Scripted::new([lost_reply(), refused, granted()]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(error.to_string().contains("connection refused"), "{error}");
    backend.wait_for(|calls| matches!(calls.last(), Some(Call::Withdraw(_)))).await;
}

#[tokio::test]
async fn a_recheck_that_could_not_be_made_is_made_again_while_the_caller_waits() {
    let refused = || Answer::Fail(Failure::unavailable("connection refused"));
    let backend = Scripted::new([lost_reply(), refused(), refused(), granted()]);
    let locks = Locks::new(backend.clone());
    let _guard = locks.lock("k").acquire().await.unwrap();
    // A final failure is not: nothing more will be learnt.
    let backend = Scripted::new([lost_reply(), Answer::Fail(Failure::denied("the rights were taken away"))]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    backend.wait_for(|calls| matches!(calls.last(), Some(Call::Withdraw(_)))).await;
}

#[tokio::test]
async fn a_busy_answer_settles_the_outcome_but_the_claim_is_still_withdrawn() {
    // The first request may still be on its way and take effect later.
    let backend = Scripted::unpolled([lost_reply(), Answer::Busy]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").with_wait(Duration::from_millis(100)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    backend.wait_for(|calls| matches!(calls.last(), Some(Call::Withdraw(_)))).await;
}

#[tokio::test]
async fn validity_counts_from_the_first_request_that_may_have_taken_effect() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Hang, granted()]);
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_lease(LEASE).with_request_timeout(Duration::from_millis(100));
    let acquire = tokio::spawn(async move { lock.acquire().await });
    backend.wait_for(|calls| calls.len() == 1).await;
    clock.advance(Duration::from_secs(10));
    let guard = acquire.await.unwrap().unwrap();
    let left = guard.remaining().unwrap();
    assert_eq!(left, LEASE - Duration::from_secs(10) - LEASE / 100);
}

#[tokio::test]
async fn a_grant_that_comes_after_its_lease_is_given_back_and_asked_for_anew() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Hang, granted(), granted()]);
    let locks = Locks::new(backend.clone());
    let lock = locks.lock("k").with_lease(LEASE).with_request_timeout(Duration::from_millis(100));
    let acquire = tokio::spawn(async move { lock.acquire().await });
    backend.wait_for(|calls| calls.len() == 1).await;
    clock.advance(LEASE);
    let guard = acquire.await.unwrap().unwrap();
    guard.check().unwrap();
    let late = match backend.calls()[0] {
        Call::Attempt(token) => token,
        other => panic!("{other:?}"),
    };
    backend.wait_for(|calls| calls.contains(&Call::Withdraw(late))).await;
    let fresh = backend.count(|call| matches!(call, Call::Attempt(token) if *token != late));
    assert_eq!(fresh, 1, "{:?}", backend.calls());
}

#[tokio::test]
async fn a_final_failure_ends_the_acquire_at_once() {
    let backend = Scripted::new([Answer::Fail(Failure::denied("wrong password")), granted()]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert_eq!(backend.count(|call| matches!(call, Call::Attempt(_))), 1);
}

#[tokio::test]
async fn an_unavailable_backend_is_asked_again_while_the_wait_lasts() {
    let refused = || Answer::Fail(Failure::unavailable("connection refused"));
    let backend = Scripted::new([refused(), refused(), granted()]);
    let locks = Locks::new(backend.clone());
    let _guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(locks.stats().rechecks, 0, "nothing was unknown");

    let backend = Scripted::new([refused(), granted()]);
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_final_failure_while_waiting_for_a_change_ends_the_acquire() {
    let backend = Scripted::unpolled([Answer::Busy]);
    backend.0.changes.lock().unwrap().push_back(Err(Failure::new(ErrorKind::Lost, "the session expired")));
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_transient_failure_while_waiting_for_a_change_falls_back_to_polling() {
    let backend = Scripted::new([Answer::Busy, granted()]);
    backend.0.changes.lock().unwrap().push_back(Err(Failure::unavailable("the subscription is gone")));
    let locks = Locks::new(backend.clone());
    let _guard = locks.lock("k").acquire().await.unwrap();
}

#[tokio::test]
async fn an_acquire_that_was_never_polled_asks_nothing() {
    let backend = Scripted::new([granted()]);
    let locks = Locks::new(backend.clone());
    drop(locks.lock("k").acquire());
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    assert_eq!(backend.calls(), []);
}

#[tokio::test]
async fn an_acquire_that_only_heard_busy_has_nothing_to_withdraw() {
    let backend = Scripted::unpolled([Answer::Busy]);
    let locks = Locks::new(backend.clone());
    locks.lock("k").with_wait(Duration::from_millis(1)).acquire().await.unwrap_err();
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    assert!(matches!(backend.calls()[..], [Call::Attempt(_)]), "{:?}", backend.calls());
}

#[tokio::test]
async fn a_place_in_a_queue_of_the_backend_is_given_up() {
    let rarely = Duration::from_secs(600);
    let queue = Capabilities::basic().with_fairness().with_polling(rarely, rarely);
    let backend = Scripted::with(Clock::system(), queue, [Answer::Busy]);
    let locks = Locks::new(backend.clone());
    locks.lock("k").with_wait(Duration::from_millis(1)).acquire().await.unwrap_err();
    backend.wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Withdraw(w)] if a == w)).await;
}

#[tokio::test]
async fn shut_down_after_an_unknown_outcome_a_lock_and_a_batch_say_for_how_long_they_may_be_held() {
    for keys in [vec!["a"], vec!["a", "b"]] {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        memory.faults().drop_replies(1);
        let batch = locks.lock_all(&keys);
        let lock = locks.lock("a");
        let mut acquire = Box::pin(async {
            match keys.len() {
                1 => lock.acquire().await.map(drop),
                _ => batch.acquire().await.map(drop),
            }
        });
        assert!(poll_once(&mut acquire).await.is_none());
        memory.faults().set_unavailable(true);
        let shutdown = tokio::spawn({
            let locks = locks.clone();
            async move { locks.shutdown(Duration::from_secs(20)).await }
        });
        let error = acquire.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(error.maybe_held_for_at_most().unwrap() > Duration::from_secs(29), "{error}");
        memory.faults().set_unavailable(false);
        shutdown.await.unwrap().unwrap();
        assert_eq!(memory.held(), 0);
    }
}

#[tokio::test]
async fn a_grant_that_is_worth_nothing_is_withdrawn_and_never_asked_for_again_under_its_token() {
    let worthless = |failure: Failure| Answer::Fail(failure.of_worthless_grant());
    let (unavailable, unknown) =
        (Failure::unavailable("no replica knows of it"), Failure::unknown("no fence"));
    let backend = Scripted::new([lost_reply(), worthless(unavailable), worthless(unknown), granted()]);
    let guard = Locks::new(backend.clone()).lock("k").acquire().await.unwrap();
    backend.wait_for(|calls| calls.len() == 6).await;
    let (mut attempts, mut withdrawals) = (Vec::new(), Vec::new());
    for call in backend.calls() {
        match call {
            Call::Attempt(token) => attempts.push(token),
            Call::Withdraw(token) => withdrawals.push(token),
            Call::Renew => {}
        }
    }
    let [asked, again, other, held] = attempts[..] else { panic!("{attempts:?}") };
    assert!(asked == again && again != other && other != held);
    withdrawals.sort_unstable_by_key(|token| *token == other);
    assert_eq!(withdrawals, [asked, other], "what is held is not withdrawn");
    guard.check().unwrap();
}

#[tokio::test]
async fn a_claim_whose_grant_was_worthless_is_not_used_again_where_no_new_one_can_be_made() {
    let worthless = Failure::unavailable("no replica knows of it").of_worthless_grant();
    let backend = Scripted::new([Answer::Fail(worthless), granted()]);
    backend.panic_after_claims(1);
    let error = Locks::new(backend.clone()).lock("k").acquire().await.unwrap_err();
    assert!(error.to_string().contains("no claim is made any more"), "{error}");
    backend.wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Withdraw(w)] if a == w)).await;
}

/// Locks over a memory, all in the paused time of the test.
fn in_virtual_time() -> (Memory, Locks) {
    let start = Instant::now();
    let memory =
        Memory::with_clock(Clock::simulated(move || u64::try_from(start.elapsed().as_nanos()).unwrap()));
    let on = Arc::new(On(tokio::runtime::Handle::current()));
    (memory.clone(), Locks::builder(memory).with_keeper_on(on).build().unwrap())
}

/// The lease of the giver says nothing of it: the key is left for the time of the baton.
#[tokio::test(start_paused = true)]
async fn a_hand_over_that_took_effect_unheard_is_retracted_after_an_outage_that_outlasts_the_lease() {
    let (memory, locks) = in_virtual_time();
    let guard = locks.lock("k").acquire().await.unwrap();
    let second = Duration::from_secs(1);
    memory.faults().set_delay(second);
    let handing = guard.hand_over().for_at_most(second * 3_600).into_future();
    timeout(second * 3 / 4, handing).await.unwrap_err();
    memory.faults().set_unavailable(true);
    sleep(LEASE * 4).await;
    assert_eq!(memory.held(), 1, "it was left");
    memory.faults().set_unavailable(false);
    drop(locks.lock("k").with_wait(second * 10).acquire().await.unwrap());
}

/// Told that it is not there, the caller would leave the work to another one, which there is not.
#[tokio::test(start_paused = true)]
async fn a_take_over_that_may_have_used_its_baton_up_does_not_say_that_another_was_there_first() {
    for is_first in [true, false] {
        let (memory, locks) = in_virtual_time();
        let guard = locks.lock("k").acquire().await.unwrap();
        let baton = guard.hand_over().for_at_most(LEASE * 9).await.unwrap();
        // The first request took the lock over and its lease is over, or the last one did, long after the first.
        if is_first {
            memory.faults().drop_replies(1);
        } else {
            memory.faults().drop_requests(1);
        }
        let lock = locks.lock("k").with_wait(LEASE * 9).from_baton(&baton).unwrap();
        let mut taking = pin!(lock.acquire());
        assert!(poll_once(&mut taking).await.is_none());
        memory.faults().set_unavailable(true);
        timeout(LEASE * 2, &mut taking).await.unwrap_err();
        memory.faults().set_unavailable(false);
        assert_eq!(taking.await.unwrap_err().kind(), ErrorKind::Unknown);
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
        // Where another one was there first, that is said.
        let error = locks.take_over(&baton).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotHeld);
    }
}

#[tokio::test]
async fn a_take_over_that_is_worth_nothing_is_not_asked_for_again() {
    let capabilities = Capabilities::basic().with_leaving().with_handing_over();
    let worthless = Failure::unavailable("no replica knows of it").of_worthless_grant();
    let backend = Scripted::with(Clock::system(), capabilities, [Answer::Fail(worthless), Answer::Busy]);
    let locks = Locks::new(backend.clone());
    let text = format!("dlock-baton:1:{}:1:-:{}:k", locks.backend(), "0f".repeat(16));
    let error = locks.take_over(&text.parse().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    backend.wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Withdraw(w)] if a == w)).await;
}
