//! Proofs of life: committed writes.
//!
//! Whatever a server answers by itself proves nothing, since it may be cut off from a majority; not even `sync` does,
//! which a leader that was deposed answers until it notices. A write is answered when a majority has it. Each session
//! has one small node of its own for that; nobody watches it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zookeeper::{Acl, Acls, Client, CreateMode, Error};

use crate::config::Config;
use crate::wire::make_directory;

/// How often the node is made anew when it or its directory vanishes meanwhile.
const TRIES: u32 = 8;

/// What came of a proof of life.
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

    /// Whether it was written before.
    pub(crate) fn exists(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    /// Writes. Done when a majority has it. The time of the write, by the clock of the servers' leader.
    pub(crate) async fn write(&self, client: &Client) -> Result<i64, Error> {
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::new(&self.acl));
        for _ in 0..TRIES {
            if self.exists() {
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
                // By a request whose answer was lost, or by another task meanwhile.
                Err(Error::NodeExists) => self.exists.store(true, Ordering::Release),
                Err(Error::NoNode) => make_directory(client, &self.directory, &self.parent_acl).await?,
                Err(error) => return Err(error),
            }
        }
        Err(Error::NoNode)
    }
}
