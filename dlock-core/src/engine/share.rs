//! A share of a hold: the lock is released with the last one.

use std::sync::Arc;

use crate::engine::cleanup::give_up;
use crate::engine::hold::Hold;

/// A share of a hold. Dropping the last one has the keeper release the lock.
pub(crate) struct Share(Option<Arc<Hold>>);

impl Share {
    /// The share of the owner to whom a lock was granted.
    pub(super) const fn first(hold: Arc<Hold>) -> Self {
        Self(Some(hold))
    }

    /// One more share, unless the lock was released already.
    pub(super) fn of(hold: &Arc<Hold>) -> Option<Self> {
        hold.share().then(|| Self(Some(Arc::clone(hold))))
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        match &self.0 {
            Some(hold) => hold,
            None => unreachable!("a share has its hold until it ends"),
        }
    }

    /// Ends the share. Returns the hold if this was the last share, so that the caller has to release the lock, and
    /// otherwise as an error.
    pub(crate) fn end(mut self) -> Result<Arc<Hold>, Arc<Hold>> {
        match self.0.take() {
            Some(hold) if hold.unshare() => Ok(hold),
            Some(hold) => Err(hold),
            None => unreachable!("a share ends once"),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take()
            && hold.unshare()
        {
            if hold.engine.is_in_child() {
                // The lock is the parent's, and so are the locks in memory, which may be taken for good here.
                return std::mem::forget(hold);
            }
            give_up(&hold);
        }
    }
}
