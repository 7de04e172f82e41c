//! How a backend tells of a lock that it granted.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Timestamp;

/// A backend's line to one hold: to say that it is suspect, proven, or lost, or that a renewal would show whether it
/// is.
///
/// It does not keep the lock alive. Calls are cheap, never block, and do nothing once the lock was lost or released.
#[derive(Clone, Debug)]
pub struct Signal(Weak<dyn SignalSink>);

/// Who is notified of a [`Signal`]: a hold, or one vote of several that make a hold.
pub(crate) trait SignalSink: Send + Sync {
    fn lost(&self, cause: Cow<'static, str>);
    fn suspect(&self);
    fn trust(&self, proof: Timestamp);
    fn release_requested(&self);
    fn renew_within(&self, limit: Duration);
}

impl Signal {
    pub(crate) fn new<W: SignalSink + 'static>(sink: &Arc<W>) -> Self {
        let sink: Weak<W> = Arc::downgrade(sink);
        Self(sink)
    }

    /// Reports that the lock is gone. `check` is an error from now on, for good.
    pub fn lost(&self, cause: impl Into<Cow<'static, str>>) {
        if let Some(sink) = self.0.upgrade() {
            sink.lost(cause.into());
        }
    }

    /// Reports that the lock cannot be confirmed at the moment: `check` is an error until [`trust`](Self::trust).
    pub fn suspect(&self) {
        if let Some(sink) = self.0.upgrade() {
            sink.suspect();
        }
    }

    /// Reports that somebody else asks the holder to release the lock, who may heed it:
    /// [`Held::release_requested`](crate::Held::release_requested).
    pub fn release_requested(&self) {
        if let Some(sink) = self.0.upgrade() {
            sink.release_requested();
        }
    }

    /// Has the lock renewed within this time, which may find it gone: for a backend that was notified of a change of
    /// its lock, or whose renewals have the server tell of such. Nothing but the next renewal changes by it. The pauses
    /// between such renewals grow, up to a twelfth of the lease, so that what changes again and again does not keep the
    /// server busy. Does nothing for a lock that a session keeps.
    pub fn renew_within(&self, limit: Duration) {
        if let Some(sink) = self.0.upgrade() {
            sink.renew_within(limit);
        }
    }

    /// Reports that the lock was confirmed by a request that was sent at `proof`.
    pub fn trust(&self, proof: Timestamp) {
        if let Some(sink) = self.0.upgrade() {
            sink.trust(proof);
        }
    }
}
