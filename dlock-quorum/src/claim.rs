//! One claim on a lock of a quorum.
//!
//! ```text
//!   attempt ──▶ marks agree ──▶ all nodes are asked ──┬── a majority ──▶ granted; the other requests go on
//!                                  ▲                  ├── busy, and first of several ──▶ pause ─┐
//!                                  └──────────────────│────────── up to five times ────────────┘
//!                                                     └── no majority ──▶ votes withdrawn ──▶ busy, or a failure
//! ```
//!
//! Votes that are not withdrawn in time are released in the background, by [`Withdrawals`](crate::withdrawals).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{
    Attempt, Backoff, Busy, ClaimRequest, Grant, Renewed, RequestClock, Signal, Validity, Withdrawal, sleep,
    within,
};
use dlock_core::{Claim, Failure, Timestamp};
use tokio::time::Instant;

use crate::QuorumShared;
use crate::ballot::Ballot;
use crate::round::Round;
use crate::tally::{CountedVote, VoteStanding, VoteTally};
use crate::vote::{Vote, VoteAnswer};
use crate::votes::too_few;

/// The number of times that a claim which got the first of the nodes asks for the rest, after pauses that double, where
/// several claims got some of the nodes each.
const INSISTING: usize = 5;

/// A claim on a lock of a [`Quorum`](crate::Quorum).
pub struct QuorumClaim {
    shared: Arc<QuorumShared>,
    request: ClaimRequest,
    votes: Vec<Arc<Vote>>,
    tally: Arc<VoteTally>,
    /// The time at which the attempt was sent that was granted.
    sent: Timestamp,
    /// The length of the grant, and with it of each renewal.
    length: Duration,
    /// The nodes that answered in the last round that another holder has the lock, and how many of them have to change.
    busy: (Vec<usize>, usize),
    /// The pauses before a round that others may start at the same moment.
    jitter: Backoff,
}

impl QuorumClaim {
    pub(crate) fn new(shared: Arc<QuorumShared>, request: ClaimRequest) -> Self {
        let tally = VoteTally::new(shared.needed());
        let votes: Vec<_> = shared
            .members
            .iter()
            .map(|member| {
                let request = shared.node_request(&request, request.token);
                Vote::new(member, request, &tally, shared.clock.clone())
            })
            .collect();
        // Before the first attempt: a node may report on its vote as soon as it is granted.
        tally.seat(&votes);
        Self {
            sent: shared.clock.now(),
            length: request.lease,
            busy: Default::default(),
            jitter: Backoff::new(Duration::from_millis(2), Duration::from_millis(100))
                .with_entropy(&request.entropy),
            shared,
            request,
            votes,
            tally,
        }
    }

    fn limit(&self) -> Duration {
        self.shared.node_limit(&self.request)
    }

    /// Starts a round of requests that each node has the usual time for.
    fn round<T: Send + 'static>(&self) -> Round<T> {
        Round::new(self.limit(), &self.request.host)
    }

    /// Makes the vote of a node ready to be asked for; not while an earlier one is being released there.
    ///
    /// A token that was withdrawn once is never asked for again: the withdrawal may arrive late, and would take the new
    /// vote away unseen.
    fn prepare(&mut self, place: usize) -> Result<bool, Failure> {
        let vote = &self.votes[place];
        if vote.is_done() {
            let request = self.shared.node_request(&self.request, self.request.entropy.token()?);
            let fresh = Vote::new(&vote.member, request, &self.tally, self.shared.clock.clone());
            self.votes[place] = fresh;
            self.tally.seat(&self.votes);
            return Ok(true);
        }
        if vote.is_closed() {
            self.clean_up(place, self.limit())?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Has the vote of a node released in the background.
    fn clean_up(&self, place: usize, limit: Duration) -> Result<(), Failure> {
        self.shared.withdrawals[place].clean_up(&self.votes[place], limit, &self.request)
    }

    /// Asks all nodes until it is certain whether a majority votes for this claim.
    async fn poll_nodes(&mut self) -> Result<(Ballot, Round<VoteAnswer>), Failure> {
        let mut ballot = Ballot::new(self.votes.len(), self.shared.needed());
        // Three fifths: what is left is for taking the votes back, before the engine gives the attempt up.
        let mut round = self.round().waiting_at_most(self.request.request_timeout * 3 / 5);
        for place in 0..self.votes.len() {
            if !self.votes[place].member.is_asked() {
                let silent =
                    Failure::unavailable("it has not answered lately, and is asked only now and then");
                ballot.note(place, VoteAnswer::Failed(silent));
            } else if self.prepare(place)? {
                round.ask_for(place, &self.votes[place]);
            } else {
                ballot.note(
                    place,
                    VoteAnswer::Failed(Failure::unknown("an earlier vote is still being released")),
                );
            }
        }
        let started = Instant::now();
        gather(&mut ballot, &mut round).await;
        // Several claims may have got some of the nodes each. One of them insists, and the others withdraw theirs.
        // As long as the round took: the others need as long to withdraw their votes.
        let mut pause = started.elapsed() + Duration::from_millis(1);
        for _ in 0..INSISTING {
            if !ballot.is_busy() || !ballot.is_first() || round.left() < pause * 2 {
                break;
            }
            sleep(pause).await;
            for place in ballot.take_busy() {
                round.ask_for(place, &self.votes[place]);
            }
            gather(&mut ballot, &mut round).await;
            // The more there are of the others, the longer they take.
            pause *= 2;
        }
        Ok((ballot, round))
    }

    /// Releases the votes of a round that failed, on all nodes that gave one or may have. Waits for those that answer
    /// before `until`; the others are taken back in the background. Nodes that certainly gave none are asked again in
    /// the next round, and withdrawn from with the whole claim.
    async fn give_up(
        &mut self,
        ballot: &mut Ballot,
        round: Round<VoteAnswer>,
        until: Instant,
    ) -> Result<(), Failure> {
        let limit = self.limit();
        // Read before the round is dropped, which cancels the requests that were not written.
        let silent: Vec<_> = round.silent().collect();
        let is_over = round.left().is_zero();
        // Drops the requests under way, so that withdrawals can follow them.
        drop(round);
        let mut withdrawals = self.round();
        withdrawals.end_by(until);
        for place in 0..self.votes.len() {
            let vote = &self.votes[place];
            if silent.contains(&place) {
                let failure = match vote.is_done() {
                    false if is_over => Failure::unknown(format!("no answer within {limit:?}")),
                    false => Failure::unknown("no answer before the others had decided"),
                    true => Failure::unavailable(RequestClock::UNSENT),
                };
                ballot.note(place, VoteAnswer::Failed(failure));
                self.clean_up(place, limit)?;
            } else if !vote.is_settled() {
                vote.close();
                withdrawals.ask(place, Arc::clone(vote).withdraw());
            }
        }
        while withdrawals.next().await.is_some() {}
        drop(withdrawals);
        for (place, vote) in self.votes.iter().enumerate() {
            if vote.is_closed() && !vote.is_done() {
                self.clean_up(place, limit)?;
            }
        }
        Ok(())
    }

    /// Asks nodes that did not vote for this claim, or have lost their vote, again, in the background: a lock that is
    /// kept for long is to outlive more than one outage. Only called when a majority has just confirmed the lock.
    fn heal(&mut self, missing: &[usize]) -> Result<(), Failure> {
        let limit = self.limit();
        for &place in missing {
            let vote = &self.votes[place];
            if !vote.member.is_asked() {
                continue;
            }
            if !vote.is_closed() && !vote.is_settled() {
                // Something of it may still be there, or on its way.
                self.clean_up(place, limit)?;
            } else if self.prepare(place)? {
                let asking = within(limit, Arc::clone(&self.votes[place]).ask());
                self.request.host.spawn(async move { drop(asking.await) })?;
            }
        }
        Ok(())
    }
}

/// Takes answers until no other can change the outcome, and those that are there besides.
async fn gather(ballot: &mut Ballot, round: &mut Round<VoteAnswer>) {
    while !ballot.is_decided(round.open()) {
        match round.next().await {
            Some((place, answer)) => ballot.note(place, answer),
            None => break,
        }
    }
    for (place, answer) in round.at_hand() {
        ballot.note(place, answer);
    }
}

impl Claim for QuorumClaim {
    async fn attempt(&mut self) -> Result<Attempt, Failure> {
        self.shared.check_lease(&self.request)?;
        // Read before the first request: the grant counts from here, whatever the marks and the round take.
        let (sent, started) = (self.shared.clock.now(), Instant::now());
        for member in &self.shared.members {
            member.agrees(self.limit()).await?;
        }
        let (mut ballot, round) = self.poll_nodes().await?;
        // Read after the round: a mark that was found meanwhile voids the votes, also those of a majority.
        let is_refused = self.shared.members.iter().any(|member| member.is_foreign());
        if ballot.is_won() && !is_refused {
            round.leave()?;
            let mut lengths: Vec<_> = self.votes.iter().filter_map(|vote| vote.length()).collect();
            lengths.sort_unstable();
            let Some(length) = lengths.len().checked_sub(self.shared.needed()).map(|least| lengths[least])
            else {
                return Err(Failure::unknown("a node took its vote back at once"));
            };
            (self.sent, self.length, self.busy) = (sent, length, Default::default());
            return Ok(Attempt::Granted(Grant::new(Validity::Lease(length))));
        }
        let granted = ballot.granted();
        // So early that the engine gets the answer before it gives up.
        self.give_up(&mut ballot, round, started + self.request.request_timeout * 4 / 5).await?;
        if is_refused {
            for member in &self.shared.members {
                member.agrees(self.limit()).await?;
            }
            return Err(Failure::unavailable("the settings of a node have just changed"));
        }
        if !ballot.is_busy() {
            self.busy = Default::default();
            return Err(ballot.into_failure(&self.shared.members));
        }
        let (busy, answers) = ballot.into_busy();
        self.busy = (busy, self.shared.needed().saturating_sub(granted).max(1));
        Ok(Attempt::Busy(summary(answers, self.busy.1)))
    }

    async fn changed(&mut self) -> Result<(), Failure> {
        let (busy, needed) = &self.busy;
        // Only the engine ends it.
        let mut round = Round::new(Duration::from_secs(24 * 3_600), &self.request.host);
        for &place in busy {
            let vote = &self.votes[place];
            if !vote.is_closed() {
                round.ask(place, Arc::clone(vote).changed());
            }
        }
        let mut changes = 0;
        while changes < *needed {
            match round.next().await {
                Some((_, Ok(()))) => changes += 1,
                Some((_, Err(_))) => {}
                None => std::future::pending().await,
            }
        }
        // Others were notified at the same moment. If all asked at once, each would get some of the nodes.
        sleep(self.jitter.next_pause()).await;
        Ok(())
    }

    fn granted(&mut self, signal: Signal) {
        self.tally.report_to(signal, self.sent, self.shared.clock.now());
    }

    async fn renew(&mut self) -> Result<Renewed, Failure> {
        let (nodes, needed) = (self.votes.len(), self.shared.needed());
        // A session counts only if it was confirmed for as long as a renewal would hold.
        let valid_until = self.shared.clock.now() + self.length;
        let started = Instant::now();
        // A slow majority is waited for: to ask it again would take as long, and the lock would be lost.
        let mut round = Round::new(self.request.request_timeout * 4 / 5, &self.request.host);
        let (mut extended, mut gone, mut missing, mut failures) = (0, 0, Vec::new(), Vec::new());
        for (place, vote) in self.votes.iter().enumerate() {
            match vote.standing() {
                VoteStanding::Leased | VoteStanding::Unsettled => round.ask(place, Arc::clone(vote).renew()),
                VoteStanding::Session(until) if until >= valid_until => extended += 1,
                VoteStanding::Session(_) | VoteStanding::Suspect => {
                    failures.push((place, Failure::unknown("its session was not confirmed lately")));
                }
                VoteStanding::Missing => {
                    gone += 1;
                    missing.push(place);
                }
            }
        }
        while extended < needed && gone <= nodes - needed && extended + round.open() >= needed {
            match round.next().await {
                Some((_, Ok(Renewed::Extended))) => extended += 1,
                Some((place, Ok(Renewed::Gone))) => {
                    gone += 1;
                    missing.push(place);
                }
                Some((place, Err(failure))) => failures.push((place, failure)),
                None => break,
            }
        }
        if extended >= needed {
            // The minority gets no more than a node's usual time: the renewal is confirmed, and its rest is in the
            // background.
            round.end_by(started + self.limit());
            round.leave()?;
            self.heal(&missing)?;
            return Ok(Renewed::Extended);
        }
        // So many that the others are no majority, whatever they answer.
        if gone > nodes - needed {
            return Ok(Renewed::Gone);
        }
        failures.extend(round.silent().map(|place| (place, Failure::unknown("no answer in time"))));
        Err(too_few(&self.shared.members, extended, failures))
    }

    async fn withdraw(&mut self) -> Result<Withdrawal, Failure> {
        let (limit, needed) = (self.limit(), self.shared.needed());
        let started = Instant::now();
        // A majority has to confirm it, however long that takes: only the others are to cost no time.
        let mut round = Round::new(self.request.request_timeout * 4 / 5, &self.request.host);
        let (mut confirmed, mut failures) = (0, Vec::new());
        for (place, vote) in self.votes.iter().enumerate() {
            if vote.is_queued() {
                failures.push((place, Failure::unknown("it is still being released")));
            } else {
                round.ask(place, Arc::clone(vote).withdraw());
            }
        }
        while let Some((place, answer)) = round.next().await {
            match answer {
                Ok(()) => confirmed += 1,
                Err(failure) => failures.push((place, failure)),
            }
            if confirmed == needed {
                // The others are a minority, and may keep a waiter out all the same: they get as long again.
                round.end_by(Instant::now() + started.elapsed() + Duration::from_millis(1));
            }
        }
        failures.extend(round.silent().map(|place| (place, Failure::unknown("no answer in time"))));
        drop(round);
        if confirmed < needed {
            return Err(too_few(&self.shared.members, confirmed, failures));
        }
        for place in 0..self.votes.len() {
            self.clean_up(place, limit)?;
        }
        // Counted after all answers: a vote that was never answered for counts as removed, since that cannot be known.
        let removed = self.votes.iter().filter(|vote| vote.may_have_been_removed()).count();
        let withdrawal = if removed >= needed { Withdrawal::REMOVED } else { Withdrawal::ABSENT };
        let is_settled = self.votes.iter().all(|vote| vote.is_done());
        Ok(if is_settled { withdrawal } else { withdrawal.unsettled() })
    }

    fn is_clean(&self) -> bool {
        self.votes.iter().all(|vote| vote.is_clean())
    }
}

impl Drop for QuorumClaim {
    /// Closes the votes, so that a request in the background takes none for this claim any more.
    fn drop(&mut self) {
        for vote in &self.votes {
            vote.close();
        }
    }
}

impl fmt::Debug for QuorumClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumClaim").field("key", &self.request.key).finish_non_exhaustive()
    }
}

/// Returns what is known of the holder, when `needed` of these nodes have to become free.
fn summary(mut answers: Vec<Busy>, needed: usize) -> Busy {
    let mut ends: Vec<_> = answers.iter().map(|busy| busy.retry_after.unwrap_or(Duration::MAX)).collect();
    ends.sort_unstable();
    let retry_after = ends.get(needed - 1).copied().filter(|end| *end != Duration::MAX);
    let requeued = answers.iter().any(|busy| busy.requeued);
    let mut holder = answers.iter_mut().find_map(|busy| busy.holder.take());
    if let Some(holder) = &mut holder {
        // Fences of single nodes do not grow from holder to holder.
        holder.fence = None;
    }
    let mut summary = Busy::default();
    (summary.retry_after, summary.holder, summary.requeued) = (retry_after, holder, requeued);
    summary
}
