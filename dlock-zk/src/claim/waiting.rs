//! The watches of a claim that waits in its queue, and the requests that set them.
//!
//! ```text
//!  look: one `Looking` ── answered ──► `Watched`: a `Wait`, whose two `Notification`s are
//!             │                             Pending ──► Arrived, or Unwatched from the start
//!             ├─► `Gone`: the queue is looked at again
//!             └─► `OwnGone`: the claim has lost its place
//! ```

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use zookeeper::{Error, EventType, OneshotWatcher, Stat};

use crate::queue_node::QueueNode;
use crate::session::{WaitEntry, WatchPass};
use crate::wire::{Answer, event};

/// The watches of a claim that waits.
pub(super) struct Wait {
    /// The name of the node before ours.
    pub(super) previous: String,
    /// The name of the node in front that keeps the key taken after a release, if there is one.
    pub(super) left: Option<String>,
    /// The event of the node before ours, or of the directory for the first claim that waits for permits.
    pub(super) event: Notification,
    /// The event of our own node.
    pub(super) own: Notification,
    /// The number of losses of the connection when the watches were asked for; `None` if it was lost then.
    pub(super) losses: Option<u64>,
    pub(super) _awaited: WaitEntry,
}

/// The event of a watch.
pub(super) enum Notification {
    Pending(Answer<EventType>),
    Arrived(EventType),
    /// There is no watch, since the session has too many already.
    Unwatched,
}

impl Notification {
    pub(super) fn of(watched: Option<(OneshotWatcher, WatchPass)>) -> Self {
        let Some((watcher, pass)) = watched else { return Self::Unwatched };
        let event = event(watcher);
        Self::Pending(Box::pin(async move {
            // The pass is released once the watch has fired, or is dropped.
            let _pass = pass;
            event.await
        }))
    }

    pub(super) async fn arrives(&mut self) -> EventType {
        match self {
            Self::Pending(event) => {
                let event = event.await;
                *self = Self::Arrived(event);
                event
            }
            Self::Arrived(event) => *event,
            Self::Unwatched => std::future::pending().await,
        }
    }

    pub(super) fn arrived(&mut self) -> Option<EventType> {
        let arrives = std::pin::pin!(self.arrives());
        match arrives.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => Some(event),
            Poll::Pending => None,
        }
    }
}

/// Requests that are under way: they watch the node before ours and our own, and ask for the holder of the lock.
pub(super) struct Looking {
    pub(super) previous: String,
    pub(super) losses: Option<u64>,
    pub(super) answer: Answer<Result<Looked, Error>>,
}

pub(super) enum Looked {
    /// The node before ours is gone.
    Gone,
    Watched {
        previous: Notification,
        own: Notification,
        /// The node of the holder, unless it may not be read.
        holder: Option<(Vec<u8>, Stat)>,
        /// The node before ours was written to since it was made.
        written: bool,
    },
    /// Our own node is gone.
    OwnGone,
}

/// Returns all requests of a claim that has to wait behind `previous`, while `first` holds the lock. They are sent when
/// the answer is first polled.
pub(super) fn look(node: &QueueNode, first: &str, previous: &str) -> Option<Looking> {
    let (client, own) = (node.session.client.clone(), Arc::clone(&node.node()?.path));
    let (path, first) = (node.path_of(previous), (first != previous).then(|| node.path_of(first)));
    // Either pass may be missing. The claim then looks at its next attempt, without a notification.
    let (pass, own_pass) = (node.session.watches.previous(&path), node.session.watches.own(&own));
    let answer = async move {
        let first = first.map(|first| client.get_data(&first));
        // All are sent before the first answer is waited for.
        let asked = match &pass {
            Some(_) => Ok(client.get_and_watch_data(&path)),
            None => Err(client.get_data(&path)),
        };
        let asked_own = match &own_pass {
            Some(_) => Ok(client.check_and_watch_stat(&own)),
            None => Err(client.check_stat(&own)),
        };
        let got = match asked {
            Ok(watched) => watched.await.map(|(data, stat, watcher)| ((data, stat), Some(watcher))),
            Err(looked) => looked.await.map(|found| (found, None)),
        };
        let mut written = false;
        let (holder, previous) = match got {
            Ok((holder, watcher)) => (Some(holder), watcher),
            Err(Error::NoNode) => return Ok(Looked::Gone),
            // A node whose data may not be read can still be watched.
            Err(Error::NoAuth) => {
                let (stat, watcher) = match &pass {
                    Some(_) => client.check_and_watch_stat(&path).await.map(|(stat, it)| (stat, Some(it)))?,
                    None => (client.check_stat(&path).await?, None),
                };
                let Some(stat) = stat else { return Ok(Looked::Gone) };
                written = stat.version > 0;
                (None, watcher)
            }
            Err(error) => return Err(error),
        };
        let written = written || holder.as_ref().is_some_and(|(_, stat)| stat.version > 0);
        let (stat, own) = match asked_own {
            Ok(watched) => watched.await.map(|(stat, watcher)| (stat, Some(watcher)))?,
            Err(looked) => (looked.await?, None),
        };
        // Looked at together with the watch, which would not report a deletion before it.
        if stat.is_none() {
            return Ok(Looked::OwnGone);
        }
        let (previous, own) = (Notification::of(previous.zip(pass)), Notification::of(own.zip(own_pass)));
        // The holder is information only: no reason to fail.
        let holder = match first {
            Some(first) => first.await.ok(),
            None => holder,
        };
        Ok(Looked::Watched { previous, own, holder, written })
    };
    Some(Looking { previous: previous.to_owned(), losses: node.session.losses(), answer: Box::pin(answer) })
}
