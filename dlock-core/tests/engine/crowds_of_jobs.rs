//! Jobs that run once, of which many wait, or whose requests go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Locks, ManualClock, Memory, OnCrash, OnError, Once, Outcome, Wait};
use tokio::task::JoinSet;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(600);

fn ok() -> std::future::Ready<Result<(), Error>> {
    std::future::ready(Ok(()))
}

/// Starts a run that takes so long.
fn start(job: &Once, long: Duration) -> tokio::task::JoinHandle<Result<Outcome<()>, Error>> {
    tokio::spawn(job.run(async move {
        tokio::time::sleep(long).await;
        Ok(())
    }))
}

#[tokio::test(start_paused = true)]
async fn all_jobs_of_a_crowd_are_skipped_soon_after_the_end_of_the_run_they_wait_for() {
    let memory = Memory::new();
    let processes = [Locks::new(memory.clone()), Locks::new(memory.clone()), Locks::new(memory)];
    for (n, runs_in) in [0, 1].into_iter().enumerate() {
        let job = |locks: &Locks| locks.once(format!("k{n}")).with_window(WINDOW);
        let run = start(&job(&processes[runs_in]), Duration::from_millis(2_400));
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut waiting = JoinSet::new();
        for _ in 0..500 {
            for process in &processes[1..] {
                waiting.spawn(job(process).run(ok()));
            }
        }
        run.await.unwrap().unwrap();
        let ended = Instant::now();
        for outcome in waiting.join_all().await {
            assert!(outcome.unwrap().is_skipped());
        }
        let late = ended.elapsed();
        assert!(late <= Duration::from_millis(50), "{late:?} late");
    }
}

#[tokio::test]
async fn a_crowd_that_waits_for_a_run_longer_than_a_short_window_skips_the_job() {
    let memory = Memory::new();
    let processes = [Locks::new(memory.clone()), Locks::new(memory.clone()), Locks::new(memory)];
    // For as long the key stays taken after the run: longer than a busy machine stands still.
    let job = |locks: &Locks| locks.once("k").with_window(Duration::from_secs(2));
    let run = start(&job(&processes[0]), Duration::from_millis(2_450));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let ran = Arc::new(AtomicUsize::new(0));
    let mut waiting = JoinSet::new();
    for n in 0..60 {
        let ran = Arc::clone(&ran);
        waiting.spawn(job(&processes[n % 3]).run(async move {
            ran.fetch_add(1, Ordering::SeqCst);
            ok().await
        }));
    }
    run.await.unwrap().unwrap();
    waiting.join_all().await;
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_grant_comes_when_the_locks_are_drained_leaves_an_open_window() {
    let memory = Memory::new();
    let [ours, theirs] = [Locks::new(memory.clone()), Locks::new(memory.clone())];
    let job = |locks: &Locks| locks.once("k").with_window(WINDOW).with_on_error(OnError::Skip);
    memory.faults().set_delay(Duration::from_millis(100));
    let asks = tokio::spawn(job(&ours).run(ok()));
    // It is granted, and the answer is on its way.
    tokio::time::sleep(Duration::from_millis(75)).await;
    let drained = tokio::spawn({
        let ours = ours.clone();
        async move { ours.drain(Duration::from_secs(10)).await }
    });
    assert_eq!(asks.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    drained.await.unwrap().unwrap();
    memory.faults().set_delay(Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(job(&theirs).run(ok()).await.unwrap(), Outcome::Ran(()), "nobody ran it");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_grant_comes_too_late_is_asked_for_again_and_is_not_skipped() {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let locks = Locks::builder(memory.clone()).with_lease(LEASE).build().unwrap();
    for on_crash in [OnCrash::Rerun, OnCrash::Skip] {
        memory.faults().set_delay(Duration::from_millis(100));
        let job = locks.once(format!("{on_crash:?}")).with_window(WINDOW).with_on_crash(on_crash);
        let asks = tokio::spawn(job.run(ok()));
        tokio::time::sleep(Duration::from_millis(75)).await;
        clock.advance(WINDOW * 2);
        let outcome = asks.await.unwrap().unwrap();
        assert_eq!(outcome, Outcome::Ran(()), "nobody else did: {on_crash:?}");
    }
}

/// In real time, as the withdrawal runs on another thread.
#[tokio::test]
async fn a_job_does_not_take_its_own_lost_grant_for_the_run_of_another() {
    for wait in [Wait::No, Wait::For(Duration::from_millis(1)), Wait::Forever] {
        let memory = Memory::new();
        let locks = Locks::builder(memory.clone()).with_rechecks(0).build().unwrap();
        memory.faults().set_delay(Duration::from_millis(100));
        memory.faults().drop_replies(1);
        let job = locks.once("k").with_window(WINDOW).with_wait(wait);
        let asks = tokio::spawn(job.run(ok()));
        // The withdrawal does not come through at once.
        tokio::time::sleep(Duration::from_millis(75)).await;
        memory.faults().drop_requests(1);
        let outcome = asks.await.unwrap().unwrap();
        assert_eq!(outcome, Outcome::Ran(()), "nobody else did: {wait:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_ends_when_its_locks_are_drained_or_shut_down() {
    for drain in [true, false] {
        let memory = Memory::new();
        let [ours, theirs] = [Locks::new(memory.clone()), Locks::new(memory.clone())];
        let job = |locks: &Locks| locks.once("k").with_window(WINDOW);
        let run = start(&job(&theirs), Duration::from_secs(100));
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut waiting = JoinSet::new();
        for _ in 0..10 {
            waiting.spawn(job(&ours).run(ok()));
        }
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        let began = Instant::now();
        match drain {
            true => ours.drain(Duration::from_secs(10)).await.unwrap(),
            false => ours.shutdown(Duration::from_secs(10)).await.unwrap(),
        }
        for outcome in waiting.join_all().await {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Closed);
        }
        assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        run.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_behind_an_ordinary_waiter_of_its_process_learns_of_the_end_of_the_run() {
    let memory = Memory::new();
    let [ours, theirs] = [Locks::new(memory.clone()), Locks::new(memory.clone())];
    let job = |locks: &Locks| locks.once("k").with_window(WINDOW);
    let run = start(&job(&theirs), Duration::from_millis(2_450));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let ordinary = ours.lock("k").with_wait(Wait::Forever);
    let ordinary = tokio::spawn(async move { ordinary.acquire().await });
    tokio::time::sleep(Duration::from_millis(1)).await;
    let waiting = tokio::spawn(job(&ours).run(ok()));
    run.await.unwrap().unwrap();
    let ended = Instant::now();
    assert!(waiting.await.unwrap().unwrap().is_skipped());
    assert!(ended.elapsed() <= Duration::from_millis(3_100), "{:?}", ended.elapsed());
    assert!(!ordinary.is_finished());
    ordinary.abort();
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_through_an_outage_and_is_then_skipped() {
    let memory = Memory::new();
    let [ours, theirs] = [Locks::new(memory.clone()), Locks::new(memory.clone())];
    let job = |locks: &Locks| locks.once("k").with_window(WINDOW);
    let run = start(&job(&theirs), Duration::from_secs(25));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        waiting.spawn(job(&ours).run(ok()));
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        memory.faults().set_unavailable(true);
        tokio::time::sleep(Duration::from_millis(2_300)).await;
        memory.faults().set_unavailable(false);
        tokio::time::sleep(Duration::from_millis(1_300)).await;
        memory.faults().drop_replies(40);
    }
    run.await.unwrap().unwrap();
    for outcome in waiting.join_all().await {
        assert!(outcome.unwrap().is_skipped());
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_in_a_lock_of_its_key_by_other_locks_of_the_store_is_skipped_at_once_or_is_told() {
    let memory = Memory::new();
    let [ours, theirs] = [Locks::new(memory.clone()), Locks::new(memory.clone())];
    let job = |wait: Wait| theirs.once("k").with_window(WINDOW).with_wait(wait);
    let inside = ours.lock("k").run(async {
        (job(Wait::No).run(ok()).await, job(Wait::For(Duration::from_secs(3))).run(ok()).await)
    });
    let (at_once, waits) = inside.await.unwrap();
    assert!(at_once.unwrap().is_skipped());
    assert_eq!(waits.unwrap_err().kind(), ErrorKind::Deadlock);
}
