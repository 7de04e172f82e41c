//! Replaces one node by another one, in one transaction.
//!
//! The transaction, whose changes are made together or not at all:
//!
//! | change | reason |
//! |---|---|
//! | writes to the old node | the client behind it is notified of a change, looks at the queue again, and does not take the deletion of the node for its own turn |
//! | creates the new node | it has the number of the old one, and so its place |
//! | deletes the old node | if it is gone already, nothing is changed |

use std::sync::Arc;

use dlock_core::Timestamp;
use zookeeper::{Acl, Acls, CreateMode, Error, MultiWriteResult, Stat};

use crate::session::Session;
use crate::wire::Answer;

/// A transaction, which is sent when its answer is first polled.
pub(super) struct Replacement<T> {
    pub(super) sent: Timestamp,
    /// The new node.
    pub(super) path: Arc<str>,
    pub(super) answer: Answer<Result<T, Error>>,
}

/// Replaces `own` by the node `path` with `content`, as soon as the bound of [`Requests`](crate::session::Requests) for
/// deletions allows it. `of` takes what is needed from the `Stat` of the new node, in which only `czxid` and `ctime`
/// are right.
pub(super) fn replace<T: Send + 'static>(
    session: &Session,
    own: &Arc<str>,
    (path, content, mode, acl): (&Arc<str>, String, CreateMode, &Arc<[Acl]>),
    of: impl FnOnce(Stat) -> T + Send + 'static,
) -> Replacement<T> {
    let (client, gate) = (session.client.clone(), Arc::clone(&session.requests.deletions));
    let (own, made, acl) = (Arc::clone(own), Arc::clone(path), Arc::clone(acl));
    let answer = Box::pin(async move {
        let _pass = match gate.try_enter() {
            Some(pass) => pass,
            None => gate.enter(client.clone()).await,
        };
        let mut writer = client.new_multi_writer();
        writer.add_set_data(&own, content.as_bytes(), None)?;
        writer.add_create(&made, content.as_bytes(), &mode.with_acls(Acls::new(&acl)))?;
        writer.add_delete(&own, None)?;
        let results = writer.commit().await?;
        match results.into_iter().next() {
            // All changes have the number and the time of the transaction. The answer to a creation has neither, that
            // to the write to the old node has both.
            Some(MultiWriteResult::SetData { stat }) => {
                Ok(of(Stat { czxid: stat.mzxid, ctime: stat.mtime, ..stat }))
            }
            other => Err(Error::UnexpectedError(format!("an answer that fits no request: {other:?}"))),
        }
    });
    Replacement { sent: session.clock.now(), path: Arc::clone(path), answer }
}
