//! Writes that the servers refuse to a stale holder.

use std::fmt;
use std::sync::Arc;

use dlock_core::backend::by_then;
use dlock_core::{Error, ErrorKind, Failure, Fence, Operation, Result};
use zookeeper::{Acls, CheckWriteError, CheckWriter, CreateMode, Error as ZkError};

use crate::error::of_write;
use crate::sessions::Sessions;
use crate::wire::in_time;

/// A change of nodes in one step, carried out only while a lock is held. Made by
/// [`ZooKeeper::fenced_write`](crate::ZooKeeper::fenced_write).
///
/// Paths are absolute, below the chroot of the URL. Nodes are created with the parent ACL of the settings.
#[must_use = "nothing is written before it is committed"]
pub struct FencedWrite {
    sessions: Arc<Sessions>,
    fence: Fence,
    changes: Vec<Change>,
}

struct Change {
    path: String,
    what: What,
}

enum What {
    Create(Vec<u8>),
    Set(Vec<u8>),
    Delete,
}

impl FencedWrite {
    pub(crate) fn new(sessions: Arc<Sessions>, fence: Fence) -> Self {
        Self { sessions, fence, changes: Vec::new() }
    }

    /// Creates a persistent node.
    pub fn create(self, path: &str, data: impl Into<Vec<u8>>) -> Self {
        self.with(path, What::Create(data.into()))
    }

    /// Sets the data of a node.
    pub fn set_data(self, path: &str, data: impl Into<Vec<u8>>) -> Self {
        self.with(path, What::Set(data.into()))
    }

    /// Deletes a node.
    pub fn delete(self, path: &str) -> Self {
        self.with(path, What::Delete)
    }

    fn with(mut self, path: &str, what: What) -> Self {
        let path = format!("{}{path}", self.sessions.config().chroot);
        self.changes.push(Change { path, what });
        self
    }

    /// Carries out all changes, or none. Returns `false` if the lock is not held any more, and no change was made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unknown`] if the answer did not come; also if the changes have more bytes than the servers take,
    /// which is 1 MiB unless their `jute.maxbuffer` says otherwise: they end the connection then.
    /// [`ErrorKind::InvalidConfig`] if a change cannot be made, such as one of a node that does not exist; other kinds
    /// as for a lock.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the changes may still be made.
    pub async fn commit(self) -> Result<bool> {
        self.carry_out().await.map_err(|failure| Error::new(Operation::Hold, failure).on("zk"))
    }

    async fn carry_out(&self) -> Result<bool, Failure> {
        let until = in_time();
        // A lock is held by the current session only: without one, no node has this fence.
        let Some(session) = self.sessions.current()? else { return Ok(false) };
        let Some(node) = session.node_of(self.fence.get().cast_signed()) else { return Ok(false) };
        session.connected(until).await?;
        let mut writer =
            session.client.new_check_writer(&node, None).map_err(|error| of_write(error, &node))?;
        for change in &self.changes {
            self.add(&mut writer, change).map_err(|error| of_write(error, &change.path))?;
        }
        match by_then(until, writer.commit()).await {
            Some(Ok(_)) => Ok(true),
            // The node of the lock is gone.
            Some(Err(CheckWriteError::CheckFailed { .. })) => Ok(false),
            Some(Err(error)) => Err(self.failure(error)),
            None => Err(Failure::unknown("no answer in time to a fenced write")),
        }
    }

    fn add(&self, writer: &mut CheckWriter<'_>, change: &Change) -> std::result::Result<(), ZkError> {
        match &change.what {
            What::Create(data) => {
                let acl = Acls::new(&self.sessions.config().parent_acl);
                writer.add_create(&change.path, data, &CreateMode::Persistent.with_acls(acl))
            }
            What::Set(data) => writer.add_set_data(&change.path, data, None),
            What::Delete => writer.add_delete(&change.path, None),
        }
    }

    fn failure(&self, error: CheckWriteError) -> Failure {
        match error {
            CheckWriteError::OperationFailed { index, source } => {
                let path = self.changes.get(index).map_or("", |change| change.path.as_str());
                match source {
                    ZkError::NoNode | ZkError::NodeExists | ZkError::NotEmpty => Failure::new(
                        ErrorKind::InvalidConfig,
                        format!("{path:?} cannot be changed so ({source})"),
                    ),
                    source => of_write(source, path),
                }
            }
            CheckWriteError::RequestFailed { source } => of_write(source, ""),
            other => Failure::unknown(other.to_string()),
        }
    }
}

impl fmt::Debug for FencedWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedWrite")
            .field("fence", &self.fence)
            .field("changes", &self.changes.len())
            .finish_non_exhaustive()
    }
}
