//! A release that leaves the key taken.

use std::sync::Arc;

use dlock_core::Failure;
use dlock_core::backend::Withdrawal;
use zookeeper::{Acl, Acls, CreateMode, Error, MultiWriteResult};

use super::{Node, QueueNode};
use crate::error::{is_refusal, of_write};
use crate::session::{Answer, Session};

/// The node that takes the place of a holder.
pub(crate) struct Left {
    pub(crate) name: String,
    /// For how long.
    pub(crate) millis: u64,
    pub(crate) content: String,
}

/// A replacement that was sent.
pub(super) struct Replacement {
    path: Arc<str>,
    millis: u64,
    answer: Answer<Result<i64, Error>>,
}

/// How a claim left its queue whose key was to stay taken.
pub(crate) enum Leave {
    /// A node took the place of its own, and is over at this time of the servers.
    Left { path: Arc<str>, ends: i64 },
    /// Nothing was left now.
    Otherwise(Withdrawal),
    /// The session has ended, and this node may have taken the place of its own before.
    Unseen(Arc<str>),
}

impl QueueNode {
    /// Leaves the queue, and a node in its place, in one step.
    pub(crate) async fn leave_behind(
        &mut self,
        acl: &Arc<[Acl]>,
        left: impl FnOnce(&Node) -> Option<Left> + Send,
    ) -> Result<Leave, Failure> {
        if self.session.ended().is_some() {
            let sent = self.replacement.take().map(|sent| sent.path);
            self.replaced_unseen = sent.or(self.replaced_unseen.take());
            self.forget();
            self.turn.left();
            let unseen = self.replaced_unseen.clone();
            return Ok(unseen.map_or(Leave::Otherwise(Withdrawal::ABSENT), Leave::Unseen));
        }
        self.learn().await?;
        // Others need not wait for the answer to send what they have.
        self.turn.asked();
        let replacement = match (&mut self.replacement, &self.node, &self.deletion) {
            (Some(sent), ..) => sent,
            (none, Some(node), None) => match left(node) {
                Some(left) => none.insert(replace(&self.session, &self.queue.directory, node, left, acl)),
                None => return Ok(Leave::Otherwise(self.leave().await?)),
            },
            _ => return Ok(Leave::Otherwise(self.leave().await?)),
        };
        let answer = (&mut replacement.answer).await;
        let (path, millis) = (Arc::clone(&replacement.path), replacement.millis);
        self.replacement = None;
        match answer {
            Ok(since) => {
                (self.node, self.deleted_unseen, self.replaced_unseen) = (None, false, None);
                self.turn.left();
                Ok(Leave::Left { path, ends: since.saturating_add_unsigned(millis) })
            }
            // The own node is gone: by an earlier request, or by somebody else.
            Err(Error::NoNode) => {
                let ours = self.deleted_unseen;
                (self.node, self.deleted_unseen, self.replaced_unseen) = (None, false, None);
                self.turn.left();
                Ok(Leave::Otherwise(if ours { Withdrawal::REMOVED } else { Withdrawal::ABSENT }))
            }
            Err(error) => {
                self.session.heed(&error);
                if !is_refusal(&error) {
                    (self.deleted_unseen, self.replaced_unseen) = (true, Some(path));
                }
                Err(of_write(error, &self.queue.directory))
            }
        }
    }

    /// Gives up a replacement that nobody waits for any more. What was sent is carried out before what comes after it.
    pub(super) fn drop_replacement(&mut self) {
        self.deleted_unseen |= self.replacement.take().is_some();
    }
}

/// Sends the replacement when it is first polled, and a release may be under way. Whoever stands behind is notified of
/// a change of the node before, and not of its end: it would take that for its own turn.
fn replace(session: &Session, directory: &str, node: &Node, left: Left, acl: &Arc<[Acl]>) -> Replacement {
    let (client, gate) = (session.client.clone(), Arc::clone(&session.requests.deletions));
    let (own, acl) = (Arc::clone(&node.path), Arc::clone(acl));
    let Left { name, millis, content } = left;
    let path: Arc<str> = format!("{directory}/{name}").into();
    let made = Arc::clone(&path);
    let answer = Box::pin(async move {
        let _pass = match gate.try_enter() {
            Some(pass) => pass,
            None => gate.enter(client.clone()).await,
        };
        let persistent = CreateMode::Persistent.with_acls(Acls::new(&acl));
        let mut writer = client.new_multi_writer();
        writer.add_set_data(&own, content.as_bytes(), None)?;
        writer.add_create(&made, content.as_bytes(), &persistent)?;
        writer.add_delete(&own, None)?;
        let results = writer.commit().await?;
        match results.first() {
            // All of them have the same time. Servers leave it out of the answer to a creation.
            Some(MultiWriteResult::SetData { stat }) => Ok(stat.mtime),
            other => Err(Error::UnexpectedError(format!("an answer that fits no request: {other:?}"))),
        }
    });
    Replacement { path, millis, answer }
}
