//! Locks that the session of their process keeps.

use std::time::Duration;

use dlock_core::{ErrorKind, Lock, Locks};
use futures_util::FutureExt;
use futures_util::future::join_all;

use super::cases;
use crate::conformance::expect::{error_of, give_back, soon, until};
use crate::conformance::{Process, Stage};
use crate::wire::Wire;

cases! {
    the_locks_of_a_process_that_is_cut_off_are_free_long_before_their_lease_ends: SessionRecords, Timed;
    a_holder_whose_session_ends_knows_before_anybody_else_gets_in: SessionRecords, Timed;
    locks_of_a_session_are_not_renewed_one_by_one: SessionRecords, Timed;
    a_waiter_leaves_a_live_session_its_lock: SessionRecords, Timed;
    a_batch_gets_past_holders_whose_sessions_are_over: SessionRecords, Timed;
    a_record_that_is_deleted_ends_its_session_and_nobody_gets_in_before_the_holder_knows: SessionRecords, Timed;
    after_the_end_of_its_session_a_process_has_another_one: SessionRecords, Timed;
    a_lock_that_its_session_does_not_keep_has_a_lease: SessionRecords, Timed;
    shares_and_fair_locks_have_leases_beside_a_session: SessionRecords & Shared & Permits & Fair, Easy;
    readers_get_past_a_writer_whose_session_is_over: SessionRecords & Shared, Timed;
    a_lock_that_was_taken_over_outlives_the_session_that_handed_it_over: SessionRecords & Carrying, Timed;
    a_key_that_stays_taken_outlives_the_session_of_its_last_holder: SessionRecords & Leaving, Timed;
    a_shutdown_leaves_no_record: SessionRecords, Easy;
    a_lock_that_a_session_keeps_is_not_downgraded: SessionRecords & Downgrade, Easy;
    a_lock_that_a_session_keeps_is_passed_on_inside_the_process: SessionRecords & Fences, Easy;
    max_hold_frees_a_lock_that_a_session_keeps: SessionRecords, Timed;
    an_outage_shorter_than_the_lease_of_the_record_loses_nothing: SessionRecords, Timed;
    of_acquires_that_begin_together_one_opens_the_session: SessionRecords, Easy;
    a_session_that_cannot_be_opened_is_an_error_and_leaves_nothing: SessionRecords, Easy;
    a_holder_whose_record_has_another_prefix_is_left_its_lock: SessionRecords, Timed;
    a_waiter_without_a_session_gets_past_that_of_its_own_process: SessionRecords, Timed;
    a_record_that_is_not_renewed_is_reported_before_its_end: SessionRecords, Timed;
    a_lock_that_was_forgotten_while_its_store_was_away_is_found_to_be_gone: SessionRecords, Timed;
}

/// The cases about locks that a session keeps, for [`Harness::left_out`](crate::conformance::Harness::left_out) of a
/// backend without [`Capabilities::session_records`](dlock_core::backend::Capabilities::session_records).
pub const SESSIONS: &[&str] = &[
    "the_locks_of_a_process_that_is_cut_off_are_free_long_before_their_lease_ends",
    "a_holder_whose_session_ends_knows_before_anybody_else_gets_in",
    "locks_of_a_session_are_not_renewed_one_by_one",
    "a_waiter_leaves_a_live_session_its_lock",
    "a_batch_gets_past_holders_whose_sessions_are_over",
    "a_record_that_is_deleted_ends_its_session_and_nobody_gets_in_before_the_holder_knows",
    "after_the_end_of_its_session_a_process_has_another_one",
    "a_lock_that_its_session_does_not_keep_has_a_lease",
    "shares_and_fair_locks_have_leases_beside_a_session",
    "readers_get_past_a_writer_whose_session_is_over",
    "a_lock_that_was_taken_over_outlives_the_session_that_handed_it_over",
    "a_key_that_stays_taken_outlives_the_session_of_its_last_holder",
    "a_shutdown_leaves_no_record",
    "a_lock_that_a_session_keeps_is_not_downgraded",
    "a_lock_that_a_session_keeps_is_passed_on_inside_the_process",
    "max_hold_frees_a_lock_that_a_session_keeps",
    "an_outage_shorter_than_the_lease_of_the_record_loses_nothing",
    "of_acquires_that_begin_together_one_opens_the_session",
    "a_session_that_cannot_be_opened_is_an_error_and_leaves_nothing",
    "a_holder_whose_record_has_another_prefix_is_left_its_lock",
    "a_waiter_without_a_session_gets_past_that_of_its_own_process",
    "a_record_that_is_not_renewed_is_reported_before_its_end",
    "a_lock_that_was_forgotten_while_its_store_was_away_is_found_to_be_gone",
];

/// Those of these cases that a backend leaves out which has records of sessions, and neither readers nor permits.
pub const SESSIONS_BESIDE_SHARES: &[&str] = &[
    "shares_and_fair_locks_have_leases_beside_a_session",
    "readers_get_past_a_writer_whose_session_is_over",
    "a_lock_that_a_session_keeps_is_not_downgraded",
];

impl Stage {
    /// The time after which the locks of a process that is gone are free.
    fn session_timeout(&self) -> Duration {
        self.lease() * 3
    }

    /// Creates a process whose session keeps its locks. Its leases are longer than any test.
    async fn session(&self) -> Process {
        let timeout = self.session_timeout();
        self.process_with(|builder| builder.with_session(timeout)).await
    }
}

/// The wait for `lock` ends in vain. The answer to its last request may be late on a busy machine.
async fn still_held(lock: Lock) {
    error_of(lock.acquire().await, &[ErrorKind::TimedOut, ErrorKind::Unknown]);
}

/// The key of the record of the session that holds `key`.
async fn record_of(locks: &Locks, key: &str) -> String {
    let holder = locks.inspect(key).await.expect("it can be asked").expect("it is held");
    format!("dlock-session-{}", holder.session.expect("a session keeps it"))
}

/// By a waiter and by attempts that do not wait.
async fn the_locks_of_a_process_that_is_cut_off_are_free_long_before_their_lease_ends(stage: Stage) {
    let (ours, theirs) = (stage.session().await, stage.process().await);
    let keys: Vec<_> = (0..stage.at_once().min(8)).map(|_| stage.key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(ours.take(key).await);
    }
    ours.wire.cut();
    // Well below the lease of two minutes; the time itself is the benchmark's to measure.
    let waits = keys.iter().map(|key| theirs.take_soon(key));
    let taken = soon("the end of the session", join_all(waits)).await;
    assert!(guards.iter().all(|guard| guard.check().is_err()));
    ours.wire.mend();
    for guard in guards {
        error_of(guard.release().await, &[ErrorKind::NotHeld]);
    }
    for guard in &taken {
        guard.check().expect("the release of the old holder touches nothing");
    }
    join_all(taken.into_iter().map(give_back)).await;
}

/// Whenever the successor is in, the old holder's `check` is an error already.
async fn a_holder_whose_session_ends_knows_before_anybody_else_gets_in(stage: Stage) {
    for fault in [Wire::cut, Wire::hang] {
        let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
        let guard = ours.take(&key).await;
        let view = guard.held();
        until("two renewals", || ours.wire.renewals() >= 2).await;
        guard.check().expect("its session was renewed");
        fault(&ours.wire);
        let successor = soon("the end of the session", async {
            loop {
                match theirs.locks.lock(&key).try_acquire().await.expect("it can be asked") {
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                    Some(successor) => break successor,
                }
            }
        })
        .await;
        assert!(guard.check().is_err(), "two holders believe in it");
        soon("the loss", view.lost()).await;
        assert!(error_of(view.check(), &[ErrorKind::Lost]).to_string().contains("session"));
        assert!(guard.fence().is_none_or(|old| successor.fence().is_some_and(|fence| fence > old)));
        give_back(successor).await;
    }
}

async fn locks_of_a_session_are_not_renewed_one_by_one(stage: Stage) {
    let (ours, theirs) = (stage.session().await, stage.process().await);
    let keys: Vec<_> = (0..stage.at_once().min(16)).map(|_| stage.key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(ours.take(key).await);
    }
    // A backend may renew a lock once that is held for a while, to have the server report its changes.
    tokio::time::sleep(stage.session_timeout().max(Duration::from_secs(2))).await;
    let before = ours.wire.renewals();
    tokio::time::sleep(stage.session_timeout()).await;
    let renewals = ours.wire.renewals() - before;
    // Two leases of the record: each of them has three or four renewals.
    assert!((2..16).contains(&renewals), "{renewals} renewals");
    for (key, guard) in keys.iter().zip(guards) {
        guard.check().expect("its session was renewed");
        theirs.sees_held(key).await;
        give_back(guard).await;
    }
}

/// However long it waits, and whether or not it has a session itself.
async fn a_waiter_leaves_a_live_session_its_lock(stage: Stage) {
    let (ours, key) = (stage.session().await, stage.key());
    let guard = ours.take(&key).await;
    let (with, without) = (stage.session().await, stage.process().await);
    let waits = async |process: &Process| {
        let lock = process.locks.lock(&key).with_wait(stage.session_timeout() * 3 / 2);
        still_held(lock).await;
    };
    tokio::join!(waits(&with), waits(&without));
    guard.check().expect("its session lives");
    give_back(guard).await;
    without.sees_free_soon(&key).await;
}

async fn a_batch_gets_past_holders_whose_sessions_are_over(stage: Stage) {
    let (first, second, theirs) = (stage.session().await, stage.session().await, stage.session().await);
    let (one, other, free) = (stage.key(), stage.key(), stage.key());
    let held = [first.take(&one).await, second.take(&other).await];
    first.wire.cut();
    second.wire.cut();
    let keys = [&one, &free, &other];
    let batch = theirs.locks.lock_all(keys).with_wait(Duration::from_secs(50)).acquire().await;
    assert!(held.iter().all(|guard| guard.check().is_err()));
    batch.expect("both sessions are over").release().await.expect("it is held");
}

/// The holder may have had a renewal confirmed just before, and relies on it for a lease.
async fn a_record_that_is_deleted_ends_its_session_and_nobody_gets_in_before_the_holder_knows(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let record = record_of(&theirs.locks, &key).await;
    // So that the holder learns nothing, and relies on what it knows.
    ours.wire.cut();
    ours.delete(&record).await;
    let successor = theirs.take_soon(&key).await;
    assert!(guard.check().is_err(), "two holders believe in it");
    give_back(successor).await;
    // A holder that is not cut off learns of it by its next renewal.
    let (ours, key) = (stage.session().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&record_of(&theirs.locks, &key).await).await;
    soon("the loss", guard.lost()).await;
    assert!(error_of(guard.check(), &[ErrorKind::Lost]).to_string().contains("session"));
}

async fn after_the_end_of_its_session_a_process_has_another_one(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let before = record_of(&theirs.locks, &key).await;
    ours.delete(&before).await;
    soon("the loss", guard.lost()).await;
    drop(guard);
    // Its own lock, which the drop withdraws, or which the end of its session frees.
    let again = ours.take_soon(&key).await;
    again.check().expect("it is held under another session");
    assert_ne!(record_of(&theirs.locks, &key).await, before);
    let renewals = ours.wire.renewals();
    until("renewals of the other one", || ours.wire.renewals() > renewals + 2).await;
    again.check().expect("its session was renewed");
    give_back(again).await;
}

async fn a_lock_that_its_session_does_not_keep_has_a_lease(stage: Stage) {
    let (ours, theirs) = (stage.session().await, stage.process().await);
    let (kept, alone) = (stage.key(), stage.key());
    let lock = ours.locks.lock(&alone).with_session_kept(false);
    let guards = [ours.take(&kept).await, lock.acquire().await.expect("it is free")];
    let holder = theirs.locks.inspect(&alone).await.expect("it can be asked").expect("it is held");
    assert_eq!(holder.session, None);
    assert!(holder.expires_in.is_none_or(|left| left <= Duration::from_secs(121)), "{holder:?}");
    ours.wire.cut();
    give_back(theirs.take_soon(&kept).await).await;
    theirs.sees_held(&alone).await;
    guards[1].check().expect("its lease is long");
}

async fn shares_and_fair_locks_have_leases_beside_a_session(stage: Stage) {
    let (ours, theirs) = (stage.session().await, stage.process().await);
    let (read, fair, permits) = (stage.key(), stage.key(), stage.key());
    let reader = ours.locks.lock(&read).read().acquire().await.expect("it is free");
    let in_order = ours.locks.lock(&fair).with_fairness(true).acquire().await.expect("it is free");
    let permit = ours.locks.semaphore(&permits, 2).acquire().await.expect("it is free");
    for key in [&read, &fair, &permits] {
        let occupancy = theirs.locks.occupancy(key).await.expect("it can be asked");
        assert!(occupancy.holders.iter().all(|holder| holder.session.is_none()), "{occupancy:?}");
        assert_eq!(occupancy.holders.len(), 1);
    }
    give_back(reader).await;
    give_back(in_order).await;
    give_back(permit).await;
}

async fn readers_get_past_a_writer_whose_session_is_over(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    let writer = ours.take(&key).await;
    ours.wire.cut();
    let reads = || theirs.locks.lock(&key).read().with_wait(Duration::from_secs(50));
    let readers = soon("the end of the session", join_all([reads().acquire(), reads().acquire()])).await;
    assert!(writer.check().is_err());
    for reader in readers {
        give_back(reader.expect("no writer is there any more")).await;
    }
}

async fn a_lock_that_was_taken_over_outlives_the_session_that_handed_it_over(stage: Stage) {
    let (ours, taker, theirs) = (stage.session().await, stage.process().await, stage.process().await);
    let key = stage.key();
    let baton = ours.take(&key).await.hand_over().await.expect("it is held");
    ours.wire.cut();
    // While it is nobody's, and while it is the taker's: for longer than the session lives.
    let stays_taken = || async {
        let lock = theirs.locks.lock(&key).with_wait(stage.session_timeout() * 3 / 2);
        still_held(lock).await;
    };
    stays_taken().await;
    let guard = taker.locks.take_over(&baton).await.expect("it was handed over");
    stays_taken().await;
    guard.check().expect("it is renewed");
    give_back(guard).await;
}

async fn a_key_that_stays_taken_outlives_the_session_of_its_last_holder(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key).with_hold_at_least(Duration::from_secs(60));
    give_back(lock.acquire().await.expect("it is free")).await;
    ours.wire.cut();
    let lock = theirs.locks.lock(&key).with_wait(stage.session_timeout() * 3 / 2);
    still_held(lock).await;
}

async fn a_shutdown_leaves_no_record(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let record = record_of(&theirs.locks, &key).await;
    assert!(theirs.locks.inspect(&record).await.expect("it can be asked").is_some());
    give_back(guard).await;
    ours.locks.shutdown(Duration::from_secs(20)).await.expect("nothing is held");
    assert!(theirs.locks.inspect(&record).await.expect("it can be asked").is_none());
    // Dropped locks leave none either.
    let (ours, key) = (stage.session().await, stage.key());
    give_back(ours.take(&key).await).await;
    let guard = ours.take(&key).await;
    let record = record_of(&theirs.locks, &key).await;
    drop((guard, ours));
    soon("the release of the record", async {
        while theirs.locks.inspect(&record).await.expect("it can be asked").is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    theirs.sees_free_soon(&key).await;
}

async fn a_lock_that_a_session_keeps_is_not_downgraded(stage: Stage) {
    let (ours, key) = (stage.session().await, stage.key());
    let mut guard = ours.take(&key).await;
    let error = error_of(guard.downgrade().await, &[ErrorKind::Unsupported]);
    assert!(error.to_string().contains("with_session_kept"), "{error}");
    guard.check().expect("nothing has changed");
    give_back(guard).await;
}

async fn a_lock_that_a_session_keeps_is_passed_on_inside_the_process(stage: Stage) {
    let (ours, key) = (stage.session().await, stage.key());
    let guard = ours.take(&key).await;
    let record = record_of(&ours.locks, &key).await;
    let lock = ours.locks.lock(&key);
    let mut waits = std::pin::pin!(lock.acquire());
    assert!(waits.as_mut().now_or_never().is_none(), "it waits");
    let fence = guard.fence().expect("the backend has fences");
    give_back(guard).await;
    let next = soon("the next section", waits).await.expect("it was released");
    assert!(next.fence().is_some_and(|next| next > fence));
    next.check().expect("its session lives");
    assert_eq!(record_of(&ours.locks, &key).await, record);
    give_back(next).await;
}

/// The guard is kept by a caller that forgot it.
async fn max_hold_frees_a_lock_that_a_session_keeps(stage: Stage) {
    let (theirs, key, lease, timeout) =
        (stage.process().await, stage.key(), stage.lease(), stage.session_timeout());
    let ours = stage.process_with(|builder| builder.with_lease(lease).with_session(timeout)).await;
    let lock = ours.locks.lock(&key).with_max_hold(lease * 2);
    let guard = lock.acquire().await.expect("it is free");
    give_back(theirs.take_soon(&key).await).await;
    error_of(guard.check(), &[ErrorKind::Lost]);
    let other = stage.key();
    ours.take(&other).await.check().expect("the session lives on");
}

async fn an_outage_shorter_than_the_lease_of_the_record_loses_nothing(stage: Stage) {
    let (ours, key) = (stage.session().await, stage.key());
    let guard = ours.take(&key).await;
    let before = ours.wire.renewals();
    until("a renewal", || ours.wire.renewals() > before).await;
    ours.wire.cut();
    tokio::time::sleep(stage.lease() / 4).await;
    ours.wire.mend();
    let before = ours.wire.renewals();
    until("renewals after it", || ours.wire.renewals() > before + 2).await;
    guard.check().expect("the outage was short");
    give_back(guard).await;
}

async fn of_acquires_that_begin_together_one_opens_the_session(stage: Stage) {
    let (ours, theirs) = (stage.session().await, stage.process().await);
    let keys: Vec<_> = (0..stage.at_once().min(8)).map(|_| stage.key()).collect();
    let taken = join_all(keys.iter().map(|key| ours.take(key))).await;
    let mut records = Vec::new();
    for key in &keys {
        records.push(record_of(&theirs.locks, key).await);
    }
    records.dedup();
    assert_eq!(records.len(), 1, "{records:?}");
    join_all(taken.into_iter().map(give_back)).await;
}

async fn a_session_that_cannot_be_opened_is_an_error_and_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.session().await, stage.process().await, stage.key());
    ours.wire.cut();
    let error =
        error_of(ours.locks.lock(&key).try_acquire().await, &[ErrorKind::Unavailable, ErrorKind::Unknown]);
    assert!(error.to_string().contains("session"), "{error}");
    give_back(theirs.take(&key).await).await;
    ours.wire.mend();
    give_back(ours.take_soon(&key).await).await;
}

/// One lock has several names where processes have several prefixes, and its record has one.
async fn a_holder_whose_record_has_another_prefix_is_left_its_lock(stage: Stage) {
    let (theirs, timeout) = (stage.process().await, stage.session_timeout());
    let ours = stage.process_with(|builder| builder.with_prefix("app:").with_session(timeout)).await;
    let key = stage.key();
    let guard = ours.take(&key).await;
    let named = format!("app:{key}");
    theirs.sees_held(&named).await;
    still_held(theirs.locks.lock(&named).with_wait(timeout * 2)).await;
    guard.check().expect("its session lives");
    give_back(guard).await;
}

/// The guard is kept by a caller that forgot it, and no acquire has opened another session since.
async fn a_waiter_without_a_session_gets_past_that_of_its_own_process(stage: Stage) {
    let (ours, key) = (stage.session().await, stage.key());
    let guard = ours.take(&key).await;
    ours.delete(&record_of(&ours.locks, &key).await).await;
    soon("the loss", guard.lost()).await;
    let lock = ours.locks.lock(&key).with_session_kept(false);
    give_back(soon("the lock", lock.acquire()).await.expect("its session is over")).await;
    error_of(guard.release().await, &[ErrorKind::NotHeld]);
}

async fn a_record_that_is_not_renewed_is_reported_before_its_end(stage: Stage) {
    let (timeout, key) = (stage.session_timeout() * 2, stage.key());
    let ours = stage.process_with(|builder| builder.with_session(timeout)).await;
    let guard = ours.take(&key).await;
    let view = guard.held();
    until("a renewal", || ours.wire.renewals() >= 1).await;
    assert!(!view.is_at_risk() && ours.locks.health().oldest_unconfirmed_renewal.is_none());
    ours.wire.cut();
    soon("the warning", view.at_risk()).await;
    guard.check().expect("it is not lost yet");
    until("a renewal that is overdue", || ours.locks.health().oldest_unconfirmed_renewal.is_some()).await;
    ours.wire.mend();
    until("the next renewal", || !view.is_at_risk()).await;
    give_back(guard).await;
}

/// As by a server that takes over from another one, and that knows of the record and of the last grants not yet.
async fn a_lock_that_was_forgotten_while_its_store_was_away_is_found_to_be_gone(stage: Stage) {
    let (timeout, key) = (stage.session_timeout() * 2, stage.key());
    // Its own renewals are not due in the time of a test.
    let lease = Duration::from_secs(3_600);
    let ours = stage.process_with(|builder| builder.with_session(timeout).with_lease(lease)).await;
    let guard = ours.take(&key).await;
    let view = guard.held();
    ours.wire.cut();
    soon("the warning", view.at_risk()).await;
    ours.delete(&key).await;
    ours.wire.mend();
    soon("the loss", view.lost()).await;
    let error = error_of(view.check(), &[ErrorKind::Lost]);
    assert!(!error.to_string().contains("session"), "its session lives: {error}");
}
