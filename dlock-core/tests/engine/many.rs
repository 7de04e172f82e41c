//! Many locks at a time.

use std::time::Duration;

use dlock_core::backend::Validity;
use dlock_core::{Locks, ManualClock, Memory};

use crate::keeping::eventually;
use crate::script::{Answer, Scripted};

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn renewals_of_locks_that_were_taken_at_once_are_spread() {
    const LOCKS: u64 = 1_000;
    const PARTS: u32 = 10;
    let clock = ManualClock::stopped();
    let locks = Locks::new(Memory::with_clock(clock.clock()));
    let mut guards = Vec::new();
    for n in 0..LOCKS {
        guards.push(locks.lock(format!("{n}")).acquire().await.unwrap());
    }
    clock.advance(LEASE / 6 - LEASE / 300);
    let mut before = 0;
    for part in 1..=PARTS {
        clock.advance(LEASE / 6 / PARTS);
        // The keeper is woken by a lock with a short lease. There may be nothing left to renew: some go out early.
        let looks = locks.stats().keeper_looks + 1;
        locks
            .lock("probe")
            .with_lease(Duration::from_millis(50))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        eventually("a look", || locks.stats().keeper_looks >= looks || locks.stats().renewals > before).await;
        // Until none comes any more.
        let mut renewals = u64::MAX;
        while std::mem::replace(&mut renewals, locks.stats().renewals) != renewals {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(renewals - before <= LOCKS / 2, "{} of {LOCKS} in part {part}", renewals - before);
        before = renewals;
    }
    clock.advance(LEASE / 300);
    eventually("all are renewed", || locks.stats().renewals >= LOCKS).await;
    for guard in &guards {
        guard.check().unwrap();
    }
}

#[tokio::test]
async fn a_lease_without_an_end_is_held() {
    let locks = Locks::new(Scripted::new([Answer::Grant(Validity::Lease(Duration::MAX))]));
    let guard = locks.lock("k").acquire().await.unwrap();
    guard.check().unwrap();
    assert_eq!(guard.remaining(), None);
    guard.release().await.unwrap();
}
