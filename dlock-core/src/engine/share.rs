//! A share of a hold: the lock is released with the last one.

use std::sync::Arc;

use crate::engine::hold::{Hold, ShareKind};
use crate::engine::release::Release;

/// A share of a hold. Dropping the last one passes the lock on, or has the keeper release it.
pub(crate) struct Share {
    hold: Option<Arc<Hold>>,
    kind: ShareKind,
}

impl Share {
    /// Makes the share of the owner to which a lock was granted.
    pub(super) const fn first(hold: Arc<Hold>) -> Self {
        Self { hold: Some(hold), kind: ShareKind::Plain }
    }

    /// Makes one more share, unless the lock was released already. Returns beside it how many there are of this kind.
    #[inline]
    pub(super) fn of(hold: Arc<Hold>, kind: ShareKind) -> Option<(Self, u32)> {
        let shares = hold.share(kind)?;
        Some((Self { hold: Some(hold), kind }, shares))
    }

    /// Is `true` if the hold counts this among the guards that were taken by hand.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.kind == ShareKind::Nested
    }

    /// Has the hold count this among the guards that were taken by hand. Returns the number of these.
    pub(super) fn nest(&mut self) -> u32 {
        self.kind = ShareKind::Nested;
        self.hold().nest()
    }

    #[inline]
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        match &self.hold {
            Some(hold) => hold,
            None => unreachable!("a share has its hold until it ends"),
        }
    }

    /// Ends the share. Returns the hold if this was the last share, so that the caller has to release the lock, and
    /// otherwise as an error.
    #[inline]
    pub(crate) fn end(mut self) -> Result<Arc<Hold>, Arc<Hold>> {
        match self.hold.take() {
            Some(hold) if hold.unshare(self.kind) => Ok(hold),
            Some(hold) => Err(hold),
            None => unreachable!("a share ends once"),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take()
            && hold.unshare(self.kind)
        {
            if hold.engine.is_in_child() {
                // The lock is the parent's, and so are the locks in memory, which may be taken for good here.
                return std::mem::forget(hold);
            }
            if !hold.is_carried() {
                drop(Release::close(hold));
            }
        }
    }
}
