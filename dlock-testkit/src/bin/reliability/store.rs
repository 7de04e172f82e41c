//! What the locks are kept in.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::ValueEnum;
use dlock::{Guard, Lock, Locks, Memory};
use dlock_testkit::proxy::{Proxy, Resp};
use dlock_testkit::servers::redis::RedisServer;
use dlock_testkit::worker::Worker;

use crate::Failed;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Redis,
}

/// A store of locks that is empty at first.
#[derive(Debug)]
pub(crate) struct Store {
    kind: Kind,
    memory: Memory,
    redis: Option<Mutex<RedisServer>>,
    directory: tempfile::TempDir,
    keys: AtomicU64,
}

impl Store {
    pub(crate) fn new(kind: Kind) -> Result<Self, Failed> {
        let memory = Memory::new();
        // Gives what is cancelled an await point on the way there and one on the way back.
        memory.faults().set_stepping(true);
        // The server has to keep its data when it is killed. With `everysec` it answers before it has written while its
        // disk is busy.
        let redis = match kind {
            Kind::Redis => Some(Mutex::new(RedisServer::options().append_only("always").start()?)),
            Kind::Memory | Kind::Sqlite => None,
        };
        Ok(Self { kind, memory, redis, directory: tempfile::tempdir()?, keys: AtomicU64::new(0) })
    }

    pub(crate) const fn name(&self) -> &'static str {
        match self.kind {
            Kind::Memory => "memory",
            Kind::Sqlite => "SQLite",
            Kind::Redis => "Redis",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self.redis() {
            Some(redis) => redis.url(),
            None => format!("sqlite://{}", self.directory.path().join("locks.db").display()),
        }
    }

    /// The server that keeps the locks, where there is one.
    pub(crate) fn redis(&self) -> Option<MutexGuard<'_, RedisServer>> {
        let redis = self.redis.as_ref()?;
        Some(redis.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A way to the server that can be made to fail, where there is a server, and the URL that leads over it.
    pub(crate) fn proxy(&self) -> Result<Option<(Proxy, String)>, Failed> {
        let Some(redis) = self.redis() else { return Ok(None) };
        let proxy = Proxy::speaking(Resp, redis.address())?;
        let url = redis.url_through(proxy.address());
        Ok(Some((proxy, url)))
    }

    /// The store, opened as by a process of its own.
    pub(crate) async fn locks(&self, lease: Duration) -> Result<Locks, Failed> {
        let builder = match self.kind {
            Kind::Memory => Locks::builder(self.memory.clone()),
            Kind::Sqlite | Kind::Redis => dlock::from_url(&self.url()).await?,
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
