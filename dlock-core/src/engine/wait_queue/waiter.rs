//! One waiter, and what it is offered while it waits.

use std::task::Waker;
use std::time::Duration;

use super::Offer;
use super::readers::Reader;

/// A waiter in the queue of its key.
#[derive(Default)]
pub(super) struct Waiter {
    pub(super) before: Option<usize>,
    pub(super) after: Option<usize>,
    pub(super) waker: Option<Waker>,
    pub(super) reader: Reader,
    /// The lease of the lock that it would take from the section before; `None` while it asks by itself.
    pub(super) takes: Option<Duration>,
    pub(super) offer: Option<(Duration, Offer)>,
}

impl Waiter {
    /// Is `true` if it need not be the first to go on.
    pub(super) fn is_called(&self) -> bool {
        self.offer.is_some() || self.reader == Reader::Invited
    }

    /// Hands the lock to the waiter, or returns it if the waiter accepts no lock with this lease.
    pub(super) fn put(&mut self, (lease, offer): (Duration, Offer)) -> Result<(), (Duration, Offer)> {
        // Only the very lease: the hold that follows lives by the lease of the claim, which no request changes.
        if self.takes != Some(lease) {
            return Err((lease, offer));
        }
        (self.takes, self.offer) = (None, Some((lease, offer)));
        Ok(())
    }
}
