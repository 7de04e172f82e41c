//! A claim on a lock that several may hold: a reader's, one of permits, or one of a writer who found such.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Attempt, Busy, Grant, Mode, Validity, Withdrawal};
use tokio::time::Instant;

use super::{ShareAsk, ShareTaken};
use crate::rows::RowClaim;
use crate::rows::connections::Kind;
use crate::rows::line::Place;
use crate::rows::steps::{LeaveShare, ReleaseShare, TakeShare};
use crate::server::Server;
use crate::stored;

impl<S: Server> RowClaim<S> {
    /// One attempt, as one transaction of the server's.
    pub(in crate::rows) async fn attempt_share(&mut self) -> Result<Attempt, Failure> {
        self.since = Instant::now();
        let fresh = !std::mem::replace(&mut self.unknown, true);
        let fences = if fresh && self.request.mode == Mode::Exclusive { self.reserves } else { 1 };
        let step = TakeShare(ShareAsk::new(&self.request, fences, self.stand()));
        let connections = Arc::clone(&self.rows.connections);
        let answer = connections.begin(Kind::Ordinary, step, self.limits(), self.sent()).await;
        self.unanswered.retain(|earlier| !earlier.try_cancel());
        // What failed without having been sent, or was answered, leaves nothing open.
        self.unknown = answer.is_err() && !self.unanswered.is_empty();
        match answer? {
            ShareTaken::Granted(fence) => {
                (self.held, self.listener, self.keeps_out) = (Some(connections.hold()), None, false);
                self.place = Place::default();
                self.shared = self.request.mode != Mode::Exclusive || !self.unanswered.is_empty();
                let grant = Grant::new(Validity::Lease(self.request.lease));
                let with_fences = |grant, last| stored::with_fences(grant, last, fences);
                Ok(Attempt::Granted(fence.into_iter().fold(grant, with_fences)))
            }
            ShareTaken::Busy { holder, free_in, prefers, place } => {
                self.contended = true;
                // Until it is granted or withdrawn: the row that says so stays when the others have gone.
                self.keeps_out |= prefers;
                self.seen = holder.as_ref().and_then(|holder| holder.fence);
                let mut busy = Busy::default();
                busy.retry_after = Some(free_in);
                busy.holder = holder;
                self.stands(place, &mut busy);
                Ok(Attempt::Busy(busy))
            }
            ShareTaken::Conflict(_) if self.request.takes_over.is_some() => {
                Ok(Attempt::Busy(Busy::default()))
            }
            ShareTaken::Conflict(other) => Err(self.conflict(other)),
        }
    }

    /// Others use the key in this way.
    pub(in crate::rows) fn conflict(&self, other: Mode) -> Failure {
        let what = || Failure::unavailable("the key is used in another way");
        self.request.mode.conflict(&other).unwrap_or_else(what)
    }

    /// Leaves what this claim has for so long, or no longer than it is left already.
    pub(in crate::rows) async fn leave_share(&self, taken_for: Duration) -> Result<Withdrawal, Failure> {
        let request = &self.request;
        let step = LeaveShare(request.key.clone(), request.token, taken_for);
        let left = self.rows.connections.within(Kind::Release, step, request.request_timeout).await?;
        Ok(if left { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }

    /// Takes away what this claim has, its preference, and its place in line.
    pub(in crate::rows) async fn release_share(&self) -> Result<Withdrawal, Failure> {
        let request = &self.request;
        let step = ReleaseShare(request.key.clone(), request.token, request.fair);
        let removed = self.rows.connections.within(Kind::Release, step, request.request_timeout).await?;
        Ok(if removed { Withdrawal::REMOVED } else { Withdrawal::ABSENT })
    }
}
