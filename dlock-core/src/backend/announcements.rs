//! What is announced of a key, as those who observe it hear of it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::unfold;

use super::notify::Listener;
use crate::guarded::{drop_guarded, guard};

/// What is [announced](super::Backend::announce) of one key: an item each time that something was, or may have been
/// while nobody listened. It ends when the backend will tell of nothing more, and may then be asked for anew. Dropping
/// it ends the subscription.
#[must_use = "nothing is heard once this is dropped"]
pub struct Announcements(Option<Pin<Box<dyn Stream<Item = ()> + Send>>>);

impl Announcements {
    /// Creates them of a stream that listens already: what is announced from now on is an item. Items may be merged.
    pub fn new(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(Some(Box::pin(stream)))
    }

    /// Creates those of a backend that announces nothing: they have ended.
    pub const fn none() -> Self {
        Self(None)
    }
}

/// Each news of a channel is an item. A denial ends them.
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
        // One that panics has ended.
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
