//! Readers that ask beside others, where the backend takes requests [together](crate::Capabilities::pipelined).
//!
//! A grant to a reader is one for other readers too: those that wait in this process are invited to ask, wherever they
//! stand. And where a writer is the first, it may be the readers' turn all the same: when it asks, one of them is
//! invited too.
//!
//! ```text
//!            reads                      another reader's grant, a writer's ask
//! No ───────────────────▶ Waits ──────────────────────────────────────────────▶ Invited
//!                          ▲ │                                                     │
//!               poll_after │ │ ask, as the first                               ask │
//!             back_in_line │ ▼                                                     │
//!                          Asks ◀──────────────────────────────────────────────────┘
//! ```
//!
//! An invited reader that leaves before it asks has the next one invited in its place.

use std::task::Waker;

use smallvec::SmallVec;

use super::{SHARDS, Shard, Ticket, WaitQueue};
use crate::guarded::wake;
use crate::key::Key;

/// The number of readers that one grant invites at most. Each of these grants invites others, so that a crowd is served
/// in a few rounds, and where a writer came before them, no more than so many requests were in vain.
pub(super) const INVITED: usize = 64;
/// The number of waiters that are looked at for readers, so that a queue with thousands of writers costs no more. A
/// reader behind them has its turn as any waiter.
pub(super) const LOOKED_AT: usize = 1_000;

/// What a waiter that only reads does about a grant to another reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reader {
    /// Nothing: it does not only read.
    #[default]
    No,
    /// It awaits an invitation.
    Waits,
    /// It is to ask, wherever it stands.
    Invited,
    /// Nothing: it has asked, and there is no answer yet.
    Asks,
}

impl WaitQueue {
    /// Is `true` if a reader of this process awaits an invitation.
    pub(in crate::engine) fn has_readers(&self, key: &Key) -> bool {
        self.shard(Self::hash(key) % SHARDS).lines.get(key).is_some_and(|line| line.readers > 0)
    }
}

impl Shard {
    /// Notes that a waiter asks, if it only reads.
    pub(super) fn asks_as_reader(&mut self, key: &Key, place: usize) {
        if self.waiters.get(place).is_some_and(|waiter| waiter.reader != Reader::No) {
            self.set_reader(key, place, Reader::Asks);
        }
    }

    /// Notes that a waiter has its answer, if it only reads. Returns whether it does. An invitation that came since it
    /// joined is left to it: its answer may be older.
    pub(super) fn answered_as_reader(&mut self, key: &Key, place: usize) -> bool {
        let has_asked = self.waiters.get(place).is_some_and(|waiter| waiter.reader == Reader::Asks);
        if has_asked {
            self.set_reader(key, place, Reader::Waits);
        }
        has_asked
    }

    fn set_reader(&mut self, key: &Key, place: usize, reader: Reader) {
        let (Some(waiter), Some(line)) = (self.waiters.get_mut(place), self.lines.get_mut(key)) else {
            return;
        };
        line.readers -= usize::from(waiter.reader == Reader::Waits);
        line.readers += usize::from(reader == Reader::Waits);
        waiter.reader = reader;
    }

    /// Invites readers of `key` to ask, the first of them first, and `most` of them. Returns them, to be woken.
    pub(super) fn invite_readers(&mut self, key: &Key, most: usize) -> SmallVec<[Waker; 4]> {
        let mut wakers = SmallVec::new();
        let Some(line) = self.lines.get_mut(key) else { return wakers };
        let (mut next, mut left) = (Some(line.first), line.readers.min(most));
        for _ in 0..LOOKED_AT {
            let Some(waiter) = next.filter(|_| left > 0).and_then(|place| self.waiters.get_mut(place)) else {
                break;
            };
            next = waiter.after;
            if waiter.reader == Reader::Waits {
                waiter.reader = Reader::Invited;
                (left, line.readers) = (left - 1, line.readers - 1);
                wakers.extend(waiter.waker.take());
            }
        }
        wakers
    }
}

impl Ticket<'_> {
    /// Lets this waiter, which only reads, be invited by other readers' grants.
    pub(in crate::engine) fn reads(&self) {
        self.shard().set_reader(self.key, self.place, Reader::Waits);
    }

    /// Has readers ask at once, since one of them was granted the lock.
    pub(in crate::engine) fn invite_readers(&self) {
        let readers = self.shard().invite_readers(self.key, INVITED);
        for reader in readers {
            wake(Some(reader));
        }
    }

    /// Has this reader, which asked past others and got no answer, wait for its turn or another invitation. Returns
    /// `false` if it is the first, or does not only read: that one asks again by itself.
    pub(in crate::engine) fn back_in_line(&self) -> bool {
        let mut shard = self.shard();
        let is_first = shard.lines.get(self.key).is_some_and(|line| line.first == self.place);
        !is_first && shard.answered_as_reader(self.key, self.place)
    }
}
