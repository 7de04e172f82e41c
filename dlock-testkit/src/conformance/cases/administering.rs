//! What administrators ask and do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Forced, Guard, Holder};

use super::cases;
use super::sharing::read;
use crate::conformance::expect::{error_of, give_back, soon};
use crate::conformance::{Process, Stage};

cases! {
    what_is_shown_of_administration_is_what_there_is: Nothing, Easy;
    the_list_of_holders_has_every_lock_that_is_held_and_no_other: Administration, Easy;
    the_list_names_keys_of_any_text_as_they_are: Administration, Easy;
    a_list_of_many_locks_is_complete: Administration, Easy;
    an_expired_lock_has_no_place_in_the_list: Lease & Administration, Timed;
    a_list_that_cannot_be_read_is_an_error_and_not_empty: Administration, Easy;
    a_lock_released_by_force_is_free_for_others: Administration, Easy;
    releasing_a_free_lock_by_force_changes_nothing: Administration, Easy;
    a_release_by_force_wakes_who_waits: Administration, Easy;
    a_release_by_force_is_noticed_by_the_holder_and_its_fence_is_superseded: Administration & Fences, Timed;
    a_release_by_force_leaves_the_locks_of_others_alone: Administration, Easy;
    a_release_by_force_leaves_other_locks_of_its_holder_alone: Lease & Administration, Easy;
    a_release_by_force_of_who_was_seen_frees_the_lock_once: Administration, Easy;
    a_release_by_force_of_who_was_seen_leaves_the_next_holder_alone: Administration, Easy;
    each_release_by_force_of_who_was_seen_takes_the_lock_from_that_one_alone: Lease & Administration, Busy;
    a_release_by_force_of_some_who_share_a_lock_is_refused: Shared & Administration, Easy;
    waiters_are_listed_in_their_order_without_the_holder: Waiters, Easy;
    a_waiter_that_gave_up_is_not_listed: Waiters, Easy;
}

/// The cases that a backend leaves out that does not know who waits, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out).
pub const WAITERS: &[&str] =
    &["waiters_are_listed_in_their_order_without_the_holder", "a_waiter_that_gave_up_is_not_listed"];

/// A session looks after its locks a few times within its timeout, which is longer than the lease of the case.
const NOTICE: Duration = Duration::from_secs(30);

/// The locks of this case that are held; others may use the same store.
async fn held(process: &Process, keys: &[String]) -> BTreeMap<String, Holder> {
    let all = process.locks.holders().await.expect("they can be listed");
    let held = all.into_iter().map(|(key, holder)| (key.as_str().to_owned(), holder));
    held.filter(|(key, _)| keys.contains(key)).collect()
}

/// Takes `key` away from its holder. A quorum whose holder renews at that moment cannot tell, and is asked again.
async fn take_away(process: &Process, key: &str) {
    let mut doubted = false;
    for _ in 0..20 {
        match process.locks.force_release(key).await {
            Ok(freed) => return assert!(freed || doubted, "nobody had it"),
            Err(error) if error.kind() == ErrorKind::Unknown => doubted = true,
            Err(error) => panic!("it cannot be taken away: {error}"),
        }
    }
    panic!("it is in doubt each time whether it was taken away");
}

/// Programs go by it: what is shown is answered, and what is not is refused.
async fn what_is_shown_of_administration_is_what_there_is(stage: Stage) {
    fn is_there<T>(answer: dlock_core::Result<T>) -> bool {
        answer.err().is_none_or(|error| error.kind() != ErrorKind::Unsupported)
    }
    let (Process { locks, .. }, key) = (stage.process().await, stage.key());
    let shown = locks.capabilities();
    assert_eq!(is_there(locks.holders().await), shown.administered, "the list of holders");
    assert_eq!(is_there(locks.force_release(&key).await), shown.administered, "a release by force");
    let of_seen = locks.force_release_of(&key, &[]).await;
    assert_eq!(is_there(of_seen), shown.administered, "a release by force of who was seen");
    assert_eq!(is_there(locks.waiters(&key).await), shown.shows_waiters, "the list of waiters");
    if shown.administered && shown.permits {
        assert!(is_there(locks.resize_semaphore(&key, 2).await), "another number of permits");
    }
}

/// Of several processes, with what each tells of itself.
async fn the_list_of_holders_has_every_lock_that_is_held_and_no_other(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("first")).await;
    let theirs = stage.process_with(|builder| builder.with_label("second")).await;
    let keys = [stage.key(), stage.key(), stage.key()];
    let one = ours.take(&keys[0]).await;
    let two = theirs.take(&keys[1]).await;
    give_back(theirs.take(&keys[2]).await).await;
    for process in [&ours, &theirs] {
        let held = held(process, &keys).await;
        assert_eq!(held.keys().collect::<Vec<_>>(), [&keys[0], &keys[1]]);
        assert_eq!(held[&keys[0]].label.as_deref(), Some("first"));
        assert_eq!(held[&keys[1]].label.as_deref(), Some("second"));
        assert_eq!(held[&keys[0]].pid, Some(std::process::id()));
        assert_eq!(held[&keys[0]].fence, one.fence());
    }
    give_back(one).await;
    give_back(two).await;
    assert!(held(&ours, &keys).await.is_empty());
}

/// Whatever a backend does to keys to store them.
async fn the_list_names_keys_of_any_text_as_they_are(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    let ends = ["", "{a}", "%7B", "*?[a]", "/a/../b", "Zürich 🔒", "a b\t\n", "\\^'\"", ".", "%"];
    let keys: Vec<String> = ends.iter().map(|end| format!("{key}{end}")).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(process.take(key).await);
    }
    let held = held(&process, &keys).await;
    for key in &keys {
        assert!(held.contains_key(key), "{key:?} is not in the list");
    }
    for guard in guards {
        give_back(guard).await;
    }
}

/// However many answers of the server that takes.
async fn a_list_of_many_locks_is_complete(stage: Stage) {
    let process = stage.process().await;
    let keys: Vec<String> = (0..stage.at_once()).map(|_| stage.key()).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(process.take(key).await);
    }
    assert_eq!(held(&process, &keys).await.len(), keys.len());
    for guard in guards {
        drop(guard);
    }
}

/// Nobody holds it, although nobody gave it back.
async fn an_expired_lock_has_no_place_in_the_list(stage: Stage) {
    let (ours, theirs, keys) = (stage.short().await, stage.process().await, [stage.key()]);
    let guard = ours.take(&keys[0]).await;
    ours.wire.cut();
    soon("the loss", guard.lost()).await;
    soon("the end of the lease", async {
        while !held(&theirs, &keys).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

/// "Nobody" would be a lie.
async fn a_list_that_cannot_be_read_is_an_error_and_not_empty(stage: Stage) {
    let process = stage.process().await;
    process.wire.cut();
    error_of(process.locks.holders().await, &[ErrorKind::Unavailable]);
    let key = stage.key();
    let error = error_of(process.locks.force_release(&key).await, &[ErrorKind::Unavailable]);
    assert_eq!(error.key(), Some(&*key));
    process.wire.mend();
}

/// By a process that has nothing to do with it.
async fn a_lock_released_by_force_is_free_for_others(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let stuck = ours.take(&key).await;
    let forced = theirs.locks.force_release(&key).await.expect("it can be released");
    assert!(forced, "somebody held it");
    assert!(theirs.locks.inspect(&key).await.expect("it can be asked").is_none());
    let next = theirs.take_soon(&key).await;
    // What comes late of the first holder does not touch the next one.
    let _ = stuck.release().await;
    ours.sees_held(&key).await;
    give_back(next).await;
}

/// And says so.
async fn releasing_a_free_lock_by_force_changes_nothing(stage: Stage) {
    let (process, key) = (stage.process().await, stage.key());
    assert!(!process.locks.force_release(&key).await.expect("it can be asked"));
    give_back(process.take(&key).await).await;
    assert!(!process.locks.force_release(&key).await.expect("it can be asked"));
    give_back(process.take(&key).await).await;
    error_of(process.locks.force_release("").await, &[ErrorKind::InvalidKey]);
}

/// As a release does.
async fn a_release_by_force_wakes_who_waits(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let _stuck = ours.take(&key).await;
    let waiting = tokio::spawn({
        let (theirs, key) = (theirs.clone(), key.clone());
        async move { theirs.take_soon(&key).await }
    });
    soon("an attempt", async {
        while theirs.wire.attempts() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    take_away(&stage.process().await, &key).await;
    give_back(soon("the waiter's turn", waiting).await.expect("it did not panic")).await;
}

/// The holder is notified late; the resource is protected at once.
async fn a_release_by_force_is_noticed_by_the_holder_and_its_fence_is_superseded(stage: Stage) {
    let (ours, theirs, key) = (stage.short().await, stage.process().await, stage.key());
    let stuck = ours.take(&key).await;
    take_away(&theirs, &key).await;
    let next = theirs.take_soon(&key).await;
    assert!(next.fence() > stuck.fence(), "{:?} after {:?}", next.fence(), stuck.fence());
    tokio::time::timeout(NOTICE, stuck.lost()).await.expect("the holder learns of the loss");
    error_of(stuck.check(), &[ErrorKind::Lost]);
    next.check().expect("the next holder is not concerned");
    give_back(next).await;
}

/// Also those whose names begin alike.
async fn a_release_by_force_leaves_the_locks_of_others_alone(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let longer = format!("{key}*");
    let (one, two) = (theirs.take(&key).await, ours.take(&longer).await);
    take_away(&stage.process().await, &longer).await;
    ours.sees_held(&key).await;
    give_back(one).await;
    drop(two);
}

/// It is the lock that is taken away, where a lock does not end with others.
async fn a_release_by_force_leaves_other_locks_of_its_holder_alone(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let longer = format!("{key}*");
    let (one, two) = (ours.take(&key).await, ours.take(&longer).await);
    take_away(&theirs, &longer).await;
    theirs.sees_held(&key).await;
    give_back(one).await;
    drop(two);
}

/// Who holds it now.
async fn seen(process: &Process, key: &str) -> Vec<Holder> {
    process.locks.occupancy(key).await.expect("it can be asked").holders
}

/// It is what was shown that is removed, however often that is asked for.
async fn a_release_by_force_of_who_was_seen_frees_the_lock_once(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let stuck = ours.take(&key).await;
    let seen = seen(&theirs, &key).await;
    let forced = theirs.locks.force_release_of(&key, &seen).await.expect("it can be released");
    assert_eq!(forced, Forced::Released);
    let again = theirs.locks.force_release_of(&key, &seen).await.expect("it can be asked");
    assert_eq!(again, Forced::Free);
    let next = theirs.take_soon(&key).await;
    let late = theirs.locks.force_release_of(&key, &seen).await.expect("it can be asked");
    assert_eq!(late, Forced::HeldByOthers);
    ours.sees_held(&key).await;
    next.check().expect("nothing was taken from the next holder");
    drop(stuck);
    give_back(next).await;
    error_of(theirs.locks.force_release_of("", &seen).await, &[ErrorKind::InvalidKey]);
}

/// Also where it is the process that had it before.
async fn a_release_by_force_of_who_was_seen_leaves_the_next_holder_alone(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let first = ours.take(&key).await;
    let of_first = seen(&theirs, &key).await;
    give_back(first).await;
    for next in [&ours, &theirs] {
        let guard = next.take_soon(&key).await;
        let forced = theirs.locks.force_release_of(&key, &of_first).await.expect("it can be asked");
        assert_eq!(forced, Forced::HeldByOthers);
        ours.sees_held(&key).await;
        guard.check().expect("it is held");
        give_back(guard).await;
    }
    let nobody = theirs.locks.force_release_of(&key, &of_first).await.expect("it can be asked");
    assert_eq!(nobody, Forced::Free);
}

/// Also where it changes hands in the moment of the release: it is the server that compares.
async fn each_release_by_force_of_who_was_seen_takes_the_lock_from_that_one_alone(stage: Stage) {
    const ROUNDS: usize = 50;
    let (ours, operator, key) = (stage.process().await, stage.process().await, stage.key());
    let lock = ours.locks.lock(&key);
    for _ in 0..ROUNDS {
        let guard = ours.take_soon(&key).await;
        let (fence, seen) = (guard.fence(), seen(&operator, &key).await);
        let answered = AtomicBool::new(false);
        let force = async {
            let answer = operator.locks.force_release_of(&key, &seen).await.expect("it can be asked");
            answered.store(true, Ordering::SeqCst);
            answer
        };
        // From one hold to the next until there is an answer, and so once at the least.
        let pass_on = async {
            let was_lost = is_lost(guard).await;
            loop {
                let next = lock.acquire().await.expect("it is granted");
                let is_last = answered.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                assert!(!is_lost(next).await, "one was released that was not seen");
                if is_last {
                    return was_lost;
                }
            }
        };
        let (answer, was_lost) = tokio::join!(force, pass_on);
        // Of a quorum some nodes may be released by force, and the others by the holder.
        if fence.is_some() {
            assert_eq!(answer == Forced::Released, was_lost, "{answer:?}");
        }
    }
}

/// Whether it was taken away, by what its release says.
async fn is_lost(guard: Guard) -> bool {
    match guard.release().await {
        Ok(()) => false,
        Err(error) if matches!(error.kind(), ErrorKind::NotHeld | ErrorKind::Lost) => true,
        Err(error) => panic!("{error}"),
    }
}

/// All who hold it lose it, so that all have to have been seen.
async fn a_release_by_force_of_some_who_share_a_lock_is_refused(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let one = read(&ours, &key).await;
    let first = seen(&theirs, &key).await;
    let other = read(&theirs, &key).await;
    let forced = theirs.locks.force_release_of(&key, &first).await.expect("it can be asked");
    assert_eq!(forced, Forced::HeldByOthers);
    let both = seen(&theirs, &key).await;
    assert_eq!(both.len(), 2, "{both:?}");
    give_back(one).await;
    let forced = theirs.locks.force_release_of(&key, &both).await.expect("it can be released");
    assert_eq!(forced, Forced::Released, "one of those who were seen left, and nobody came");
    assert!(seen(&ours, &key).await.is_empty());
    drop(other);
    give_back(ours.take_soon(&key).await).await;
}

/// The order in which they will be served.
async fn waiters_are_listed_in_their_order_without_the_holder(stage: Stage) {
    let (ours, key) = (stage.process_with(|builder| builder.with_label("holder")).await, stage.key());
    assert!(ours.locks.waiters(&key).await.expect("it can be asked").is_empty());
    let guard = ours.take(&key).await;
    let mut waiting = Vec::new();
    for label in ["one", "two", "three"] {
        let process = stage.process_with(|builder| builder.with_label(label)).await;
        let lock = process.locks.lock(&key);
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        listed(&ours, &key, waiting.len()).await;
    }
    let labels: Vec<_> = listed(&ours, &key, 3).await.into_iter().map(|waiter| waiter.label).collect();
    assert_eq!(labels, [Some("one".into()), Some("two".into()), Some("three".into())]);
    give_back(guard).await;
    for waiter in waiting {
        give_back(soon("its turn", waiter).await.expect("it did not panic").expect("it is served")).await;
    }
    assert!(ours.locks.waiters(&key).await.expect("it can be asked").is_empty());
}

/// As soon as it is known.
async fn a_waiter_that_gave_up_is_not_listed(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let guard = ours.take(&key).await;
    let lock = theirs.locks.lock(&key);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    listed(&ours, &key, 1).await;
    waiting.abort();
    listed(&ours, &key, 0).await;
    give_back(guard).await;
}

/// Those who wait, once they are so many.
async fn listed(process: &Process, key: &str, count: usize) -> Vec<Holder> {
    soon("the list of waiters", async {
        loop {
            let waiters = process.locks.waiters(key).await.expect("it can be asked");
            if waiters.len() == count {
                return waiters;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
}
