//! Leaders, one at a time.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::{Campaign, Election, Eligibility, ErrorKind, LeaderChanges, Term};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::cases;
use crate::cancel::every_await_point;
use crate::conformance::expect::{SOON, error_of, soon, until};
use crate::conformance::{Process, Stage};

cases! {
    one_candidate_leads_and_the_next_one_when_it_resigns: Nothing, Easy;
    whoever_resigns_lets_the_others_lead_first: Nothing, Easy;
    a_term_that_is_dropped_goes_to_the_next_candidate: Nothing, Easy;
    each_term_has_a_higher_number: Fences, Easy;
    two_campaigns_of_one_process_are_two_candidates: Nothing, Easy;
    a_campaign_dropped_at_any_await_leaves_nothing: Nothing, Easy;
    a_body_that_panics_ends_its_term: Nothing, Easy;
    a_candidate_that_is_not_eligible_does_not_lead: Nothing, Easy;
    a_candidate_that_waits_withdraws_when_it_is_not_eligible_any_more: Nothing, Easy;
    a_leader_that_is_not_eligible_any_more_leaves_office_after_its_body: Nothing, Easy;
    shutting_down_ends_the_term_and_the_campaign: Nothing, Easy;
    a_candidate_of_a_later_priority_lets_the_others_go_first: Nothing, Easy;
    observers_see_who_leads_and_each_change: Nothing, Easy;
    where_it_is_announced_who_leads_observers_see_it_long_before_they_ask_again: Nothing, Easy;
    observers_who_hear_nothing_ask_at_their_interval: Nothing, Easy;
    a_body_is_dropped_when_its_term_is_lost_and_the_campaign_goes_on: Lease, Timed;
    a_leader_that_is_cut_off_stops_believing_before_another_leads: Lease, Timed;
    a_leader_that_was_released_by_force_stops_and_another_leads: Lease & Administration, Timed;
    a_storm_of_resignations_has_one_leader_at_a_time: Nothing, Busy;
}

async fn lead(campaign: &mut Campaign) -> Term {
    match soon("the term", campaign.next()).await {
        Some(term) => term,
        None => panic!("the campaign has ended: {:?}", campaign.failure()),
    }
}

/// A candidate that waits for its term beside the case.
fn stand(election: Election) -> JoinHandle<Term> {
    tokio::spawn(async move { lead(&mut election.campaign()).await })
}

async fn won(candidate: JoinHandle<Term>) -> Term {
    soon("its turn", candidate).await.expect("no panic")
}

async fn resign(term: Term) {
    term.resign().await.expect("it led until now");
}

/// As many leaders as there should be, whatever the candidates do.
async fn one_candidate_leads_and_the_next_one_when_it_resigns(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let term = lead(&mut ours.locks.election(&key).campaign()).await;
    term.check().expect("it leads");
    let next = stand(theirs.locks.election(&key));
    until("the candidate's attempt", || theirs.wire.attempts() > 0).await;
    assert!(!next.is_finished(), "two lead");
    theirs.sees_held(&key).await;
    let held = term.held();
    resign(term).await;
    assert_eq!(error_of(held.check(), &[ErrorKind::NotHeld]).key(), Some(&*key));
    let next = won(next).await;
    next.check().expect("it leads now");
    ours.sees_held(&key).await;
    resign(next).await;
    ours.sees_free_soon(&key).await;
}

/// Also when it stands again at once. It stands back for a bounded time, in which the candidate of a busy machine may
/// not have asked yet: so a campaign may lead again, but never before that time has passed, and not always.
async fn whoever_resigns_lets_the_others_lead_first(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let stands_back = match ours.locks.capabilities() {
        notified if notified.notified => Duration::from_millis(100),
        polled => polled.poll_to.min(Duration::from_secs(1)),
    };
    let mut campaign = ours.locks.election(&key).campaign();
    let mut terms_of_others = 0;
    for _ in 0..30 {
        let term = lead(&mut campaign).await;
        let asked = theirs.wire.attempts();
        let mut next = pin!(won(stand(theirs.locks.election(&key))));
        until("the candidate's attempt", || theirs.wire.attempts() > asked).await;
        resign(term).await;
        let resigned = Instant::now();
        let next = tokio::select! {
            next = &mut next => {
                terms_of_others += 1;
                next
            }
            term = lead(&mut campaign) => {
                let passed = resigned.elapsed();
                assert!(passed >= stands_back, "the campaign led again after {passed:?}, before {stands_back:?}");
                resign(term).await;
                next.await
            }
        };
        resign(next).await;
        if terms_of_others == 3 {
            return;
        }
    }
    panic!("of 30 terms that were resigned, {terms_of_others} were followed by another candidate's");
}

/// The release is made in the background.
async fn a_term_that_is_dropped_goes_to_the_next_candidate(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let term = lead(&mut ours.locks.election(&key).campaign()).await;
    let next = stand(theirs.locks.election(&key));
    until("the candidate's attempt", || theirs.wire.attempts() > 0).await;
    assert_eq!(term.run(async { 7 }).await, Some(7));
    assert!(!next.is_finished(), "a body that has returned does not end the term");
    drop(term);
    resign(won(next).await).await;
}

/// Whoever leads, and however the term before ended.
async fn each_term_has_a_higher_number(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut last = 0;
    for process in [&ours, &theirs, &ours, &ours, &theirs] {
        let term = lead(&mut process.locks.election(&key).campaign()).await;
        let number = term.number().expect("the backend has fences");
        assert_eq!(term.fence().map(dlock_core::Fence::get), Some(number));
        assert!(number > last, "{number} after {last}");
        last = number;
        drop(term);
    }
}

/// No reentrancy: the second one waits, and leads when the first one resigns.
async fn two_campaigns_of_one_process_are_two_candidates(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let election = process.locks.election(&key);
    let (mut one, mut other) = (election.clone().campaign(), election.campaign());
    let term = lead(&mut one).await;
    let inside = term.run(async {
        tokio::time::timeout(Duration::from_millis(50), other.next()).await.ok().flatten().is_none()
    });
    assert!(inside.await.expect("it leads"), "one of the body's own would lead beside it");
    if let Some(error) = other.failure() {
        assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
    }
    let next = stand(process.locks.election(&key));
    tokio::task::yield_now().await;
    assert!(!next.is_finished());
    resign(term).await;
    resign(won(next).await).await;
}

/// At every await, of a campaign that wins and of one that waits.
async fn a_campaign_dropped_at_any_await_leaves_nothing(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let election = ours.locks.election(&key);
    let points = every_await_point(
        || {
            let mut campaign = election.clone().campaign();
            async move { campaign.next().await }
        },
        async |_cut, output: Option<Option<Term>>| {
            drop(output.map(|term| term.expect("nobody else stands")));
            theirs.sees_free_soon(&key).await;
        },
    )
    .await;
    assert!(points >= 2);
    let term = lead(&mut theirs.locks.election(&key).campaign()).await;
    for cut in [1, 2, 3, 5, 8] {
        let mut campaign = election.clone().campaign();
        let waits = tokio::time::timeout(Duration::from_millis(cut), campaign.next()).await;
        assert!(waits.is_err(), "two lead");
    }
    until("the background work", || ours.locks.stats().background == 0).await;
    resign(term).await;
    theirs.sees_free_soon(&key).await;
    assert_eq!(ours.locks.stats().held, 0);
}

/// The panic goes on to who runs it.
async fn a_body_that_panics_ends_its_term(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut campaign = ours.locks.election(&key).campaign();
    let panics = tokio::spawn(async move {
        let term = lead(&mut campaign).await;
        term.run(async { std::panic::resume_unwind(Box::new("the body")) }).await
    });
    assert!(soon("the panic", panics).await.expect_err("it panicked").is_panic());
    resign(lead(&mut theirs.locks.election(&key).campaign()).await).await;
}

/// However long nobody leads.
async fn a_candidate_that_is_not_eligible_does_not_lead(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let eligibility = Eligibility::new();
    eligibility.set(false);
    let mut campaign = process.locks.election(&key).with_eligibility(&eligibility).campaign();
    let waits = tokio::time::timeout(Duration::from_millis(50), campaign.next()).await;
    assert!(waits.is_err(), "it leads all the same");
    assert_eq!(process.wire.attempts(), 0, "it asked");
    eligibility.set(true);
    resign(lead(&mut campaign).await).await;
}

/// And stands again when it is.
async fn a_candidate_that_waits_withdraws_when_it_is_not_eligible_any_more(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let term = lead(&mut ours.locks.election(&key).campaign()).await;
    let eligibility = Eligibility::new();
    let next = stand(theirs.locks.election(&key).with_eligibility(&eligibility));
    until("the candidate's attempt", || theirs.wire.attempts() > 0).await;
    for _ in 0..20 {
        eligibility.set(false);
        eligibility.set(true);
    }
    eligibility.set(false);
    resign(term).await;
    ours.sees_free_soon(&key).await;
    until("the background work", || theirs.locks.stats().background == 0).await;
    assert!(!next.is_finished(), "it leads all the same");
    eligibility.set(true);
    resign(won(next).await).await;
}

/// Tells when it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().map(|told| told.send(()));
    }
}

/// A leader whose body never ends by itself: the body has begun, it was dropped, the campaign.
fn lead_on(election: Election) -> (oneshot::Receiver<()>, oneshot::Receiver<()>, JoinHandle<Campaign>) {
    let (begin, begun) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    let leads = tokio::spawn(async move {
        let mut campaign = election.campaign();
        let term = lead(&mut campaign).await;
        let dropped = Dropped(Some(end));
        let body = async move {
            let _dropped = dropped;
            let _ = begin.send(());
            std::future::pending::<()>().await;
        };
        assert_eq!(term.run(body).await, None);
        error_of(term.check(), &[ErrorKind::Lost]);
        campaign
    });
    (begun, ended, leads)
}

/// The term ends at once, and others lead without waiting for the lease.
async fn a_leader_that_is_not_eligible_any_more_leaves_office_after_its_body(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let eligibility = Eligibility::new();
    let (begun, ended, leads) = lead_on(ours.locks.election(&key).with_eligibility(&eligibility));
    soon("the body", begun).await.expect("it runs");
    let next = stand(theirs.locks.election(&key));
    eligibility.set(false);
    soon("the end of the body", ended).await.expect("it is dropped");
    resign(won(next).await).await;
    let mut campaign = soon("the end of the term", leads).await.expect("no panic");
    eligibility.set(true);
    resign(lead(&mut campaign).await).await;
}

/// Nothing of it is left, and the campaign says why it has ended.
async fn shutting_down_ends_the_term_and_the_campaign(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let (begun, ended, leads) = lead_on(ours.locks.election(&key));
    soon("the body", begun).await.expect("it runs");
    let waits = ours.locks.election(stage.key()).with_eligibility(&{
        let never = Eligibility::new();
        never.set(false);
        never
    });
    let waits = tokio::spawn(async move {
        let mut campaign = waits.campaign();
        assert!(campaign.next().await.is_none());
        campaign
    });
    ours.locks.shutdown(SOON).await.expect("the body leaves");
    soon("the end of the body", ended).await.expect("it is dropped");
    let mut campaign = soon("the end of the term", leads).await.expect("no panic");
    assert!(soon("the end", campaign.next()).await.is_none());
    for campaign in [campaign, soon("the end", waits).await.expect("no panic")] {
        let failure = campaign.into_failure().expect("it says why");
        assert_eq!(failure.kind(), ErrorKind::Closed, "{failure}");
    }
    resign(lead(&mut theirs.locks.election(&key).campaign()).await).await;
}

/// It leads when there are none.
async fn a_candidate_of_a_later_priority_lets_the_others_go_first(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let term = lead(&mut ours.locks.election(&key).campaign()).await;
    let later = stand(theirs.locks.election(&key).with_priority(1));
    until("a look at who leads", || theirs.wire.requests() > 0).await;
    let next = stand(ours.locks.election(&key));
    tokio::task::yield_now().await;
    resign(term).await;
    let next = won(next).await;
    assert!(!later.is_finished(), "two lead");
    resign(next).await;
    resign(won(later).await).await;
    let mut refused = theirs.locks.election(&key).with_priority(61).campaign();
    assert!(refused.next().await.is_none());
    assert_eq!(refused.failure().map(dlock_core::Error::kind), Some(ErrorKind::InvalidConfig));
}

/// The same from everywhere; an outage is one error.
async fn observers_see_who_leads_and_each_change(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let election = theirs.locks.election(&key);
    let mut changes = election.clone().changes().with_interval(Duration::from_millis(50));
    assert!(soon("the first answer", changes.next()).await.expect("it can be asked").is_none());
    for _ in 0..2 {
        let term = lead(&mut ours.locks.election(&key).campaign()).await;
        let leader =
            soon("a change", changes.next()).await.expect("it can be asked").expect("somebody leads");
        assert_eq!((leader.fence(), leader.number()), (term.fence(), term.number()));
        assert_eq!(leader.holder().pid, Some(std::process::id()));
        assert!(leader.is_this_process(), "{leader:?}");
        let asked = soon("an answer", election.leader()).await.expect("it can be asked").expect("it leads");
        assert_eq!(asked.fence(), term.fence());
        resign(term).await;
        assert!(soon("a change", changes.next()).await.expect("it can be asked").is_none());
    }
    theirs.wire.cut();
    let error = error_of(
        soon("the outage", changes.next()).await,
        &[ErrorKind::Unavailable, ErrorKind::QuorumNotReached],
    );
    assert!(error.is_retryable());
    let quiet = tokio::time::timeout(Duration::from_millis(150), changes.next()).await;
    assert!(quiet.is_err(), "an outage is reported once: {quiet:?}");
    theirs.wire.mend();
    assert!(soon("the end of the outage", changes.next()).await.expect("it can be asked").is_none());
    let locked = theirs.take(&key).await;
    let holder = soon("an answer", election.leader()).await.expect("it can be asked").expect("it is held");
    assert!(!holder.is_this_process(), "it holds the lock and does not lead");
    drop(locked);
    let wrong = election.changes().with_interval(Duration::from_millis(1)).next().await;
    error_of(wrong, &[ErrorKind::InvalidConfig]);
}

fn observe(process: &Process, key: &str, interval: Duration) -> LeaderChanges {
    process.locks.election(key).changes().with_interval(interval)
}

async fn sees(observer: &mut LeaderChanges, term: Option<&Term>) {
    let seen = soon("a change", observer.next()).await.expect("it can be asked");
    assert_eq!(seen.is_some(), term.is_some(), "{seen:?}");
    assert_eq!(seen.and_then(|leader| leader.fence()), term.and_then(Term::fence));
}

/// All of them, in the process of the leader and in others. Without announcements they ask.
async fn where_it_is_announced_who_leads_observers_see_it_long_before_they_ask_again(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let interval = if ours.locks.capabilities().announces { SOON * 10 } else { Duration::from_millis(50) };
    let mut observers = [&ours, &theirs, &theirs].map(|process| observe(process, &key, interval));
    for observer in &mut observers {
        sees(observer, None).await;
    }
    for _ in 0..3 {
        let term = lead(&mut ours.locks.election(&key).campaign()).await;
        for observer in &mut observers {
            sees(observer, Some(&term)).await;
        }
        resign(term).await;
        for observer in &mut observers {
            sees(observer, None).await;
        }
    }
}

/// An announcement is a hint, and may be lost.
async fn observers_who_hear_nothing_ask_at_their_interval(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    theirs.wire.deafen();
    let mut observer = observe(&theirs, &key, Duration::from_millis(100));
    sees(&mut observer, None).await;
    let term = lead(&mut ours.locks.election(&key).campaign()).await;
    sees(&mut observer, Some(&term)).await;
    resign(term).await;
    sees(&mut observer, None).await;
}

/// The next term is another one.
async fn a_body_is_dropped_when_its_term_is_lost_and_the_campaign_goes_on(stage: Stage) {
    let (process, key) = (stage.short().await, stage.key());
    let (begun, ended, leads) = lead_on(process.locks.election(&key));
    soon("the body", begun).await.expect("it runs");
    process.wire.cut();
    soon("the end of the body", ended).await.expect("it is dropped");
    let mut campaign = soon("the end of the term", leads).await.expect("no panic");
    process.wire.mend();
    let term = lead(&mut campaign).await;
    term.check().expect("it leads again");
    resign(term).await;
}

/// The heart of it: no two believe at a time.
async fn a_leader_that_is_cut_off_stops_believing_before_another_leads(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.short().await, stage.key());
    let mut campaigns =
        [(&ours, ours.locks.election(&key).campaign()), (&theirs, theirs.locks.election(&key).campaign())];
    for turn in 0..4 {
        let (leads, waits) = campaigns.split_at_mut(1);
        let (leads, waits) =
            if turn % 2 == 0 { (&mut leads[0], &mut waits[0]) } else { (&mut waits[0], &mut leads[0]) };
        let term = lead(&mut leads.1).await;
        term.check().expect("it leads");
        if turn < 2 {
            leads.0.wire.cut();
        } else {
            leads.0.wire.hang();
        }
        let next = lead(&mut waits.1).await;
        error_of(term.check(), &[ErrorKind::Lost]);
        leads.0.wire.mend();
        drop(term);
        resign(next).await;
    }
}

/// It learns of it by its next renewal.
async fn a_leader_that_was_released_by_force_stops_and_another_leads(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let (begun, ended, leads) = lead_on(ours.locks.election(&key));
    soon("the body", begun).await.expect("it runs");
    let next = stand(theirs.locks.election(&key));
    until("the candidate's attempt", || theirs.wire.attempts() > 0).await;
    assert!(theirs.locks.force_release(&key).await.expect("it can be asked"));
    let next = won(next).await;
    soon("the end of the body", ended).await.expect("it is dropped");
    let mut campaign = soon("the end of the term", leads).await.expect("no panic");
    resign(next).await;
    resign(lead(&mut campaign).await).await;
}

/// Many candidates, short terms, some of which are dropped.
async fn a_storm_of_resignations_has_one_leader_at_a_time(stage: Stage) {
    const CANDIDATES: usize = 12;
    let key = stage.key();
    let processes: Vec<Process> = vec![stage.process().await, stage.process().await, stage.process().await];
    let leaders = Arc::new(AtomicUsize::new(0));
    let mut candidates = JoinSet::new();
    for (place, process) in processes.iter().cycle().take(CANDIDATES).enumerate() {
        let (election, leaders) = (process.locks.election(&key), Arc::clone(&leaders));
        candidates.spawn(async move {
            let mut campaign = election.campaign();
            let term = match tokio::time::timeout(SOON * 4, campaign.next()).await {
                Ok(term) => term.expect("the campaign goes on"),
                Err(_) => panic!("candidate {place} never led"),
            };
            let body = async {
                assert_eq!(leaders.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                tokio::task::yield_now().await;
                leaders.fetch_sub(1, Ordering::SeqCst);
            };
            term.run(body).await.expect("it leads");
            if place % 2 == 0 { resign(term).await } else { drop(term) }
        });
    }
    candidates.join_all().await;
    processes[0].sees_free_soon(&key).await;
}
