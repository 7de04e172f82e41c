//! Runs of jobs: every process fires the same schedule by its own clock, and jobs are killed, paused and cut off.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Held, Locks, OnCrash, OnError, Outcome, Term};
use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::backend::Leases;
use crate::exec::{KeeperOf, Thrown, sleep, spawn, throw};
use crate::judge::Ended;
use crate::plan::{Firings, Plan};
use crate::run::done;
use crate::world::{Event, tell, violate, world};

/// Why a job is not done.
enum Undone {
    Body,
    Dlock(Error),
}

impl From<Error> for Undone {
    fn from(error: Error) -> Self {
        Self::Dlock(error)
    }
}

/// One call of a job, or a candidate, in one process.
#[derive(Clone)]
struct Caller {
    process: usize,
    locks: Locks,
    plan: Arc<Plan>,
    rng: Rng,
    /// Counts those who are at work.
    _users: Arc<()>,
}

/// Starts the processes, and waits for all firings.
pub(crate) async fn direct(plan: Plan) {
    let Some(firings) = plan.firings.clone() else { return violate("there are no firings".into()) };
    let mut rng = Rng::with_seed(plan.seed ^ 0x6669_7265);
    let (users, plan) = (Arc::new(()), Arc::new(plan));
    let mut all = Vec::new();
    for process in 0..plan.processes {
        let builder = Locks::builder(Leases::new(process, 0))
            .with_lease(Duration::from_millis(plan.lease))
            .with_request_timeout(Duration::from_millis(plan.request_timeout))
            .with_rechecks(plan.rechecks)
            .with_seed(rng.u64(..))
            .with_keeper_on(Arc::new(KeeperOf(process)));
        let locks = match builder.build() {
            Ok(locks) => locks,
            Err(error) => return violate(error.to_string()),
        };
        all.push(locks.clone());
        let caller = |rng: &mut Rng| Caller {
            process,
            locks: locks.clone(),
            plan: Arc::clone(&plan),
            rng: Rng::with_seed(rng.u64(..)),
            _users: Arc::clone(&users),
        };
        for n in 0..firings.count {
            let at = firings.late[process] + n * firings.gap;
            let key = if firings.every { "job".to_owned() } else { format!("job {n}") };
            spawn(process, Box::pin(caller(&mut rng).fire(firings.clone(), key, at)));
        }
        if firings.elects {
            spawn(process, Box::pin(caller(&mut rng).stand(firings.count * plan.lease * 2)));
        }
    }
    world(|w| w.judge.summary.firings += firings.count);
    while Arc::strong_count(&users) > 1 {
        sleep(plan.lease.max(1_000)).await;
    }
    drop(all);
    done();
}

impl Caller {
    async fn fire(mut self, firings: Firings, key: String, at: u64) {
        sleep(at).await;
        let place = world(|w| w.key(&key));
        let job = self.locks.once(&key).with_window(Duration::from_millis(firings.window));
        let job = if firings.skip_after_error { job.with_on_error(OnError::Skip) } else { job };
        let job = if firings.skip_after_crash { job.with_on_crash(OnCrash::Skip) } else { job };
        let cancelled = (self.rng.u32(..16) == 0).then(|| self.rng.u64(0..=self.plan.lease * 2));
        let mut inner = self.clone();
        inner.rng = Rng::with_seed(self.rng.u64(..));
        let call = AssertUnwindSafe(job.run_with(|held| inner.body(place, held))).catch_unwind();
        let ended = match cancelled {
            None => Some(call.await),
            Some(millis) => match select(pin!(call), pin!(sleep(millis))).await {
                Either::Left((ended, _)) => Some(ended),
                Either::Right(_) => None,
            },
        };
        match ended {
            None | Some(Ok(Ok(Outcome::Ran(())) | Err(Undone::Body))) => {}
            Some(Ok(Ok(Outcome::Skipped { by, .. }))) => {
                world(|w| w.job_skipped(self.process, place, by.left_behind));
            }
            Some(Ok(Err(Undone::Dlock(error)))) => self.judge(&error),
            Some(Err(payload)) if payload.is::<Thrown>() => {}
            Some(Err(payload)) => std::panic::resume_unwind(payload),
        }
    }

    fn judge(&self, error: &Error) {
        world(|w| tell!(w, Some(self.process), "a job ends with {error}"));
        let expected = matches!(
            error.kind(),
            ErrorKind::Lost
                | ErrorKind::Unavailable
                | ErrorKind::Unknown
                | ErrorKind::Suspect
                | ErrorKind::TimedOut
        );
        if self.plan.healthy || !expected {
            violate(format!("a job of p{} ends with {error}", self.process));
        }
    }

    /// The steps of a job, each of which looks first whether the lock is still held.
    async fn body(mut self, key: usize, held: Held) -> Result<(), Undone> {
        let fence = held.fence().map_or(0, |fence| fence.get());
        world(|w| w.job_begins(self.process, key, fence));
        let mut running = Running { process: self.process, key, fence, held, ended: None };
        self.disturb();
        for _ in 0..self.rng.u32(0..=3) {
            let most = if self.rng.u32(..6) == 0 { self.plan.lease * 2 } else { self.plan.lease / 3 };
            sleep(self.rng.u64(0..=most)).await;
            if running.held.check().is_err() {
                // To be dropped.
                return std::future::pending().await;
            }
            world(|w| w.believes(self.process, key, fence));
        }
        match self.rng.u32(..12) {
            0 => {
                running.ended = Some(Ended::Failed);
                Err(Undone::Body)
            }
            1 => throw(),
            _ => {
                running.ended = Some(Ended::Succeeded);
                Ok(())
            }
        }
    }

    /// Has something happen to this process or to the store, soon.
    fn disturb(&mut self) {
        if self.plan.healthy || self.rng.u32(..3) > 0 {
            return;
        }
        let (process, lease, r) = (self.process, self.plan.lease, &mut self.rng);
        let event = match r.u32(..8) {
            0..=2 => Event::Kill(process),
            3..=4 => Event::Pause(process, r.u64(1..=lease * 3)),
            5..=6 => Event::Cut(process, r.u64(1..=lease * 2)),
            _ => Event::Down(r.u64(1..=lease)),
        };
        let at = r.u64(0..=lease);
        world(|w| {
            // Somebody is left to say how it went on.
            if !matches!(event, Event::Kill(_)) || w.doomed(process) {
                w.tasks.after(at, event);
            }
        });
    }

    /// Stands for election until so many milliseconds have passed.
    async fn stand(mut self, millis: u64) {
        let mut campaign = self.locks.election("lead").campaign();
        let terms = async {
            while let Some(term) = campaign.next().await {
                self.lead(term).await;
            }
        };
        let (terms, time) = (pin!(AssertUnwindSafe(terms).catch_unwind()), pin!(sleep(millis)));
        let ended = select(terms, time).await;
        if let Either::Left((Err(payload), _)) = ended
            && !payload.is::<Thrown>()
        {
            std::panic::resume_unwind(payload);
        }
    }

    async fn lead(&mut self, term: Term) {
        let (key, fence) = (world(|w| w.key("lead")), term.number().unwrap_or(0));
        world(|w| w.judge.summary.terms += 1);
        self.disturb();
        for _ in 0..self.rng.u32(0..=4) {
            sleep(self.rng.u64(0..=self.plan.lease / 2)).await;
            if term.check().is_err() {
                return;
            }
            world(|w| w.believes(self.process, key, fence));
        }
        if self.rng.bool() {
            let _ = term.resign().await;
        }
    }
}

/// A body that runs. Dropped, it has ended in one way or another.
struct Running {
    process: usize,
    key: usize,
    fence: u64,
    held: Held,
    ended: Option<Ended>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let is_lost = self.held.check().is_err();
        world(|w| {
            let ended = match self.ended {
                _ if !w.processes[self.process].alive => Ended::Killed,
                Some(ended) => ended,
                None if is_lost => Ended::Lost,
                None => Ended::Failed,
            };
            w.job_ends(self.key, self.fence, ended);
        });
    }
}
