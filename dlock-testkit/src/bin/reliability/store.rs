//! What the locks are kept in.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::ValueEnum;
use dlock::{Guard, Lock, Locks, Memory};
use dlock_testkit::worker::Worker;

use crate::Failed;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
}

/// A store of locks that is empty at first.
#[derive(Debug)]
pub(crate) struct Store {
    kind: Kind,
    memory: Memory,
    directory: tempfile::TempDir,
    keys: AtomicU64,
}

impl Store {
    pub(crate) fn new(kind: Kind) -> Result<Self, Failed> {
        let memory = Memory::new();
        // Gives what is cancelled an await point on the way there and one on the way back.
        memory.faults().set_stepping(true);
        Ok(Self { kind, memory, directory: tempfile::tempdir()?, keys: AtomicU64::new(0) })
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory => "memory",
            Kind::Sqlite => "SQLite",
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.directory.path().join("locks.db").display())
    }

    /// The store, opened as by a process of its own.
    pub(crate) async fn locks(&self, lease: Duration) -> Result<Locks, Failed> {
        let builder = match self.kind {
            Kind::Memory => Locks::builder(self.memory.clone()),
            Kind::Sqlite => dlock::from_url(&self.url()).await?,
        };
        Ok(builder.with_lease(lease).build()?)
    }

    /// What starts a process of its own: this program.
    pub(crate) fn command(&self) -> Result<Command, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("worker");
        Ok(command)
    }

    /// A process of its own with the store open.
    pub(crate) async fn worker(&self, lease: Duration) -> Result<Worker, Failed> {
        Ok(Worker::open(self.command()?, &self.url(), lease).await?)
    }

    /// A key that no other call returned.
    pub(crate) fn key(&self) -> String {
        format!("key-{}", self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// A file of its own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(format!("{name}-{}", self.keys.fetch_add(1, Ordering::Relaxed)))
    }
}

/// How many of `keys` are held.
pub(crate) async fn held(locks: &Locks, keys: &[String]) -> Result<usize, Failed> {
    let mut held = 0;
    for key in keys {
        held += usize::from(locks.inspect(key).await?.is_some());
    }
    Ok(held)
}

/// Acquires, and tries again where the error says that it may be worth while: a machine that is busy with other things makes
/// requests late. Counts the errors in `failed`.
pub(crate) async fn acquire(lock: &Lock, failed: &AtomicU64) -> Result<Guard, Failed> {
    let mut tries = 0;
    loop {
        match lock.acquire().await {
            Ok(guard) => return Ok(guard),
            Err(error) if error.is_retryable() && tries < 50 => {
                tries += 1;
                failed.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
