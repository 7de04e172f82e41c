//! The memory backend: tokens, fences, faults.

use std::pin::pin;
use std::time::Duration;

use dlock_core::backend::{Administration, Attempt, Backend, Claim, Mode, PERMITS_REMEMBERED, Renewed};
use dlock_core::{ErrorKind, Key, Locks, ManualClock, Memory};
use dlock_testkit::claim_request;

use crate::keeping::eventually;

const LEASE: Duration = Duration::from_secs(30);

/// As a `select!` does whose other branch is busy: the request has the claim, and renewals need it.
#[tokio::test]
async fn a_downgrade_that_nobody_polls_takes_effect_and_keeps_the_lock_renewed() {
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory.clone()));
    let mut guard = ours.lock("k").with_lease(Duration::from_millis(600)).acquire().await.unwrap();
    let held = guard.held();
    memory.faults().set_delay(Duration::from_millis(20));
    let mut downgrading = pin!(guard.downgrade());
    tokio::select! {
        biased;
        downgraded = &mut downgrading => panic!("without an answer: {downgraded:?}"),
        () = std::future::ready(()) => {}
    }
    let reader = theirs.lock("k").read().with_wait(Duration::from_secs(20)).acquire().await.unwrap();
    eventually("three renewals", || ours.stats().renewals >= 3).await;
    held.check().unwrap();
    reader.release().await.unwrap();
    downgrading.await.unwrap();
}

async fn claim_of(memory: &Memory, mode: Mode) -> impl Claim {
    let mut request = claim_request("k", LEASE, false).await.unwrap();
    request.mode = mode;
    memory.claim(request)
}

#[tokio::test]
async fn a_semaphore_keeps_its_number_for_a_day_after_its_last_renewal_and_then_forgets_it() {
    let (four, five) = (Mode::Permits { of: 4, take: 1 }, Mode::Permits { of: 5, take: 1 });
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let key = Key::new("k").unwrap();
    let mut claim = claim_of(&memory, four).await;
    assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
    for _ in 0..4_000 {
        clock.advance(LEASE - Duration::from_secs(1));
        assert_eq!(claim.renew().await.unwrap(), Renewed::Extended);
    }
    clock.advance(PERMITS_REMEMBERED - Duration::from_secs(1));
    let mut other = claim_of(&memory, five).await;
    assert_eq!(other.attempt().await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(memory.occupancy(&key).await.unwrap().permits, Some(4));
    clock.advance(Duration::from_secs(1));
    assert_eq!(memory.occupancy(&key).await.unwrap().permits, None);
    assert_eq!(memory.resize(key.clone(), 8).await.unwrap(), None);
    assert!(matches!(other.attempt().await, Ok(Attempt::Granted(_))));
}

#[tokio::test]
async fn a_lock_whose_leases_have_ended_is_no_lock_to_be_resized() {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let key = Key::new("k").unwrap();
    let mut reader = claim_of(&memory, Mode::Shared).await;
    assert!(matches!(reader.attempt().await, Ok(Attempt::Granted(_))));
    assert_eq!(memory.resize(key.clone(), 4).await.unwrap_err().kind(), ErrorKind::Conflict);
    clock.advance(LEASE);
    assert_eq!(memory.resize(key.clone(), 4).await.unwrap(), None);
}

#[tokio::test]
async fn permits_whose_grant_was_lost_on_its_way_are_adopted_also_after_a_resize() {
    let memory = Memory::new();
    let key = Key::new("k").unwrap();
    let mut claim = claim_of(&memory, Mode::Permits { of: 4, take: 1 }).await;
    let Ok(Attempt::Granted(first)) = claim.attempt().await else { panic!("nobody has any") };
    assert_eq!(memory.resize(key.clone(), 8).await.unwrap(), Some(4));
    let Ok(Attempt::Granted(again)) = claim.attempt().await else { panic!("it has its permit") };
    assert_eq!(again.fence, first.fence);
}

#[tokio::test]
async fn a_reader_that_listens_after_the_first_in_line_has_left_is_not_kept_out_by_it() {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let mut holder = claim_of(&memory, Mode::Shared).await;
    assert!(matches!(holder.attempt().await, Ok(Attempt::Granted(_))));
    let mut request = claim_request("k", LEASE, true).await.unwrap();
    request.fair = true;
    let mut writer = memory.claim(request);
    assert!(matches!(writer.attempt().await, Ok(Attempt::Busy(_))));
    let mut reader = claim_of(&memory, Mode::Shared).await;
    assert!(matches!(reader.attempt().await, Ok(Attempt::Busy(_))));
    assert!(writer.withdraw().await.is_ok());
    let changed = tokio::time::timeout(Duration::from_secs(20), reader.changed()).await;
    changed.expect("nobody is in its way").unwrap();
    assert!(matches!(reader.attempt().await, Ok(Attempt::Granted(_))));
}
