//! The clients that are measured beside each other.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use dlock_bench::measure::Pairs;
use dlock_core::{Locks, Wait};
use dlock_zk::ZooKeeper;
use zookeeper::{Acls, Client, CreateMode, Error};

/// The session of every client.
pub(crate) const SESSION: Duration = Duration::from_secs(30);

/// Where the bare client has its locks.
const BARE: &str = "/bare";

/// As long as what dlock writes into its nodes.
const CONTENT: [u8; 96] = [b'x'; 96];

/// What is measured.
pub(crate) async fn dlock(url: &str) -> Result<Locks> {
    let backend = ZooKeeper::builder(url).with_session_timeout(SESSION).connect().await?;
    Ok(Locks::builder(backend).with_wait(Wait::Forever).build()?)
}

/// The bare client: no waiting, no proof of life, no clean-up, no local validity.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) client: Client,
    /// Creates and lists one after the other, instead of together.
    in_turn: bool,
}

impl Bare {
    pub(crate) async fn connect(server: SocketAddr, in_turn: bool) -> Result<Self> {
        let connector = Client::connector().with_session_timeout(SESSION);
        Ok(Self { client: connector.connect(&server.to_string()).await?, in_turn })
    }

    /// Makes the directories of `tasks` locks.
    pub(crate) async fn prepare(&self, tasks: usize) -> Result<()> {
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let keys = (0..tasks).map(|task| format!("{BARE}/room_{task}"));
        for path in std::iter::once(BARE.to_owned()).chain(keys) {
            match self.client.create(&path, &[], &options).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes the lock: creates a node, and lists the directory to see that it is the first. Returns its path.
    pub(crate) async fn acquire(&self, key: &str) -> Result<String> {
        let directory = format!("{BARE}/{key}");
        let path = format!("{directory}/_c_01234567-89ab-cdef-0123-456789abcdef-lock-");
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let created = self.client.create(&path, &CONTENT, &options);
        let (created, children) = if self.in_turn {
            (created.await?, self.client.list_children(&directory).await?)
        } else {
            // Sent together; the session keeps their order.
            let listed = self.client.list_children(&directory);
            (created.await?, listed.await?)
        };
        anyhow::ensure!(children.len() == 1, "the lock was taken");
        Ok(format!("{path}{}", created.1))
    }

    pub(crate) async fn release(&self, path: &str) -> Result<()> {
        Ok(self.client.delete(path, None).await?)
    }
}

impl Pairs for Bare {
    async fn pair(&self, key: &str) -> Result<()> {
        let path = self.acquire(key).await?;
        self.release(&path).await
    }
}
