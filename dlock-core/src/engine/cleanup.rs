//! What is left on the servers by acquires that failed and releases that were not confirmed, and how it is taken away.
//!
//! This is the only place that repeats a withdrawal. Backends make one request and say what is known after it.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::dynamic::DynClaim;
use crate::backend::{Backoff, Withdrawal};
use crate::clock::Timestamp;
use crate::engine::Engine;
use crate::engine::activity::ActivityToken;
use crate::engine::hold::Hold;
use crate::error::{ErrorKind, Failure};
use crate::handles::options::Site;
use crate::key::Key;
use crate::telemetry::Trace;
use crate::telemetry::span::Spanned;
use crate::telemetry::spans;

/// A claim that nobody waits for any more.
pub(crate) struct Cleanup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) key: Key,
    pub(crate) site: Site,
    pub(crate) claim: Box<dyn DynClaim>,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) activity: ActivityToken,
    /// Of the span that took the lock, if it was taken.
    pub(crate) trace: Trace,
}

impl Cleanup {
    /// The rest of a release.
    pub(crate) fn of_hold(hold: &Hold, claim: Box<dyn DynClaim>, activity: ActivityToken) -> Self {
        Self {
            engine: Arc::clone(&hold.engine),
            key: hold.key.clone(),
            site: hold.site,
            claim,
            lease: hold.lease,
            request_timeout: hold.request_timeout,
            activity,
            trace: hold.trace.clone(),
        }
    }

    /// Withdraws, again and again until nothing is left or the lease has ended it anyway.
    pub(crate) async fn carry_out(self) {
        let span = spans::release_span(&self.engine, &self.key, self.site, true);
        self.trace.adopt(&span);
        self.withdraw().in_span(span).await;
    }

    async fn withdraw(mut self) {
        let registry = &self.engine.registry;
        // A request that is still on its way starts its lease when it arrives. What a session keeps has no lease, and would be
        // kept for as long as this process lives.
        let until = match self.engine.capabilities.session_kept {
            true => Timestamp::NEVER,
            false => registry.clock.now() + self.lease + self.request_timeout,
        };
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            let answer = withdraw_once(&mut self.claim, self.request_timeout).await;
            let over = registry.clock.now() >= until;
            match answer {
                Ok(withdrawal) if withdrawal.settled || over => {
                    spans::outcome("released");
                    break;
                }
                // What was sent before may still take effect: withdrawn again until it cannot any more. Those who wait here
                // need not wait for that.
                Ok(_) => self.engine.wait_queue.released(&self.key),
                Err(failure) => {
                    registry.count(|counters| &counters.failed_withdrawals);
                    registry.metrics.release_failed(self.site, failure.kind());
                    let given_up = over || !failure.is_transient();
                    spans::withdrawal_failed(&self.engine, &self.key, self.site, &failure, given_up);
                    if given_up {
                        registry.count(|counters| &counters.abandoned);
                        registry.metrics.abandoned(self.site);
                        spans::failed(failure.kind());
                        break;
                    }
                }
            }
            tokio::time::sleep(backoff.next_pause()).await;
        }
        self.engine.wait_queue.released(&self.key);
    }
}

/// One bounded request to withdraw.
pub(crate) async fn withdraw_once(
    claim: &mut Box<dyn DynClaim>,
    limit: Duration,
) -> Result<Withdrawal, Failure> {
    match tokio::time::timeout(limit, claim.withdraw()).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::new(ErrorKind::Unknown, format!("no answer to a release within {limit:?}"))),
    }
}
