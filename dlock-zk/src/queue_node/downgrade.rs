//! Downgrades the node of a writer to that of a reader.
//!
//! One transaction [replaces](super::replacement) the node of the writer by one of a reader with the same number, which
//! therefore stands where the writer stood. Curator has it in the same place after a thread takes its read lock and
//! then releases its write lock. The data of the reader's node has the fence of the writer.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::{Renewed, by_then};
use tokio::time::Instant;
use zookeeper::{Acl, CreateMode, Error, Stat};

use super::QueueNode;
use super::replacement::replace;
use crate::error::{is_refusal, of_write};
use crate::wire::read;

/// The node that is to replace that of a writer.
pub(crate) struct Reader {
    pub(crate) name: String,
    pub(crate) content: String,
}

/// The outcome of a downgrade.
pub(crate) enum Downgraded {
    /// The claim holds its lock as a reader, by this node.
    Reads { path: Arc<str>, czxid: i64 },
    /// The claim had no node.
    Gone,
}

impl From<&Downgraded> for Renewed {
    fn from(downgraded: &Downgraded) -> Self {
        match downgraded {
            Downgraded::Reads { .. } => Self::Extended,
            Downgraded::Gone => Self::Gone,
        }
    }
}

impl QueueNode {
    /// Replaces the node by that of a reader. After an unknown outcome, the next call finds it out.
    pub(crate) async fn downgrade(
        &mut self,
        acl: &Arc<[Acl]>,
        reader: Reader,
        until: Instant,
    ) -> Result<Downgraded, Failure> {
        let Some(own) = self.node.clone() else { return Ok(Downgraded::Gone) };
        let path: Arc<str> = self.path_of(&reader.name).into();
        // An earlier transaction has no answer any more, and may have made the node.
        if self.downgrade.is_none() && self.downgrade_unseen.is_some() {
            let there = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
            if let Some(stat) = there.filter(|stat| stat.ephemeral_owner == self.session.id) {
                return Ok(self.reads(reader.name, &stat));
            }
        }
        let downgrade = match &mut self.downgrade {
            Some(downgrade) => downgrade,
            none => {
                // Before the transaction is sent, so that `leave` deletes both nodes if this future is dropped.
                self.downgrade_unseen = Some(Arc::clone(&path));
                let new = (&path, reader.content, CreateMode::Ephemeral, acl);
                none.insert(replace(&self.session, &own.path, new, |stat| stat))
            }
        };
        let Some(answer) = by_then(until, &mut downgrade.answer).await else {
            // The next call waits for the same answer.
            return Err(Failure::unknown("no answer in time to a downgrade"));
        };
        let sent = downgrade.sent;
        self.downgrade = None;
        match answer {
            Ok(stat) => {
                self.session.note_proof(sent);
                Ok(self.reads(reader.name, &stat))
            }
            // The own node is gone: replaced by an earlier request, or deleted by another client.
            Err(Error::NoNode) => {
                let there = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
                Ok(match there.filter(|stat| stat.ephemeral_owner == self.session.id) {
                    Some(stat) => self.reads(reader.name, &stat),
                    None => Downgraded::Gone,
                })
            }
            Err(error) => {
                self.session.end_if_failed(&error);
                // A transaction that was refused made no node.
                if is_refusal(&error) {
                    self.downgrade_unseen = None;
                }
                Err(of_write(error, &self.queue.directory))
            }
        }
    }

    /// Returns `true` if a downgrade was sent whose outcome is not known.
    pub(crate) fn may_be_downgraded(&self) -> bool {
        self.downgrade_unseen.is_some()
    }

    fn reads(&mut self, name: String, stat: &Stat) -> Downgraded {
        self.set_node(name, stat, None);
        self.downgrade_unseen = None;
        // A reader needs no place among the waiters.
        self.turn.leave_place();
        self.node.as_ref().map_or(Downgraded::Gone, |node| Downgraded::Reads {
            path: Arc::clone(&node.path),
            czxid: node.czxid,
        })
    }

    /// Gives up a downgrade. Returns the node of the reader, which may be there until it is known to be gone. A
    /// downgrade that was sent is not carried out after the deletion of the writer's node.
    pub(super) fn drop_downgrade(&mut self) -> Option<Arc<str>> {
        self.downgrade = None;
        self.downgrade_unseen.clone()
    }
}
