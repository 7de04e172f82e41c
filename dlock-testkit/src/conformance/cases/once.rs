//! Jobs that run once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, OnCrash, OnError, Once, Outcome, Wait};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::cases;
use crate::conformance::expect::{SOON, error_of, soon};
use crate::conformance::{Process, Stage};

cases! {
    a_job_runs_once_in_its_window_in_all_processes_together: Leaving & Administration, Easy;
    a_job_runs_again_when_its_window_is_over: Leaving & Administration, Timed;
    who_skips_a_job_learns_who_did_it_and_when: Leaving & Administration, Easy;
    a_job_that_failed_runs_again_unless_it_is_to_be_skipped: Leaving & Administration, Easy;
    a_job_that_panicked_or_was_cancelled_runs_again_unless_it_is_to_be_skipped: Leaving & Administration, Easy;
    who_waits_for_a_run_skips_the_job_when_it_succeeds_and_runs_it_when_it_fails: Leaving & Administration, Easy;
    who_does_not_wait_for_a_run_skips_the_job_at_once: Leaving & Administration, Easy;
    a_run_that_is_longer_than_its_window_is_not_repeated_by_those_who_waited_for_it: Leaving & Administration, Easy;
    a_job_of_a_process_that_goes_silent_is_run_by_who_waits_for_it: Leaving & Administration & Lease, Timed;
    a_job_of_a_process_that_goes_silent_is_skipped_where_that_was_said: Leaving & Administration & Lease, Timed;
    a_job_whose_grant_or_release_is_not_answered_runs_once: Leaving & Administration, Easy;
    every_run_has_a_higher_fence: Leaving & Administration, Easy;
    a_job_inside_of_itself_would_wait_for_itself: Leaving & Administration, Easy;
    windows_that_cannot_be_kept_are_refused_before_any_request: Leaving & Administration, Easy;
}

/// Long enough to be there for the whole test.
const WINDOW: Duration = Duration::from_secs(600);

fn job(process: &Process, key: &str) -> Once {
    process.locks.once(key).with_window(WINDOW)
}

async fn ran(job: &Once) -> bool {
    let run = job.run(async { Ok::<_, Error>(()) });
    matches!(soon("the job", run).await.expect("it can be asked for"), Outcome::Ran(()))
}

/// An error of the job's own.
#[derive(Debug)]
enum Failed {
    OnPurpose,
    ByLock(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::ByLock(error)
    }
}

async fn fails(job: &Once) {
    let failed = soon("the job", job.run(async { Err::<(), _>(Failed::OnPurpose) })).await;
    match failed {
        Err(Failed::OnPurpose) => {}
        Err(Failed::ByLock(error)) => panic!("it could not run: {error}"),
        Ok(outcome) => panic!("it was skipped: {outcome:?}"),
    }
}

type Run = JoinHandle<Result<Outcome<()>, Failed>>;

/// A run that has begun, and ends as is said to it.
async fn begun(job: Once) -> (Run, mpsc::Sender<bool>) {
    let (begin, mut begins) = mpsc::channel::<()>(1);
    let (end, mut ends) = mpsc::channel::<bool>(1);
    let run = tokio::spawn(async move {
        let body = async move {
            drop(begin);
            match ends.recv().await {
                Some(true) => Ok(()),
                _ => Err(Failed::OnPurpose),
            }
        };
        job.run(body).await
    });
    assert!(soon("the begin", begins.recv()).await.is_none());
    (run, end)
}

async fn a_job_runs_once_in_its_window_in_all_processes_together(stage: Stage) {
    let processes = [stage.process().await, stage.process().await, stage.process().await];
    let (key, runs) = (stage.key(), Arc::new(AtomicU32::new(0)));
    let tasks = (0..9).map(|task| {
        let (job, runs) = (job(&processes[task % 3], &key), Arc::clone(&runs));
        async move {
            let body = async {
                runs.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                Ok::<_, Error>(())
            };
            job.run(body).await.expect("it can be asked for")
        }
    });
    let outcomes = soon("all", futures_util::future::join_all(tasks)).await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(outcomes.iter().filter(|outcome| !outcome.is_skipped()).count(), 1);
    assert!(!ran(&job(&processes[0], &key)).await);
}

async fn a_job_runs_again_when_its_window_is_over(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let window = stage.lease();
    let began = tokio::time::Instant::now();
    assert!(ran(&job(&ours, &key).with_window(window)).await);
    loop {
        let again = ran(&job(&theirs, &key).with_window(window)).await;
        let passed = began.elapsed();
        if again {
            assert!(passed >= window - Duration::from_millis(2), "again after {passed:?}");
            break;
        }
        assert!(passed < window + SOON, "not again after {passed:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn who_skips_a_job_learns_who_did_it_and_when(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("first")).await;
    let (theirs, key) = (stage.process().await, stage.key());
    assert!(ran(&job(&ours, &key)).await);
    let outcome = job(&theirs, &key).run(async { Ok::<_, Error>(()) }).await.expect("it can be asked for");
    let Outcome::Skipped { ran_at, by } = outcome else { panic!("it ran twice") };
    assert!(
        by.left_behind && by.label.as_deref() == Some("first") && by.pid == Some(std::process::id()),
        "{by}"
    );
    assert!(
        ran_at.is_some_and(|at| at.elapsed().is_ok_and(|ago| ago < Duration::from_secs(60))),
        "{ran_at:?}"
    );
}

async fn a_job_that_failed_runs_again_unless_it_is_to_be_skipped(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    fails(&job(&ours, &key)).await;
    fails(&job(&theirs, &key)).await;
    fails(&job(&ours, &key).with_on_error(OnError::Skip)).await;
    assert!(!ran(&job(&theirs, &key)).await);
}

async fn a_job_that_panicked_or_was_cancelled_runs_again_unless_it_is_to_be_skipped(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for on_error in [OnError::Rerun, OnError::Skip] {
        for panics in [true, false] {
            let key = stage.key();
            let (run, end) = begun(job(&ours, &key).with_on_error(on_error)).await;
            if panics {
                let inner = job(&ours, &stage.key()).with_on_error(on_error);
                let key = inner.clone();
                let panicked = tokio::spawn(async move {
                    inner.run(async { if true { panic!("on purpose") } else { Ok::<(), Error>(()) } }).await
                });
                panicked.await.expect_err("it panicked");
                assert_eq!(ran(&key).await, on_error == OnError::Rerun, "after a panic");
            }
            run.abort();
            // Released in the background, and waited for.
            assert_eq!(ran(&job(&theirs, &key)).await, on_error == OnError::Rerun, "after a cancel");
            drop(end);
        }
    }
}

async fn who_waits_for_a_run_skips_the_job_when_it_succeeds_and_runs_it_when_it_fails(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for succeeds in [true, false] {
        let key = stage.key();
        let (run, end) = begun(job(&ours, &key)).await;
        let waits = job(&theirs, &key);
        let mut waiting = std::pin::pin!(ran(&waits));
        assert!(tokio::time::timeout(Duration::from_millis(80), &mut waiting).await.is_err());
        end.send(succeeds).await.expect("it waits for this");
        assert_eq!(waiting.await, !succeeds);
        assert_eq!(run.await.expect("no panic").is_ok(), succeeds);
    }
}

async fn who_does_not_wait_for_a_run_skips_the_job_at_once(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (run, end) = begun(job(&ours, &key)).await;
    for wait in [Wait::No, Wait::For(Duration::from_millis(60))] {
        let asked = job(&theirs, &key).with_wait(wait).run(async { Ok::<_, Error>(()) }).await;
        let Outcome::Skipped { by, .. } = asked.expect("it can be asked for") else { panic!("it ran twice") };
        assert!(!by.left_behind, "it is still running");
    }
    let skips = job(&theirs, &key).with_on_crash(OnCrash::Skip);
    if theirs.locks.capabilities().session_kept {
        // Nothing is left of a process that has crashed.
        error_of(skips.run(async { Ok::<_, Error>(()) }).await, &[ErrorKind::Unsupported]);
    } else {
        assert!(!ran(&skips).await, "nobody waits where a crash closes the window");
    }
    end.send(true).await.expect("it waits for this");
    run.await.expect("no panic").expect("it succeeds");
}

async fn a_run_that_is_longer_than_its_window_is_not_repeated_by_those_who_waited_for_it(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let window = Duration::from_secs(3);
    let (run, end) = begun(job(&ours, &key).with_window(window)).await;
    let waits = job(&theirs, &key).with_window(window);
    let waiting = tokio::spawn(async move { ran(&waits).await });
    tokio::time::sleep(window + Duration::from_millis(100)).await;
    end.send(true).await.expect("it waits for this");
    run.await.expect("no panic").expect("it succeeds");
    assert!(!waiting.await.expect("no panic"), "it was waited for");
}

async fn a_job_of_a_process_that_goes_silent_is_run_by_who_waits_for_it(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let (run, end) = begun(job(&ours, &key)).await;
    ours.wire.cut();
    assert!(ran(&job(&theirs, &key)).await);
    match run.await.expect("no panic") {
        Err(Failed::ByLock(error)) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
        other => panic!("its lock is lost: {other:?}"),
    }
    drop(end);
    ours.wire.mend();
    assert!(!ran(&job(&ours, &key)).await);
}

async fn a_job_of_a_process_that_goes_silent_is_skipped_where_that_was_said(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let (run, end) = begun(job(&ours, &key).with_on_crash(OnCrash::Skip)).await;
    ours.wire.cut();
    tokio::time::sleep(stage.lease() * 2).await;
    assert!(!ran(&job(&theirs, &key).with_on_crash(OnCrash::Skip)).await);
    ours.wire.mend();
    end.send(true).await.expect("it waits for this");
    run.await.expect("no panic").expect("its lock is as long as its window");
}

async fn a_job_whose_grant_or_release_is_not_answered_runs_once(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let limit = Duration::from_secs(1);
    for at_grant in [true, false] {
        let (key, runs) = (stage.key(), AtomicU32::new(0));
        let job = job(&ours, &key).with_options(|lock| lock.with_request_timeout(limit));
        if at_grant {
            ours.wire.lose_replies(1);
        }
        let body = async {
            runs.fetch_add(1, Ordering::SeqCst);
            if !at_grant {
                ours.wire.lose_replies(1);
            }
            Ok::<_, Error>(())
        };
        let outcome = soon("the job", job.run(body)).await.expect("it can be asked for");
        assert_eq!((outcome, runs.load(Ordering::SeqCst)), (Outcome::Ran(()), 1));
        assert!(!ran(&self::job(&theirs, &key)).await);
    }
}

async fn every_run_has_a_higher_fence(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = None;
    for process in [&ours, &theirs, &ours] {
        let mut fence = None;
        let job = job(process, &key);
        let failing = job.run_with(|held| {
            fence = held.fence();
            async { Err::<(), _>(Failed::OnPurpose) }
        });
        assert!(matches!(soon("the job", failing).await, Err(Failed::OnPurpose)));
        assert!(fence > last || fence.is_none(), "{fence:?} after {last:?}");
        last = fence;
    }
}

async fn a_job_inside_of_itself_would_wait_for_itself(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let (outer, inner) = (job(&ours, &key), job(&ours, &key));
    let asked =
        soon("the job", outer.run(async { inner.run(async { Ok::<_, Error>(()) }).await.map(drop) })).await;
    error_of(asked, &[ErrorKind::Deadlock]);
}

async fn windows_that_cannot_be_kept_are_refused_before_any_request(stage: Stage) {
    let (ours, key) = (stage.process().await, stage.key());
    let once = || ours.locks.once(&key);
    let (day, month) = (Duration::from_secs(24 * 3_600), Duration::from_secs(30 * 24 * 3_600));
    let second = Duration::from_secs(1);
    let refused = [
        (once(), "with_window"),
        (once().with_window(Duration::ZERO), "1 ms to 30 days"),
        (once().with_window(Duration::MAX), "1 ms to 30 days"),
        (once().with_window(month + second), "1 ms to 30 days"),
        (once().with_window(day + second).with_on_crash(OnCrash::Skip), "50 ms to 24 h"),
        (once().with_window(Duration::from_millis(49)).with_on_crash(OnCrash::Skip), "50 ms to 24 h"),
        (job(&ours, &key).with_lease(Duration::ZERO), "50 ms to 24 h"),
    ];
    for (job, text) in refused {
        let error = error_of(job.run(async { Ok::<_, Error>(()) }).await, &[ErrorKind::InvalidConfig]);
        assert!(error.to_string().contains(text), "{error}");
    }
    let error = error_of(
        ours.locks.once("").with_window(day).run(async { Ok::<_, Error>(()) }).await,
        &[ErrorKind::InvalidKey],
    );
    assert!(!error.is_retryable());
    assert_eq!(ours.wire.requests(), 0);
}
