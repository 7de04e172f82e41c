//! Replies that are lost, backends that are away, releases that fail.

use std::task::{Context, Waker};
use std::time::Duration;

use dlock_core::backend::Backend;
use dlock_core::{Batch, ErrorKind, Key, Lock, Locks, Memory, Wait};

use super::Process;

#[tokio::test]
async fn a_lost_reply_is_asked_about_and_all_locks_are_adopted() {
    for process in Process::both() {
        process.memory.faults().drop_replies(1);
        let guard = process.locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
        guard.check().unwrap();
        assert_eq!(process.locks.stats().rechecks, 1);
        assert_eq!(guard.fences().filter_map(|(_, fence)| fence).count(), 3);
        guard.release().await.unwrap();
        assert_eq!(process.memory.held(), 0);
    }
}

#[tokio::test]
async fn a_lost_request_is_made_again() {
    for process in Process::both() {
        process.memory.faults().drop_requests(1);
        let guard = process.locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
        assert_eq!(process.memory.held(), 3);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn an_outcome_that_stays_unknown_is_an_error_and_everything_is_withdrawn() {
    for process in Process::both() {
        process.memory.faults().drop_replies(1);
        let batch = process.locks.lock_all(["a", "b"]).with_each(|lock| lock.with_rechecks(0));
        let error = batch.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(error.maybe_held_for_at_most().unwrap() > Duration::from_secs(29), "{error}");
        process.settled().await;
    }
}

#[tokio::test]
async fn a_backend_that_hangs_is_an_unknown_outcome_within_the_request_timeout() {
    for process in Process::both() {
        process.memory.faults().set_hanging(true);
        let limit = Duration::from_millis(50);
        let once = |lock: Lock| lock.with_request_timeout(limit).with_rechecks(0);
        let batch = process.locks.lock_all(["a", "b"]).with_each(once);
        let error = batch.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        process.memory.faults().set_hanging(false);
        process.settled().await;
    }
}

/// The reply of a grant is lost, and before it can be asked about, somebody takes one of the locks away.
#[tokio::test]
async fn what_an_unanswered_attempt_took_is_given_back_when_a_key_went_to_somebody_else() {
    let memory = Memory::new();
    let process = Process::over(&memory, true);
    let rival = process.rival();
    memory.faults().drop_replies(1);
    let locks = process.locks.clone();
    let mut waiting = Box::pin(async move { locks.lock_all(["a", "b", "c"]).acquire().await });
    // Polled by hand, so that it asks again only once the thief is there.
    while memory.held() < 3 {
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(memory.delete("b"));
    let thief = rival.lock("b").try_acquire().await.unwrap().expect("it was deleted");
    let waiting = tokio::spawn(waiting);
    // While the thief has it, the other two come free, and not only when the batch gives up trying for all at once.
    let free = rival.lock_all(["a", "c"]).with_wait(Duration::from_secs(2)).acquire().await.unwrap();
    free.release().await.unwrap();
    thief.release().await.unwrap();
    let guard = waiting.await.unwrap().unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    process.settled().await;
}

#[tokio::test]
async fn when_one_of_several_backends_is_away_what_the_others_gave_is_given_back() {
    let memories = [Memory::new(), Memory::new(), Memory::new()];
    let [first, second, third] = memories.clone().map(Locks::new);
    memories[2].faults().set_unavailable(true);
    let batch = Batch::of([third.lock("k"), first.lock("k"), second.lock("k")]);
    let error = batch.with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(memories.map(|memory| memory.held()), [0, 0, 0]);
}

#[tokio::test]
async fn when_some_releases_fail_the_others_are_made_and_the_failed_ones_go_on() {
    let memories = [Memory::new(), Memory::new(), Memory::new()];
    let all = memories.clone().map(Locks::new);
    let guard = Batch::of(all.iter().map(|locks| locks.lock("k"))).acquire().await.unwrap();
    memories[0].faults().set_unavailable(true);
    memories[1].faults().set_unavailable(true);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(memories.each_ref().map(Memory::held), [1, 1, 0]);
    assert_eq!(
        all.each_ref().map(|locks| locks.stats().held),
        [0, 0, 0],
        "nobody believes to hold any of them"
    );
    memories.iter().for_each(|memory| memory.faults().set_unavailable(false));
    for locks in &all {
        locks.shutdown(Duration::from_secs(20)).await.unwrap();
    }
    assert_eq!(memories.map(|memory| memory.held()), [0, 0, 0]);
}

#[tokio::test]
async fn a_failed_acquire_does_not_wait_for_a_release_that_gets_no_answer() {
    let mut memories = [Memory::new(), Memory::new()];
    // In the order in which a batch takes them.
    let key = Key::new("k").unwrap();
    memories.sort_by_key(|memory| memory.lock_id(&key));
    let [first, second] = memories
        .clone()
        .map(|memory| Locks::builder(memory).with_lease(Duration::from_secs(20)).build().unwrap());
    let rival = Locks::new(memories[1].clone());
    let other = rival.lock("k").acquire().await.unwrap();
    let limit = Duration::from_millis(50);
    let lock = |locks: &Locks| locks.lock("k").with_request_timeout(limit);
    let batch = Batch::of([lock(&first), lock(&second)]).with_wait(Duration::from_millis(200));
    let acquire = tokio::spawn(async move { batch.acquire().await });
    while memories[0].held() == 0 {
        tokio::task::yield_now().await;
    }
    memories[0].faults().set_hanging(true);
    // Its first lock cannot be released, and still it gets its answer.
    let error = acquire.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    assert_eq!(memories[0].held(), 1);
    memories[0].faults().set_hanging(false);
    first.shutdown(Duration::from_secs(20)).await.unwrap();
    assert_eq!(memories[0].held(), 0);
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_the_wait_of_a_batch() {
    for process in Process::both() {
        let other = process.rival().lock("b").acquire().await.unwrap();
        let locks = process.locks.clone();
        let waiting = tokio::spawn(async move { locks.lock_all(["a", "b"]).acquire().await });
        tokio::task::yield_now().await;
        process.locks.shutdown(Duration::from_secs(20)).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        other.release().await.unwrap();
        assert_eq!(process.memory.held(), 0);
    }
}
