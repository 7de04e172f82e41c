//! What the handles of one `Locks` share: the backend, the registry of holds, and the line to the keeper.

pub(crate) mod acquire;
pub(crate) mod activity;
pub(crate) mod cleanup;
pub(crate) mod entropy;
pub(crate) mod hold;
pub mod keeper;
pub(crate) mod pending;
pub(crate) mod registry;
pub(crate) mod scope;
pub(crate) mod threads;
pub(crate) mod timer;
pub(crate) mod wait_queue;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::backend::dynamic::DynBackend;
use crate::backend::{Backoff, Capabilities};
use crate::clock::Clock;
use crate::engine::entropy::Entropy;
use crate::engine::keeper::{Job, Tasks};
use crate::engine::registry::HoldRegistry;
use crate::engine::wait_queue::WaitQueue;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::holder::Identity;
use crate::telemetry::{Loss, Telemetry};

/// One backend with everything that is going on with it in this process.
pub(crate) struct Engine {
    pub(crate) backend: Box<dyn DynBackend>,
    pub(crate) name: &'static str,
    pub(crate) capabilities: Capabilities,
    pub(crate) clock: Clock,
    pub(crate) identity: Arc<Identity>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) entropy: Entropy,
    pub(crate) wait_queue: WaitQueue,
    pub(crate) registry: Arc<HoldRegistry>,
    jobs: mpsc::UnboundedSender<Job>,
    /// The process that has the keeper: a child made by `fork` has none.
    process: u32,
}

impl Engine {
    /// Sets the engine up and hands its registry to the keeper.
    pub(crate) fn start(
        backend: Box<dyn DynBackend>,
        label: Option<String>,
        telemetry: Telemetry,
        tasks: Tasks,
        entropy: Entropy,
    ) -> Arc<Self> {
        let (clock, capabilities) = (backend.clock(), backend.capabilities().within_bounds());
        let telemetry = Arc::new(telemetry);
        let registry = Arc::new(HoldRegistry::new(clock.clone(), Arc::clone(&telemetry), tasks));
        let (jobs, inbox) = mpsc::unbounded_channel();
        keeper::look_after(Arc::clone(&registry), inbox);
        Arc::new(Self {
            name: backend.name(),
            capabilities,
            entropy,
            clock,
            identity: Identity::of_this_process(label),
            telemetry,
            wait_queue: WaitQueue::new(
                Backoff::new(capabilities.poll_from, capabilities.poll_to),
                capabilities.notified,
            ),
            registry,
            jobs,
            process: std::process::id(),
            backend,
        })
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        Error::new(operation, failure).on(self.name)
    }

    pub(crate) fn refuse_when_closed(&self) -> Result<(), Failure> {
        if self.registry.is_closed() { Err(self.registry.closed()) } else { Ok(()) }
    }

    /// Whether this is a child, made by `fork`, of the process that built these locks. Costs a system call.
    pub(crate) fn is_in_child(&self) -> bool {
        std::process::id() != self.process
    }

    /// Refuses to use connections that are the parent's, and to take what nobody would renew.
    pub(crate) fn refuse_in_child(&self) -> Result<(), Failure> {
        match self.is_in_child() {
            false => Ok(()),
            true => Err(Failure::new(
                ErrorKind::Closed,
                "these locks were built before the process forked, and belong to its parent; build new ones in the child",
            )),
        }
    }

    /// Awaits `future` here, or on the keeper's thread where the caller has no tokio runtime with timers. Dropping this
    /// drops `future`.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Failure> {
        if threads::has_timers() {
            return Ok(future.await);
        }
        self.registry.tasks.run(future).await.ok_or_else(|| self.registry.closed())
    }

    /// Makes a request that needs no claim, wherever the caller is, and waits up to `limit` for its answer.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        limit: Duration,
        unanswered: Failure,
        request: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        self.refuse_in_child()?;
        // Boxed: these are rare, and their futures would be part of the caller's twice.
        let answer = self.run(Box::pin(async move { tokio::time::timeout(limit, request).await })).await?;
        answer.unwrap_or(Err(unanswered))
    }

    /// Gives `job` to the keeper. Works on any thread, without a runtime, and never blocks.
    pub(crate) fn later(&self, job: Job) {
        // When the keeper is dead, it has said so, and the lease is the floor.
        let _ = self.jobs.send(job.into_background());
    }

    /// See [`Locks::drain`](crate::Locks::drain).
    pub(crate) async fn drain(self: Arc<Self>, timeout: Duration) -> Result<(), Error> {
        self.registry.drain();
        if tokio::time::timeout(timeout, self.registry.settled()).await.is_ok() {
            return Ok(());
        }
        let held = self.registry.stats().held;
        let what = format!(
            "{held} locks are still held after {timeout:?}; shut down to take them from their bodies"
        );
        Err(self.error(Operation::Shutdown, Failure::new(ErrorKind::TimedOut, what)))
    }

    /// See [`Locks::shutdown`](crate::Locks::shutdown).
    pub(crate) async fn shut_down(self: Arc<Self>, timeout: Duration) -> Result<(), Error> {
        let registry = &self.registry;
        let started = Instant::now();
        registry.close();
        for hold in registry.held() {
            hold.lose_by(Loss::Shutdown);
        }
        let mut settled = tokio::time::timeout(timeout / 2, registry.settled()).await.is_ok();
        if !settled {
            for hold in registry.held() {
                hold.give_up();
            }
            settled = tokio::time::timeout(timeout / 10 * 4, registry.settled()).await.is_ok();
        }
        let left = timeout.saturating_sub(started.elapsed());
        let is_closed = tokio::time::timeout(left, self.backend.close()).await.is_ok();
        let left = registry.stats();
        let what = match (settled, is_closed) {
            (true, true) => return Ok(()),
            (true, false) => "the backend did not close its connections in time".into(),
            (false, _) => format!(
                "{} locks and {} background releases were left to their leases",
                left.held, left.background
            ),
        };
        Err(self.error(Operation::Shutdown, Failure::new(ErrorKind::TimedOut, what)))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).finish_non_exhaustive()
    }
}
