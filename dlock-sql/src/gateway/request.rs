//! A request on a connection, carried out to its end whatever becomes of its caller.
//!
//! ```text
//!     `lend` ---> `Progress::send` ---> `perform` -------------> answered, refused ---> back to the pool
//!       ^             | no: unsent,       |   ^ again in the way of another
//!       |             v back              |   +-- statements outdated, rights changed: once each
//!       |                                 v
//!       +--- a question, once, for a caller that waits --- broken: closed
//! ```

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Backoff, by_then, sleep_until};
use dlock_core::{ErrorKind, Failure};
use sqlx::Connection;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::connections::{Connections, Lent};
use super::driven::{Caller, Driven, unless_late};
use super::progress::Progress;
use super::route::{Kind, Origin, Route};
use super::steps::{Mark, Step};
use crate::driver::Conn;
use crate::failure::{Fault, closed, unchanged};
use crate::limits::{Limits, QUESTION};
use crate::server::Server;
use crate::table;

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
    step: P,
    limits: Limits,
    progress: Pending,
    caller: Caller,
}

impl<S: Server, P: Step<S>> Request<S, P> {
    async fn carry_out(self, route: Route<S>) -> Result<P::Reply, Failure> {
        let Self { connections, step, limits, progress, caller } = self;
        let result = async {
            // Looked at after it was begun: it may have waited for a runtime, and the backend was closed meanwhile.
            if connections.is_closed() {
                return Err(closed());
            }
            let (kind, mut route, mut asks_again) = (route.kind, route, P::ASKS);
            loop {
                let (mut lent, mut permit) = connections.lend(route, limits.patience).await?;
                // After the wait for a connection and before the first byte: a caller that gave up in between can rely
                // on nothing having been sent.
                if !progress.0.send() {
                    connections.done_with(lent, false);
                    return Err(Failure::unavailable("nobody wants it any more"));
                }
                let done = connections.perform(&step, &mut lent, limits, &mut permit, &caller).await;
                // Put back before the answer is returned: the next request of the same caller finds it.
                let broken = matches!(&done, Err(fault) if fault.broken);
                connections.done_with(lent, broken);
                // Only a question may be asked again: after a broken connection it is not known whether a change was
                // carried out.
                if !broken || !std::mem::take(&mut asks_again) || !caller.waits() {
                    return done.map_err(|fault| fault.failure);
                }
                // Perhaps only this connection had ended; those that are idle are tested from now on.
                route = connections.route(kind);
            }
        }
        .await;
        // Noted here, where it also happens when no caller sees the answer.
        match &result {
            Err(failure) if failure.kind() == ErrorKind::Unknown => progress.0.lose(),
            _ => progress.0.settle(),
        }
        result
    }
}

impl<S: Server> Connections<S> {
    /// Begins a step, which is carried out whatever becomes of the caller.
    pub(crate) fn begin<P: Step<S>>(
        self: &Arc<Self>,
        route: Route<S>,
        step: P,
        limits: Limits,
        progress: Arc<Progress>,
    ) -> Driven<P::Reply> {
        let caller = Caller::new(route.is_driven_by_caller());
        // The pool's connections may belong to the caller's runtime.
        let runtime = match &route.origin {
            Origin::Pool(_) => Handle::current(),
            Origin::OfRuntime(_) | Origin::Ready(..) => self.pools.own.runtime.clone(),
        };
        let connections = Arc::clone(self);
        let request =
            Request { connections, step, limits, progress: Pending(progress), caller: caller.clone() };
        Driven::new(request.carry_out(route), runtime, limits.patience + limits.last, caller)
    }

    /// Returns the answer to a step within `limit`.
    pub(crate) async fn within<P: Step<S>>(
        self: &Arc<Self>,
        kind: Kind,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        self.within_on(self.route(kind), step, limit).await
    }

    /// Returns the answer to a step that takes this route, within `limit`.
    pub(crate) async fn within_on<P: Step<S>>(
        self: &Arc<Self>,
        route: Route<S>,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        let request = self.begin(route, step, Limits::of(limit, limit), Arc::new(Progress::new()));
        match by_then(Instant::now() + limit, request).await {
            Some(answer) => answer,
            None => Err(Failure::unknown(format!("no answer within {limit:?}"))),
        }
    }

    /// Returns the answer to a question or order that is no lock's.
    pub(crate) async fn ask<P: Step<S>>(
        self: &Arc<Self>,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        self.within(Kind::Ordinary, step, limit).await
    }

    /// Checks the table and the rights, on a connection of dlock's own. Makes the table first, if that was left for
    /// now.
    pub(crate) async fn verify(self: &Arc<Self>) -> Result<(), Failure> {
        if let Some(maker) = &self.maker {
            maker.clone().make_on_the_keeper().await?;
        }
        // As a renewal, which takes dlock's own connection also where attempts go over a pool.
        let mark = self.within(Kind::Renewal, Mark(), QUESTION).await.map_err(unchanged)?;
        table::verify(mark.as_deref(), self.server().table())
    }

    /// Performs the step, again if it got into the way of another.
    ///
    /// The permit is to be kept until the connection is back: its next owner finds that one instead of opening another.
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
        let (mut prepares_again, mut looks_again) = (true, true);
        loop {
            let (on, is_pooled): (&mut Conn<S>, bool) = match lent {
                Lent::Own(connection, _) => (connection, false),
                Lent::Pooled(connection) => (connection, true),
            };
            let answer = {
                let performing = async {
                    // A connection of the pool is in the state that the user left it in: where a statement is no
                    // transaction by itself, the step might never be committed.
                    if is_pooled && !P::CHECKS {
                        S::check_pooled(&mut *on).await?;
                    }
                    step.perform(self.server(), &mut *on).await
                };
                tokio::pin!(performing);
                match unless_late(performing.as_mut(), begun + limits.answer, caller).await {
                    Some(answer) => Some(answer),
                    None => {
                        // Others may need the permit; this request stays for the outcome, which its claim has to know.
                        drop(permit.take());
                        // Polled on and not dropped: a connection whose answer is still to come could not be used
                        // again.
                        by_then(begun + limits.last, performing).await
                    }
                }
            };
            let fault = match answer {
                Some(Ok(reply)) => return Ok(reply),
                Some(Err(error)) if S::is_outdated(&error) && std::mem::take(&mut prepares_again) => {
                    // If this fails, so does the statement.
                    let _ = by_then(begun + limits.answer, on.clear_cached_statements()).await;
                    continue;
                }
                Some(Err(error)) if S::is_of_old_rights(&error) => {
                    // Once: where the rights are still missing after it, they are missing.
                    let looks = std::mem::take(&mut looks_again);
                    if looks && by_then(begun + limits.answer, S::look_up_rights(on)).await.is_some() {
                        continue;
                    }
                    // Another connection may know of more; where none can be opened, this one serves what is held. Not
                    // one whose answer is still to come.
                    let broken = looks || !self.lacks_room_now();
                    return Err(Fault { broken, ..self.server().fault(error) });
                }
                Some(Err(error)) => self.server().fault(error),
                None => {
                    let failure = Failure::unknown(format!("no answer within {:?}", limits.last));
                    return Err(Fault { failure, again: false, broken: true });
                }
            };
            // Half of the time, since the next try may take as long as this one. Without a caller nothing is repeated.
            if !fault.again || !caller.waits() || begun.elapsed() >= limits.answer / 2 {
                return Err(fault);
            }
            sleep_until(Instant::now() + backoff.next_pause()).await;
        }
    }
}
