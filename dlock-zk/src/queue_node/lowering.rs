//! A writer that goes on as a reader.
//!
//! In one transaction the node of the writer is replaced by one of a reader with the same number, which therefore
//! stands where the writer stood, as where a thread of Curator that writes reads before it releases its write lock.
//! Whoever stands behind is notified of a change of the node before, and not of its end, and looks at the queue: one
//! that wrote would take the end for its own turn. The fence of the writer goes along in the data.

use std::sync::Arc;

use dlock_core::backend::{Renewed, by_then};
use dlock_core::{Failure, Fence, Timestamp};
use tokio::time::Instant;
use zookeeper::{Acl, Acls, CreateMode, Error, MultiWriteResult, Stat};

use super::{Node, QueueNode};
use crate::error::{is_refusal, of_write};
use crate::session::{Answer, Session, read};

/// What is to take the place of a writer's node.
pub(crate) struct Reader {
    pub(crate) name: String,
    pub(crate) content: String,
}

/// A transaction that was sent.
pub(super) struct Lowering {
    sent: Timestamp,
    answer: Answer<Result<Stat, Error>>,
}

/// How it went.
pub(crate) enum Lowered {
    /// It reads by this node.
    Reads { path: Arc<str>, czxid: i64 },
    /// There was nothing.
    Gone,
}

impl From<&Lowered> for Renewed {
    fn from(lowered: &Lowered) -> Self {
        match lowered {
            Lowered::Reads { .. } => Self::Extended,
            Lowered::Gone => Self::Gone,
        }
    }
}

impl QueueNode {
    /// Goes on as a reader. An error may leave it open whether it does: the next call finds out.
    pub(crate) async fn lower(
        &mut self,
        acl: &Arc<[Acl]>,
        reader: Reader,
        until: Instant,
    ) -> Result<Lowered, Failure> {
        let Some(own) = self.node.clone() else { return Ok(Lowered::Gone) };
        let path: Arc<str> = self.path_of(&reader.name).into();
        if self.lowering.is_none() && self.lowered_unseen.is_some() {
            let there = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
            if let Some(stat) = there.filter(|stat| stat.ephemeral_owner == self.session.id) {
                return Ok(self.reads(reader.name, &stat));
            }
        }
        let lowering = match &mut self.lowering {
            Some(lowering) => lowering,
            none => {
                self.lowered_unseen = Some(Arc::clone(&path));
                none.insert(send(&self.session, &own, &path, reader.content, acl))
            }
        };
        let Some(answer) = by_then(until, &mut lowering.answer).await else {
            // The next call waits for the same answer.
            return Err(Failure::unknown("no answer in time to a downgrade"));
        };
        let sent = lowering.sent;
        self.lowering = None;
        match answer {
            Ok(stat) => {
                self.session.note_proof(sent);
                Ok(self.reads(reader.name, &stat))
            }
            // The own node is gone: by an earlier request, or by somebody else.
            Err(Error::NoNode) => {
                let there = read(&path, until, self.session.client.check_stat(&path)).await?.flatten();
                Ok(match there.filter(|stat| stat.ephemeral_owner == self.session.id) {
                    Some(stat) => self.reads(reader.name, &stat),
                    None => Lowered::Gone,
                })
            }
            Err(error) => {
                self.session.heed(&error);
                if is_refusal(&error) {
                    self.lowered_unseen = None;
                }
                Err(of_write(error, &self.queue.directory))
            }
        }
    }

    /// Whether a reader's node may stand in the place of its own, by a request that nobody knows the outcome of.
    pub(crate) fn may_be_lowered(&self) -> bool {
        self.lowered_unseen.is_some()
    }

    fn reads(&mut self, name: String, stat: &Stat) -> Lowered {
        self.set_node(name, stat, None);
        self.lowered_unseen = None;
        // Those who read need no place among those who wait.
        self.turn.leave_place();
        self.node
            .as_ref()
            .map_or(Lowered::Gone, |node| Lowered::Reads { path: Arc::clone(&node.path), czxid: node.czxid })
    }

    /// The node of a reader that may stand in the place of its own by now, until it is known to be gone. Nothing that
    /// was sent is carried out after the end of its own node.
    pub(super) fn drop_lowering(&mut self) -> Option<Arc<str>> {
        self.lowering = None;
        self.lowered_unseen.clone()
    }
}

/// What is in the node of a reader that wrote.
pub(crate) fn content(fence: Fence, line: &str) -> String {
    format!("{WROTE}{} {line}", fence.get())
}

/// The fence with which it wrote.
pub(crate) fn fence(text: &str) -> Option<Fence> {
    let number = text.strip_prefix(WROTE)?.split(' ').next()?;
    number.parse().ok().map(Fence::new)
}

const WROTE: &str = "wrote=";

fn send(session: &Session, node: &Node, path: &Arc<str>, content: String, acl: &Arc<[Acl]>) -> Lowering {
    let (client, gate) = (session.client.clone(), Arc::clone(&session.requests.deletions));
    let (own, reader, acl) = (Arc::clone(&node.path), Arc::clone(path), Arc::clone(acl));
    let answer = Box::pin(async move {
        let _pass = match gate.try_enter() {
            Some(pass) => pass,
            None => gate.enter(client.clone()).await,
        };
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&acl));
        let mut writer = client.new_multi_writer();
        writer.add_set_data(&own, content.as_bytes(), None)?;
        writer.add_create(&reader, content.as_bytes(), &ephemeral)?;
        writer.add_delete(&own, None)?;
        let results = writer.commit().await?;
        match results.into_iter().next() {
            // All of them are one transaction. Servers leave its number out of the answer to a creation.
            Some(MultiWriteResult::SetData { stat }) => {
                Ok(Stat { czxid: stat.mzxid, ctime: stat.mtime, ..stat })
            }
            other => Err(Error::UnexpectedError(format!("an answer that fits no request: {other:?}"))),
        }
    });
    Lowering { sent: session.clock.now(), answer }
}

#[cfg(test)]
mod tests {
    use dlock_core::Holder;

    use super::*;

    #[test]
    fn the_fence_of_a_writer_is_read_as_it_was_written_and_nothing_else_is_one() {
        let text = content(Fence::new(4_294_967_300), "host=a pid=7 label=wrote%3d1 since=5");
        assert_eq!(fence(&text), Some(Fence::new(4_294_967_300)));
        assert_eq!(Holder::parse(&text).pid, Some(7));
        for strange in ["", "wrote=", "wrote=-1 x", "wrote=x", "host=a wrote=7", "fence=7 x"] {
            assert_eq!(fence(strange), None, "{strange:?}");
        }
    }
}
