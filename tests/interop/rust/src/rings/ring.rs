//! One lock that goes round.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::crew::{Answer, Crew, Hop, Reply};
use super::verdict::Tally;
use super::{BATON, COPIES, KILLS, PAUSE, clock, key, wall_millis};

/// A baton that is refused so long before its end is refused wrongly: its end is known by the giver's clock only.
const MARGIN: u64 = 500;

/// Who handed the lock over last.
struct Giver {
    worker: usize,
    fence: u64,
    ended: u64,
}

pub(super) struct Ring {
    crew: Arc<Crew>,
    left: Arc<AtomicU64>,
    key: String,
    random: fastrand::Rng,
    giver: Option<Giver>,
    baton: Option<String>,
    /// When a worker was killed that had the lock, or the baton.
    killed: Option<u64>,
    /// How long after that the store still refused the lock.
    refused: Duration,
    tally: Tally,
}

impl Ring {
    pub(super) fn new(crew: &Arc<Crew>, left: &Arc<AtomicU64>, number: usize, seed: u64) -> Self {
        Self {
            crew: Arc::clone(crew),
            left: Arc::clone(left),
            key: key(number),
            random: fastrand::Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(number as u64)),
            giver: None,
            baton: None,
            killed: None,
            refused: Duration::ZERO,
            tally: Tally::default(),
        }
    }

    /// Goes on until all hand-overs of all rings were made, and what a killed worker had was acquired.
    pub(super) async fn go_round(mut self) -> Result<Tally> {
        while self.left.load(Ordering::SeqCst) > 0 || self.killed.is_some() {
            match self.baton.take() {
                None => self.acquire().await?,
                Some(baton) => self.take_over(baton).await?,
            }
        }
        Ok(self.tally)
    }

    /// A worker that is none of these.
    fn other_than(&mut self, these: &[Option<usize>]) -> usize {
        loop {
            let worker = self.random.usize(..self.crew.count());
            if !these.contains(&Some(worker)) {
                return worker;
            }
        }
    }

    async fn hop(&self, worker: usize, baton: &str, kill: Option<f64>) -> Result<(usize, Reply)> {
        let command = format!("hop {} {baton} {}", self.key, BATON.as_millis());
        Ok((worker, self.crew.ask(worker, command, kill).await?))
    }

    async fn acquire(&mut self) -> Result<()> {
        let worker = self.other_than(&[]);
        let (_, reply) = self.hop(worker, "-", None).await?;
        match reply.answer {
            Answer::Passed(hop) => {
                if let Some(killed) = self.killed.take() {
                    self.tally.blocks.push(Duration::from_nanos(hop.begun.saturating_sub(killed)));
                    self.tally.refusals.push(std::mem::take(&mut self.refused));
                }
                self.tally.acquires += 1;
                self.taken(worker, hop).await?;
            }
            Answer::Refused => {
                if let Some(killed) = self.killed {
                    // Not before the worker had the command, which may have waited for the worker.
                    let asked = clock().saturating_sub(u64::try_from(reply.took.as_nanos())?);
                    self.refused = self.refused.max(Duration::from_nanos(asked.saturating_sub(killed)));
                }
                tokio::time::sleep(PAUSE).await;
            }
            Answer::Failed(why) => {
                self.tally.failed(why);
                tokio::time::sleep(PAUSE).await;
            }
            other => bail!("no answer to an acquire: {other:?}"),
        }
        Ok(())
    }

    async fn take_over(&mut self, baton: String) -> Result<()> {
        let until: u64 = baton.split(':').nth(3).context("no time in the baton")?.parse()?;
        let giver = self.giver.as_ref().map(|giver| giver.worker);
        let first = self.other_than(&[giver]);
        let kill = (self.random.u32(..KILLS) == 0).then(|| self.random.f64() * 1.2);
        let replies = if kill.is_none() && self.random.u32(..COPIES) == 0 {
            let second = self.other_than(&[giver, Some(first)]);
            let both = tokio::join!(self.hop(first, &baton, None), self.hop(second, &baton, None));
            vec![both.0?, both.1?]
        } else {
            vec![self.hop(first, &baton, kill).await?]
        };
        let (copies, mut taken, mut refused, mut unknown) = (replies.len(), Vec::new(), 0, false);
        for (worker, reply) in replies {
            match reply.answer {
                Answer::Passed(hop) => {
                    if copies == 1 && kill.is_none() {
                        self.tally.hops.entry(self.crew.language(worker)).or_default().push(reply.took);
                        self.tally.requests.extend(reply.requests);
                    }
                    taken.push((worker, hop));
                }
                Answer::Refused => refused += 1,
                Answer::Failed(why) => {
                    self.tally.failed(why);
                    unknown = true;
                }
                Answer::Killed(when) => (self.killed, unknown) = (Some(when), true),
                other => bail!("no answer to a take-over: {other:?}"),
            }
        }
        if taken.len() > 1 {
            self.tally.taken_twice += 1;
        } else if copies > 1 && taken.len() == 1 {
            self.tally.copies_refused += refused;
        } else if taken.is_empty() && !unknown {
            if wall_millis() + MARGIN < until {
                self.tally.refused_wrongly += 1;
            } else {
                self.tally.too_late += 1;
            }
        }
        let Some((worker, hop)) = taken.pop() else { return Ok(()) };
        if let Some(giver) = &self.giver {
            let pair = (self.crew.language(giver.worker), self.crew.language(worker));
            *self.tally.pairs.entry(pair).or_default() += 1;
            self.tally.gaps.push(Duration::from_nanos(hop.begun.saturating_sub(giver.ended)));
        }
        let _ = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        self.taken(worker, hop).await
    }

    /// Goes on from a hop, after which the giver writes too late.
    async fn taken(&mut self, worker: usize, hop: Hop) -> Result<()> {
        if !hop.written {
            self.tally.holders_refused += 1;
        }
        if let Some(giver) = self.giver.take() {
            let command = format!("write {} {}", self.key, giver.fence);
            match self.crew.ask(giver.worker, command, None).await?.answer {
                Answer::Stale => self.tally.stale_refused += 1,
                Answer::Written => self.tally.stale_written += 1,
                Answer::Failed(why) => self.tally.failed(why),
                other => bail!("no answer to a write: {other:?}"),
            }
        }
        self.giver = Some(Giver { worker, fence: hop.fence, ended: hop.ended });
        self.baton = Some(hop.baton);
        Ok(())
    }
}
