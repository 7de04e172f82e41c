//! What a case stands on.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dlock_core::keeper::Spawn;
use dlock_core::{Backend, Failure, Locks, LocksBuilder};
use tokio::runtime::Handle;

use super::Harness;
use crate::wire::{Wire, Wired};

type Future<'a, T> = Pin<Box<dyn std::future::Future<Output = T> + Send + 'a>>;

/// What is done to locks behind their holder's back.
pub(super) trait Behind: Send + Sync {
    fn delete<'a>(&'a self, key: &'a str) -> Future<'a, Result<bool, Failure>>;
    fn leave<'a>(&'a self, key: &'a str, times: &'a [Duration]) -> Future<'a, Result<bool, Failure>>;
}

impl<B: Backend> Behind for Wired<B> {
    fn delete<'a>(&'a self, key: &'a str) -> Future<'a, Result<bool, Failure>> {
        Box::pin(Self::delete(self, key))
    }

    fn leave<'a>(&'a self, key: &'a str, times: &'a [Duration]) -> Future<'a, Result<bool, Failure>> {
        Box::pin(Self::leave(self, key, times))
    }
}

/// Runs keepers where the case runs: in its time.
#[derive(Debug)]
struct OnThisRuntime(Handle);

impl Spawn for OnThisRuntime {
    fn spawn(&self, task: Pin<Box<dyn std::future::Future<Output = ()> + Send>>) {
        drop(self.0.spawn(task));
    }
}

/// A harness whose backend is not part of its type.
pub(super) trait DynHarness: Send + Sync {
    fn open(&self, wire: Wire) -> Future<'_, dlock_core::Result<(LocksBuilder, Arc<dyn Behind>)>>;
    fn lease(&self) -> Duration;
    fn at_once(&self) -> usize;
    fn tries_can_split(&self) -> bool;
}

impl<H: Harness> DynHarness for H {
    fn open(&self, wire: Wire) -> Future<'_, dlock_core::Result<(LocksBuilder, Arc<dyn Behind>)>> {
        Box::pin(async {
            let backend = Harness::open(self).await?;
            // The first request of a case has a connection, however busy the machine is that opens it. What is wrong
            // with the store is found by the case.
            let _ = backend.ping().await;
            let wired = Wired::new(backend, wire);
            let builder = Locks::builder(wired.clone());
            let behind: Arc<dyn Behind> = Arc::new(wired);
            Ok((builder, behind))
        })
    }

    fn lease(&self) -> Duration {
        Harness::lease(self)
    }

    fn at_once(&self) -> usize {
        Harness::at_once(self)
    }

    fn tries_can_split(&self) -> bool {
        Harness::tries_can_split(self)
    }
}

/// What a case stands on: one store, and keys that no other case uses.
pub struct Stage {
    harness: Arc<dyn DynHarness>,
    is_virtual: bool,
    prefix: String,
    keys: AtomicU32,
}

/// What a process of a test is: locks of its own over the store of the case, and its way there.
#[derive(Clone)]
pub struct Process {
    /// The locks.
    pub locks: Locks,
    /// The way to the store.
    pub wire: Wire,
    behind: Arc<dyn Behind>,
}

impl Stage {
    pub(super) fn new(harness: Arc<dyn DynHarness>, is_virtual: bool) -> Self {
        // Keys are not those of another case on the same store.
        let prefix = format!("case-{:016x}", fastrand::u64(..));
        Self { harness, is_virtual, prefix, keys: AtomicU32::new(0) }
    }

    /// Returns a key that no other call returned.
    pub fn key(&self) -> String {
        format!("{}-{}", self.prefix, self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether the case is in virtual time, where nothing comes late.
    pub(super) fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    /// Returns the short lease.
    pub fn lease(&self) -> Duration {
        self.harness.lease()
    }

    /// How many locks one process can hold at once.
    pub(super) fn at_once(&self) -> usize {
        self.harness.at_once()
    }

    /// Whether several that try at once may all be refused.
    pub(super) fn tries_can_split(&self) -> bool {
        self.harness.tries_can_split()
    }

    /// Creates a process whose leases are too long to run out in a test, and that waits for up to 60 s.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again: a process that was not returned leaves nothing behind.
    pub async fn process(&self) -> Process {
        self.process_with(|builder| builder).await
    }

    /// Creates a process with the short lease.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again: as [`process`](Self::process).
    pub async fn short(&self) -> Process {
        let lease = self.lease();
        self.process_with(|builder| builder.with_lease(lease)).await
    }

    /// Creates a process with options of its own.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again: as [`process`](Self::process).
    pub async fn process_with(&self, options: impl FnOnce(LocksBuilder) -> LocksBuilder + Send) -> Process {
        let wire = Wire::default();
        if self.is_virtual {
            wire.stalls_on(Handle::current());
        }
        let (builder, behind) = match self.harness.open(wire.clone()).await {
            Ok(opened) => opened,
            Err(error) => panic!("the store could not be opened: {error}"),
        };
        let builder = if self.is_virtual {
            builder.with_keeper_on(Arc::new(OnThisRuntime(Handle::current())))
        } else {
            builder
        };
        let builder = builder.with_lease(Duration::from_secs(120)).with_wait(Duration::from_secs(60));
        match options(builder).build() {
            Ok(locks) => Process { locks, wire, behind },
            Err(error) => panic!("the locks could not be made: {error}"),
        }
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Process {
    /// Deletes the lock that this process holds, behind its back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again: the lock is then deleted, or not yet.
    pub async fn delete(&self, key: &str) {
        // A server of a busy machine may be late with its answer. What was asked for may have happened then.
        for late in 0..5 {
            match self.behind.delete(key).await {
                Ok(true) => return,
                Ok(false) if late > 0 => return,
                Ok(false) => panic!("there was no lock of {key:?} to delete"),
                Err(failure) if failure.is_transient() && late < 4 => {}
                Err(failure) => panic!("the lock could not be deleted: {failure}"),
            }
        }
    }

    /// Leaves the lock that this process holds for each of `times`, one after the other, behind its back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: the lock is then left for one of the times, or not.
    pub async fn leave(&self, key: &str, times: &[Duration]) {
        match self.behind.leave(key, times).await {
            Ok(true) => {}
            Ok(false) => panic!("there was no lock of {key:?} to leave"),
            Err(failure) => panic!("the lock could not be left: {failure}"),
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("wire", &self.wire).finish_non_exhaustive()
    }
}
