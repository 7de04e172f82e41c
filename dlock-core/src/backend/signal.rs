//! The reports of a backend on a lock that it granted.

use std::borrow::Cow;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Timestamp;

/// A backend's channel to one hold.
///
/// ```text
///       suspect()
/// held <----------> suspect        lost() ends both for good; renew_within() has the hold renewed soon
///       trust()
/// ```
///
/// It does not keep the lock alive. Calls are cheap, never block, and do nothing once the lock was lost or released.
#[derive(Clone, Debug)]
pub struct Signal(Weak<dyn SignalSink>);

/// The receiver of a [`Signal`]: a hold, or one vote of several that make a hold. The methods are those of the signal.
pub trait SignalSink: Send + Sync {
    /// Receives [`Signal::lost`].
    fn lost(&self, cause: Cow<'static, str>);
    /// Receives [`Signal::suspect`].
    fn suspect(&self);
    /// Receives [`Signal::trust`].
    fn trust(&self, proof: Timestamp);
    /// Receives [`Signal::release_requested`].
    fn release_requested(&self);
    /// Receives [`Signal::renew_within`].
    fn renew_within(&self, limit: Duration);
}

impl Signal {
    /// Creates a signal to `sink`, which it does not keep alive: for a backend that is made of others, whose claims
    /// report their trouble to it.
    pub fn new<W: SignalSink + 'static>(sink: &Arc<W>) -> Self {
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

    /// Reports that a user asks the holder to release the lock, which it may do:
    /// [`Held::release_requested`](crate::Held::release_requested).
    pub fn release_requested(&self) {
        if let Some(sink) = self.0.upgrade() {
            sink.release_requested();
        }
    }

    /// Has the lock renewed within this time, which may find it gone: for a backend that was notified of a change of
    /// its lock, or whose renewals have the server notify of such. Nothing but the next renewal changes by it. The
    /// pauses between such renewals grow, up to a twelfth of the lease, so that a key that changes again and again does
    /// not keep the server busy. Does nothing for a lock that a session keeps.
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
