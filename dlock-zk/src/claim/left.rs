//! The steps of a claim whose key stays taken after a release: its own, or that of a holder before it.
//!
//! ```text
//!  holder ── leave_behind: one transaction ──► a node that nobody owns, in its place ── its time is over ──► ended
//!                                                                                                             │
//!    deleted by the next claim that looks (`outlast`), or by the program that left it (`sessions/leftovers.rs`) ◄┘
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dlock_core::backend::Withdrawal;
use dlock_core::{Failure, Fence};
use tokio::time::Instant;

use super::ZooKeeperClaim;
use super::failures::place_deleted;
use crate::left::{content, remaining};
use crate::queue_node::{LeaveOutcome, LeftNode};
use crate::recipe::{Position, Recipe};
use crate::wire::read;

impl ZooKeeperClaim {
    /// Returns for how long the node `name`, which was left there, keeps the key taken by the servers' clock. Returns
    /// `None` if it is gone, or has ended and was removed here.
    pub(super) async fn outlast(&mut self, name: &str, until: Instant) -> Result<Option<Duration>, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let (Some(own), Some(millis)) = (node.node(), node.recipe.left_for(name)) else {
            return Err(place_deleted());
        };
        let (session, path) = (&node.session, Arc::<str>::from(node.path_of(name)));
        let there = read(&path, until, session.client.check_stat(&path)).await?.flatten();
        let Some(stat) = there else { return Ok(None) };
        // The own node is younger, so that a node whose time was over then has ended. The time that has passed since
        // only decides whether it is worth asking the servers for theirs.
        if remaining(millis, &stat, own.ctime).is_some() {
            let passed = u64::try_from(session.clock.now().since(own.known).as_millis()).unwrap_or(u64::MAX);
            let mut left = remaining(millis, &stat, own.ctime.saturating_add_unsigned(passed));
            if left.is_none() {
                left = remaining(millis, &stat, session.server_time(until).await?);
            }
            if left.is_some() {
                return Ok(left);
            }
        }
        session.delete(&path, until).await?;
        Ok(None)
    }

    /// Returns what was left in front since the queue was looked at, for a claim behind a client that may not know such
    /// nodes and would never remove them.
    pub(super) async fn left_since(
        &mut self,
        previous: &str,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let Some(own) = node.node().map(|own| own.name.clone()) else { return Err(place_deleted()) };
        // `takes_look` comes last, since it counts as a look.
        if node.queue.is_head(previous) || !Recipe::is_strange(previous) || !node.queue.takes_look() {
            return Ok(None);
        }
        let (queue, session, recipe) = (Arc::clone(&node.queue), Arc::clone(&node.session), node.recipe);
        let children = queue.list(&session, until).await?.unwrap_or_default();
        let Position::Behind { first, .. } = recipe.position(&children, &own) else { return Ok(None) };
        let left = recipe.left_for(&first).map(|_| first);
        if let (Some(left), Some(wait)) = (&left, &mut self.wait) {
            wait.left = Some(left.clone());
        }
        Ok(left)
    }

    /// Returns `true` if what was left among these is gone now. Its future is boxed, since it is rare.
    pub(super) async fn has_outlasted(
        &mut self,
        children: &[String],
        until: Instant,
    ) -> Result<bool, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let left = children.iter().find(|name| node.recipe.left_for(name).is_some());
        match left.cloned() {
            Some(left) => Ok(Box::pin(self.outlast(&left, until)).await?.is_none()),
            None => Ok(false),
        }
    }

    /// Returns `true` if the node `name` was left by a holder.
    pub(super) fn is_left(&self, name: &str) -> bool {
        self.node.as_ref().is_some_and(|node| node.recipe.left_for(name).is_some())
    }

    /// Releases the lock, and leaves its key taken for so long.
    pub(super) async fn leave_behind(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        // The entry first: from now on the end of the node is no loss.
        if self.entry.take().is_some_and(|entry| entry.is_gone())
            && let Some(node) = &mut self.node
        {
            node.forget();
        }
        self.again = false;
        let patience = self.patience();
        let Self { node: Some(node), request, sessions, .. } = self else { return Ok(Withdrawal::ABSENT) };
        let (recipe, clock) = (node.recipe, node.session.clock.clone());
        // The servers' time is rounded down to milliseconds: one more makes up for that.
        let millis =
            u64::try_from(taken_for.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX).saturating_add(1);
        let left = node.leave_behind(&sessions.config().acl, |own| {
            let name = recipe.left_behind(&request.token, &own.name, millis)?;
            let now = SystemTime::now();
            let since = now.checked_sub(clock.now().since(own.known)).unwrap_or(now);
            let fence = Fence::new(own.czxid.cast_unsigned());
            Some(LeftNode { name, millis, content: content(fence, &request.describe_since(since)) })
        });
        let withdrawal = match left.await? {
            LeaveOutcome::LeftBehind { path, ends } => {
                sessions.remove_later(path, ends, Duration::from_millis(millis));
                Withdrawal::REMOVED
            }
            LeaveOutcome::Otherwise(withdrawal) => withdrawal,
            // Without an answer the node may be there. Asked after a write of the new session, so that the answer is no
            // older.
            LeaveOutcome::Unseen(path) => {
                let session = sessions.get(patience).await?;
                session.connected(patience).await?;
                session.server_time(patience).await?;
                let there = read(&path, patience, session.client.check_stat(&path)).await?.flatten();
                if there.is_some() { Withdrawal::REMOVED } else { Withdrawal::ABSENT }
            }
        };
        (self.wait, self.looking) = (None, None);
        Ok(withdrawal)
    }
}
