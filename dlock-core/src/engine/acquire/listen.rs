//! The way in which a waiter learns of releases.

use crate::backend::dynamic::DynClaim;
use crate::engine::Engine;
use crate::engine::wait_queue::Ticket;
use crate::error::Failure;
use crate::key::Key;

/// Resolves when a release elsewhere makes it worth while to ask.
pub(super) async fn listen(
    engine: &Engine,
    claim: &mut Box<dyn DynClaim>,
    key: &Key,
    ticket: Option<&Ticket<'_>>,
) -> Result<(), Failure> {
    let mut later = None;
    loop {
        // A waiter that is not the first learns of the lock from those before it.
        if let Some(ticket) = ticket {
            ticket.may_listen().await;
        }
        let notified = watch(claim);
        match later {
            None => notified.await?,
            // The processes that wait for longer have left it when the time is up.
            Some(pause) => match engine.timers.within(pause, notified).await {
                None => return Ok(()),
                Some(notified) => notified?,
            },
        }
        // The notification was of a release of this process, which leaves the lock to others.
        if ticket.is_some_and(Ticket::yields) {
            continue;
        }
        later = engine.tenures.released_elsewhere(key, || engine.clock.now());
        if later.is_none() {
            return Ok(());
        }
    }
}

/// Resolves when the backend reports a change. A backend that cannot, or does not want to, is polled; a failure that
/// ends the claim ends the acquire.
async fn watch(claim: &mut Box<dyn DynClaim>) -> Result<(), Failure> {
    match claim.changed().await {
        Err(failure) if failure.is_transient() || failure.kind().is_revocation() => {
            // Not an error of the acquire: its poll asks anyway, and that request meets whatever is wrong and reports
            // it.
            std::future::pending().await
        }
        notified => notified,
    }
}
