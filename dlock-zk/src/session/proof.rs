//! Proofs of life: committed writes.
//!
//! An answer that a server gives by itself proves nothing, since that server may be cut off from a majority. Not even
//! `sync` does: a deposed leader answers it until it notices. A write is answered once a majority has it. Each session
//! has one small node of its own for that, which no client watches.
//!
//! | the node is | request | outcome |
//! |---|---|---|
//! | not known to exist | create | made: done, and known to exist; there already: known to exist; its directory is missing: makes that, and tries again |
//! | known to exist | set data | written: done; missing: not known to exist |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zookeeper::{Acl, Acls, Client, CreateMode, Error};

use crate::config::Config;
use crate::wire::make_directory;

/// The number of tries to write, since the node or its directory may vanish meanwhile.
const TRIES: u32 = 8;

/// The outcome of a shared proof of life; `None` while it is under way.
pub(super) type Proven = Option<Result<(), Error>>;

/// The node that a session writes to.
pub(crate) struct ProofNode {
    directory: String,
    path: String,
    acl: Arc<[Acl]>,
    parent_acl: Arc<[Acl]>,
    exists: AtomicBool,
}

impl ProofNode {
    pub(super) fn new(config: &Config, session: i64) -> Self {
        let directory = config.base.sessions();
        Self {
            path: format!("{directory}/{session:016x}"),
            directory,
            acl: Arc::clone(&config.proof_acl),
            parent_acl: Arc::clone(&config.parent_acl),
            exists: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns `true` if the node is known to exist.
    pub(crate) fn exists(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    /// Writes to the node, and returns the time of the write by the clock of the servers' leader. A majority has the
    /// write when this returns.
    pub(crate) async fn write(&self, client: &Client) -> Result<i64, Error> {
        // Ephemeral: the servers delete the node with its session, so that none is left of processes that have ended.
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&self.acl));
        for _ in 0..TRIES {
            if self.exists() {
                // The data does not matter: the write itself is the proof.
                match client.set_data(&self.path, &[], None).await {
                    Err(Error::NoNode) => self.exists.store(false, Ordering::Release),
                    written => return written.map(|stat| stat.mtime),
                }
            }
            match client.create(&self.path, &[], &ephemeral).await {
                Ok((stat, _)) => {
                    self.exists.store(true, Ordering::Release);
                    return Ok(stat.ctime);
                }
                // Made by a request whose answer was lost, or by another task meanwhile. That proves nothing now: the
                // next round writes to it.
                Err(Error::NodeExists) => self.exists.store(true, Ordering::Release),
                Err(Error::NoNode) => make_directory(client, &self.directory, &self.parent_acl).await?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoNode)
    }
}
