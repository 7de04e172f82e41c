//! A claim whose key stays taken after a release: its own, or that of somebody before it.

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
    /// For how long what was left there keeps the key taken, by the servers' clock; `None` when it is gone. Whoever
    /// finds it after its end removes it.
    pub(super) async fn outlast(&mut self, name: &str, until: Instant) -> Result<Option<Duration>, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let (Some(own), Some(millis)) = (node.node(), node.recipe.left_for(name)) else {
            return Err(place_deleted());
        };
        let (session, path) = (&node.session, Arc::<str>::from(node.path_of(name)));
        let there = read(&path, until, session.client.check_stat(&path)).await?.flatten();
        let Some(stat) = there else { return Ok(None) };
        // The own node is younger. How much time has passed since tells when to ask the servers, and no more.
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

    /// What was left in front since the queue was looked at, for one who stands behind a client that may not know it
    /// and would never remove it.
    pub(super) async fn left_since(
        &mut self,
        previous: &str,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        let Some(node) = &self.node else { return Err(place_deleted()) };
        let Some(own) = node.node().map(|own| own.name.clone()) else { return Err(place_deleted()) };
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

    /// Whether what was left in front of these is gone now. Boxed: rare.
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

    /// Whether `name` is something that was left by a holder.
    pub(super) fn is_left(&self, name: &str) -> bool {
        self.node.as_ref().is_some_and(|node| node.recipe.left_for(name).is_some())
    }

    /// Releases the lock, and leaves its key taken for so long.
    pub(super) async fn leave_behind(&mut self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        if self.entry.take().is_some_and(|entry| entry.is_gone())
            && let Some(node) = &mut self.node
        {
            node.forget();
        }
        self.again = false;
        let patience = self.patience();
        let Self { node: Some(node), request, sessions, .. } = self else { return Ok(Withdrawal::ABSENT) };
        let (recipe, clock) = (node.recipe, node.session.clock.clone());
        // The servers' time has no more than milliseconds, and cuts what is less.
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
            // Without an answer it may be tried again, and is then seen to be gone.
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
