//! A claim on one node: a vote that is asked for, kept, and released.
//!
//! ```text
//!   fresh ── ask ──▶ in flight ──┬── granted ───────────▶ counted ── lost, gone ──▶ gone
//!     ▲                          ├── busy, or failed ───▶ fresh
//!     │                          └── unknown, dropped ──▶ in flight: it may still arrive
//!     │
//!     └─ a new vote with a new token ─ done ◀─ withdrawn, or left to its lease ─ closed ◀─ close, in any state
//! ```
//!
//! A closed vote is asked for nothing but its withdrawal, in the background where the node does not answer.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Busy, ClaimRequest, Host, InFlight, Mutex, NodeClaim, Renewed, RequestClock, RequestStage,
    Signal, SignalSink, Validity, margin,
};
use dlock_core::{Claim, Clock, ErrorKind, Failure, Key, Timestamp};
use tokio::time::Instant;

use crate::node::Member;
use crate::tally::{CountedVote, VoteStanding, VoteTally, Wishes};

/// A claim on one node.
pub(crate) struct Vote {
    pub(crate) member: Arc<Member>,
    /// Locked by each request to the node, so that requests follow each other.
    claim: Arc<tokio::sync::Mutex<NodeClaim>>,
    state: Mutex<VoteState>,
    tally: Weak<VoteTally>,
    clock: Clock,
    lease: Duration,
    /// The time that the node has for one request.
    limit: Duration,
    /// The clock of its attempts, where the backend has one.
    written: Option<RequestClock>,
    key: Key,
    host: Host,
}

#[derive(Debug, Default)]
struct VoteState {
    in_flight: InFlight<()>,
    /// The grant that the node has for us: for how long, and since which request.
    granted: Option<(Validity, Timestamp)>,
    /// Is `true` if the node had it for us once.
    was_granted: bool,
    /// Is `true` if it has it no more.
    gone: bool,
    suspect: bool,
    /// Is `true` if it is asked for nothing more, but to be withdrawn.
    closed: bool,
    /// Is `true` if a withdrawal was sent, and not answered yet.
    withdrawing: bool,
    /// Is `true` if one was never answered, so that a later one proves nothing about what was there.
    doubtful: bool,
    /// Is `true` if it is being released in the background.
    queued: bool,
    /// Is `true` if a withdrawal has removed something.
    was_removed: bool,
    /// The end, once nothing is left on the node: `true` if something was removed.
    done: Option<bool>,
}

/// The answer of a node to an attempt.
#[derive(Debug)]
pub(crate) enum VoteAnswer {
    Granted,
    Busy(Busy),
    Failed(Failure),
}

impl Vote {
    pub(crate) fn new(
        member: &Arc<Member>,
        request: ClaimRequest,
        tally: &Arc<VoteTally>,
        clock: Clock,
    ) -> Arc<Self> {
        let (lease, limit) = (request.lease, request.request_timeout);
        let (key, host) = (request.key.clone(), request.host.clone());
        let claim = member.node().claim(request);
        Arc::new(Self {
            written: claim.request_clock(),
            claim: Arc::new(tokio::sync::Mutex::new(claim)),
            member: Arc::clone(member),
            state: Mutex::default(),
            tally: Arc::downgrade(tally),
            clock,
            lease,
            limit,
            key,
            host,
        })
    }

    /// Asks the node for its vote.
    pub(crate) async fn ask(self: Arc<Self>) -> VoteAnswer {
        let since = Instant::now();
        // Counted when it is dropped, so that a request that its round gives up counts too.
        let mut asked = Asked { vote: &self, outcome: "unanswered", error: None, since, begun: false };
        let answer = self.ask_uncounted(&mut asked.begun).await;
        (asked.outcome, asked.error) = match &answer {
            VoteAnswer::Granted => ("granted", None),
            VoteAnswer::Busy(_) => ("busy", None),
            VoteAnswer::Failed(failure) => ("failed", Some(failure.kind())),
        };
        drop(asked);
        answer
    }

    async fn ask_uncounted(self: &Arc<Self>, begun: &mut bool) -> VoteAnswer {
        let mut claim = Arc::clone(&self.claim).lock_owned().await;
        let sent = self.clock.now();
        {
            // Looked at under the lock, in one step with the note: a vote that is closed meanwhile sees the attempt.
            let mut state = self.state.lock();
            if state.closed {
                return VoteAnswer::Failed(Failure::unavailable("it is being released"));
            }
            state.in_flight.begin(());
        }
        *begun = true;
        if let Some(written) = &self.written {
            written.begin();
        }
        let attempt = match self.member.may_forget() {
            false => claim.attempt().await,
            true => match self.attempt_and_check(&mut claim).await {
                // The vote of a node that may have forgotten another's lock does not count, and is released.
                (Ok(Attempt::Granted(_)), Err(failure)) => return VoteAnswer::Failed(failure),
                (attempt, _) => attempt,
            },
        };
        match attempt {
            Ok(Attempt::Granted(grant)) => {
                {
                    let mut state = self.state.lock();
                    // An older attempt may arrive by another connection of the node: `was_granted` has it withdrawn.
                    state.in_flight.clear();
                    // The earlier of the two, as in the engine: a vote must not count for longer here than on the node.
                    let proof = grant.proven_at.map_or(sent, |proof| proof.min(sent));
                    let validity = match (grant.validity, grant.first_lease) {
                        (Validity::Lease(length), Some(first)) => Validity::Lease(length.min(first)),
                        (validity, _) => validity,
                    };
                    state.granted = Some((validity, proof));
                    (state.was_granted, state.gone, state.suspect) = (true, false, false);
                }
                // After the state is set, and not under its lock: a report that comes at once finds the grant.
                claim.granted(Signal::new(self));
                VoteAnswer::Granted
            }
            Ok(Attempt::Busy(busy)) => {
                self.state.lock().in_flight.took_nothing(&());
                VoteAnswer::Busy(busy)
            }
            Err(failure) => {
                let mut state = self.state.lock();
                // A grant that is worth nothing is withdrawn, and its claim is not used again.
                state.closed |= failure.is_worthless();
                if failure.kind() != ErrorKind::Unknown && !failure.is_worthless() {
                    state.in_flight.took_nothing(&());
                }
                drop(state);
                VoteAnswer::Failed(failure)
            }
        }
    }

    /// Attempts, and checks that the node remembers, as of a time after the attempt.
    ///
    /// Both requests go out together, the check second. If its answer is there first, it may have been carried out
    /// first, and is made again.
    async fn attempt_and_check(
        &self,
        claim: &mut NodeClaim,
    ) -> (Result<Attempt, Failure>, Result<(), Failure>) {
        let mut attempt = pin!(claim.attempt());
        let mut look = pin!(self.member.remembers(&self.host));
        let mut looked = None;
        let (attempt, looked_after) = std::future::poll_fn(|context| {
            if let Poll::Ready(attempt) = attempt.as_mut().poll(context) {
                // From here on the check is the later one.
                let after = match (&looked, look.as_mut()) {
                    (None, look) => match look.poll(context) {
                        Poll::Ready(answer) => Some(Some(answer)),
                        Poll::Pending => Some(None),
                    },
                    (Some(()), _) => None,
                };
                return Poll::Ready((attempt, after));
            }
            if looked.is_none() && look.as_mut().poll(context).is_ready() {
                looked = Some(());
            }
            Poll::Pending
        })
        .await;
        if !matches!(attempt, Ok(Attempt::Granted(_))) {
            return (attempt, Ok(()));
        }
        let memory = match looked_after {
            Some(Some(answer)) => answer,
            Some(None) => look.await,
            None => self.member.remembers(&self.host).await,
        };
        (attempt, memory)
    }

    /// Returns the time for which the node's grant can be relied upon without a confirmation.
    pub(crate) fn length(&self) -> Option<Duration> {
        match self.state.lock().granted? {
            (Validity::Lease(length), _) => Some(length),
            // A session is confirmed now and then; half of its time is left at any moment.
            (Validity::Session(Some(length)), _) => Some(self.lease.min(length / 2)),
            (Validity::Session(None), _) => Some(self.lease),
        }
    }

    /// Renews the lease on the node.
    pub(crate) async fn renew(self: Arc<Self>) -> Result<Renewed, Failure> {
        let mut claim = Arc::clone(&self.claim).lock_owned().await;
        if self.state.lock().closed {
            return Ok(Renewed::Gone);
        }
        let sent = self.clock.now();
        let counted = self.state.lock().granted.is_some();
        let renewed = claim.renew().await?;
        if renewed == Renewed::Extended && !counted {
            // A vote that was never counted may be that of a node that had forgotten another's lock.
            self.member.remembers(&self.host).await?;
        }
        let mut state = self.state.lock();
        match renewed {
            Renewed::Extended => {
                state.granted.get_or_insert((Validity::Lease(self.lease), sent));
                state.was_granted = true;
            }
            Renewed::Gone => (state.granted, state.gone) = (None, true),
        }
        Ok(renewed)
    }

    /// Resolves when another attempt at this node may be worth while.
    pub(crate) async fn changed(self: Arc<Self>) -> Result<(), Failure> {
        Arc::clone(&self.claim).lock_owned().await.changed().await
    }

    /// Closes the vote: from here on nothing is asked for but its withdrawal.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Releases the vote on the node. Closes it first.
    pub(crate) async fn withdraw(self: Arc<Self>) -> Result<(), Failure> {
        self.close();
        let mut claim = Arc::clone(&self.claim).lock_owned().await;
        {
            let mut state = self.state.lock();
            if state.done.is_some() {
                return Ok(());
            }
            // Nothing was sent that may have taken effect: no request is needed.
            if state.in_flight.is_empty() && !state.was_granted && claim.is_clean() {
                state.done = Some(false);
                return Ok(());
            }
            // Noted before the request goes out: if this is dropped, the next withdrawal does not know what was there.
            state.doubtful |= std::mem::replace(&mut state.withdrawing, true);
        }
        let answer = claim.withdraw().await;
        let mut state = self.state.lock();
        match answer {
            Ok(withdrawn) => {
                state.withdrawing = false;
                state.was_removed |= withdrawn.removed;
                if withdrawn.settled {
                    state.done = Some(state.was_removed);
                }
                Ok(())
            }
            Err(failure) => {
                state.withdrawing = failure.kind() == ErrorKind::Unknown;
                Err(failure)
            }
        }
    }

    /// Closes it, to be released in the background. Returns the time until which that is to be tried, with requests of
    /// up to `limit`: until the lease has ended it anyway. `None` when it is done already, or under way.
    pub(crate) fn queue(&self, limit: Duration) -> Option<Timestamp> {
        {
            let mut state = self.state.lock();
            state.closed = true;
            if state.done.is_some() || std::mem::replace(&mut state.queued, true) {
                return None;
            }
        }
        // A request that is still on its way starts its lease when it arrives; a session has none.
        Some(match self.member.node().capabilities().session_kept {
            true => Timestamp::NEVER,
            false => self.clock.now() + self.lease + limit,
        })
    }

    /// Notes that it is not released in the background after all.
    pub(crate) fn unqueue(&self) {
        self.state.lock().queued = false;
    }

    /// Is `true` if it is being released in the background.
    pub(crate) fn is_queued(&self) -> bool {
        let state = self.state.lock();
        state.queued && state.done.is_none()
    }

    /// Leaves the vote, which may still be on the node, to its lease, for this reason.
    pub(crate) fn leave_to_lease(&self, why: &str) {
        {
            let mut state = self.state.lock();
            if state.done.is_some() {
                return;
            }
            state.done = Some(false);
        }
        self.host.abandoned(&self.key, &Failure::unavailable(self.member.says(&why)));
    }

    /// Returns for how long to wait for the answer to an attempt whose time is up by the call: a request counts from
    /// when it is written, and a queue is waited for while the node answers those before it.
    pub(crate) fn patience(&self) -> Option<Duration> {
        match self.written.as_ref()?.stage() {
            RequestStage::Called => None,
            RequestStage::Queued => self.member.has_answered_within(self.limit).then_some(self.limit),
            RequestStage::Written(at) => {
                let left = (at + self.limit).since(self.member.node().clock().now());
                (!left.is_zero()).then_some(left)
            }
        }
    }

    /// Gives up a request that waits to be written, if there is one. By its clock the request knows that it must not be
    /// written any more, so that this vote is not asked for again.
    fn cancel_queued(&self) {
        // A request that was written, or is being written, cannot be taken back here.
        if !self.written.as_ref().is_some_and(RequestClock::cancel) {
            return;
        }
        let mut state = self.state.lock();
        state.closed = true;
        state.in_flight.took_nothing(&());
        if state.in_flight.is_empty() && !state.was_granted {
            state.done = Some(false);
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Is `true` if nothing is left to be done on the node: the vote was withdrawn, or left to its lease.
    pub(crate) fn is_done(&self) -> bool {
        self.state.lock().done.is_some()
    }

    /// Is `true` if the node answered, and has nothing of ours, as far as is known.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.state.lock();
        state.in_flight.is_empty() && state.granted.is_none() && !state.gone
    }

    /// Is `true` if the node certainly has nothing of ours.
    pub(crate) fn is_clean(&self) -> bool {
        let state = self.state.lock();
        state.done.is_some()
            || (state.in_flight.is_empty()
                && !state.was_granted
                // A claim that is locked has a request under way.
                && self.claim.try_lock().is_ok_and(|claim| claim.is_clean()))
    }

    /// Returns, after a withdrawal, whether something was removed, or may have been.
    pub(crate) fn may_have_been_removed(&self) -> bool {
        let state = self.state.lock();
        state.was_granted && (state.doubtful || state.done != Some(false))
    }
}

impl CountedVote for Vote {
    fn standing(&self) -> VoteStanding {
        let state = self.state.lock();
        match state.granted {
            _ if state.closed || state.gone => VoteStanding::Missing,
            Some((Validity::Lease(_), _)) => VoteStanding::Leased,
            Some(_) if state.suspect => VoteStanding::Suspect,
            Some((Validity::Session(None), _)) => VoteStanding::Session(Timestamp::NEVER),
            Some((Validity::Session(Some(length)), proof)) => {
                VoteStanding::Session(proof + length.saturating_sub(margin(length)))
            }
            // It is renewed as a vote is: a renewal that finds it proves that it was granted.
            None if state.in_flight.may_arrive() => VoteStanding::Unsettled,
            None => VoteStanding::Missing,
        }
    }
}

impl SignalSink for Vote {
    fn lost(&self, cause: Cow<'static, str>) {
        {
            let mut state = self.state.lock();
            (state.granted, state.gone) = (None, true);
        }
        self.recount(cause);
    }

    fn release_requested(&self) {
        if let Some(tally) = self.tally.upgrade() {
            tally.ask(Wishes { release: true, ..Wishes::default() }, self.clock.now());
        }
    }

    fn renew_within(&self, limit: Duration) {
        if let Some(tally) = self.tally.upgrade() {
            let now = self.clock.now();
            tally.ask(Wishes { renew_by: Some(now + limit), ..Wishes::default() }, now);
        }
    }

    fn suspect(&self) {
        self.state.lock().suspect = true;
        self.recount("".into());
    }

    fn trust(&self, proof: Timestamp) {
        let was_suspect = {
            let mut state = self.state.lock();
            if let Some((Validity::Session(_), last)) = &mut state.granted {
                *last = (*last).max(proof);
            }
            std::mem::replace(&mut state.suspect, false)
        };
        if was_suspect {
            self.recount("".into());
        }
    }
}

impl Vote {
    fn recount(&self, cause: Cow<'static, str>) {
        if let Some(tally) = self.tally.upgrade() {
            tally.recount(&self.member, cause);
        }
    }
}

/// A vote that was asked for, to be counted when it is over, also when its answer is not waited for any more.
struct Asked<'a> {
    vote: &'a Vote,
    outcome: &'static str,
    error: Option<ErrorKind>,
    since: Instant,
    /// Is `true` if the node's claim was asked.
    begun: bool,
}

impl Asked<'_> {
    /// Returns whether the node had its time. An attempt that was given up earlier, or that has not left this process
    /// while the node answered others, proves nothing about it.
    fn is_overdue(&self) -> bool {
        let vote = self.vote;
        let is_late = self.since.elapsed() >= vote.limit && vote.patience().is_none();
        // After the look at its patience, which the request has only while it is not cancelled.
        if self.begun {
            vote.cancel_queued();
        }
        is_late
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let member = &self.vote.member;
        match self.outcome {
            "granted" | "busy" => member.answered(),
            "unanswered" if self.is_overdue() => member.did_not_answer(),
            _ => {}
        }
        self.vote.host.voted(member.number(), self.outcome, self.error);
    }
}
