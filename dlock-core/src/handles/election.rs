//! One leader at a time.

mod campaign;
mod eligibility;
mod observing;

use std::sync::Arc;
use std::time::Duration;

pub use self::campaign::{Campaign, Term};
pub use self::eligibility::Eligibility;
pub use self::observing::{Leader, LeaderChanges};
use crate::engine::Engine;
use crate::error::{Failure, Operation, Result};
use crate::handles::lock::Lock;

/// An election: of the processes that stand for it, one leads at a time. Made by
/// [`Locks::election`](crate::Locks::election). A value; nothing is asked for before a [campaign](Self::campaign).
///
/// A term of office is a lock that is held alone: with a lease that is renewed, a fence that is its number, and a loss
/// that its body notices before another candidate leads. An election and a [lock](crate::Lock) of one key exclude each
/// other.
///
/// A leader that was stopped for longer than its lease may wake up in the middle of a step, with another leader in
/// office. It runs no further step of its body; but only a resource that refuses lower [fences](crate::Fence) is safe
/// from a step that was under way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Fence, Locks, Memory};
///
/// async fn lead(number: Option<Fence>) {
///     println!("we lead, in term {number:?}");
/// }
///
/// let locks = Locks::new(Memory::new());
/// let mut campaign = locks.election("billing").campaign();
/// while let Some(term) = campaign.next().await {
///     term.run(lead(term.fence())).await;
/// #   break;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns or asks who leads"]
pub struct Election {
    lock: Lock,
    priority: u8,
    eligibility: Eligibility,
}

impl Election {
    pub(crate) fn new(lock: Lock) -> Self {
        Self { lock: lock.leading(), priority: 0, eligibility: Eligibility::new() }
    }

    /// Sets for how long this candidate lets others go first: the lower, the sooner it tries. Default 0; up to 60.
    ///
    /// * A candidate of priority 0 waits in the queue, and takes over as soon as the backend lets it.
    /// * A candidate of priority *n* tries once it has seen no leader for *n* seconds in a row, which it looks for at
    ///   every tenth of the lease, and at least every second. So it leads only when those before it are gone, cut off,
    ///   not eligible, or slower than that.
    /// * A leader stays in office when a candidate of a better priority appears. It may resign.
    pub const fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the switch for whether this process may lead. Default one of its own, which is on.
    pub fn with_eligibility(mut self, eligibility: &Eligibility) -> Self {
        self.eligibility = eligibility.clone();
        self
    }

    /// Sets the time after which others lead when the leader gives no sign of life. See [`Lock::with_lease`]. Default
    /// 30 s: shorten it for a service that cannot be without a leader for so long.
    pub fn with_lease(self, lease: Duration) -> Self {
        self.with_options(|lock| lock.with_lease(lease))
    }

    /// Sets the time that one request may take. See [`Lock::with_request_timeout`].
    pub fn with_request_timeout(self, limit: Duration) -> Self {
        self.with_options(|lock| lock.with_request_timeout(limit))
    }

    /// Sets the time after which a term ends, so that others get their turn. See [`Lock::with_max_hold`].
    pub fn with_max_term(self, limit: Duration) -> Self {
        self.with_options(|lock| lock.with_max_hold(limit))
    }

    /// Sets the label of spans and metrics. See [`Lock::with_template`]; set it to the key where that is fixed.
    pub fn with_template(self, template: &'static str) -> Self {
        self.with_options(|lock| lock.with_template(template))
    }

    /// Sets the function that leads: a label for spans and metrics. The attribute sets it by itself.
    pub fn with_function(self, function: &'static str) -> Self {
        self.with_options(|lock| lock.with_function(function))
    }

    /// Changes the lock that this is made of, for other options. Its wait stays as it is, and so does whether it is
    /// reentrant or passed on inside the process.
    pub fn with_options(mut self, change: impl FnOnce(Lock) -> Lock) -> Self {
        self.lock = change(self.lock).leading();
        self
    }

    /// Stands for the election: see [`Campaign`]. Makes no request before its first [`next`](Campaign::next). One
    /// process may campaign several times, each of which is a candidate.
    pub fn campaign(self) -> Campaign {
        Campaign::new(self)
    }

    /// Returns the leader; `None` when there is none. By the time it is read, there may be another.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let options = self.lock.options();
        let key = self.lock.checked(options)?;
        let found = self.engine().inspect(key, options.request_timeout()).await;
        let holder = found.map_err(|failure| self.lock.error(Operation::Inspect, failure))?;
        // The first waiter is no leader.
        let holder = holder.filter(|holder| !holder.first_in_line);
        Ok(holder.map(|holder| Leader::of(holder, self.engine())))
    }

    /// Follows the leader: see [`LeaderChanges`]. Makes no request before its first [`next`](LeaderChanges::next).
    pub fn changes(self) -> LeaderChanges {
        LeaderChanges::new(self)
    }

    /// Returns the key, if it is valid.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.lock.key().map(crate::key::Key::as_str)
    }

    const fn engine(&self) -> &Arc<Engine> {
        self.lock.engine()
    }

    fn refuse(&self, what: String) -> crate::error::Error {
        self.lock.error(Operation::Configure, Failure::invalid_config(what))
    }
}
