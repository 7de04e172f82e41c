//! The services of the engine that a claim needs: for a quorum, whose claims have claims of their own.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::error::{ErrorKind, Failure};
use crate::keeper;
use crate::key::Key;
use crate::telemetry::Site;

/// The engine, as far as a claim needs it.
pub(crate) trait ClaimHost: Send + Sync {
    /// Runs `task` where the keeper runs.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>);
    /// Returns the keeper's runtime; `None` where a simulation runs its tasks.
    fn runtime(&self) -> Option<Handle>;
    /// Reports the answer of a node, with its number from 1, to an attempt.
    fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>);
    /// Reports that the rest of a lock, if any, is left to its lease.
    fn abandoned(&self, key: &Key, site: Site, failure: &Failure);
}

/// The locks that a claim is made for, for a backend that goes on with a claim in the background. A claim without any
/// uses dlock's thread for connections.
#[derive(Clone, Default)]
pub struct Host(Option<(Arc<dyn ClaimHost>, Site)>);

impl Host {
    pub(crate) fn new(host: Arc<dyn ClaimHost>, site: Site) -> Self {
        Self(Some((host, site)))
    }

    /// Runs `task` in the background, on the thread that renews the locks.
    ///
    /// # Errors
    ///
    /// [`Unavailable`](ErrorKind::Unavailable) when the operating system gives no thread.
    ///
    /// # Cancel safety
    ///
    /// Nothing is awaited here; the task runs to its end.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Result<(), Failure> {
        match &self.0 {
            Some((host, _)) => host.spawn(Box::pin(task)),
            None => drop(keeper::runtime()?.spawn(task)),
        }
        Ok(())
    }

    /// Returns the runtime of that thread; `None` where a simulation runs its tasks, or there is no thread.
    #[must_use]
    pub fn runtime(&self) -> Option<Handle> {
        match &self.0 {
            Some((host, _)) => host.runtime(),
            None => keeper::runtime().ok().cloned(),
        }
    }

    /// Reports the answer of a node, with its number from 1, to an attempt, for the metric `dlock.quorum.votes`.
    pub fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>) {
        if let Some((host, _)) = &self.0 {
            host.voted(node, outcome, error);
        }
    }

    /// Reports that the rest of `key`, if any, is left to its lease, as a warning and in the counts of the locks.
    pub fn abandoned(&self, key: &Key, failure: &Failure) {
        if let Some((host, site)) = &self.0 {
            host.abandoned(key, *site, failure);
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}
