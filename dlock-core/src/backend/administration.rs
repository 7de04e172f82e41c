//! The part of a backend that operators use.

use crate::backend::{BoxedFuture, Forced, boxed};
use crate::error::Failure;
use crate::holder::Holder;
use crate::key::Key;

/// The part of a backend that operators use: it lists the holders of its locks and their waiters, and takes a lock away
/// from its holder. A backend that can do so returns this from
/// [`Backend::administration`](crate::Backend::administration), and nothing else marks that it can. A quorum uses it
/// too, to replace its marks on a node.
///
/// Nothing happens before a future that is returned here is polled.
///
/// # Cancel safety
///
/// Each of the futures may be dropped at any await. A change that was asked for is then made or not.
pub trait Administration: Send + Sync {
    /// Lists all locks that are held, with their holders, in any order.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>>;

    /// Frees `key`. With `seen`, the holders that an operator was shown, it does so only if every holder is among them,
    /// as this backend returned them before; [`Holder::is_same_hold`] decides which holds are the same. Without `seen`
    /// it does so for any holder of one moment. A backend that needs several steps uses the holders of its first look
    /// as `seen`, so that no later holder loses the lock, and answers [`Forced::HeldByOthers`] if all of them left by
    /// themselves and others came. The next grant has a higher fence; waiters are notified as after a release.
    ///
    /// The server has to compare in the step that frees the key, so that a holder that comes in between keeps its lock.
    /// A backend whose server cannot do that looks by [`occupancy`](crate::Backend::occupancy), compares by
    /// [`Forced::without_release`], and then frees the key, which takes it from any holder that is granted it between
    /// the two; its documentation says so.
    ///
    /// # Errors
    ///
    /// [`Failure::unknown`] when the request may have taken effect; every other failure means that it did not.
    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>>;

    /// Lists the waiters for `key`, the next one first, without the holder; `None`, the default, for every key if the
    /// backend does not know its waiters. Called once when [`Locks`](crate::Locks) are built, with any key and perhaps
    /// outside a runtime, to learn which of the two it is; that future is not polled.
    ///
    /// # Errors
    ///
    /// A [`Failure`] when the backend cannot be asked.
    fn waiters(&self, key: Key) -> Option<BoxedFuture<'_, Result<Vec<Holder>, Failure>>> {
        let _ = key;
        None
    }

    /// Gives the semaphore `key` so many permits, and returns the previous number; `None`, and nothing is changed, if
    /// no semaphore is stored. Permits that are taken stay so. The default cannot; a backend with
    /// [permits](crate::Capabilities::permits) has to be able to.
    ///
    /// # Errors
    ///
    /// [`Failure::unknown`] when the request may have taken effect; every other failure means that it did not.
    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        let _ = (key, permits);
        refused("change the number of permits")
    }
}

/// The administration of a backend that has none, which refuses everything. A decorator that changes something of the
/// administration of its backend calls this one if there is no other.
#[derive(Clone, Copy, Debug)]
pub struct Unadministered;

impl Administration for Unadministered {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        refused("list the holders of its locks")
    }

    fn force_release(
        &self,
        _key: Key,
        _seen: Option<Vec<Holder>>,
    ) -> BoxedFuture<'_, Result<Forced, Failure>> {
        refused("take a lock away from its holder")
    }
}

fn refused<T: Send + 'static>(what: &'static str) -> BoxedFuture<'static, Result<T, Failure>> {
    boxed(std::future::ready(Err(Failure::unsupported(what))))
}
