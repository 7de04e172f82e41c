//! The reachability of the backend, the health that is known without asking it, and the settings that endanger locks.

use std::sync::Arc;
use std::time::Duration;

use super::Locks;
use crate::backend::{Finding, NodeState};
use crate::error::{Failure, Operation, Result};
use crate::telemetry::Exported;

/// The bound of a look at the server's settings.
const DIAGNOSIS: Duration = Duration::from_secs(10);

/// The state that [`Locks::health`] knows.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Is `true` if acquires are accepted: not while these locks are drained, nor after a shutdown or the end of their
    /// keeper.
    pub accepts: bool,
    /// The time since the backend last answered these locks; `None` when it never did. Locks that are idle do not ask:
    /// [`Locks::ping`] does.
    pub last_contact: Option<Duration>,
    /// The time for which the oldest renewal that failed is overdue; `None` when all renewals are confirmed. A lock is
    /// lost when it reaches about two thirds of its lease.
    pub oldest_unconfirmed_renewal: Option<Duration>,
    /// The delay of dlock's own thread with its next look. More than some milliseconds means a machine that is
    /// overloaded, or a process that was stopped.
    pub keeper_lag: Duration,
    /// The nodes of a quorum; empty for everything else.
    pub nodes: Vec<NodeState>,
    /// The telemetry that OpenTelemetry gets of these locks; `None` without the feature `otel`.
    pub exported: Option<Exported>,
}

impl Locks {
    /// Asks the backend one cheap thing, and waits for the answer up to the
    /// [request timeout](super::LocksBuilder::with_request_timeout). Takes no lock. Of a quorum a majority has to
    /// answer.
    ///
    /// For readiness probes; [`health`](Self::health) makes no request.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let memory = Memory::new();
    /// let locks = Locks::new(memory.clone());
    /// locks.ping().await?;
    /// memory.faults().set_unavailable(true);
    /// assert!(locks.ping().await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Denied`](crate::ErrorKind::Denied) and
    /// other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn ping(&self) -> Result<()> {
        let (engine, limit) = (&self.engine, self.defaults.request_timeout());
        let unanswered = Failure::unavailable(format!("no answer within {limit:?}"));
        let asked = Arc::clone(engine);
        let answer = engine.ask(limit, unanswered, async move { asked.backend.ping().await }).await;
        answer.map_err(|failure| engine.error(Operation::Inspect, failure))
    }

    /// Returns the health that is known without asking the backend. It looks at every lock that is held, so it takes
    /// longer the more there are.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let _guard = locks.lock("room_7").acquire().await?;
    /// let health = locks.health();
    /// assert!(health.accepts && health.last_contact.is_some());
    /// assert_eq!(health.oldest_unconfirmed_renewal, None);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        let known = self.engine.registry.health();
        // The locks that a session keeps live by its record, which has an engine of its own.
        let record = self.engine.sessions.health();
        let of_record = record.as_ref();
        let contacts = [known.contact, of_record.and_then(|record| record.contact)];
        Health {
            accepts: known.accepts && !self.engine.is_in_child(),
            last_contact: contacts.into_iter().flatten().min(),
            oldest_unconfirmed_renewal: known.oldest.max(of_record.and_then(|record| record.oldest)),
            keeper_lag: of_record.map_or(known.keeper_lag, |record| known.keeper_lag.max(record.keeper_lag)),
            nodes: self.engine.backend.nodes(),
            exported: self.engine.telemetry.exported(),
        }
    }

    /// Looks for settings of the server and rights of the user that endanger locks, and changes nothing. Gives up after
    /// 10 s. For operators; the program `dlock doctor` shows it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), [`ErrorKind::Denied`](crate::ErrorKind::Denied) and
    /// other kinds of the backend. A setting that could not be looked at while the rest could is a finding.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let engine = &self.engine;
        let unanswered = Failure::unavailable(format!("no answer within {DIAGNOSIS:?}"));
        let asked = Arc::clone(engine);
        let answer = engine.ask(DIAGNOSIS, unanswered, async move { asked.backend.diagnose().await }).await;
        answer.map_err(|failure| engine.error(Operation::Inspect, failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, ManualClock, Memory};

    #[tokio::test(start_paused = true)]
    async fn a_ping_is_bounded_where_the_backend_hangs_and_fails_where_it_is_away() {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        assert_eq!(locks.health().last_contact, None);
        locks.ping().await.unwrap();
        assert!(locks.health().last_contact.is_some());
        memory.faults().set_hanging(true);
        assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
        memory.faults().set_hanging(false);
        memory.faults().set_unavailable(true);
        assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Unavailable);
        locks.shutdown(Duration::from_secs(1)).await.unwrap();
        assert!(!locks.health().accepts);
    }

    #[tokio::test]
    async fn a_renewal_that_fails_is_overdue_until_one_is_confirmed() {
        let (clock, lease) = (ManualClock::stopped(), Duration::from_secs(30));
        let memory = Memory::with_clock(clock.clock());
        let locks = Locks::builder(memory.clone()).with_lease(lease).build().unwrap();
        let guard = locks.lock("k").acquire().await.unwrap();
        assert_eq!(locks.health().oldest_unconfirmed_renewal, None);
        memory.faults().set_unavailable(true);
        clock.advance(lease / 2);
        guard.held().at_risk().await;
        let overdue = locks.health().oldest_unconfirmed_renewal.unwrap();
        assert_eq!(overdue, lease / 6);
        memory.faults().set_unavailable(false);
        clock.advance(lease / 12);
        while locks.health().oldest_unconfirmed_renewal.is_some() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        guard.check().unwrap();
    }

    #[tokio::test]
    async fn an_overdue_renewal_is_known_behind_any_number_of_locks_that_are_due_before() {
        let (clock, lease) = (ManualClock::stopped(), Duration::from_secs(30));
        let memory = Memory::with_clock(clock.clock());
        let locks = Locks::builder(memory.clone()).with_lease(lease).build().unwrap();
        let guard = locks.lock("k").acquire().await.unwrap();
        memory.faults().set_unavailable(true);
        clock.advance(lease / 2);
        guard.held().at_risk().await;
        memory.faults().set_unavailable(false);
        let mut before = Vec::new();
        for number in 0..200 {
            let short = locks.lock(format!("short_{number}")).with_lease(Duration::from_secs(1));
            before.push(short.acquire().await.unwrap());
        }
        assert_eq!(locks.health().oldest_unconfirmed_renewal, Some(lease / 6));
    }
}
