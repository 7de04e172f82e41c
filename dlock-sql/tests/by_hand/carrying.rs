//! Claims that are handed over, on any of the stores.

use std::time::Duration;

use dlock_core::backend::{Attempt, Busy, Mode, Withdrawal};
use dlock_core::{Backend, Claim, Key, Locks, Token};

use crate::by_hand::{busy, granted, request};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// How long anything may take that is certain to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A claim that takes over what was left under this token.
pub(crate) async fn taker<B: Backend>(backend: &B, left: Token) -> B::Claim {
    let mut request = request("k", LEASE).await;
    request.takes_over = Some(left);
    backend.claim(request)
}

/// A claim, and the token under which it leaves its key.
pub(crate) async fn giver<B: Backend>(backend: &B) -> (B::Claim, Token) {
    let request = request("k", LEASE).await;
    let left = request.token.left_behind();
    (backend.claim(request), left)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let comes = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, comes).await.unwrap_or_else(|_| panic!("{what} did not come"));
}

/// Has a claim ask, and ask again when it is notified, until `is_marked` finds its mark on the lock.
pub(crate) async fn wait_until_marked(waiter: &mut impl Claim, is_marked: impl AsyncFnMut() -> bool) {
    // It may be notified for nothing.
    let waiting = async {
        loop {
            let _ = busy(waiter.attempt().await.unwrap());
            waiter.changed().await.unwrap();
        }
    };
    tokio::select! {
        () = waiting => {}
        () = until("a mark", is_marked) => {}
    }
}

/// `is_marked` looks whether somebody has noted with the lock that it waits.
pub(crate) async fn whoever_took_a_lock_over_is_told_of_those_who_wait_since_before<B: Backend>(
    (ours, theirs): (B, B),
    is_marked: impl AsyncFnMut() -> bool,
) {
    let ((mut giver, left), mut waiter) = (giver(&ours).await, theirs.claim(request("k", LEASE).await));
    let first = granted(giver.attempt().await.unwrap()).fence;
    wait_until_marked(&mut waiter, is_marked).await;
    assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
    let mut taker = taker(&theirs, left).await;
    assert!(granted(taker.attempt().await.unwrap()).fence > first);
    assert_eq!(taker.withdraw().await.unwrap(), Withdrawal::REMOVED.with_others_waiting(1));
}

pub(crate) async fn what_was_left_ends_at_the_earliest_time_that_was_asked_for<B: Backend>(backend: B) {
    let key = Key::new("k").unwrap();
    let (mut giver, left) = giver(&backend).await;
    let _ = granted(giver.attempt().await.unwrap());
    let mut earliest = LEASE * 4;
    for time in [LEASE * 4, LEASE * 60, LEASE * 2, LEASE * 4] {
        assert_eq!(giver.leave(time).await.unwrap(), Withdrawal::REMOVED);
        earliest = earliest.min(time);
        let remaining = backend.inspect(&key).await.unwrap().and_then(|holder| holder.expires_in);
        assert!(
            remaining <= Some(earliest) && remaining > Some(earliest / 2),
            "{remaining:?} of {earliest:?}"
        );
    }
    let _ = giver.leave(Duration::from_millis(1)).await.unwrap();
    let _ = giver.leave(LEASE).await.unwrap();
    until("its end", async || backend.inspect(&key).await.unwrap().is_none()).await;
    assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::ABSENT);
    let _ = busy(taker(&backend, left).await.attempt().await.unwrap());
}

/// `rows` reads all that is stored.
pub(crate) async fn nothing_but_what_was_left_is_taken_over<B: Backend + Clone>(
    backend: B,
    mut rows: impl AsyncFnMut() -> String,
) {
    let locks = Locks::builder(backend.clone()).with_label("other").with_lease(LEASE).build().unwrap();
    let (mut giver, left) = giver(&backend).await;
    // Whatever else stands there, or nothing: all rows are as before.
    let mut takes_nothing = async || -> Busy {
        let before = rows().await;
        let found = busy(taker(&backend, left).await.attempt().await.unwrap());
        assert_eq!(rows().await, before);
        found
    };
    assert!(takes_nothing().await.holder.is_none(), "there is no row");
    let _ = granted(giver.attempt().await.unwrap());
    let held = takes_nothing().await;
    assert_eq!(held.holder.unwrap().label.as_deref(), Some("tests"), "it is not left yet");
    let _ = giver.withdraw().await.unwrap();
    assert!(takes_nothing().await.holder.is_none(), "it is free");
    let reader = locks.lock("k").read().acquire().await.unwrap();
    let holder = takes_nothing().await.holder.unwrap();
    assert_eq!((holder.mode, holder.label.as_deref()), (Mode::Shared, Some("other")));
    reader.release().await.unwrap();
    let permit = locks.semaphore("k", 2).acquire().await.unwrap();
    let holder = takes_nothing().await.holder.unwrap();
    assert_eq!(holder.mode, Mode::Permits { of: 2, take: 1 });
    permit.release().await.unwrap();
    assert!(takes_nothing().await.holder.is_none(), "it is a semaphore");
}

/// A claim on a part of a lock, and the token under which it leaves it.
async fn part<B: Backend>(backend: &B, mode: Mode, left: Option<Token>) -> (B::Claim, Token) {
    let mut request = request("k", LEASE).await;
    (request.mode, request.takes_over) = (mode, left);
    let left = request.token.left_behind();
    (backend.claim(request), left)
}

/// Each request arrives when something else has happened meanwhile. `rows` reads all that is stored.
pub(crate) async fn a_late_request_for_a_share_changes_nothing<B: Backend>(
    backend: B,
    mut rows: impl AsyncFnMut() -> String,
) {
    for mode in [Mode::Shared, Mode::Permits { of: 3, take: 2 }] {
        let ((mut giver, first), (mut other, _)) =
            (part(&backend, mode, None).await, part(&backend, mode, None).await);
        let _ = granted(giver.attempt().await.unwrap());
        if mode == Mode::Shared {
            let _ = granted(other.attempt().await.unwrap());
        }
        assert!(giver.leave(LEASE * 60).await.unwrap().removed);
        let (mut taker, second) = part(&backend, mode, Some(first)).await;
        let (mut copy, _) = part(&backend, mode, Some(first)).await;
        let _ = granted(taker.attempt().await.unwrap());
        let mut late = async |takers: &mut [&mut B::Claim]| {
            let before = rows().await;
            assert_eq!(giver.leave(LEASE).await.unwrap(), Withdrawal::ABSENT);
            for taker in takers {
                let _ = busy(taker.attempt().await.unwrap());
            }
            assert_eq!(rows().await, before);
        };
        late(&mut [&mut copy]).await;
        assert!(taker.leave(LEASE).await.unwrap().removed);
        late(&mut [&mut copy, &mut taker]).await;
        let (mut last, _) = part(&backend, mode, Some(second)).await;
        let _ = granted(last.attempt().await.unwrap());
        late(&mut [&mut copy, &mut taker]).await;
        let _ = last.withdraw().await.unwrap();
        late(&mut [&mut copy, &mut taker, &mut last]).await;
        let _ = other.withdraw().await.unwrap();
        late(&mut [&mut copy, &mut taker, &mut last]).await;
    }
}

/// Nobody else comes before, whether the last reader's baton is taken over or its time ends it.
pub(crate) async fn who_stands_in_line_behind_a_reader_comes_after_the_taker_or_the_end_of_the_baton<
    B: Backend,
>(
    backend: B,
) {
    for is_taken in [true, false] {
        let (mut giver, left) = part(&backend, Mode::Shared, None).await;
        let mut last = granted(giver.attempt().await.unwrap()).fence;
        let mut stands = request("k", LEASE).await;
        (stands.fair, stands.waits, stands.prefers) = (true, true, true);
        let mut stands = backend.claim(stands);
        let _ = busy(stands.attempt().await.unwrap());
        let time = if is_taken { LEASE } else { Duration::from_secs(1) };
        assert!(giver.leave(time).await.unwrap().removed);
        let (mut newcomer, _) = part(&backend, Mode::Shared, None).await;
        let _ = busy(newcomer.attempt().await.unwrap());
        if is_taken {
            let (mut taker, _) = part(&backend, Mode::Shared, Some(left)).await;
            last = granted(taker.attempt().await.unwrap()).fence;
            let _ = busy(stands.attempt().await.unwrap());
            assert!(taker.withdraw().await.unwrap().removed);
        }
        let mut turn = None;
        until("its turn", async || {
            let _ = busy(newcomer.attempt().await.unwrap());
            match stands.attempt().await.unwrap() {
                Attempt::Granted(grant) => turn = grant.fence,
                Attempt::Busy(_) => {}
            }
            turn.is_some()
        })
        .await;
        assert!(turn > last);
        assert!(stands.withdraw().await.unwrap().removed);
        let _ = newcomer.withdraw().await.unwrap();
    }
}
