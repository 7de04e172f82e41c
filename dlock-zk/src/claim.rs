//! One claim on one lock.
//!
//! | a [`ZooKeeperClaim`] is | fields that are set | what an attempt does | what `changed` waits for |
//! |---|---|---|---|
//! | new | none | opens the session if need be, then as the next | nothing: it never ends |
//! | waiting for its turn | `node`, whose `turn` waits | takes the turn; when that has come, makes the node, and looks at the queue | the turn: other claims of this process go first |
//! | looking ahead | `node`, `looking` | waits for the answers of the same requests | nothing: it never ends |
//! | waiting in the queue | `node`, `wait` | judges the notifications; without one it looks at the node before its own, as the safety net | a change of the node before, or of its own; next for permits: of the directory |
//! | granted | `node`, `proven_at`, and `entry` once it has its signal | | |
//! | withdrawn | `node`, of which the servers have nothing | as a new one | nothing: it never ends |
//!
//! A place in the queue that was lost with its session is reported as `requeued` once, and `changed` then ends at once.

mod downgrade;
mod failures;
mod left;
mod permits;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Busy, Claim, ClaimRequest, Grant, Mode, Renewed, RequestClock, Signal, Validity, Withdrawal,
    by_then,
};
use dlock_core::{Failure, Fence, Timestamp};
use tokio::time::Instant;
use zookeeper::EventType;

use self::failures::{SEMAPHORE, exhausted, place_deleted, unclear, used_otherwise};
use self::waiting::{Looked, Looking, Notification, Wait, look};
use crate::config::Config;
use crate::error::of_read;
use crate::holder::holder;
use crate::queue_node::QueueNode;
use crate::recipe::Position;
use crate::session::LockEntry;
use crate::sessions::Sessions;
use crate::wire::read;

/// A claim on a lock of [`ZooKeeper`](crate::ZooKeeper).
pub struct ZooKeeperClaim {
    sessions: Arc<Sessions>,
    request: ClaimRequest,
    clock: RequestClock,
    node: Option<QueueNode>,
    wait: Option<Wait>,
    /// A look at the node before ours, the answer to which is still to come.
    looking: Option<Looking>,
    /// A place in the queue was lost, which was not reported yet.
    requeued: bool,
    /// `changed` ends at once, since another attempt is worthwhile.
    again: bool,
    /// The send time of the last proof of life when the lock was granted.
    proven_at: Option<Timestamp>,
    entry: Option<LockEntry>,
}

impl ZooKeeperClaim {
    pub(crate) fn new(sessions: Arc<Sessions>, request: ClaimRequest, clock: RequestClock) -> Self {
        Self {
            sessions,
            request,
            clock,
            node: None,
            wait: None,
            looking: None,
            requeued: false,
            again: false,
            proven_at: None,
            entry: None,
        }
    }

    /// Returns the bound of the waits that are no part of the outcome. It is shorter than the engine's wait for an
    /// answer, so that servers that cannot be reached are reported as such, and not as servers that may have got a
    /// request.
    fn patience(&self) -> Instant {
        Instant::now() + self.request.request_timeout * 3 / 4
    }

    /// Makes sure of a session that has a connection and can prove that it lives. A place in the queue is lost with an
    /// earlier session.
    async fn settle(&mut self, until: Instant) -> Result<(), Failure> {
        match &mut self.node {
            Some(node) if node.session.ended().is_none() => {}
            Some(node) => {
                // The session first: if none can be opened, the claim keeps what it knows of its old node.
                let session = self.sessions.get(until).await?;
                (self.wait, self.looking) = (None, None);
                self.requeued |= node.move_to(session);
            }
            None => {
                let session = self.sessions.get(until).await?;
                let Config { base, recipe, .. } = self.sessions.config();
                let queue = self.sessions.queues.of(base.directory(&self.request.key));
                let mode = self.request.mode;
                let prefix = recipe.prefix(&self.request.token, mode);
                self.node = Some(QueueNode::new(session, queue, (*recipe, mode), prefix));
            }
        }
        let Some(session) = self.node.as_ref().map(|node| Arc::clone(&node.session)) else { return Ok(()) };
        session.connected(until).await?;
        session.provable(until).await
    }

    /// Makes one attempt. Rare steps are boxed: they would make the future of every attempt larger than what allocators
    /// have at hand.
    async fn try_once(&mut self) -> Result<Attempt, Failure> {
        self.again = false;
        // The wait for a connection is no part of the request.
        self.clock.queued();
        self.settle(self.patience()).await?;
        if !self.clock.written() {
            return Err(Failure::unavailable("nobody wants it any more"));
        }
        let until = self.patience();
        // Reported before there is a new node, so that the engine learns of the lost place in any case.
        if std::mem::take(&mut self.requeued) && self.request.waits {
            self.again = true;
            let mut busy = Busy::default();
            busy.requeued = true;
            return Ok(Attempt::Busy(busy));
        }
        // Before the turn: a notification is judged without it, and mostly without a request.
        if self.wait.is_some() {
            if let Some(attempt) = Box::pin(self.ask_previous(until)).await? {
                return Ok(attempt);
            }
            // It has shown all that it can. If the claim waits for its turn now, a notification that has arrived must
            // not end that wait.
            self.wait = None;
        }
        if !self.take_turn(until).await? {
            return Ok(Attempt::Busy(Busy::default()));
        }
        if let Mode::Permits { of, .. } = self.request.mode {
            // Permits depend on all nodes of the directory, and not on the node before alone.
            return Box::pin(self.take_permits(of, until)).await;
        }
        loop {
            let Self { node: Some(node), request, sessions, .. } = self else { return Err(place_deleted()) };
            match node.enqueue(sessions.config(), || request.describe(), until).await? {
                Position::First | Position::Reading => {
                    node.turn.asked();
                    return self.grant(until).await;
                }
                // The node before may be gone when it is to be watched: then the queue is looked at again.
                Position::Behind { first, previous } => {
                    if let Some(busy) = Box::pin(self.look_ahead(&first, previous, until)).await? {
                        if let Some(node) = &mut self.node {
                            node.turn.asked();
                        }
                        return Ok(Attempt::Busy(busy));
                    }
                }
                Position::Missing => return Err(Box::pin(self.deleted(until)).await),
                Position::Exhausted => return Err(exhausted(&node.queue.directory)),
                Position::Unclear(name) => return Err(unclear(&node.queue.directory, &name)),
                Position::Semaphore => return Err(used_otherwise(request.mode, SEMAPHORE)),
            }
        }
    }

    /// Returns `true` if requests may be sent. Otherwise other claims of this process go first, and some of their
    /// requests are under way already.
    async fn take_turn(&mut self, until: Instant) -> Result<bool, Failure> {
        let Some(node) = &mut self.node else { return Ok(false) };
        // A claim that does not wait leaves at once, and needs no place among the waiters. A reader or a holder of
        // permits that was granted keeps its node, and leaves that place to others.
        let needs_place = self.request.waits && self.proven_at.is_none();
        if node.turn.take(&node.queue, &node.session, needs_place) {
            return Ok(true);
        }
        if self.request.waits {
            return Ok(false);
        }
        match by_then(until, node.turn.come()).await {
            Some(()) => Ok(true),
            None => Err(Failure::unavailable("this process has too many requests under way")),
        }
    }

    /// Judges what a claim that waits knows by now, or asks for the node before its own. Returns `None` if the queue
    /// has to be looked at again.
    async fn ask_previous(&mut self, until: Instant) -> Result<Option<Attempt>, Failure> {
        let (Some(wait), Some(node)) = (&mut self.wait, &self.node) else { return Ok(None) };
        match wait.own.arrived() {
            None => {}
            Some(EventType::NodeDeleted) => return Err(self.deleted(until).await),
            // The own node was written to, or the session has ended. In either case its watch is used up.
            Some(_) => return Ok(None),
        }
        if self.request.mode.permits().is_some() {
            // Whichever node is gone, the holders of permits may be others now.
            return Ok(None);
        }
        let losses = node.session.losses();
        match wait.event.arrived() {
            // The node before had the lock. No node can have come in between, and our own, which is watched too, is
            // still there, since the connection is still the same one.
            Some(EventType::NodeDeleted)
                if node.recipe.passes_on()
                    && node.queue.is_head(&wait.previous)
                    && losses.is_some()
                    && losses == wait.losses
                    && !matches!(wait.own, Notification::Unwatched) =>
            {
                // Other readers may stand before a reader, so that it need not be the head.
                if let (Some(own), false) = (node.node(), self.request.mode == Mode::Shared) {
                    node.queue.note_head(&own.name);
                }
                self.grant(until).await.map(Some)
            }
            Some(_) => Ok(None),
            // No notification has come: this attempt is the safety net.
            None => {
                let (path, previous, left) =
                    (node.path_of(&wait.previous), wait.previous.clone(), wait.left.clone());
                let look = node.session.client.check_stat(&path);
                if read(&path, until, look).await?.flatten().is_none() {
                    return Ok(None);
                }
                let left = match left {
                    None => self.left_since(&previous, until).await?,
                    left => left,
                };
                let is_next = left.as_ref() == Some(&previous);
                let mut busy = Busy::default();
                if let Some(left) = left {
                    busy.retry_after = self.outlast(&left, until).await?;
                    if busy.retry_after.is_none() {
                        return Ok(None);
                    }
                    // The claims further behind are notified by the nodes before theirs, or look now and then.
                    busy.retry_after = busy.retry_after.filter(|_| is_next);
                }
                Ok(Some(Attempt::Busy(busy)))
            }
        }
    }

    /// Returns the failure of a claim whose own node is gone. Servers report that before they report that the session
    /// has ended, which is no reason to give up. A proof of life shows which of the two it is.
    async fn deleted(&mut self, until: Instant) -> Failure {
        let Some(session) = self.node.as_ref().map(|node| Arc::clone(&node.session)) else {
            return place_deleted();
        };
        match session.prove_life(until).await {
            Ok(()) => place_deleted(),
            Err(failure) => failure,
        }
    }

    /// Grants the lock. The deadline counts from the last proof of life, which therefore has to be a fresh one.
    async fn grant(&mut self, until: Instant) -> Result<Attempt, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let Some(own) = node.node() else { return Err(place_deleted()) };
        let (session, fence) = (Arc::clone(&node.session), Fence::new(own.czxid.cast_unsigned()));
        let proven_at = session.fresh_proof(until).await?;
        let validity = Validity::Session(Some(session.trusted_for()));
        self.proven_at = Some(proven_at);
        // A reader or a holder of permits keeps its node while others come and go, and leaves its place among the
        // waiters.
        if let (false, Some(node)) = (self.request.mode == Mode::Exclusive, &mut self.node) {
            node.turn.leave_place();
        }
        Ok(Attempt::Granted(Grant::new(validity).with_fence(fence).proven_at(proven_at)))
    }

    /// Watches `previous`, and finds out the holder of the lock by its node `first`. Returns `None` if `previous` is
    /// gone, or a node in front whose time was over.
    async fn look_ahead(
        &mut self,
        first: &str,
        previous: String,
        until: Instant,
    ) -> Result<Option<Busy>, Failure> {
        let mut busy = Busy::default();
        // First, since a node that nobody owns stays until a client removes it.
        let left = self.is_left(first);
        if left {
            busy.retry_after = self.outlast(first, until).await?;
            if busy.retry_after.is_none() {
                return Ok(None);
            }
        }
        let expires_in = busy.retry_after;
        let Some(node) = &mut self.node else { return Ok(None) };
        let permits = self.request.mode.permits();
        if !self.request.waits {
            // The deletion goes ahead of all later requests, so that a claim that does not wait is in no other's way.
            node.send_deletion();
            let path = node.path_of(first);
            let asked = node.session.client.get_data(&path);
            // The holder is information only: no reason to fail.
            if let Ok(Some((data, stat))) = read(&path, until, asked).await {
                let mut holder = holder(node.recipe, permits, &path, &data, &stat);
                holder.expires_in = expires_in;
                busy.holder = Some(Box::new(holder));
            }
            return Ok(Some(busy));
        }
        // Kept in `self` until it is answered, so that an attempt that is dropped here loses no watch.
        if self.looking.as_ref().is_none_or(|looking| looking.previous != previous) {
            self.looking = look(node, first, &previous);
        }
        let Some(looking) = &mut self.looking else { return Err(place_deleted()) };
        let Some(looked) = by_then(until, &mut looking.answer).await else {
            // The next attempt waits for the same answer.
            return Err(Failure::unavailable(format!("no answer in time about {:?}", looking.previous)));
        };
        let losses = looking.losses;
        self.looking = None;
        match looked.map_err(|error| of_read(error, &previous))? {
            // The node before was written to, so that it has its permits by now.
            Looked::Watched { written: true, .. } if permits.is_some() => Ok(None),
            Looked::Watched { previous: event, own, holder: who, .. } => {
                busy.holder = who.map(|(data, stat)| {
                    let mut holder = holder(node.recipe, permits, first, &data, &stat);
                    holder.expires_in = expires_in;
                    Box::new(holder)
                });
                busy.retry_after = expires_in.filter(|_| previous == first);
                let left = left.then(|| first.to_owned());
                self.wait = Some(Wait { previous, left, event, own, losses, _awaited: node.session.wait() });
                Ok(Some(busy))
            }
            Looked::OwnGone => Err(self.deleted(until).await),
            Looked::Gone => Ok(None),
        }
    }
}

impl Claim for ZooKeeperClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.try_once().await
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.again) {
            return Ok(());
        }
        match (&mut self.wait, &mut self.node) {
            // The end of the session is an event too; the next attempt shows which it was.
            (Some(wait), _) => {
                tokio::select! {
                    _ = wait.event.arrives() => {}
                    _ = wait.own.arrives() => {}
                }
            }
            (None, Some(node)) if node.turn.is_waiting() => node.turn.come().await,
            _ => std::future::pending().await,
        }
        Ok(())
    }

    fn granted(&mut self, signal: Signal) {
        let (Some(node), Some(proven_at)) = (&self.node, self.proven_at) else {
            return signal.lost("it was withdrawn");
        };
        match node.node() {
            Some(own) => {
                self.entry = Some(node.session.enter(signal, Arc::clone(&own.path), own.czxid, proven_at));
            }
            None => signal.lost("its node was deleted"),
        }
    }

    /// Extends nothing, and is never called: the session keeps the lock.
    async fn renew(&mut self) -> Result<Renewed, Failure> {
        Ok(Renewed::Extended)
    }

    async fn downgrade(&mut self) -> Result<Renewed, Failure> {
        // Boxed, since it is rare.
        Box::pin(self.downgrade_node()).await
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        // The entry first: from now on the deletion of the node is no loss.
        let gone = self.entry.take().is_some_and(|entry| entry.is_gone());
        self.again = false;
        let withdrawal = match &mut self.node {
            Some(node) if gone => {
                node.forget();
                node.leave().await
            }
            Some(node) => node.leave().await,
            None => Ok(Withdrawal::ABSENT),
        };
        // After the deletion of the own node, which used up its watch: that needs not be removed.
        (self.wait, self.looking) = (None, None);
        withdrawal
    }

    async fn leave(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        // Boxed, since it is rare, and would be part of every release.
        Box::pin(self.leave_behind(taken_for)).await
    }

    fn request_clock(&self) -> Option<RequestClock> {
        Some(self.clock.clone())
    }

    fn is_clean(&self) -> bool {
        self.node.as_ref().is_none_or(QueueNode::is_empty)
    }
}

impl fmt::Debug for ZooKeeperClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest size of which glibc's allocator keeps memory at hand for each thread.
    const AT_HAND: usize = 1_032;

    fn size<'a, F: Future>(_: impl FnOnce(&'a mut ZooKeeperClaim) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_steps_of_a_claim_are_small() {
        let steps =
            [size(|claim| claim.attempt()), size(|claim| claim.withdraw()), size(|claim| claim.changed())];
        assert!(steps.iter().all(|size| *size <= AT_HAND), "{steps:?}");
    }
}
