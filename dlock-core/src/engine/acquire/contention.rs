//! The lock that is in the way of an acquire.

use crate::backend::Busy;
use crate::holder::Holder;

/// The lock that is in the way of an acquire, and its holder, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Contention {
    /// The place of that lock in the list; the first one until an attempt finds another.
    pub(super) place: usize,
    /// The number of attempts that found a lock busy.
    pub(super) tries: u32,
    /// Is `true` if another holder or waiter came first: in the backend, or in the queue of this process.
    pub(super) was_busy: bool,
    /// Is `true` if the lock has another holder than at the last attempt.
    pub(super) changed_hands: bool,
    pub(super) holder: Option<Holder>,
}

impl Contention {
    /// Notes whose lock was in the way of an attempt that wanted `many` locks, or one.
    pub(super) fn note(&mut self, busy: Busy, many: bool) {
        let fence = |holder: Option<&Holder>| holder.and_then(|holder| holder.fence);
        let (before, now) = (fence(self.holder.as_ref()), fence(busy.holder.as_deref()));
        // In a batch, the holder that was reported may be that of another key.
        self.changed_hands = !many && before.is_some() && now.is_some() && before != now;
        // A holder that an answer leaves out is still the last one known of a single lock; in a batch, another lock may
        // be in the way now.
        if many || busy.holder.is_some() {
            self.holder = busy.holder.map(|holder| *holder);
        }
    }

    /// Notes that the lock is another's, and that the acquire waits for it.
    pub(super) const fn waits(&mut self) {
        self.tries += 1;
        self.was_busy = true;
    }
}
