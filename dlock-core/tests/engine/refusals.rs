//! Servers that say no for a while: a rotated password, a right that was removed and restored.

use std::time::Duration;

use dlock_core::backend::{Capabilities, Renewed, Validity, Withdrawal};
use dlock_core::{Clock, Error, ErrorKind, Failure, Locks, Outcome};
use tokio::time::Instant;

use crate::keeping::eventually;
use crate::script::{Answer, Call, Scripted};
use crate::spans::traced;

const LEASE: Duration = Duration::from_secs(30);

fn denied() -> Answer {
    Answer::Fail(Failure::denied("the user or the password is wrong"))
}

fn granted() -> Answer {
    Answer::Grant(Validity::Lease(LEASE))
}

#[tokio::test(start_paused = true)]
async fn a_campaign_goes_on_through_what_an_operator_can_undo_and_tells_of_it() {
    for (refusal, priority) in [
        (Failure::denied("the user or the password is wrong"), 0),
        (Failure::invalid_config("the table is missing"), 0),
        (Failure::new(ErrorKind::Conflict, "it is a semaphore"), 0),
        (Failure::new(ErrorKind::Unsupported, "the server gave an error that is not known"), 1),
    ] {
        let why = refusal.to_string();
        let backend = Scripted::new([Answer::Fail(refusal), denied(), denied(), granted()]);
        let locks = Locks::new(backend.clone());
        let lines = traced(async {
            let mut campaign = locks.election("k").with_priority(priority).campaign();
            let term = campaign.next().await.expect("it leads in the end");
            assert!(campaign.failure().is_none());
            drop(term);
        })
        .await
        .all();
        assert_eq!(backend.count(|call| matches!(call, Call::Attempt(_))), 4);
        let told = |what: &str| lines.iter().any(|line| line.contains(what));
        assert!(told("the servers refuse") && told(&why), "{lines:?}");
        assert!(told("do not refuse any more"), "{lines:?}");
    }
}

/// Otherwise the end of the refusal would be told when the term of the other leader ends, which may be never.
#[tokio::test(start_paused = true)]
async fn a_candidate_tells_that_a_refusal_is_over_while_somebody_else_leads() {
    for priority in [0, 1] {
        let busy = (0..10_000).map(|_| Answer::Busy);
        let locks = Locks::new(Scripted::new([denied(), denied()].into_iter().chain(busy)));
        let lines = traced(async {
            let mut campaign = locks.election("k").with_priority(priority).campaign();
            let stands = tokio::time::timeout(Duration::from_secs(60), campaign.next());
            assert!(stands.await.is_err(), "somebody else leads");
        });
        let lines = lines.await.all();
        let told = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
        assert_eq!((told("the servers refuse"), told("do not refuse any more")), (1, 1), "{lines:?}");
    }
}

#[tokio::test]
async fn a_campaign_that_only_another_program_could_win_ends_before_any_request() {
    let backend = Scripted::new([granted()]);
    let locks = Locks::new(backend.clone());
    let wrong = [
        (locks.election(""), ErrorKind::InvalidKey),
        (locks.election("k").with_priority(61), ErrorKind::InvalidConfig),
        (locks.election("k").with_lease(Duration::ZERO), ErrorKind::InvalidConfig),
        (locks.election("k").with_options(|lock| lock.with_fairness(true)), ErrorKind::Unsupported),
    ];
    for (election, kind) in wrong {
        let mut campaign = election.campaign();
        assert!(campaign.next().await.is_none());
        assert_eq!(campaign.into_failure().map(|error| error.kind()), Some(kind));
    }
    assert_eq!(backend.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_is_denied_for_a_while_and_waits_on() {
    let backend = Scripted::new([Answer::Busy, denied(), denied(), Answer::Busy, denied(), granted()]);
    let locks = Locks::new(backend.clone());
    let lines = traced(async {
        drop(locks.lock("k").with_wait(Duration::from_secs(600)).acquire().await.unwrap());
    });
    let told = lines.await.all();
    let told = told.iter().filter(|line| line.contains("the servers refuse")).count();
    assert_eq!(told, 2, "each refusal is an outage of its own");
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_waits_on_while_a_table_is_missing() {
    let missing = || Answer::Fail(Failure::invalid_config("there is no table"));
    let backend = Scripted::new([Answer::Busy, missing(), missing(), granted()]);
    let locks = Locks::new(backend.clone());
    drop(locks.lock("k").with_wait(Duration::from_secs(600)).acquire().await.unwrap());
    // What others use in another way is not waited for.
    let conflict = Answer::Fail(Failure::new(ErrorKind::Conflict, "it is a semaphore"));
    let locks = Locks::new(Scripted::new([Answer::Busy, conflict, granted()]));
    let error = locks.lock("k").with_wait(Duration::from_secs(600)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_is_refused_what_tells_of_releases_and_waits_on() {
    let backend = Scripted::unpolled([Answer::Busy, granted()]);
    let refusal = Failure::invalid_config("the table is missing");
    backend.0.changes.lock().unwrap().push_back(Err(refusal));
    let locks = Locks::new(backend);
    drop(locks.lock("k").with_wait(Duration::from_secs(3_600)).acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn one_that_pauses_after_refusals_asks_again_when_the_lock_is_released_here() {
    let denials = (0..6).map(|_| denied());
    let answers = [granted(), Answer::Busy].into_iter().chain(denials).chain([granted()]);
    let backend = Scripted::new(answers);
    let locks = Locks::new(backend.clone());
    let holder = locks.lock("k").acquire().await.unwrap();
    let waiting = locks.lock("k").with_wait(Duration::from_secs(600));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    let attempts = |calls: &[Call]| calls.iter().filter(|call| matches!(call, Call::Attempt(_))).count();
    backend.wait_for(|calls| attempts(calls) == 8).await;
    let released = Instant::now();
    holder.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    // The pause is 15 to 30 s long by then, in the time of the test.
    assert!(released.elapsed() < Duration::from_secs(5), "{:?}", released.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_observer_reports_an_outage_once_whatever_its_errors_are_and_a_refusal_besides() {
    let backend = Scripted::new([]);
    let kinds = [ErrorKind::Unavailable, ErrorKind::QuorumNotReached, ErrorKind::Unknown, ErrorKind::Denied];
    let failures = kinds.into_iter().chain([ErrorKind::InvalidConfig]);
    backend.0.looks.lock().unwrap().extend(failures.map(|kind| Err(Failure::new(kind, "no"))));
    let mut changes = Locks::new(backend).election("k").changes();
    assert_eq!(changes.next().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(changes.next().await.unwrap_err().kind(), ErrorKind::Denied);
    assert!(changes.next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_downgrade_is_asked_for_while_the_servers_refuse_it() {
    for is_lost in [false, true] {
        let capabilities = Capabilities::basic().with_sharing().with_downgrading();
        let backend = Scripted::with(Clock::system(), capabilities, [granted()]);
        let missing = || Err(Failure::invalid_config("there is no table"));
        let last = if is_lost { Renewed::Gone } else { Renewed::Extended };
        backend.0.downgrades.lock().unwrap().extend([missing(), missing(), Ok(last)]);
        let locks = Locks::new(backend.clone());
        let mut guard = locks.lock("k").acquire().await.unwrap();
        assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::InvalidConfig);
        eventually("the outcome", || backend.0.downgrades.lock().unwrap().is_empty()).await;
        eventually("the end of it", || locks.stats().background == 0).await;
        assert_eq!(guard.check().is_err(), is_lost);
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_is_denied_until_its_wait_is_over_says_so() {
    let denials = (0..100).map(|_| denied());
    let backend = Scripted::new([Answer::Busy].into_iter().chain(denials));
    let locks = Locks::new(backend.clone());
    let error = locks.lock("k").with_wait(Duration::from_secs(60)).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    let asked = backend.count(|call| matches!(call, Call::Attempt(_)));
    assert!((4..40).contains(&asked), "{asked} attempts in a minute");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_another_run_is_refused_for_a_while_and_waits_on() {
    let answers = [Answer::Busy, denied(), denied(), Answer::Busy, denied(), granted()];
    let backend = Scripted::with(Clock::system(), Capabilities::basic().with_leaving(), answers);
    let locks = Locks::new(backend.clone());
    let job = locks.once("k").with_window(Duration::from_secs(600));
    let lines = traced(async {
        assert_eq!(job.run(async { Ok::<_, Error>(7) }).await.unwrap(), Outcome::Ran(7));
    });
    let lines = lines.await.all();
    let told = |what: &str| lines.iter().filter(|line| line.contains(what)).count();
    assert_eq!((told("the servers refuse"), told("do not refuse any more")), (2, 2), "{lines:?}");

    // Before anything was allowed it is an error at once.
    let backend = Scripted::with(Clock::system(), Capabilities::basic().with_leaving(), [denied()]);
    let job = Locks::new(backend.clone()).once("k").with_window(Duration::from_secs(600));
    let error = job.run(async { Ok::<_, Error>(7) }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_release_that_is_denied_is_tried_again_until_it_is_allowed() {
    let backend = Scripted::new([granted()]);
    backend.0.withdrawals.lock().unwrap().extend([
        Err(Failure::denied("the right to delete was removed")),
        Err(Failure::denied("the right to delete was removed")),
        Ok(Withdrawal::REMOVED),
    ]);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Denied);
    eventually("the release", || locks.stats().background == 0).await;
    assert_eq!(backend.count(|call| matches!(call, Call::Withdraw(_))), 3);
    assert_eq!(locks.stats().abandoned, 0);
}

#[tokio::test]
async fn a_release_that_is_denied_is_left_to_the_lease_when_the_locks_are_shut_down() {
    let backend = Scripted::new([granted()]);
    let denials = (0..10_000).map(|_| Err(Failure::denied("the right to delete was removed")));
    backend.0.withdrawals.lock().unwrap().extend(denials);
    let locks = Locks::new(backend.clone());
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Denied);
    backend.wait_for(|calls| calls.iter().filter(|call| matches!(call, Call::Withdraw(_))).count() > 1).await;
    locks.shutdown(Duration::from_secs(60)).await.unwrap();
    assert_eq!((locks.stats().background, locks.stats().abandoned), (0, 1));
}
