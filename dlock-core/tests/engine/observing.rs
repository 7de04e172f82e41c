//! Observers of elections: the announcements that they receive, and their requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{Announcements, ClaimRequest, LockId, Occupancy};
use dlock_core::{Backend, Capabilities, Failure, Holder, Key, Leader, LeaderChanges, Locks, Memory};
use tokio::time::Instant;

const INTERVAL: Duration = Duration::from_secs(60);

/// A memory that counts what is announced and asked.
#[derive(Clone, Debug, Default)]
struct Counted {
    memory: Memory,
    /// Delivers no announcement, although it claims to.
    deaf: bool,
    /// Has another announcement each time that one is asked for.
    flooded: bool,
    counts: Arc<[AtomicUsize; 3]>,
}

const ANNOUNCED: usize = 0;
const LISTENED: usize = 1;
const ASKED: usize = 2;

impl Counted {
    fn count(&self, what: usize) -> usize {
        self.counts[what].load(Ordering::SeqCst)
    }

    fn note(&self, what: usize) {
        self.counts[what].fetch_add(1, Ordering::SeqCst);
    }
}

impl Backend for Counted {
    type Claim = <Memory as Backend>::Claim;

    fn name(&self) -> &'static str {
        "counted"
    }

    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    fn lock_id(&self, key: &Key) -> LockId {
        self.memory.lock_id(key)
    }

    fn claim(&self, request: ClaimRequest) -> Self::Claim {
        self.memory.claim(request)
    }

    async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.note(ASKED);
        self.memory.inspect(key).await
    }

    async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.memory.occupancy(key).await
    }

    async fn announce(&self, key: &Key) -> Result<(), Failure> {
        self.note(ANNOUNCED);
        self.memory.announce(key).await
    }

    fn announcements(&self, key: &Key) -> Announcements {
        self.note(LISTENED);
        match self.flooded {
            true => Announcements::new(futures_util::stream::repeat(())),
            false if self.deaf => Announcements::none(),
            false => self.memory.announcements(key),
        }
    }
}

fn observe(locks: &Locks) -> LeaderChanges {
    locks.election("k").changes().with_interval(INTERVAL)
}

async fn next(changes: &mut LeaderChanges) -> Option<Leader> {
    changes.next().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn observers_see_a_term_begin_and_end_without_time_passing() {
    let memory = Memory::new();
    let (ours, theirs) = (Locks::new(memory.clone()), Locks::new(memory));
    let (mut here, mut there) = (observe(&ours), observe(&theirs));
    let start = Instant::now();
    assert!(next(&mut here).await.is_none() && next(&mut there).await.is_none());
    let mut campaign = ours.election("k").campaign();
    let term = campaign.next().await.unwrap();
    for changes in [&mut here, &mut there] {
        assert_eq!(next(changes).await.unwrap().fence(), term.fence());
    }
    term.resign().await.unwrap();
    assert!(next(&mut here).await.is_none() && next(&mut there).await.is_none());
    assert_eq!(start.elapsed(), Duration::ZERO);
    let _term = campaign.next().await.unwrap();
    assert!(next(&mut there).await.is_some());
    assert!(ours.force_release("k").await.unwrap());
    let forced = Instant::now();
    assert!(next(&mut there).await.is_none());
    assert_eq!(forced.elapsed(), Duration::ZERO, "an operator's release is announced too");
}

#[tokio::test(start_paused = true)]
async fn an_observer_of_a_channel_that_is_flooded_sees_a_change() {
    let locks = Locks::new(Counted { flooded: true, ..Counted::default() });
    let mut changes = observe(&locks);
    assert!(next(&mut changes).await.is_none());
    let term = locks.election("k").campaign().next().await.unwrap();
    assert_eq!(next(&mut changes).await.unwrap().fence(), term.fence());
}

#[tokio::test(start_paused = true)]
async fn observers_who_hear_nothing_see_a_term_at_their_interval_and_try_to_hear_again() {
    let deaf = Counted { deaf: true, ..Counted::default() };
    let locks = Locks::new(deaf.clone());
    let mut changes = observe(&locks);
    assert!(next(&mut changes).await.is_none());
    let start = Instant::now();
    let _term = locks.election("k").campaign().next().await.unwrap();
    assert!(next(&mut changes).await.is_some());
    assert_eq!(start.elapsed(), INTERVAL);
    assert_eq!((deaf.count(LISTENED), deaf.count(ASKED)), (2, 2));
}

/// Else it would be seen at the next interval.
#[tokio::test(start_paused = true)]
async fn what_was_heard_is_asked_about_although_the_question_was_dropped() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let mut changes = observe(&locks);
    assert!(next(&mut changes).await.is_none());
    let _term = locks.election("k").campaign().next().await.unwrap();
    memory.faults().set_hanging(true);
    let hangs = tokio::time::timeout(Duration::from_millis(1), changes.next()).await;
    assert!(hangs.is_err(), "the question has no answer");
    memory.faults().set_hanging(false);
    let start = Instant::now();
    assert!(next(&mut changes).await.is_some());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_is_heard_while_a_question_is_under_way_leads_to_another_one() {
    let memory = Memory::new();
    let locks = Locks::new(memory.clone());
    let mut changes = observe(&locks);
    memory.faults().set_delay(Duration::from_secs(2));
    let asking = async {
        assert!(next(&mut changes).await.is_none(), "the answer was on its way back before");
        next(&mut changes).await.unwrap()
    };
    let leads = async {
        // The question is answered by the store after half of the delay.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        memory.faults().set_delay(Duration::ZERO);
        locks.election("k").campaign().next().await.unwrap()
    };
    let start = Instant::now();
    let (leader, term) = tokio::join!(asking, leads);
    assert_eq!(leader.fence(), term.fence());
    assert!(start.elapsed() < INTERVAL, "{:?}", start.elapsed());
}

#[tokio::test]
async fn locks_and_jobs_announce_nothing() {
    let backend = Counted::default();
    let locks = Locks::new(backend.clone());
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    drop(locks.lock("k").acquire().await.unwrap());
    locks.lock_all(["a", "b"]).acquire().await.unwrap().release().await.unwrap();
    let job = locks.once("job").with_window(Duration::from_secs(1));
    job.run(async { Ok::<_, dlock_core::Error>(()) }).await.unwrap();
    locks.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(backend.count(ANNOUNCED), 0);
    let locks = Locks::new(backend.clone());
    drop(locks.election("k").campaign().next().await.unwrap());
    locks.shutdown(Duration::from_secs(30)).await.unwrap();
    assert_eq!(backend.count(ANNOUNCED), 2, "the begin and the end of a term, before the end of a shutdown");
}

/// At the moment of the resignation, and its head start after that.
#[tokio::test(start_paused = true)]
async fn a_candidate_of_a_later_priority_hears_of_the_end_of_a_term() {
    let backend = Counted::default();
    let locks = Locks::new(backend.clone());
    let term = locks.election("k").campaign().next().await.unwrap();
    let later = locks.election("k").with_priority(2).campaign();
    let mut later = Box::pin(async move {
        let mut later = later;
        later.next().await.unwrap()
    });
    let waits = tokio::time::timeout(Duration::from_millis(2_300), &mut later).await;
    assert!(waits.is_err(), "another one leads");
    term.resign().await.unwrap();
    let resigned = Instant::now();
    let _term = later.await;
    assert_eq!(resigned.elapsed(), Duration::from_secs(2));
}
