//! A claim that takes permits of a semaphore.
//!
//! The first claim that waits watches the directory, since any of the holders may leave. A claim that waits behind it
//! watches the node before its own, which is written to once it has its permits, so that the next claim knows that it
//! is the first.
//!
//! | [`PermitPosition`] | the claim watches | it goes on when |
//! |---|---|---|
//! | `Granted` | | it has its permits; if claims are behind it, it writes to its node |
//! | `Next` | the directory | a node comes or goes, or the number of permits is changed |
//! | `Behind` | the node before its own, and its own | the node before is written to or deleted |

use std::sync::Arc;

use dlock_core::backend::{Attempt, Busy, Mode, by_then};
use dlock_core::{ErrorKind, Failure};
use tokio::time::Instant;
use zookeeper::Error;

use super::ZooKeeperClaim;
use super::failures::{exhausted, place_deleted, unclear, used_otherwise};
use super::waiting::{Notification, Wait};
use crate::error::of_write;
use crate::holder::holder;
use crate::queue_node::{Content, Enqueued};
use crate::semaphore::{self, PermitPosition, Unusable};
use crate::wire::read;

/// The number of looks at the directory in one attempt, since it may change between a look and its watch.
const LOOKS: u32 = 8;

/// The nodes and the data of a directory, and the event of a change of its nodes.
struct Seen {
    children: Vec<String>,
    content: Content,
    event: Notification,
}

impl ZooKeeperClaim {
    /// Makes the node if there is none yet, and finds out whether it has its permits.
    pub(super) async fn take_permits(&mut self, of: u32, until: Instant) -> Result<Attempt, Failure> {
        let attempt = self.take_turn_in_queue(of, until).await;
        if let (Err(failure), Some(node)) = (&attempt, &mut self.node)
            && matches!(failure.kind(), ErrorKind::Conflict | ErrorKind::InvalidConfig)
        {
            // The deletion goes ahead of all later requests, so that a claim that fails for good is in no other's way.
            node.send_deletion();
        }
        attempt
    }

    async fn take_turn_in_queue(&mut self, of: u32, until: Instant) -> Result<Attempt, Failure> {
        let Self { node: Some(node), request, sessions, .. } = self else { return Err(place_deleted()) };
        let mut seen = match node.ensure_node(sessions.config(), || request.describe(), until).await? {
            Enqueued::New(children, Some(content)) => {
                Some(Seen { children, content, event: Notification::Unwatched })
            }
            Enqueued::First | Enqueued::New(..) | Enqueued::There => self.see(until, false).await?,
        };
        for _ in 0..LOOKS {
            let Some(Seen { children, content, event }) = seen else {
                return Err(Box::pin(self.deleted(until)).await);
            };
            // Before the positions are judged, where a node that was left counts as that of a lock.
            if self.has_outlasted(&children, until).await? {
                seen = self.see(until, false).await?;
                continue;
            }
            let position = self.position(&children, of)?;
            // Before a grant, since it depends on the number of permits.
            if position != PermitPosition::Missing && !self.agrees(of, &content, until).await? {
                seen = self.see(until, false).await?;
                continue;
            }
            let busy = match position {
                PermitPosition::Missing => return Err(Box::pin(self.deleted(until)).await),
                PermitPosition::Granted { followed } => {
                    if followed {
                        // Before the grant: a claim that has its permits takes no more steps.
                        self.wake_next(until).await?;
                    }
                    self.asked();
                    return self.grant(until).await;
                }
                PermitPosition::Behind { first, previous } => {
                    self.look_ahead(&first, previous, until).await?
                }
                PermitPosition::Next { first } if !self.request.waits => {
                    self.look_ahead(&first, String::new(), until).await?
                }
                // The directory is listed again together with the watch, so that no change in between is missed.
                PermitPosition::Next { .. } if matches!(event, Notification::Unwatched) => {
                    seen = self.see(until, true).await?;
                    if seen.as_ref().is_some_and(|seen| matches!(seen.event, Notification::Unwatched)) {
                        break;
                    }
                    continue;
                }
                PermitPosition::Next { first } => self.wait_for_any(&first, event, until).await,
            };
            if let Some(busy) = busy {
                self.asked();
                return Ok(Attempt::Busy(busy));
            }
            seen = self.see(until, false).await?;
        }
        // The next attempt looks again, when one is due.
        self.asked();
        Ok(Attempt::Busy(Busy::default()))
    }

    fn position(&self, children: &[String], of: u32) -> Result<PermitPosition, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let Some(own) = node.node() else { return Err(place_deleted()) };
        let directory = &*node.queue.directory;
        PermitPosition::of(node.recipe, children, &own.name, of).map_err(|unusable| match unusable {
            Unusable::Lock => used_otherwise(self.request.mode, Mode::Exclusive),
            Unusable::Exhausted => exhausted(directory),
            Unusable::Unclear(name) => unclear(directory, &name),
        })
    }

    /// Looks at the directory. Returns `None` if it is gone. With `watch`, its changes are reported, unless others of
    /// this session watch too much already.
    async fn see(&mut self, until: Instant, watch: bool) -> Result<Option<Seen>, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let (session, directory) = (Arc::clone(&node.session), Arc::clone(&node.queue.directory));
        let (client, directory) = (&session.client, &*directory);
        let pass = if watch { session.watches.previous(directory) } else { None };
        // Both are sent before the first answer is waited for.
        let (watched, listed) = match pass {
            Some(pass) => (Some((client.list_and_watch_children(directory), pass)), None),
            None => (None, Some(client.list_children(directory))),
        };
        let content = client.get_data(directory);
        let listed = match (watched, listed) {
            (Some((watched, pass)), _) => read(directory, until, watched)
                .await?
                .map(|(children, watcher)| (children, Notification::of(Some((watcher, pass))))),
            (None, Some(listed)) => {
                read(directory, until, listed).await?.map(|children| (children, Notification::Unwatched))
            }
            (None, None) => None,
        };
        let content = read(directory, until, content).await?;
        Ok(listed.zip(content).map(|((children, event), content)| Seen { children, content, event }))
    }

    /// Returns `true` if the semaphore has as many permits as the claim says. The first claim stores the number.
    /// Returns `false` if another client changed the directory meanwhile.
    async fn agrees(&mut self, of: u32, (data, stat): &Content, until: Instant) -> Result<bool, Failure> {
        match semaphore::permits(data) {
            Some(permits) if permits == of => return Ok(true),
            Some(of) => return Err(used_otherwise(self.request.mode, Mode::Permits { of, take: 1 })),
            None => {}
        }
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let (session, directory) = (Arc::clone(&node.session), Arc::clone(&node.queue.directory));
        let directory = &*directory;
        if !data.is_empty() {
            return Err(semaphore::strange(directory));
        }
        let content = semaphore::content(of);
        // By its version: of two claims that find no number, one stores its own.
        let stored = session.client.set_data(directory, content.as_bytes(), Some(stat.version));
        match by_then(until, stored).await {
            Some(Ok(_)) => Ok(true),
            Some(Err(Error::BadVersion | Error::NoNode)) => Ok(false),
            Some(Err(error)) => Err(of_write(error, directory)),
            None => Err(Failure::unknown(format!("no answer in time from {directory}"))),
        }
    }

    /// Writes to the own node, which notifies the next claim that it is the first that waits.
    async fn wake_next(&mut self, until: Instant) -> Result<(), Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let Some(own) = node.node() else { return Err(place_deleted()) };
        let (session, path) = (Arc::clone(&node.session), Arc::clone(&own.path));
        let text = self.request.describe();
        let written = session.client.set_data(&path, text.as_bytes(), None);
        match by_then(until, written).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(Error::NoNode)) => Err(place_deleted()),
            Some(Err(error)) => Err(of_write(error, &path)),
            None => Err(Failure::unknown(format!("no answer in time from {path:?}"))),
        }
    }

    /// Waits for the first of the holders that leaves, or for an operator.
    async fn wait_for_any(&mut self, first: &str, event: Notification, until: Instant) -> Option<Busy> {
        let node = self.node.as_ref()?;
        let mut busy = Busy::default();
        let (session, recipe, path) = (Arc::clone(&node.session), node.recipe, node.path_of(first));
        let asked = session.client.get_data(&path);
        // The holder is information only: no reason to fail.
        if let Ok(Some((data, stat))) = read(&path, until, asked).await {
            let permits = self.request.mode.permits();
            busy.holder = Some(Box::new(holder(recipe, permits, &path, &data, &stat)));
        }
        // The end of the own node changes the directory too.
        let (previous, own, _awaited) = (String::new(), Notification::Unwatched, session.wait());
        let wait = Wait { previous, left: None, event, own, losses: None, _awaited };
        self.wait = Some(wait);
        Some(busy)
    }

    fn asked(&mut self) {
        if let Some(node) = &mut self.node {
            node.turn.asked();
        }
    }
}
