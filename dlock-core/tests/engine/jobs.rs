//! Jobs that run once, whose lock is lost, or whose backend is away.

use std::time::Duration;

use crate::keeping::eventually;
use crate::script::{Answer, Call, Scripted};
use dlock_core::backend::Capabilities;
use dlock_core::{Clock, Error, ErrorKind, Failure, Locks, ManualClock, Memory, OnCrash, OnError, Outcome};

const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(600);

#[tokio::test]
async fn a_job_whose_lease_has_run_out_leaves_an_open_window_though_the_server_has_it_for_a_moment() {
    let clock = ManualClock::stopped();
    let locks = Locks::builder(Memory::with_clock(clock.clock())).with_lease(LEASE).build().unwrap();
    let job = locks.once("k").with_window(WINDOW).with_on_error(OnError::Skip);
    let lost = job
        .run(async {
            // Past the end of the lease as this process sees it, which is earlier than the server's.
            clock.advance(LEASE - LEASE / 200);
            std::future::pending::<Result<(), Error>>().await
        })
        .await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(job.run(async { Ok::<_, Error>(7) }).await.unwrap(), Outcome::Ran(7));
}

#[tokio::test]
async fn a_job_that_takes_longer_than_it_may_has_failed() {
    for (on_error, skipped) in [(OnError::Rerun, false), (OnError::Skip, true)] {
        let clock = ManualClock::stopped();
        let locks = Locks::builder(Memory::with_clock(clock.clock())).with_lease(LEASE).build().unwrap();
        let job = locks.once("k").with_window(WINDOW).with_max_run(LEASE * 2).with_on_error(on_error);
        let lost = job
            .run(async {
                // Its lease then ends later than its time.
                for n in 1..=4 {
                    clock.advance(LEASE / 3);
                    eventually("a renewal", || locks.stats().renewals == n).await;
                }
                clock.advance(LEASE * 2 / 3);
                std::future::pending::<Result<(), Error>>().await
            })
            .await;
        assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost);
        let again = job.run(async { Ok::<_, Error>(()) }).await.unwrap();
        assert_eq!(again.is_skipped(), skipped, "{on_error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_away_is_asked_ever_less_often_also_by_who_does_not_wait_for_others() {
    for on_crash in [OnCrash::Rerun, OnCrash::Skip] {
        let away = (0..2_000).map(|_| Answer::Fail(Failure::unavailable("away")));
        let backend = Scripted::with(Clock::system(), Capabilities::basic().with_leaving(), away);
        let locks = Locks::new(backend.clone());
        let job = locks.once("k").with_window(WINDOW).with_on_crash(on_crash);
        let failed = job.run(async { Ok::<_, Error>(()) }).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        // For 30 s: five times soon, and then once a second or a little more often.
        let asked = backend.count(|call| matches!(call, Call::Attempt(_)));
        assert!((30..=45).contains(&asked), "{on_crash:?}: {asked}");
    }
}

#[tokio::test]
async fn what_runs_under_a_lock_that_is_kept_nowhere_is_a_future_by_itself() {
    let locks = Locks::new(Memory::new());
    let job = locks.once("job").with_window(Duration::from_secs(60)).run_with(async |_| Ok::<_, Error>(1));
    let again = locks.once("job").with_window(Duration::from_secs(60)).run(async { Ok::<_, Error>(2) });
    let runs = ["k", "l"].map(|key| locks.lock(key).run(async { 3 }));
    let seen = locks.lock("k").run_with(async |held| held.is_held());
    let all = locks.lock_all(["k", "l"]).run_with(async |held| held.is_held());
    let permit = locks.semaphore("s", 1).run(async { 4 });
    assert_eq!(job.await.unwrap().ran(), Some(1));
    assert!(again.await.unwrap().is_skipped());
    for run in runs {
        assert_eq!(run.await.unwrap(), 3);
    }
    assert!(seen.await.unwrap() && all.await.unwrap());
    assert_eq!(permit.await.unwrap(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_is_skipped_in_the_moment_in_which_the_run_ends_elsewhere() {
    let memory = Memory::new();
    let processes = [Locks::new(memory.clone()), Locks::new(memory.clone()), Locks::new(memory)];
    for (n, millis) in [20, 300, 1_400, 2_900, 61_300].into_iter().enumerate() {
        let job = |locks: &Locks| locks.once(format!("k{n}")).with_window(WINDOW);
        let run = async move { tokio::time::sleep(Duration::from_millis(millis)).await };
        let run = tokio::spawn(job(&processes[0]).run(async {
            run.await;
            Ok::<_, Error>(())
        }));
        // Until it runs.
        tokio::time::sleep(Duration::from_millis(1)).await;
        // Two of one process, of whom one stands in line.
        let waiting: Vec<_> = [1, 1, 2]
            .map(|process| tokio::spawn(job(&processes[process]).run(async { Ok::<_, Error>(()) })))
            .into();
        assert_eq!(run.await.unwrap().unwrap(), Outcome::Ran(()));
        let ended = tokio::time::Instant::now();
        for waiting in waiting {
            assert!(waiting.await.unwrap().unwrap().is_skipped());
        }
        let late = ended.elapsed();
        assert!(late <= Duration::from_millis(25), "after {millis} ms: {late:?} late");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_failed_elsewhere_is_run_at_once_by_a_process_that_waits() {
    let memory = Memory::new();
    let processes = [Locks::new(memory.clone()), Locks::new(memory)];
    let job = |locks: &Locks| locks.once("k").with_window(WINDOW);
    let fails = async { tokio::time::sleep(Duration::from_secs(7)).await };
    let fails = tokio::spawn(job(&processes[0]).run(async {
        fails.await;
        Err::<(), _>(std::io::Error::other("no luck").into())
    }));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let waiting = tokio::spawn(job(&processes[1]).run(async { Ok::<_, Error>(1) }));
    let failed: Result<_, Box<dyn std::error::Error + Send + Sync>> = fails.await.unwrap();
    failed.unwrap_err();
    let ended = tokio::time::Instant::now();
    assert_eq!(waiting.await.unwrap().unwrap(), Outcome::Ran(1));
    assert!(ended.elapsed() <= Duration::from_millis(25), "{:?} late", ended.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_so_long_looks_once_more_when_its_time_is_over() {
    let memory = Memory::new();
    let processes = [Locks::new(memory.clone()), Locks::new(memory)];
    let job = |locks: &Locks| locks.once("k").with_window(WINDOW);
    let run =
        tokio::spawn(job(&processes[0]).run(async { std::future::pending::<Result<(), Error>>().await }));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let began = tokio::time::Instant::now();
    let wait = Duration::from_millis(3_300);
    let skipped = job(&processes[1]).with_wait(wait).run(async { Ok::<_, Error>(()) }).await.unwrap();
    let Outcome::Skipped { by, .. } = skipped else { panic!("it was run twice") };
    assert!(!by.left_behind && by.pid.is_some(), "{by}");
    assert!((wait..wait + Duration::from_millis(100)).contains(&began.elapsed()), "{:?}", began.elapsed());
    run.abort();
}
