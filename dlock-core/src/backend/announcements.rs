//! The announcements of a key, as its observers receive them.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::unfold;

use super::notify::Listener;
use crate::guarded::{drop_guarded, guard};

/// The [announcements](super::Backend::announce) of one key: an item for each, and one where an announcement may have
/// been missed. The stream ends when the backend will deliver nothing more; the observer may then subscribe anew.
/// Dropping it ends the subscription.
#[must_use = "dropping it ends the subscription"]
pub struct Announcements(Option<Pin<Box<dyn Stream<Item = ()> + Send>>>);

impl Announcements {
    /// Creates the announcements of a stream that is subscribed already. Several announcements may be one item.
    pub fn new(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(stream)))
    }

    /// Creates the announcements of a backend that announces nothing: an ended stream.
    pub const fn none() -> Self {
        Self(None)
    }
}

/// Each notification of the channel is an item. A refused subscription ends the stream.
impl From<Listener> for Announcements {
    fn from(listener: Listener) -> Self {
        Self::new(unfold(listener, |mut listener| async move {
            listener.changed().await.ok()?;
            Some(((), listener))
        }))
    }
}

impl Stream for Announcements {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<()>> {
        let Some(stream) = &mut self.0 else { return Poll::Ready(None) };
        // A stream that panics has ended.
        let polled = guard(|| stream.as_mut().poll_next(context)).unwrap_or(Poll::Ready(None));
        if polled == Poll::Ready(None) {
            drop_guarded(self.0.take());
        }
        polled
    }
}

impl Drop for Announcements {
    fn drop(&mut self) {
        drop_guarded(self.0.take());
    }
}

impl fmt::Debug for Announcements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcements").finish_non_exhaustive()
    }
}
