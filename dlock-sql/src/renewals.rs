//! Many renewals in one statement.
//!
//! The keeper asks for the renewal of every lock that is due at about the same time. Whatever has come in when the
//! connection is free goes out together, so that ten thousand locks cost a handful of statements.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Renewed};
use dlock_core::{Failure, Key, Token};
use tokio::sync::{mpsc, oneshot};

use crate::failure::{closed, copy};

/// A lease that is to be extended.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    /// How long the engine waits for the answer.
    limit: Duration,
    answer: oneshot::Sender<Result<Renewed, Failure>>,
}

/// Which of a list were extended.
#[derive(Debug)]
pub(crate) enum Extended {
    All,
    Some(HashSet<usize>),
}

/// How long the one waits who waits the least of these.
pub(crate) fn shortest_limit(renewals: &[Renewal]) -> Duration {
    renewals.iter().map(|renewal| renewal.limit).min().unwrap_or_default()
}

/// What carries out renewals.
pub(crate) trait Renew: Send + Sync + 'static {
    /// How many rows one statement changes at the most, so that it does not keep others waiting.
    const AT_ONCE: usize;

    /// Extends what is still ours.
    fn renew(&self, renewals: &[Renewal]) -> impl Future<Output = Result<Extended, Failure>> + Send;
}

/// Where renewals are handed in.
#[derive(Debug)]
pub(crate) struct Renewals(mpsc::UnboundedSender<Renewal>);

impl Renewals {
    /// With the inbox that [`look_after`] empties.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Renewal>) {
        let (renewals, inbox) = mpsc::unbounded_channel();
        (Self(renewals), inbox)
    }

    /// Extends one lease, along with whatever else is due.
    pub(crate) async fn extend(&self, request: &ClaimRequest) -> Result<Renewed, Failure> {
        let (answer, receiver) = oneshot::channel();
        let renewal = Renewal {
            key: request.key.clone(),
            token: request.token,
            lease: request.lease,
            limit: request.request_timeout,
            answer,
        };
        // The worker lives as long as what it renews on, and the keeper's thread.
        self.0.send(renewal).map_err(|_| closed())?;
        receiver.await.unwrap_or_else(|_| Err(closed()))
    }
}

/// Carries out renewals until `on` is dropped.
pub(crate) fn look_after<R: Renew>(
    on: &Arc<R>,
    inbox: mpsc::UnboundedReceiver<Renewal>,
) -> Result<(), Failure> {
    dlock_core::keeper::runtime()?.spawn(work(Arc::downgrade(on), inbox));
    Ok(())
}

async fn work<R: Renew>(on: Weak<R>, mut inbox: mpsc::UnboundedReceiver<Renewal>) {
    let mut renewals = Vec::new();
    while inbox.recv_many(&mut renewals, R::AT_ONCE).await > 0 {
        // Those that were cancelled have no use for it any more.
        renewals.retain(|renewal| !renewal.answer.is_closed());
        let Some(on) = on.upgrade() else { return };
        if renewals.is_empty() {
            continue;
        }
        let answer = on.renew(&renewals).await;
        for (n, renewal) in renewals.drain(..).enumerate() {
            let answer = match &answer {
                Ok(Extended::All) => Ok(Renewed::Extended),
                Ok(Extended::Some(places)) if places.contains(&n) => Ok(Renewed::Extended),
                Ok(_) => Ok(Renewed::Gone),
                Err(failure) => Err(copy(failure)),
            };
            let _ = renewal.answer.send(answer);
        }
    }
}
