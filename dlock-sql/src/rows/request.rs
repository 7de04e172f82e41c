//! A request on a connection, carried out to its end whatever becomes of its caller.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, by_then, sleep_until};
use dlock_core::{ErrorKind, Failure};
use sqlx::Connection;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connections::{Connections, Kind, Lent, Limits, Origin};
use super::driven::{Caller, Driven, unless_late};
use super::progress::Progress;
use super::steps::Step;
use crate::failure::closed;
use crate::server::{Conn, Fault, Server};

/// The pauses before a statement is tried again that got into the way of another.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// A request that is lost when it is dropped.
struct Pending(Arc<Progress>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.lose();
    }
}

struct Request<S: Server, P: Step<S>> {
    connections: Arc<Connections<S>>,
    kind: Kind,
    step: P,
    limits: Limits,
    progress: Pending,
    caller: Caller,
}

impl<S: Server, P: Step<S>> Request<S, P> {
    async fn carry_out(self, origin: Origin<S>) -> Result<P::Reply, Failure> {
        let Self { connections, kind, step, limits, progress, caller } = self;
        let result = async {
            if connections.is_closed() {
                return Err(closed());
            }
            let (mut origin, mut asks_again) = (origin, P::ASKS);
            loop {
                let (mut lent, mut permit) = connections.lend(kind, origin, limits.patience).await?;
                if !progress.0.send() {
                    connections.done_with(lent, false);
                    return Err(Failure::unavailable("nobody wants it any more"));
                }
                let done = connections.perform(&step, &mut lent, limits, &mut permit, &caller).await;
                let broken = matches!(&done, Err(fault) if fault.broken);
                connections.done_with(lent, broken);
                if !broken || !std::mem::take(&mut asks_again) || !caller.waits() {
                    return done.map_err(|fault| fault.failure);
                }
                // Perhaps only this connection had ended; those that are idle are tested from now on.
                origin = connections.origin(kind).0;
            }
        }
        .await;
        match &result {
            Err(failure) if failure.kind() == ErrorKind::Unknown => progress.0.lose(),
            _ => progress.0.settle(),
        }
        result
    }
}

impl<S: Server> Connections<S> {
    /// Has a step done, whatever becomes of the caller.
    pub(crate) fn begin<P: Step<S>>(
        self: &Arc<Self>,
        kind: Kind,
        step: P,
        limits: Limits,
        progress: Arc<Progress>,
    ) -> Driven<P::Reply> {
        let (origin, drives) = self.origin(kind);
        let caller = Caller::new(drives);
        // The pool's connections may belong to the caller's runtime.
        let runtime = match &origin {
            Origin::Pool(_) => Handle::current(),
            Origin::Lane(_) | Origin::Taken(..) => self.own.runtime.clone(),
        };
        let connections = Arc::clone(self);
        let request =
            Request { connections, kind, step, limits, progress: Pending(progress), caller: caller.clone() };
        Driven::new(request.carry_out(origin), runtime, limits.patience + limits.last, caller)
    }

    /// Performs the step, again if it got into the way of another.
    ///
    /// The permit is to be kept until the connection is back: who gets it finds that one instead of opening another.
    pub(super) async fn perform<P: Step<S>>(
        &self,
        step: &P,
        lent: &mut Lent<S>,
        limits: Limits,
        permit: &mut Option<OwnedSemaphorePermit>,
        caller: &Caller,
    ) -> Result<P::Reply, Fault> {
        let begun = Instant::now();
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut prepares_again = true;
        loop {
            let (on, is_pooled): (&mut Conn<S>, bool) = match lent {
                Lent::Own(connection, _) => (connection, false),
                Lent::Pooled(connection) => (connection, true),
            };
            let answer = {
                let performing = async {
                    if is_pooled && !P::CHECKS {
                        S::check_pooled(&mut *on).await?;
                    }
                    step.perform(self.server(), &mut *on).await
                };
                tokio::pin!(performing);
                match unless_late(performing.as_mut(), begun + limits.answer, caller).await {
                    Some(answer) => Some(answer),
                    None => {
                        // Others may need the turn; this one stays for what comes of it.
                        drop(permit.take());
                        by_then(begun + limits.last, performing).await
                    }
                }
            };
            let fault = match answer {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) if S::is_outdated(&error) && std::mem::take(&mut prepares_again) => {
                    // Where this fails, so does the statement.
                    let _ = by_then(begun + limits.answer, on.clear_cached_statements()).await;
                    continue;
                }
                Some(Err(error)) => self.server().fault(error),
                None => {
                    let failure = Failure::unknown(format!("no answer within {:?}", limits.last));
                    return Err(Fault { failure, again: false, broken: true });
                }
            };
            if !fault.again || !caller.waits() || begun.elapsed() >= limits.answer / 2 {
                return Err(fault);
            }
            sleep_until(Instant::now() + backoff.next_pause()).await;
        }
    }
}
