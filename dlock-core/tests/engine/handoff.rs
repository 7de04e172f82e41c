//! Passing a lock on inside a process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlock_core::{ErrorKind, Forced, Guard, Locks, LocksBuilder, ManualClock, Memory, in_current_scope};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::owners::poll_once;

const LEASE: Duration = Duration::from_secs(30);

/// One process, and a lock with waiters in line.
struct Hot {
    memory: Memory,
    clock: ManualClock,
    locks: Locks,
}

impl Hot {
    fn new() -> Self {
        Self::with(|locks| locks)
    }

    fn with(options: impl FnOnce(LocksBuilder) -> LocksBuilder) -> Self {
        let clock = ManualClock::stopped();
        let memory = Memory::with_clock(clock.clock());
        let locks = options(Locks::builder(memory.clone()).with_lease(LEASE)).build().unwrap();
        Self { memory, clock, locks }
    }

    /// Has a waiter get in line, and waits until it is there.
    async fn waiter(&self) -> JoinHandle<Guard> {
        self.waiter_of(|lock| lock).await
    }

    async fn waiter_of(
        &self,
        options: impl FnOnce(dlock_core::Lock) -> dlock_core::Lock,
    ) -> JoinHandle<Guard> {
        let lock = options(self.locks.lock("k"));
        let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        waiter
    }

    /// A guard that was granted with waiters behind it, and so has fences for them.
    async fn hot_guard(&self) -> (Guard, Vec<JoinHandle<Guard>>) {
        let first = self.locks.lock("k").acquire().await.unwrap();
        let holder = self.waiter().await;
        let waiters = vec![self.waiter().await, self.waiter().await];
        first.release().await.unwrap();
        let guard = holder.await.unwrap();
        assert_eq!(self.locks.stats().handoffs, 0);
        (guard, waiters)
    }

    /// Shows that the waiters get the lock one after the other, and that so many handoffs were made by then.
    async fn goes_on(&self, waiters: Vec<JoinHandle<Guard>>, handoffs: u64) {
        let mut fence = None;
        for waiter in waiters {
            let guard = tokio::time::timeout(Duration::from_secs(20), waiter).await.unwrap().unwrap();
            guard.check().unwrap();
            assert!(guard.fence() > fence);
            fence = guard.fence();
            guard.release().await.unwrap();
        }
        assert_eq!(self.locks.stats().handoffs, handoffs);
        self.is_clean().await;
    }

    async fn is_clean(&self) {
        for _ in 0..10_000 {
            if self.memory.held() == 0 && self.locks.stats().background == 0 && self.locks.stats().held == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("something is left: {:?}", self.locks.stats());
    }
}

#[tokio::test]
async fn a_section_that_ends_passes_the_lock_to_the_first_in_line_with_the_next_fence() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    let fence = guard.fence().unwrap().get();
    // Whoever asks the server now is asked to wait for ever: nobody does.
    hot.memory.faults().set_hanging(true);
    guard.release().await.unwrap();
    for (number, waiter) in (1..).zip(waiters) {
        let next = waiter.await.unwrap();
        assert_eq!(next.fence().unwrap().get(), fence + number);
        next.check().unwrap();
        assert_eq!(hot.memory.held(), 1);
        if number == 2 {
            hot.memory.faults().set_hanging(false);
        }
        next.release().await.unwrap();
    }
    assert_eq!(hot.locks.stats().handoffs, 2);
    hot.is_clean().await;
    let later = hot.locks.lock("k").acquire().await.unwrap();
    assert!(later.fence().unwrap().get() > fence + 2);
    later.release().await.unwrap();
}

#[tokio::test]
async fn a_guard_that_is_dropped_passes_the_lock_on_too() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    drop(guard);
    hot.goes_on(waiters, 2).await;
}

#[tokio::test]
async fn the_deadline_is_passed_on_and_does_not_begin_anew() {
    let hot = Hot::new();
    let (guard, mut waiters) = hot.hot_guard().await;
    // The keeper cannot renew it.
    hot.memory.faults().set_unavailable(true);
    hot.clock.advance(Duration::from_millis(40));
    let left = guard.remaining().unwrap();
    guard.release().await.unwrap();
    let next = waiters.remove(0).await.unwrap();
    assert!(next.remaining().unwrap() <= left);
    hot.memory.faults().set_unavailable(false);
    next.release().await.unwrap();
    hot.goes_on(waiters, 2).await;
}

#[tokio::test]
async fn nothing_is_passed_on_after_the_time_of_a_tenure() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    hot.clock.advance(Duration::from_millis(51));
    guard.release().await.unwrap();
    // The one that is granted then passes it on to the last.
    hot.goes_on(waiters, 1).await;
    let patient = Hot::with(|locks| locks.with_handoff_time(Duration::from_secs(10)));
    let (guard, waiters) = patient.hot_guard().await;
    patient.clock.advance(Duration::from_millis(51));
    guard.release().await.unwrap();
    patient.goes_on(waiters, 2).await;
}

#[tokio::test]
async fn a_hold_that_is_lost_is_not_passed_on() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    hot.memory.lose("k");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    hot.goes_on(waiters, 1).await;
}

#[tokio::test]
async fn a_hold_beyond_its_max_hold_is_not_passed_on() {
    let hot = Hot::with(|locks| locks.with_handoff_time(Duration::from_secs(10)).with_max_hold(LEASE));
    let (guard, waiters) = hot.hot_guard().await;
    hot.clock.advance(LEASE);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    hot.goes_on(waiters, 1).await;
}

#[tokio::test]
async fn a_hold_of_which_less_than_half_is_left_is_not_passed_on() {
    let lease = Duration::from_millis(60);
    let hot = Hot::with(|locks| locks.with_handoff_time(Duration::from_secs(10)).with_lease(lease));
    let (guard, waiters) = hot.hot_guard().await;
    hot.memory.faults().set_unavailable(true);
    hot.clock.advance(Duration::from_millis(40));
    let leaving = tokio::spawn(guard.release());
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(hot.locks.stats().handoffs, 0);
    hot.memory.faults().set_unavailable(false);
    hot.clock.advance(lease);
    let _ = leaving.await.unwrap();
    hot.goes_on(waiters, 1).await;
}

#[tokio::test]
async fn a_hold_that_a_task_shares_goes_on_when_the_task_is_done() {
    let hot = Hot::new();
    let first = hot.locks.lock("k").acquire().await.unwrap();
    let (done, ended) = tokio::sync::oneshot::channel::<()>();
    let task = Arc::new(Mutex::new(None));
    let holder = {
        let (lock, task) = (hot.locks.lock("k"), Arc::clone(&task));
        tokio::spawn(async move {
            lock.run(async {
                let along = tokio::spawn(in_current_scope(async move { drop(ended.await) }));
                *task.lock().unwrap() = Some(along);
            })
            .await
            .unwrap();
        })
    };
    tokio::task::yield_now().await;
    let waiters = vec![hot.waiter().await, hot.waiter().await];
    first.release().await.unwrap();
    holder.await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    assert_eq!(hot.locks.stats().handoffs, 0);
    done.send(()).unwrap();
    hot.goes_on(waiters, 2).await;
}

#[tokio::test]
async fn a_nested_guard_passes_nothing_on() {
    let hot = Hot::new();
    let first = hot.locks.lock("k").acquire().await.unwrap();
    let locks = hot.locks.clone();
    let outer = tokio::spawn(async move {
        let lock = locks.lock("k");
        let body = async {
            let fence = lock.acquire().await.unwrap().fence();
            lock.acquire().await.unwrap().release().await.unwrap();
            lock.run(async {}).await.unwrap();
            tokio::task::yield_now().await;
            assert_eq!(lock.acquire().await.unwrap().fence(), fence);
            assert_eq!(locks.stats().handoffs, 0);
        };
        lock.run(body).await.unwrap();
    });
    tokio::task::yield_now().await;
    let waiters = vec![hot.waiter().await, hot.waiter().await];
    first.release().await.unwrap();
    outer.await.unwrap();
    hot.goes_on(waiters, 2).await;
}

#[tokio::test]
async fn without_handoff_each_section_releases_the_lock() {
    let hot = Hot::with(|locks| locks.with_handoff(false));
    let (guard, waiters) = hot.hot_guard().await;
    guard.release().await.unwrap();
    hot.goes_on(waiters, 0).await;
}

#[tokio::test]
async fn one_who_wants_no_handoff_or_another_lease_asks_by_itself() {
    for other in [false, true] {
        let hot = Hot::new();
        let first = hot.locks.lock("k").acquire().await.unwrap();
        let holder = hot.waiter().await;
        let wants = hot
            .waiter_of(|lock| if other { lock.with_lease(LEASE * 2) } else { lock.with_handoff(false) })
            .await;
        let last = hot.waiter().await;
        first.release().await.unwrap();
        holder.await.unwrap().release().await.unwrap();
        let guard = wants.await.unwrap();
        assert_eq!(hot.locks.stats().handoffs, 0);
        guard.release().await.unwrap();
        // It does not pass it on either, for other reasons.
        hot.goes_on(vec![last], 0).await;
    }
}

#[tokio::test]
async fn a_waiter_that_is_cancelled_is_passed_by_and_the_next_has_the_lock() {
    let hot = Hot::new();
    let (guard, mut waiters) = hot.hot_guard().await;
    waiters.push(hot.waiter().await);
    // Cancelled before, and at the very moment that it has the lock: its task has not run since.
    let early = waiters.remove(1);
    early.abort();
    let _ = early.await;
    guard.release().await.unwrap();
    let first = waiters.remove(0);
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    hot.goes_on(waiters, 1).await;
}

#[tokio::test]
async fn what_nobody_takes_any_more_is_released() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    guard.release().await.unwrap();
    waiters.iter().for_each(JoinHandle::abort);
    for waiter in waiters {
        assert!(waiter.await.is_err_and(|error| error.is_cancelled()));
    }
    hot.is_clean().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_a_lock_that_is_on_its_way() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    guard.release().await.unwrap();
    let locks = hot.locks.clone();
    waiters.iter().for_each(JoinHandle::abort);
    locks.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hot.memory.held(), 0);
}

#[tokio::test]
async fn another_process_gets_in_within_the_bound() {
    let hot = Hot::with(|locks| locks.with_handoff_limit(4).with_handoff_time(Duration::from_secs(10)));
    let other = Locks::builder(hot.memory.clone()).with_lease(LEASE).build().unwrap();
    let held = hot.locks.lock("k").acquire().await.unwrap();
    let turns = Arc::new(Mutex::new(Vec::new()));
    let remote = {
        let (lock, turns) = (other.lock("k"), Arc::clone(&turns));
        tokio::spawn(async move {
            lock.run(async { turns.lock().unwrap().push("remote") }).await.unwrap();
        })
    };
    tokio::task::yield_now().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (lock, turns) = (hot.locks.lock("k"), Arc::clone(&turns));
        tasks.spawn(async move {
            for _ in 0..20 {
                lock.run(async { turns.lock().unwrap().push("local") }).await.unwrap();
            }
        });
    }
    tokio::task::yield_now().await;
    held.release().await.unwrap();
    remote.await.unwrap();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let turns = turns.lock().unwrap();
    let before = turns.iter().position(|turn| *turn == "remote").unwrap();
    assert!(before <= 5, "{before} sections of one process before another had its turn");
    assert_eq!(turns.len(), 81);
}

#[tokio::test]
async fn a_waiter_that_nobody_polls_does_not_keep_the_lock_from_other_processes() {
    let hot = Hot::new();
    let first = hot.locks.lock("k").acquire().await.unwrap();
    let holder = hot.waiter().await;
    let lock = hot.locks.lock("k");
    let mut stalled = Box::pin(lock.acquire());
    assert!(poll_once(&mut stalled).await.is_none());
    first.release().await.unwrap();
    holder.await.unwrap().release().await.unwrap();
    assert_eq!(hot.memory.held(), 1, "it was handed to the one that is not polled");
    let other = Locks::builder(hot.memory.clone()).build().unwrap();
    let guard = tokio::time::timeout(LEASE / 3, other.lock("k").acquire()).await.unwrap().unwrap();
    guard.release().await.unwrap();
    // It asks by itself then.
    stalled.await.unwrap().release().await.unwrap();
    hot.is_clean().await;
}

#[tokio::test]
async fn a_lock_that_is_lost_on_its_way_is_taken_anew() {
    let hot = Hot::new();
    let (guard, mut waiters) = hot.hot_guard().await;
    guard.release().await.unwrap();
    assert!(hot.memory.lose("k"));
    let next = waiters.remove(0).await.unwrap();
    next.check().unwrap();
    assert_eq!(hot.memory.held(), 1, "it believes in a lock that is gone");
    next.release().await.unwrap();
    hot.goes_on(waiters, 1).await;
}

#[tokio::test]
async fn one_who_has_no_time_left_to_ask_takes_the_lock_that_is_handed_over() {
    let hot = Hot::new();
    let (guard, mut waiters) = hot.hot_guard().await;
    // The first in line asks by itself, and learns that an answer takes longer than what is left of its wait.
    hot.memory.faults().set_delay(Duration::from_secs(1));
    let first = waiters.remove(0);
    first.abort();
    let _ = first.await;
    let last = waiters.remove(0);
    last.abort();
    let _ = last.await;
    let lock = hot.locks.lock("k").with_wait(Duration::from_millis(2_800));
    let (answered, waiter) = (Instant::now(), tokio::spawn(async move { lock.acquire().await }));
    tokio::time::sleep_until(answered + Duration::from_millis(1_200)).await;
    guard.release().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    assert_eq!(hot.locks.stats().handoffs, 1);
    hot.memory.faults().set_delay(Duration::ZERO);
    next.release().await.unwrap();
    hot.is_clean().await;
}

/// Which of them is next depends on in which order they are notified: the same one each time, were it not for turns.
#[tokio::test(start_paused = true)]
async fn ten_processes_that_want_a_lock_all_the_time_have_it_about_as_often() {
    const PROCESSES: usize = 10;
    let memory = Memory::new();
    let mut tasks = tokio::task::JoinSet::new();
    for process in 0..PROCESSES {
        let locks = Locks::builder(memory.clone()).with_lease(LEASE).with_handoff_limit(4).build().unwrap();
        for _ in 0..8 {
            let locks = locks.clone();
            tasks.spawn(async move {
                let (ends, mut sections) = (Instant::now() + Duration::from_secs(10), 0);
                while Instant::now() < ends {
                    let guard = locks.lock("k").acquire().await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    guard.release().await.unwrap();
                    sections += 1;
                }
                (process, sections)
            });
        }
    }
    let mut shares = [0; PROCESSES];
    while let Some(done) = tasks.join_next().await {
        let (process, sections) = done.unwrap();
        shares[process] += sections;
    }
    let fair = shares.iter().sum::<usize>() / PROCESSES;
    assert!(shares.iter().all(|share| (fair / 2..fair * 2).contains(share)), "{shares:?}");
}

/// To an operator they are one hold.
#[tokio::test]
async fn a_process_that_was_seen_to_hold_a_lock_loses_it_to_an_operator_whatever_section_has_it_by_then() {
    let hot = Hot::new();
    let (guard, waiters) = hot.hot_guard().await;
    let seen = hot.locks.occupancy("k").await.unwrap().holders;
    guard.release().await.unwrap();
    let mut waiters = waiters.into_iter();
    let next = waiters.next().unwrap().await.unwrap();
    assert_eq!(hot.locks.stats().handoffs, 1);
    let now = hot.locks.occupancy("k").await.unwrap().holders;
    assert!(seen[0].is_same_hold(&now[0]), "{seen:?} {now:?}");
    assert_eq!(hot.locks.force_release_of("k", &seen).await.unwrap(), Forced::Released);
    assert_eq!(hot.memory.held(), 0);
    drop((next, waiters));
}
