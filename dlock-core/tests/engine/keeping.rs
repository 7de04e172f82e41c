//! Renewal, loss and release: what the keeper does, and in which order.

use std::time::Duration;

use crate::script::{Answer, Call, Scripted};
use dlock_core::backend::{Capabilities, Renewed, Validity, Withdrawal};
use dlock_core::{Clock, ErrorKind, Failure, Locks, ManualClock, Memory, OnLost, Wait};

const LEASE: Duration = Duration::from_secs(30);

fn granted() -> Answer {
    Answer::Grant(Validity::Lease(LEASE))
}

fn renewals(backend: &Scripted, answers: impl IntoIterator<Item = Result<Renewed, Failure>>) {
    backend.0.renewals.lock().unwrap().extend(answers);
}

/// Resolves when `test` holds; the keeper runs on a thread of its own.
pub(crate) async fn eventually(what: &str, test: impl Fn() -> bool + Send + Sync) {
    let wait = async {
        while !test() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), wait).await.is_ok(), "never happened: {what}");
}

#[tokio::test]
async fn a_lock_is_renewed_at_a_third_of_its_lease_and_its_validity_grows() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    renewals(&backend, [Ok(Renewed::Extended), Ok(Renewed::Extended)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    for n in 1..=2 {
        clock.advance(LEASE / 3);
        eventually("the renewal", || locks.stats().renewals == n).await;
        assert_eq!(guard.remaining().unwrap(), LEASE - LEASE / 100);
    }
    guard.check().unwrap();
    assert_eq!(backend.count(|call| *call == Call::Renew), 2);
}

#[tokio::test]
async fn a_first_lease_is_believed_for_no_longer_than_those_that_follow() {
    let lease = Duration::from_millis(600);
    let clock = ManualClock::stopped();
    let grant = Answer::GrantAtFirst(Duration::from_secs(2), Validity::Lease(lease));
    let backend = Scripted::with_clock(clock.clock(), [grant]);
    renewals(&backend, [Ok(Renewed::Extended)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let believed = lease - lease / 100;
    assert_eq!(guard.remaining().unwrap(), believed);
    clock.advance(Duration::from_millis(100));
    eventually("the renewal", || locks.stats().renewals == 1).await;
    assert_eq!(guard.remaining().unwrap(), believed);
}

#[tokio::test]
async fn a_renewal_that_fails_in_a_first_lease_is_tried_again_before_its_end() {
    let first = Duration::from_secs(2);
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::GrantAtFirst(first, Validity::Lease(LEASE))]);
    renewals(&backend, [Err(Failure::unavailable("the connection was reset")), Ok(Renewed::Extended)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(guard.remaining().unwrap(), first - first / 100);
    clock.advance(first / 20);
    eventually("the failure", || locks.stats().failed_renewals == 1).await;
    clock.advance(first / 12);
    eventually("another renewal", || locks.stats().renewals == 1).await;
    assert_eq!(guard.remaining().unwrap(), LEASE - LEASE / 100);
}

#[tokio::test]
async fn a_renewal_that_finds_the_lock_gone_loses_it() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    renewals(&backend, [Ok(Renewed::Gone)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(LEASE / 3);
    guard.lost().await;
    let error = guard.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("no longer has it"), "{error}");
    // The release is sent all the same, touches nothing of others, and says what became of the lock.
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    assert!(matches!(backend.calls().last(), Some(Call::Withdraw(_))));
}

#[tokio::test]
async fn a_renewal_that_the_backend_wants_comes_at_once_and_shows_that_the_lock_is_gone() {
    // Time stands still: nothing is due by itself.
    let backend = Scripted::with_clock(ManualClock::stopped().clock(), [granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    backend.signal().renew_within(Duration::ZERO);
    backend.wait_for(|calls| calls.contains(&Call::Renew)).await;
    // A wish is no loss; the answer to the renewal is.
    guard.check().unwrap();
    drop((guard, locks));
    let backend = Scripted::with_clock(ManualClock::stopped().clock(), [granted()]);
    renewals(&backend, [Ok(Renewed::Gone)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    backend.signal().renew_within(Duration::ZERO);
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn renewals_that_the_backend_wants_again_and_again_come_after_growing_pauses() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    renewals(&backend, (0..9).map(|_| Ok(Renewed::Extended)));
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let mut pause = Duration::from_millis(50);
    for n in 1..=8 {
        // The second wish of each round comes while the first renewal is under way, or right after it.
        for _ in 0..1_000 {
            backend.signal().renew_within(Duration::ZERO);
        }
        eventually("the renewal", || locks.stats().renewals == n).await;
        backend.signal().renew_within(Duration::ZERO);
        clock.advance(pause / 2);
        assert_eq!(locks.stats().renewals, n);
        clock.advance(pause / 2);
        pause = (pause * 2).min(LEASE / 12);
    }
    eventually("the renewal that was put off", || locks.stats().renewals == 9).await;
    guard.check().unwrap();
}

#[tokio::test]
async fn the_first_renewal_comes_within_what_the_backend_asks_for_at_the_grant() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    renewals(&backend, [Ok(Renewed::Extended)]);
    *backend.0.first_renewal.lock().unwrap() = Some(Duration::from_secs(1));
    let locks = Locks::new(backend.clone());
    let _guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(Duration::from_secs(1));
    eventually("the renewal", || locks.stats().renewals == 1).await;
}

#[tokio::test]
async fn a_failed_renewal_is_a_warning_first_and_a_later_one_lifts_it() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    renewals(&backend, [Err(Failure::unavailable("away")), Ok(Renewed::Extended)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let held = guard.held();
    assert!(!held.is_at_risk());
    clock.advance(LEASE / 3);
    held.at_risk().await;
    guard.check().unwrap();
    clock.advance(LEASE / 12);
    eventually("the second renewal", || !held.is_at_risk()).await;
    guard.check().unwrap();
    assert_eq!(locks.stats().failed_renewals, 1);
}

#[tokio::test]
async fn a_renewal_that_hangs_does_not_extend_the_belief_in_the_lock() {
    let backend = Scripted::new([Answer::Grant(Validity::Lease(Duration::from_millis(300)))]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").with_lease(Duration::from_millis(300)).acquire().await.unwrap();
    guard.lost().await;
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(backend.count(|call| *call == Call::Renew) >= 1);
}

#[tokio::test]
async fn a_renewal_that_is_confirmed_after_the_deadline_comes_too_late() {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let locks = Locks::new(memory.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    memory.faults().set_hanging(true);
    clock.advance(LEASE / 3);
    clock.advance(LEASE);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    memory.faults().set_hanging(false);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
}

#[tokio::test]
async fn a_release_does_not_wait_for_a_renewal_and_none_follows_it() {
    let clock = ManualClock::stopped();
    // Renewals hang: the script has no answer for them.
    let backend = Scripted::with_clock(clock.clock(), [granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(LEASE / 3);
    backend.wait_for(|calls| calls.contains(&Call::Renew)).await;
    guard.release().await.unwrap();
    // It was let go of, and did not have to time out first.
    assert_eq!(locks.stats().failed_renewals, 0);
    clock.advance(LEASE / 3);
    assert!(matches!(backend.calls()[..], [Call::Attempt(_), Call::Renew, Call::Withdraw(_)]));
}

#[tokio::test]
async fn a_release_that_cannot_be_confirmed_is_an_error_and_goes_on_in_the_background() {
    let backend = Scripted::new([granted()]);
    let away = || Err(Failure::unavailable("away"));
    backend.0.withdrawals.lock().unwrap().extend([away(), away(), away(), Ok(Withdrawal::REMOVED)]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let held = guard.held();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::NotHeld);
    eventually("the release", || locks.stats().background == 0).await;
    assert_eq!(backend.count(|call| matches!(call, Call::Withdraw(_))), 4);
    assert_eq!(locks.stats().abandoned, 0);
}

#[tokio::test]
async fn a_suspect_lock_fails_its_check_until_it_is_proven_again() {
    let clock = ManualClock::stopped();
    let session = Answer::Grant(Validity::Session(Some(LEASE)));
    let backend = Scripted::with_clock(clock.clock(), [session]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let signal = backend.signal();
    signal.suspect();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Suspect);
    assert!(guard.held().is_at_risk());
    clock.advance(LEASE / 2);
    signal.trust(clock.clock().now());
    guard.check().unwrap();
    assert_eq!(guard.remaining().unwrap(), LEASE - LEASE / 100);
    clock.advance(LEASE / 4);
    assert_eq!(guard.held().trusted_for(), Some(LEASE - LEASE / 100), "whatever is left of it");
    // No proof of life for a whole session: lost, whatever the backend says later.
    signal.suspect();
    clock.advance(LEASE);
    guard.lost().await;
    signal.trust(clock.clock().now());
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(backend.count(|call| *call == Call::Renew), 0, "a session is not renewed");
}

#[tokio::test]
async fn a_holder_is_notified_that_its_release_is_wanted_and_holds_the_lock_until_it_heeds_that() {
    let backend = Scripted::new([granted()]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    assert!(!guard.held().is_release_requested());
    let (held, signal) = (guard.held(), backend.signal());
    let heard = tokio::spawn(async move { held.release_requested().await });
    signal.release_requested();
    signal.release_requested();
    assert!(guard.held().is_release_requested());
    heard.await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lock_kept_by_a_session_without_an_end_is_lost_only_by_signal() {
    let clock = ManualClock::stopped();
    let backend = Scripted::with_clock(clock.clock(), [Answer::Grant(Validity::Session(None))]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    clock.advance(Duration::from_secs(1_000_000));
    guard.check().unwrap();
    assert_eq!((guard.remaining(), guard.held().trusted_for()), (None, None));
    backend.signal().lost("the session expired");
    guard.lost().await;
    assert!(guard.check().unwrap_err().to_string().contains("the session expired"));
}

#[tokio::test]
async fn max_hold_ends_a_lock_that_is_renewed_all_the_time() {
    let clock = ManualClock::stopped();
    let locks = Locks::builder(Memory::with_clock(clock.clock())).with_max_hold(LEASE * 2).build().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    for renewed in 1..=5 {
        clock.advance(LEASE / 3);
        eventually("a renewal", || locks.stats().renewals >= renewed.min(4)).await;
        guard.check().unwrap();
    }
    // The fourth renewal reached the end that max_hold sets, and no other follows.
    assert_eq!(locks.stats().renewals, 4);
    clock.advance(LEASE / 3);
    guard.lost().await;
    assert!(guard.check().unwrap_err().to_string().contains("max_hold"));
}

#[tokio::test]
async fn locks_that_are_released_in_time_never_wake_the_keeper() {
    let locks = Locks::new(Memory::new());
    let looks = locks.stats().keeper_looks;
    for _ in 0..10_000 {
        locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    }
    let stats = locks.stats();
    assert_eq!(stats.keeper_wakes, 0);
    assert!(stats.keeper_looks <= looks + 3, "{stats:?}");
    assert_eq!(stats.renewals, 0);
}

#[tokio::test]
async fn shutdown_says_what_it_had_to_leave_behind() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let _guard = locks.lock("k").acquire().await.unwrap();
    memory.faults().set_unavailable(true);
    let error = locks.shutdown(Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    memory.faults().set_unavailable(false);
}

#[tokio::test]
async fn the_clock_of_the_keeper_is_the_backends() {
    // A lease of an hour on a clock that stands still is not lost by real time passing.
    let clock = ManualClock::stopped();
    let locks = Locks::new(Memory::with_clock(clock.clock()));
    let guard = locks.lock("k").with_lease(Duration::from_millis(50)).acquire().await.unwrap();
    let system = Clock::system();
    system.sleep_until(system.now() + Duration::from_millis(120)).await;
    guard.check().unwrap();
}

#[tokio::test]
async fn shutdown_ends_those_who_wait() {
    let backend = Scripted::unpolled([granted(), Answer::Busy]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    let lock = locks.lock("k").with_wait(Wait::Forever);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    backend.wait_for(|calls| calls.len() == 2).await;
    let second = locks.lock("k").with_wait(Wait::Forever);
    let second = tokio::spawn(async move { second.acquire().await });
    tokio::task::yield_now().await;
    locks.shutdown(Duration::from_millis(500)).await.unwrap();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    for waiter in [waiter, second] {
        assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[tokio::test]
async fn shutdown_waits_for_a_request_under_way_and_gives_its_grant_back() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    memory.faults().set_hanging(true);
    let lock = locks.lock("k");
    let acquire = tokio::spawn(async move { lock.acquire().await });
    tokio::task::yield_now().await;
    let ours = locks.clone();
    let shutdown = tokio::spawn(async move { ours.shutdown(Duration::from_secs(20)).await });
    tokio::task::yield_now().await;
    memory.faults().set_hanging(false);
    shutdown.await.unwrap().unwrap();
    assert_eq!(acquire.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(memory.held(), 0);
}

#[tokio::test]
async fn a_session_keeps_a_lost_lock_from_others_no_longer_than_a_lease_would() {
    let clock = ManualClock::stopped();
    let queue = Capabilities::basic().with_session();
    let granted = || Answer::Grant(Validity::Session(None));
    let backend = Scripted::with(clock.clock(), queue, [granted(), granted()]);
    let locks = Locks::builder(backend.clone()).with_lease(LEASE).build().unwrap();
    let guard = locks.lock("k").with_max_hold(LEASE).acquire().await.unwrap();
    let other = locks.lock("other").with_max_hold(LEASE * 3 / 2).acquire().await.unwrap();
    clock.advance(LEASE);
    guard.lost().await;
    // As one that was forgotten, or whose body does not yield.
    let held = guard.held();
    std::mem::forget(guard);
    clock.advance(LEASE / 2);
    // So the keeper has looked at both.
    other.lost().await;
    assert_eq!(backend.count(|call| matches!(call, Call::Withdraw(_))), 0, "its body may still be at work");
    clock.advance(LEASE / 2);
    backend
        .wait_for(|calls| matches!(calls, [Call::Attempt(a), Call::Attempt(_), Call::Withdraw(w)] if a == w))
        .await;
    assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
    drop(other);
    eventually("the end of it", || locks.stats().held == 0 && locks.stats().background == 0).await;
}

#[tokio::test]
async fn a_body_that_goes_on_without_its_lock_takes_it_again_and_does_not_wait_for_itself() {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let day = Duration::from_secs(24 * 3_600);
    let locks = Locks::builder(memory.clone()).with_lease(day).with_wait(Wait::Forever).build().unwrap();
    let lock = locks.lock("k").with_max_hold(day).with_on_lost(OnLost::Continue);
    let (clock, locks, lock) = (&clock, &locks, &lock);
    let body = lock.run_with(|held| async move {
        // Its last renewal keeps it on the server for longer than it may be held.
        clock.advance(day / 2);
        eventually("the renewal", || locks.stats().renewals == 1).await;
        clock.advance(day / 2);
        assert_eq!(held.check().unwrap_err().kind(), ErrorKind::Lost);
        let again = lock.acquire().await?;
        assert!(again.fence() > held.fence());
        again.check()
    });
    tokio::time::timeout(Duration::from_secs(20), body).await.expect("no wait for itself").unwrap().unwrap();
    eventually("the releases", || memory.held() == 0).await;
}
