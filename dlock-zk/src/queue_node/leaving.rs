//! A release that keeps the key taken for a while.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::Withdrawal;
use zookeeper::{Acl, CreateMode, Error, Stat};

use super::replacement::replace;
use super::{Node, QueueNode};
use crate::error::{is_refusal, of_write};

/// The node that is to replace that of a holder.
pub(crate) struct LeftNode {
    pub(crate) name: String,
    /// The time for which it keeps the key taken.
    pub(crate) millis: u64,
    pub(crate) content: String,
}

/// The outcome of a release that keeps the key taken.
pub(crate) enum LeaveOutcome {
    /// This node keeps the key taken until `ends`, by the servers' clock.
    LeftBehind { path: Arc<str>, ends: i64 },
    /// No node was left by this call.
    Otherwise(Withdrawal),
    /// The session has ended, and an earlier request may have left this node.
    Unseen(Arc<str>),
}

impl QueueNode {
    /// Replaces the node by one that keeps the key taken.
    pub(crate) async fn leave_behind(
        &mut self,
        acl: &Arc<[Acl]>,
        left: impl FnOnce(&Node) -> Option<LeftNode> + Send,
    ) -> Result<LeaveOutcome, Failure> {
        if self.session.ended().is_some() {
            // A replacement without an answer may have been carried out before the end of the session.
            let sent = self.replacement.take().map(|sent| sent.path);
            self.replaced_unseen = sent.or(self.replaced_unseen.take());
            self.forget();
            self.turn.left();
            let unseen = self.replaced_unseen.clone();
            return Ok(unseen.map_or(LeaveOutcome::Otherwise(Withdrawal::ABSENT), LeaveOutcome::Unseen));
        }
        // First, since the new node takes over the number of the node.
        self.learn().await?;
        // Other claims may send requests before the answer comes.
        self.turn.asked();
        // A replacement that is under way is waited for again. Where a deletion is under way there is nothing to
        // replace.
        let replacement = match (&mut self.replacement, &self.node, &self.deletion) {
            (Some(sent), ..) => sent,
            (none, Some(node), None) => match left(node) {
                Some(LeftNode { name, millis, content }) => {
                    let path = format!("{}/{name}", self.queue.directory).into();
                    let ends = move |stat: Stat| stat.ctime.saturating_add_unsigned(millis);
                    let new = (&path, content, CreateMode::Persistent, acl);
                    none.insert(replace(&self.session, &node.path, new, ends))
                }
                None => return Ok(LeaveOutcome::Otherwise(self.leave().await?)),
            },
            _ => return Ok(LeaveOutcome::Otherwise(self.leave().await?)),
        };
        let answer = (&mut replacement.answer).await;
        let path = Arc::clone(&replacement.path);
        self.replacement = None;
        match answer {
            Ok(ends) => {
                (self.node, self.deleted_unseen, self.replaced_unseen) = (None, false, None);
                self.turn.left();
                Ok(LeaveOutcome::LeftBehind { path, ends })
            }
            // The own node is gone: replaced by an earlier request, or deleted by another client.
            Err(Error::NoNode) => {
                let ours = self.deleted_unseen;
                (self.node, self.deleted_unseen, self.replaced_unseen) = (None, false, None);
                self.turn.left();
                Ok(LeaveOutcome::Otherwise(if ours { Withdrawal::REMOVED } else { Withdrawal::ABSENT }))
            }
            Err(error) => {
                self.session.end_if_failed(&error);
                // The next call repeats the transaction, and learns from a missing node that this one was carried out.
                if !is_refusal(&error) {
                    (self.deleted_unseen, self.replaced_unseen) = (true, Some(path));
                }
                Err(of_write(error, &self.queue.directory))
            }
        }
    }

    /// Gives up a replacement. If it was sent, the server carries it out before all that is sent next.
    pub(super) fn drop_replacement(&mut self) {
        self.deleted_unseen |= self.replacement.take().is_some();
    }
}
