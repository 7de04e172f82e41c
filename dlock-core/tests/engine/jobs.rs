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
