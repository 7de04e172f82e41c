//! Readers' shares and permits that are handed over by a baton.

use std::future::IntoFuture;
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Baton, ErrorKind, Guard, KeyInMode, Lock, Result, Semaphore, Wait, read, write};

use super::carrying::{LONG, assert_later, begin_and_drop, handed_over, taken_over};
use super::cases;
use crate::conformance::expect::{SOON, error_of, give_back, outcome_of, soon};
use crate::conformance::{Process, Stage};
use crate::wire::Wire;

cases! {
    a_share_that_is_handed_over_counts_until_the_taker_releases_it: CarryingShares & Administration, Easy;
    a_copy_of_a_baton_of_a_share_is_refused_although_others_have_shares: CarryingShares & Administration, Easy;
    a_baton_of_a_share_that_nobody_takes_over_ends_with_its_time: CarryingShares & Administration, Timed;
    a_share_that_was_taken_over_is_renewed: CarryingShares & Administration, Timed;
    a_share_goes_through_many_hands_with_a_higher_fence_in_each: CarryingShares & Administration, Easy;
    a_share_whose_take_over_or_hand_over_is_not_answered_is_there_once: CarryingShares & Administration, Easy;
    a_share_that_is_left_already_is_left_for_no_longer: CarryingShares & Administration, Easy;
    a_share_whose_hand_over_or_take_over_is_dropped_midway_becomes_free: CarryingShares & Administration, Easy;
    a_share_that_is_gone_is_not_handed_over_and_not_made_anew: CarryingShares & Administration, Easy;
    a_share_is_taken_over_as_it_was_held_and_not_otherwise: CarryingShares & Administration, Easy;
    a_share_that_is_left_is_shown_so_and_is_freed_by_force: CarryingShares & Administration, Easy;
    permits_are_taken_over_although_their_number_was_changed: CarryingShares & Administration, Easy;
    a_writer_that_became_a_reader_hands_its_share_over: CarryingShares & Administration, Easy;
    a_batch_of_a_reader_and_a_writer_is_handed_over_as_it_was_held: CarryingShares & Administration, Easy;
    a_share_whose_time_became_shorter_keeps_nobody_out_beyond_it: CarryingShares & Administration, Timed;
    refusals_and_the_list_show_what_became_of_a_share: CarryingShares & Administration, Easy;
}

/// The cases about readers' shares and permits that are handed over, for
/// [`Harness::left_out`](crate::conformance::Harness::left_out) of a backend that hands over only what is held alone.
pub const CARRYING_SHARES: &[&str] = &[
    "a_share_that_is_handed_over_counts_until_the_taker_releases_it",
    "a_copy_of_a_baton_of_a_share_is_refused_although_others_have_shares",
    "a_baton_of_a_share_that_nobody_takes_over_ends_with_its_time",
    "a_share_that_was_taken_over_is_renewed",
    "a_share_goes_through_many_hands_with_a_higher_fence_in_each",
    "a_share_whose_take_over_or_hand_over_is_not_answered_is_there_once",
    "a_share_that_is_left_already_is_left_for_no_longer",
    "a_share_whose_hand_over_or_take_over_is_dropped_midway_becomes_free",
    "a_share_that_is_gone_is_not_handed_over_and_not_made_anew",
    "a_share_is_taken_over_as_it_was_held_and_not_otherwise",
    "a_share_that_is_left_is_shown_so_and_is_freed_by_force",
    "permits_are_taken_over_although_their_number_was_changed",
    "a_writer_that_became_a_reader_hands_its_share_over",
    "a_batch_of_a_reader_and_a_writer_is_handed_over_as_it_was_held",
    "a_share_whose_time_became_shorter_keeps_nobody_out_beyond_it",
    "refusals_and_the_list_show_what_became_of_a_share",
];

/// The two kinds of locks of which a hold has a part.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Readers,
    /// A semaphore of three.
    Semaphore,
}

const BOTH: [Kind; 2] = [Kind::Readers, Kind::Semaphore];

/// A lock of either kind.
#[derive(Debug)]
enum Part {
    Lock(Lock),
    Permits(Semaphore),
}

impl Kind {
    /// A reader, or two of three permits.
    fn part(self, process: &Process, key: &str) -> Part {
        self.with(process, key, 2)
    }

    /// What there is room for beside such a part.
    fn rest(self, process: &Process, key: &str) -> Part {
        self.with(process, key, 1)
    }

    /// What has no room beside such a part.
    fn whole(self, process: &Process, key: &str) -> Part {
        match self {
            Self::Readers => Part::Lock(process.locks.lock(key).with_wait(SOON)),
            Self::Semaphore => self.with(process, key, 3),
        }
    }

    fn with(self, process: &Process, key: &str, permits: u32) -> Part {
        match self {
            Self::Readers => Part::Lock(process.locks.lock(key).read().with_wait(SOON)),
            Self::Semaphore => Part::Permits(process.locks.semaphore(key, 3).take(permits).with_wait(SOON)),
        }
    }

    /// How [`part`](Self::part) is held.
    const fn mode(self) -> Mode {
        match self {
            Self::Readers => Mode::Shared,
            Self::Semaphore => Mode::Permits { of: 3, take: 2 },
        }
    }

    /// The part is taken: there is no room for all of it, and there is for the rest.
    async fn is_taken(self, process: &Process, key: &str) {
        let whole = self.whole(process, key);
        assert!(outcome_of(|| whole.tried()).await.is_none(), "{self:?}: it should be taken");
        give_back(self.rest(process, key).acquired().await).await;
    }

    /// So does an attempt that does not wait, which may look at less than those do that wait.
    async fn becomes_free_for_an_attempt(self, process: &Process, key: &str) {
        let whole = self.whole(process, key);
        let taken = soon("an end of what was left", async {
            loop {
                if let Some(guard) = outcome_of(|| whole.tried()).await {
                    return guard;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        give_back(taken.await).await;
    }

    /// The part becomes free soon.
    async fn becomes_free(self, process: &Process, key: &str) {
        give_back(self.whole(process, key).acquired().await).await;
    }
}

impl Part {
    async fn tried(&self) -> Result<Option<Guard>> {
        match self {
            Self::Lock(lock) => lock.try_acquire().await,
            Self::Permits(semaphore) => semaphore.try_acquire().await,
        }
    }

    async fn acquired(&self) -> Guard {
        let acquired = match self {
            Self::Lock(lock) => lock.acquire().await,
            Self::Permits(semaphore) => semaphore.acquire().await,
        };
        acquired.unwrap_or_else(|error| panic!("there is room for it: {error}"))
    }

    fn with_baton(&self, baton: &Baton) -> Result<Self> {
        Ok(match self {
            Self::Lock(lock) => Self::Lock(lock.from_baton(baton)?),
            Self::Permits(semaphore) => Self::Permits(semaphore.from_baton(baton)?),
        })
    }

    /// With a limit that a lost answer is soon over.
    fn brief(self) -> Self {
        let limit = Duration::from_millis(300);
        match self {
            Self::Lock(lock) => Self::Lock(lock.with_request_timeout(limit)),
            Self::Permits(semaphore) => Self::Permits(semaphore.with_request_timeout(limit)),
        }
    }
}

async fn refused(process: &Process, baton: &Baton) {
    error_of(process.locks.take_over(baton).await, &[ErrorKind::NotHeld]);
}

async fn a_share_that_is_handed_over_counts_until_the_taker_releases_it(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).acquired().await;
        let baton = handed_over(&guard).await;
        assert_eq!(baton.mode(), kind.mode());
        kind.is_taken(&ours, &key).await;
        let next = taken_over(&theirs, &baton).await;
        assert_later(&next, &guard);
        guard.release().await.expect("nothing is left to release");
        next.check().expect("it is held");
        kind.is_taken(&ours, &key).await;
        give_back(next).await;
        kind.becomes_free(&ours, &key).await;
    }
}

async fn a_copy_of_a_baton_of_a_share_is_refused_although_others_have_shares(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let baton = handed_over(&kind.part(&ours, &key).acquired().await).await;
        let other = kind.rest(&ours, &key).acquired().await;
        let guard = taken_over(&theirs, &baton).await;
        refused(&ours, &baton).await;
        guard.check().expect("it is held");
        give_back(guard).await;
        refused(&ours, &baton).await;
        other.check().expect("it is held");
        give_back(other).await;
        refused(&theirs, &baton).await;
        kind.becomes_free(&ours, &key).await;
    }
}

/// Others who hold a share meanwhile keep theirs, and neither lengthen it nor are touched by it.
async fn a_baton_of_a_share_that_nobody_takes_over_ends_with_its_time(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).acquired().await;
        let other = kind.rest(&theirs, &key).acquired().await;
        let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
        tokio::time::sleep(stage.lease() + stage.lease() / 2).await;
        refused(&ours, &baton).await;
        other.check().expect("it is held");
        give_back(other).await;
        let next = kind.whole(&theirs, &key).acquired().await;
        assert_later(&next, &guard);
        refused(&ours, &baton).await;
        next.check().expect("it is held");
        give_back(next).await;
    }
}

/// Beyond the time of the baton, and its own lease.
async fn a_share_that_was_taken_over_is_renewed(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.short().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).acquired().await;
        let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
        let next = taken_over(&theirs, &baton).await;
        tokio::time::sleep(stage.lease() * 3).await;
        next.check().expect("it is held");
        kind.is_taken(&ours, &key).await;
        give_back(next).await;
        kind.becomes_free(&ours, &key).await;
    }
}

async fn a_share_goes_through_many_hands_with_a_higher_fence_in_each(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let mut guard = kind.part(&ours, &key).acquired().await;
        for number in 0..10 {
            let baton = handed_over(&guard).await;
            let next = taken_over(if number % 2 == 0 { &theirs } else { &ours }, &baton).await;
            assert_later(&next, &guard);
            guard = next;
        }
        kind.is_taken(&ours, &key).await;
        give_back(guard).await;
        kind.becomes_free(&ours, &key).await;
    }
}

/// It is asked again, and finds what it left or took.
async fn a_share_whose_take_over_or_hand_over_is_not_answered_is_there_once(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).brief().acquired().await;
        ours.wire.lose_replies(1);
        let baton = handed_over(&guard).await;
        ours.wire.mend();
        theirs.wire.lose_replies(1);
        let lock = kind.part(&theirs, &key).brief().with_baton(&baton).expect("it is one of this lock");
        let next = lock.acquired().await;
        theirs.wire.mend();
        assert_later(&next, &guard);
        refused(&ours, &baton).await;
        kind.is_taken(&ours, &key).await;
        give_back(next).await;
        kind.becomes_free(&ours, &key).await;
    }
}

/// A request that arrives late lengthens nothing, and one for a short time retracts.
async fn a_share_that_is_left_already_is_left_for_no_longer(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).acquired().await;
        ours.leave(&key, &[LONG * 60, LONG, LONG * 60]).await;
        let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it stays taken");
        let left = holder.expires_in.filter(|_| holder.left_behind);
        assert!(left.is_some_and(|left| left <= LONG && left > LONG / 2), "{holder:?}");
        assert!(theirs.locks.force_release(&key).await.expect("it can be freed"));
        drop(guard);

        let guard = kind.part(&ours, &key).acquired().await;
        ours.leave(&key, &[LONG * 60, Duration::from_millis(1)]).await;
        kind.becomes_free(&theirs, &key).await;
        drop(guard);
    }
}

/// Whether the request has taken effect, will do so later, or never.
async fn a_share_whose_hand_over_or_take_over_is_dropped_midway_becomes_free(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        for fault in [Wire::hang, Wire::stall, Wire::keep_answers] {
            let guard = kind.part(&ours, &key).acquired().await;
            fault(&ours.wire);
            begin_and_drop(guard.hand_over().for_at_most(LONG * 60).into_future()).await;
            ours.wire.mend();
            kind.becomes_free(&theirs, &key).await;
        }
        let guard = kind.part(&ours, &key).acquired().await;
        let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
        theirs.wire.keep_answers();
        begin_and_drop(theirs.locks.take_over(&baton)).await;
        theirs.wire.mend();
        kind.becomes_free(&ours, &key).await;
    }
}

/// Nor is that of others touched.
async fn a_share_that_is_gone_is_not_handed_over_and_not_made_anew(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let other = kind.rest(&theirs, &key).acquired().await;
        let guard = kind.part(&ours, &key).acquired().await;
        ours.delete(&key).await;
        error_of(guard.hand_over().await, &[ErrorKind::NotHeld, ErrorKind::Lost]);
        drop(guard);
        other.check().expect("it is held");
        give_back(other).await;
        kind.becomes_free(&theirs, &key).await;
    }
}

/// It is refused before any request, and can be taken over afterwards.
async fn a_share_is_taken_over_as_it_was_held_and_not_otherwise(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    for kind in BOTH {
        let key = stage.key();
        let baton = handed_over(&kind.part(&ours, &key).acquired().await).await;
        let others = match kind {
            Kind::Readers => [kind.whole(&theirs, &key), Kind::Semaphore.part(&theirs, &key)],
            Kind::Semaphore => [Kind::Readers.part(&theirs, &key), kind.rest(&theirs, &key)],
        };
        for other in others {
            error_of(other.with_baton(&baton), &[ErrorKind::InvalidConfig]);
        }
        let lock = kind.part(&theirs, &key).with_baton(&baton).expect("it is one of this lock");
        give_back(lock.acquired().await).await;
        kind.becomes_free(&ours, &key).await;
    }
}

async fn a_share_that_is_left_is_shown_so_and_is_freed_by_force(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("giver")).await;
    let theirs = stage.process_with(|builder| builder.with_label("taker")).await;
    for kind in BOTH {
        let key = stage.key();
        let baton = handed_over(&kind.part(&ours, &key).acquired().await).await;
        let shown = async |label| {
            let holder = theirs.locks.inspect(&key).await.expect("it can be asked").expect("it is taken");
            assert_eq!((holder.mode, holder.label.as_deref()), (kind.mode(), Some(label)), "{holder:?}");
            holder.left_behind
        };
        assert!(shown("giver").await);
        let guard = taken_over(&theirs, &baton).await;
        assert!(!shown("taker").await);
        let baton = handed_over(&guard).await;
        assert!(shown("taker").await);
        assert!(ours.locks.force_release(&key).await.expect("it can be freed"));
        refused(&theirs, &baton).await;
        kind.becomes_free(&ours, &key).await;
    }
}

/// And it stays as it was changed.
async fn permits_are_taken_over_although_their_number_was_changed(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let baton = handed_over(&Kind::Semaphore.part(&ours, &key).acquired().await).await;
    let before = ours.locks.resize_semaphore(&key, 5).await.expect("it can be changed");
    assert_eq!(before, Some(3));
    let guard = taken_over(&theirs, &baton).await;
    let of_five = |take| ours.locks.semaphore(&key, 5).take(take);
    assert!(outcome_of(|| async { of_five(4).try_acquire().await }).await.is_none());
    give_back(of_five(3).acquire().await.expect("there are three")).await;
    give_back(guard).await;
    give_back(of_five(5).acquire().await.expect("there are five")).await;
}

async fn a_writer_that_became_a_reader_hands_its_share_over(stage: Stage) {
    let (ours, theirs, key) = (stage.process().await, stage.process().await, stage.key());
    let mut guard = ours.take(&key).await;
    guard.downgrade().await.expect("it is held alone");
    let other = Kind::Readers.rest(&theirs, &key).acquired().await;
    let baton = handed_over(&guard).await;
    Kind::Readers.is_taken(&ours, &key).await;
    let next = taken_over(&theirs, &baton).await;
    assert_later(&next, &guard);
    give_back(other).await;
    Kind::Readers.is_taken(&ours, &key).await;
    give_back(next).await;
    Kind::Readers.becomes_free(&ours, &key).await;
}

async fn a_batch_of_a_reader_and_a_writer_is_handed_over_as_it_was_held(stage: Stage) {
    let (ours, theirs) = (stage.process().await, stage.process().await);
    let (reads, writes) = (stage.key(), stage.key());
    let wanted: [KeyInMode; 2] = [read(&reads), write(&writes)];
    let batch = ours.locks.lock_all(wanted).acquire().await.expect("they are free");
    let batons = batch.hand_over_all().for_at_most(LONG).await.expect("they are held");
    Kind::Readers.is_taken(&theirs, &reads).await;
    theirs.sees_held(&writes).await;
    let next = theirs.locks.take_over_all(&batons).await.expect("they are left for these batons");
    Kind::Readers.is_taken(&ours, &reads).await;
    ours.sees_held(&writes).await;
    next.release().await.expect("it is held");
    Kind::Readers.becomes_free(&ours, &reads).await;
    give_back(ours.take_soon(&writes).await).await;
}

/// A baton may be for less than the lease of its giver, and the lease of the taker for less than the time of the baton.
async fn a_share_whose_time_became_shorter_keeps_nobody_out_beyond_it(stage: Stage) {
    let (ours, theirs, short) = (stage.process().await, stage.process().await, stage.short().await);
    for kind in BOTH {
        let key = stage.key();
        let guard = kind.part(&ours, &key).acquired().await;
        let baton = guard.hand_over().for_at_most(stage.lease()).await.expect("it is held");
        kind.becomes_free_for_an_attempt(&theirs, &key).await;
        refused(&ours, &baton).await;

        let baton = handed_over(&kind.part(&ours, &key).acquired().await).await;
        let guard = taken_over(&short, &baton).await;
        short.wire.cut();
        kind.becomes_free_for_an_attempt(&theirs, &key).await;
        short.wire.mend();
        drop(guard);
    }
}

/// What refuses an attempt that does not wait, and what the list has of the key.
async fn refusals_and_the_list_show_what_became_of_a_share(stage: Stage) {
    let ours = stage.process_with(|builder| builder.with_label("giver")).await;
    let theirs = stage.process_with(|builder| builder.with_label("taker")).await;
    for kind in BOTH {
        let key = stage.key();
        let is_shown = async |left_behind: bool, label: &str, fence| {
            let refusal = match kind.whole(&ours, &key) {
                Part::Lock(lock) => lock.with_wait(Wait::No).acquire().await,
                Part::Permits(semaphore) => semaphore.with_wait(Wait::No).acquire().await,
            };
            let error = error_of(refusal, &[ErrorKind::Busy]);
            let all = ours.locks.holders().await.expect("they can be listed");
            let listed = all.iter().find(|(listed, _)| listed.as_str() == key).map(|(_, holder)| holder);
            for holder in [error.holder(), listed] {
                let holder = holder.unwrap_or_else(|| panic!("{kind:?} is held: {error} {all:?}"));
                let shown = (holder.left_behind, holder.label.as_deref(), holder.fence);
                assert_eq!(shown, (left_behind, Some(label), fence), "{kind:?}: {error} {all:?}");
            }
        };
        let guard = kind.part(&ours, &key).acquired().await;
        let baton = handed_over(&guard).await;
        is_shown(true, "giver", guard.fence()).await;
        let guard = taken_over(&theirs, &baton).await;
        is_shown(false, "taker", guard.fence()).await;
        give_back(guard).await;
    }
}
