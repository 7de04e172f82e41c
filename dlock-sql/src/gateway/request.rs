//! A request on a connection, carried out to its end whatever becomes of its caller.

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
            if connections.is_closed() {
                return Err(closed());
            }
            let (kind, mut route, mut asks_again) = (route.kind, route, P::ASKS);
            loop {
                let (mut lent, mut permit) = connections.lend(route, limits.patience).await?;
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
                route = connections.route(kind);
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
        route: Route<S>,
        step: P,
        limits: Limits,
        progress: Arc<Progress>,
    ) -> Driven<P::Reply> {
        let caller = Caller::new(route.is_driven_by_caller());
        // The pool's connections may belong to the caller's runtime.
        let runtime = match &route.origin {
            Origin::Pool(_) => Handle::current(),
            Origin::Lane(_) | Origin::Ready(..) => self.lanes.own.runtime.clone(),
        };
        let connections = Arc::clone(self);
        let request =
            Request { connections, step, limits, progress: Pending(progress), caller: caller.clone() };
        Driven::new(request.carry_out(route), runtime, limits.patience + limits.last, caller)
    }

    /// The answer to a step within `limit`.
    pub(crate) async fn within<P: Step<S>>(
        self: &Arc<Self>,
        kind: Kind,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        self.within_on(self.route(kind), step, limit).await
    }

    /// The answer to a step that takes this route, within `limit`.
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

    /// The answer to a question or order that is no lock's.
    pub(crate) async fn ask<P: Step<S>>(
        self: &Arc<Self>,
        step: P,
        limit: Duration,
    ) -> Result<P::Reply, Failure> {
        self.within(Kind::Ordinary, step, limit).await
    }

    /// Checks the table and the rights, on a connection of our own. Makes the table first, if that was left for now.
    pub(crate) async fn verify(self: &Arc<Self>) -> Result<(), Failure> {
        if let Some(maker) = &self.maker {
            maker.clone().make_on_the_keeper().await?;
        }
        let mark = self.within(Kind::Renewal, Mark(), QUESTION).await.map_err(unchanged)?;
        table::verify(mark.as_deref(), self.server().table())
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
        let (mut prepares_again, mut looks_again) = (true, true);
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
                Some(Err(error)) if S::is_of_old_rights(&error) => {
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
            if !fault.again || !caller.waits() || begun.elapsed() >= limits.answer / 2 {
                return Err(fault);
            }
            sleep_until(Instant::now() + backoff.next_pause()).await;
        }
    }
}
