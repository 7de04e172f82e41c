//! The number of guards that share a hold, and whether they may only read.
//!
//! ```text
//!   share ──▶ count + 1         unshare ──▶ count - 1; the last one releases the lock
//!   read_only: one share, and no flag ──▶ READS      for good
//!   carry:     one share, READS or not ─▶ CARRIED    the release is the hand-over's
//!   uncarry:   CARRIED                ──▶ as before; at zero the caller releases the lock
//! ```

use super::{Carriage, Hold};
use crate::backend::Mode;
use crate::clock::Timestamp;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The flag, in the number of the shares, of a hold that was granted alone and counts as a reader's from now on. It
/// stands in that number so that no task gets a share that relies on an exclusive hold while the owner gives that up.
const READS: u64 = 1 << 63;

/// The flag, in the number of the shares, of a hold that is handed over by the owner of its only share. It gets no
/// further share, and its release is the hand-over's.
const CARRIED: u64 = 1 << 62;

const FLAGS: u64 = READS | CARRIED;

/// The way in which a guard shares a hold. Both kinds are counted in one number, so that a nested guard costs one step
/// of it.
///
/// As wide as the field beside it in a guard: a narrower one makes each move of a guard slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(in crate::engine) enum ShareKind {
    Plain = 1,
    /// A guard that was taken by hand in the first body under the hold; the number of these is bounded.
    Nested = 1 << 32,
}

impl ShareKind {
    pub(super) const fn one(self) -> u64 {
        self as u64
    }

    /// Returns the number of shares of this kind in `shares`.
    const fn count(self, shares: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "one half of it is meant")]
        match self {
            Self::Plain => shares as u32,
            Self::Nested => ((shares & !FLAGS) >> 32) as u32,
        }
    }
}

/// The reason why a hold is not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Uncarried {
    /// Its last guard has released it.
    Released,
    /// It is handed over already.
    Carried,
    /// It has further shares.
    Shared,
}

/// What is left when a guard of a hold has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Unshared {
    /// Further guards.
    More,
    /// Nothing: the caller releases the lock.
    Last,
    /// The hand-over, which releases the lock.
    Carried,
}

/// The mode of a hold, and the number of its guards.
pub(in crate::engine) struct HoldShares {
    /// The mode in which it was granted; see [`mode`](Hold::mode).
    granted_as: Mode,
    /// The number of guards that share the hold, by kind; the last guard releases the lock.
    count: AtomicU64,
    /// Is `true` if the backend has not yet confirmed that it is for reading only; see [`mode`](Hold::mode).
    pub(in crate::engine) downgrades: AtomicBool,
    /// Is `true` if the keeper asks for that.
    pub(in crate::engine) downgrades_later: AtomicBool,
    /// The outcome of handing it over.
    carriage: AtomicU8,
    /// The time at which it began to count as a reader's.
    read_at: AtomicU64,
}

impl HoldShares {
    /// Creates the count, with the share of the owner.
    pub(super) const fn new(granted_as: Mode) -> Self {
        Self {
            granted_as,
            count: AtomicU64::new(ShareKind::Plain.one()),
            downgrades: AtomicBool::new(false),
            downgrades_later: AtomicBool::new(false),
            carriage: AtomicU8::new(Carriage::Begun as u8),
            read_at: AtomicU64::new(0),
        }
    }

    pub(super) fn carriage(&self) -> Carriage {
        // `Begun` for any other number, which nothing stores.
        let state = self.carriage.load(Ordering::Acquire);
        [Carriage::Done, Carriage::Failed]
            .into_iter()
            .find(|known| *known as u8 == state)
            .unwrap_or(Carriage::Begun)
    }

    pub(super) fn note_carriage(&self, carriage: Carriage) {
        self.carriage.store(carriage as u8, Ordering::Release);
    }
}

impl Hold {
    /// Returns the mode in which it is held: as it was granted, or for reading since its owner gave up to be alone.
    pub(crate) fn mode(&self) -> Mode {
        let HoldShares { granted_as, count, .. } = &self.shares;
        let reads = granted_as.is_exclusive() && count.load(Ordering::Acquire) & READS != 0;
        if reads { Mode::Shared } else { *granted_as }
    }

    /// Returns the mode in which it was granted.
    pub(in crate::engine) const fn granted_mode(&self) -> Mode {
        self.shares.granted_as
    }

    /// Returns when a hold that was granted alone began to count as a reader's.
    pub(in crate::engine) fn alone_until(&self) -> Option<Timestamp> {
        let reads = self.granted_mode().is_exclusive() && self.mode() == Mode::Shared;
        reads.then(|| Timestamp::from_nanos(self.shares.read_at.load(Ordering::Acquire)))
    }

    /// Has a hold that is held alone count as a reader's from now on, and for good. Returns `false` if another share
    /// may rely on being alone.
    pub(in crate::engine) fn read_only(&self) -> bool {
        let now = self.engine.clock.now();
        // No other mark: a hold that is handed over is left as it was granted.
        let is_marked = self.mark_only_share(READS, 0).is_ok();
        if is_marked {
            self.shares.read_at.store(now.as_nanos(), Ordering::Release);
        }
        is_marked
    }

    /// Marks the hold as handed over, if there is one share of it.
    pub(in crate::engine) fn carry(&self) -> Result<(), Uncarried> {
        self.mark_only_share(CARRIED, READS).map_err(|shares| match shares {
            0 => Uncarried::Released,
            shares if shares & CARRIED != 0 => Uncarried::Carried,
            _ => Uncarried::Shared,
        })
    }

    /// Takes back that the hold is handed over. Returns `true` if its guard has ended meanwhile, whose release is then
    /// the caller's.
    pub(in crate::engine) fn uncarry(&self) -> bool {
        self.shares.count.fetch_and(!CARRIED, Ordering::AcqRel) & !FLAGS == 0
    }

    /// Is `true` if it is handed over, or was to be: its guards have nothing to release.
    pub(crate) fn is_carried(&self) -> bool {
        self.shares.count.load(Ordering::Acquire) & CARRIED != 0
    }

    /// Sets `mark` if there is one share and no mark but `beside`; else returns the number.
    fn mark_only_share(&self, mark: u64, beside: u64) -> Result<(), u64> {
        // Count and flags in one step: a guard that is shared meanwhile either is counted before, or sees the mark.
        let only = |shares: u64| {
            let kinds = [ShareKind::Plain, ShareKind::Nested];
            let is_one = kinds.iter().any(|kind| kind.one() == shares & !beside);
            is_one.then_some(shares | mark)
        };
        self.shares.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, only).map(drop)
    }

    /// Notes that the backend confirmed, by a request sent at `sent`, that others may read.
    pub(in crate::engine) fn downgraded(&self, sent: Timestamp) {
        if self.terms.is_renewed() {
            self.confirm(sent);
        }
        self.shares.downgrades.store(false, Ordering::Release);
    }

    /// Adds a guard to the hold, unless it was released already. Returns how many there are of this kind.
    pub(in crate::engine) fn share(&self, kind: ShareKind) -> Option<u32> {
        // Not from zero, nor while it is handed over: the release has begun, and a share could not stop it.
        let more = |shares: u64| match shares & !READS {
            0 => None,
            rest if rest & CARRIED != 0 => None,
            _ => shares.checked_add(kind.one()),
        };
        let before = self.shares.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(kind.count(before + kind.one()))
    }

    /// Makes a plain share a nested one. Returns how many there are of these.
    pub(in crate::engine) fn nest(&self) -> u32 {
        // One step for both halves of the number, so that it is at no moment without this share. The nested half stays
        // far below the flags, since `max_depth` is at most 10 000.
        let step = ShareKind::Nested.one() - ShareKind::Plain.one();
        ShareKind::Nested.count(self.shares.count.fetch_add(step, Ordering::AcqRel) + step)
    }

    /// Is `true` if there is one plain share and no other.
    pub(in crate::engine) fn has_one_share(&self) -> bool {
        self.shares.count.load(Ordering::Acquire) & !FLAGS == ShareKind::Plain.one()
    }

    /// Counts one guard less, and returns what is left.
    pub(in crate::engine) fn unshare(&self, kind: ShareKind) -> Unshared {
        // Release and acquire: the last guard releases the lock after all that the others did under it.
        let before = self.shares.count.fetch_sub(kind.one(), Ordering::AcqRel);
        // The flag of that very step: one that is taken back later has `uncarry` see that no guard is left.
        match before & !FLAGS == kind.one() {
            true if before & CARRIED != 0 => Unshared::Carried,
            true => Unshared::Last,
            false => Unshared::More,
        }
    }
}
