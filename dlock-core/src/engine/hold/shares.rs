//! How many guards share a hold, and whether they may only read.

use super::{Carriage, Hold};
use crate::backend::Mode;
use crate::clock::Timestamp;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Marks, in the number of the shares, a hold that was granted alone and counts as a reader's from now on. It stands in
/// that number so that no task gets a share that relies on an exclusive hold while the owner gives that up.
const READS: u64 = 1 << 63;

/// In the number of the shares: the hold is handed over, by the owner of its only share. Nobody gets a further share of
/// it, and its release is the hand-over's.
const CARRIED: u64 = 1 << 62;

const FLAGS: u64 = READS | CARRIED;

/// How a guard shares a hold. Both kinds are counted in one number, so that a nested guard costs one step of it.
///
/// As wide as what stands beside it in a guard: one that is narrower makes each move of a guard slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(in crate::engine) enum ShareKind {
    Plain = 1,
    /// Taken by hand in the first body under the hold; how many of these there are is bounded.
    Nested = 1 << 32,
}

impl ShareKind {
    pub(super) const fn one(self) -> u64 {
        self as u64
    }

    /// How many of this kind there are in `shares`.
    const fn count(self, shares: u64) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "one half of it is meant")]
        match self {
            Self::Plain => shares as u32,
            Self::Nested => ((shares & !FLAGS) >> 32) as u32,
        }
    }
}

/// Why a hold is not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Uncarried {
    /// Its last guard has released it.
    Released,
    /// It is handed over already.
    Carried,
    /// It has further shares.
    Shared,
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
}

impl HoldShares {
    /// With the share of its owner.
    pub(super) const fn new(granted_as: Mode) -> Self {
        Self {
            granted_as,
            count: AtomicU64::new(ShareKind::Plain.one()),
            downgrades: AtomicBool::new(false),
            downgrades_later: AtomicBool::new(false),
            carriage: AtomicU8::new(Carriage::Begun as u8),
        }
    }

    pub(super) fn carriage(&self) -> Carriage {
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
    /// How it is held: as it was granted, or for reading since its owner gave up to be alone.
    pub(crate) fn mode(&self) -> Mode {
        let HoldShares { granted_as, count, .. } = &self.shares;
        let reads = granted_as.is_exclusive() && count.load(Ordering::Acquire) & READS != 0;
        if reads { Mode::Shared } else { *granted_as }
    }

    /// Has a hold that is held alone count as a reader's from now on, and for good. Whether that can be: not while
    /// another share may rely on being alone.
    pub(in crate::engine) fn read_only(&self) -> bool {
        self.mark_only_share(READS, 0).is_ok()
    }

    /// Marks the hold as handed over, if there is one share of it.
    pub(in crate::engine) fn carry(&self) -> Result<(), Uncarried> {
        self.mark_only_share(CARRIED, READS).map_err(|shares| match shares {
            0 => Uncarried::Released,
            shares if shares & CARRIED != 0 => Uncarried::Carried,
            _ => Uncarried::Shared,
        })
    }

    /// Takes back that the hold is handed over. Whether its guard has ended meanwhile, whose release is then the
    /// caller's.
    pub(in crate::engine) fn uncarry(&self) -> bool {
        self.shares.count.fetch_and(!CARRIED, Ordering::AcqRel) & !FLAGS == 0
    }

    /// Whether it is handed over, or was to be: its guards have nothing to release.
    pub(crate) fn is_carried(&self) -> bool {
        self.shares.count.load(Ordering::Acquire) & CARRIED != 0
    }

    /// Sets `mark` if there is one share and no mark but `beside`; else returns the number.
    fn mark_only_share(&self, mark: u64, beside: u64) -> Result<(), u64> {
        let only = |shares: u64| {
            let kinds = [ShareKind::Plain, ShareKind::Nested];
            let is_one = kinds.iter().any(|kind| kind.one() == shares & !beside);
            is_one.then_some(shares | mark)
        };
        self.shares.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, only).map(drop)
    }

    /// The backend confirmed, by a request sent at `sent`, that others may read.
    pub(in crate::engine) fn downgraded(&self, sent: Timestamp) {
        if self.terms.is_renewed() {
            self.confirm(sent);
        }
        self.shares.downgrades.store(false, Ordering::Release);
    }

    /// One more guard shares the hold, unless it was released already. Returns how many there are of this kind.
    pub(in crate::engine) fn share(&self, kind: ShareKind) -> Option<u32> {
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
        let step = ShareKind::Nested.one() - ShareKind::Plain.one();
        ShareKind::Nested.count(self.shares.count.fetch_add(step, Ordering::AcqRel) + step)
    }

    /// Whether there is one plain share and no other.
    pub(in crate::engine) fn has_one_share(&self) -> bool {
        self.shares.count.load(Ordering::Acquire) & !FLAGS == ShareKind::Plain.one()
    }

    /// Counts one guard less. Returns whether it was the last one, which has to release the lock.
    pub(in crate::engine) fn unshare(&self, kind: ShareKind) -> bool {
        self.shares.count.fetch_sub(kind.one(), Ordering::AcqRel) & !FLAGS == kind.one()
    }
}
