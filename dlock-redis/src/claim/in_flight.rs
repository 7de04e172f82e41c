//! The attempts of a claim that are [in flight](InFlight), by connection, and the withdrawals that follow them.
//!
//! | the attempts of a claim on one connection are | until |
//! |---|---|
//! | unanswered | an answer comes over it (`after`), or they were not sent (`unsent`): settled; or `withdraw` sends a withdrawal behind them |
//! | followed by a withdrawal | it is answered or redirected: settled; or it is refused, or another attempt is sent: unanswered again |
//! | followed, or unanswered on a connection that has ended | the lease has passed since the last of them was sent: settled |
//!
//! Until they are settled, the lock is also withdrawn over other connections.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{InFlight, Withdrawal, within};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::command::Command;
use crate::error::Fault;
use crate::request::Request;
use crate::servers::{Connection, Reply, Route, Servers, Track, Untracked};

/// The longest wait for a withdrawal on the connection of an unanswered attempt, before another connection is tried
/// too.
const SAME_CONNECTION: Duration = Duration::from_millis(200);

/// The connection on which the answer to the last renewal or withdrawal is overdue. Such a request can be repeated on
/// any other connection: it takes nothing.
#[derive(Default)]
pub(super) struct Overdue(Option<Arc<Connection>>);

impl Track for Overdue {
    fn awaits(&self, connection: &Arc<Connection>) -> bool {
        self.0.as_ref().is_some_and(|overdue| Arc::ptr_eq(overdue, connection))
    }

    fn before(&mut self, route: &Route) {
        self.0 = Some(Arc::clone(&route.connection));
    }

    fn unsent(&mut self, _: &Route) {
        self.0 = None;
    }

    fn after(&mut self, _: &Route) {
        self.0 = None;
    }
}

/// The attempts in flight on one connection. A lock that they take has to be withdrawn behind them: on the same
/// connection, or for as long as their lease could run.
pub(super) struct Sent {
    route: Route,
    last_sent: Instant,
    /// The withdrawal that follows the attempts on the same connection, and its outcome.
    withdrawal: Option<watch::Receiver<Option<Result<Reply, Fault>>>>,
}

impl PartialEq<Arc<Connection>> for Sent {
    fn eq(&self, connection: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.route.connection, connection)
    }
}

impl PartialEq for Sent {
    fn eq(&self, other: &Self) -> bool {
        *self == other.route.connection
    }
}

impl Track for InFlight<Sent> {
    fn awaits(&self, connection: &Arc<Connection>) -> bool {
        self.ways().any(|sent| sent == connection)
    }

    fn before(&mut self, route: &Route) {
        self.begin(Sent { route: route.clone(), last_sent: Instant::now(), withdrawal: None });
    }

    fn unsent(&mut self, route: &Route) {
        self.took_nothing(&route.connection);
    }

    fn after(&mut self, route: &Route) {
        self.answered(&route.connection);
    }
}

/// Withdraws the lock that the attempts may have taken. An error means that the withdrawal has to be repeated.
///
/// # Cancel safety
///
/// When dropped, the withdrawals that were sent stay under way.
pub(super) async fn withdraw(
    in_flight: &mut InFlight<Sent>,
    servers: &Arc<Servers>,
    request: &Request,
    (lease, patience): (Duration, Duration),
) -> Result<Withdrawal, Failure> {
    let (mut removed, mut elsewhere) = (false, false);
    let mut position = 0;
    // Each connection on its own, as a server answers in order on one connection only: a withdrawal there is certainly
    // carried out after the attempts before it. Connections that cannot be settled yet keep their position.
    while let Some(sent) = in_flight.way_mut(position) {
        match sent.withdraw(servers, request, patience).await {
            Followed::Answered(answer) => removed |= answer.removed,
            Followed::Redirected => elsewhere = true,
            // The lease has passed since the last attempt was sent, and no withdrawal can follow it any more, or one
            // already does. What an attempt took has expired, or has the withdrawal right behind it.
            Followed::Open if sent.last_sent.elapsed() >= lease && sent.is_followed() => {}
            Followed::Open => {
                position += 1;
                continue;
            }
        }
        in_flight.settle_at(position);
    }
    if !in_flight.is_empty() || elsewhere {
        // An attempt may have been carried out although its answer was lost. This removes such a lock now, on whichever
        // server it is, instead of leaving it to the end of its lease. It settles nothing: an attempt may still arrive
        // after it.
        let reply = servers.carry_out(Command::of(request), patience, &mut Untracked).await?;
        removed |= reply.answer.withdrawn()?.removed;
    }
    if in_flight.is_empty() {
        return Ok(if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT });
    }
    Err(Failure::unknown(
        "an attempt was not answered and its connection is gone or silent; withdrawn again until its lease has passed",
    ))
}

/// The outcome of a withdrawal that follows attempts on their own connection.
enum Followed {
    Answered(Withdrawal),
    /// The attempts were carried out or refused, and another server is responsible for the lock now.
    Redirected,
    /// There is no answer yet, or there will be none.
    Open,
}

impl Sent {
    /// Sends the withdrawal behind the attempts, once, and waits a short time for its answer.
    async fn withdraw(&mut self, servers: &Arc<Servers>, request: &Request, patience: Duration) -> Followed {
        // The call may be repeated, and each time waits for the same withdrawal: one is enough, since it is the last
        // request of the claim on this connection.
        let mut outcome = match &self.withdrawal {
            Some(outcome) => outcome.clone(),
            None if self.route.connection.is_ended() => return Followed::Open,
            None => self.withdrawal.insert(self.send(servers, request, patience)).clone(),
        };
        // Not the whole request timeout: the connection may be dead, and the lock can be removed over another one
        // meanwhile.
        let answered = within(SAME_CONNECTION, outcome.wait_for(Option::is_some)).await;
        let Some(Ok(answer)) = answered else { return Followed::Open };
        match answer.as_ref() {
            Some(Ok(reply)) => reply.answer.withdrawn().map_or(Followed::Open, Followed::Answered),
            Some(Err(fault)) if fault.redirect().is_some() => Followed::Redirected,
            Some(Err(Fault::Refused(_))) => {
                // For example by a server that is busy with a script. The next call sends the withdrawal again.
                self.withdrawal = None;
                Followed::Open
            }
            _ => Followed::Open,
        }
    }

    /// Returns `true` if nothing more can be sent on the connection: a withdrawal follows, or the connection has ended.
    fn is_followed(&self) -> bool {
        self.withdrawal.is_some() || self.route.connection.is_ended()
    }

    /// Sends the withdrawal in a task of its own, so that it is carried out even if this call is dropped.
    fn send(
        &self,
        servers: &Arc<Servers>,
        request: &Request,
        patience: Duration,
    ) -> watch::Receiver<Option<Result<Reply, Fault>>> {
        let (done, outcome) = watch::channel(None);
        let (route, servers, request) = (self.route.clone(), Arc::clone(servers), request.clone());
        self.route.connection.runtime().spawn(async move {
            let command = Command::of(&request);
            let result = servers.exchange(&route, command, (false, patience), &mut Untracked).await;
            done.send_replace(Some(result));
        });
        outcome
    }
}
