//! Runs of modes: readers, writers that become readers, permits, and waiters in order.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::Mode;
use dlock_core::{Error, Guard, Locks, Wait, read, write};
use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::backend::Leases;
use crate::exec::{KeeperOf, Thrown, sleep, spawn, throw};
use crate::judge::judge_belief;
use crate::plan::Plan;
use crate::run::{done, settle};
use crate::world::{World, tell, violate, world};

/// How many permits the semaphore has.
const PERMITS: u32 = 3;

/// One task of a process.
#[derive(Clone)]
struct Worker {
    process: usize,
    locks: Locks,
    lease: u64,
    rng: Rng,
    /// Counts those who are at work.
    _users: Arc<()>,
}

/// Starts the processes, waits for their tasks, and looks at what is left.
pub(crate) async fn direct(plan: Plan) {
    let mut rng = Rng::with_seed(plan.seed ^ 0x6d6f_6465);
    let users = Arc::new(());
    let mut engines = Vec::new();
    for process in 0..plan.processes {
        let builder = Locks::builder(Leases::new(process, 0))
            .with_lease(Duration::from_millis(plan.lease))
            .with_request_timeout(Duration::from_millis(plan.request_timeout))
            .with_rechecks(plan.rechecks)
            .with_handoff(plan.handoff)
            .with_seed(rng.u64(..))
            .with_keeper_on(Arc::new(KeeperOf(process)));
        let locks = match builder.build() {
            Ok(locks) => locks,
            Err(error) => return violate(error.to_string()),
        };
        engines.push((process, 0, locks.clone()));
        for _ in 0..plan.tasks {
            let (locks, lease, rng) = (locks.clone(), plan.lease, Rng::with_seed(rng.u64(..)));
            let worker = Worker { process, locks, lease, rng, _users: Arc::clone(&users) };
            spawn(process, Box::pin(worker.work(plan.operations)));
        }
    }
    let (most, mut waited) = (plan.lease * 400 + 600_000, 0);
    while Arc::strong_count(&users) > 1 {
        let piece = (plan.lease / 2).max(20);
        sleep(piece).await;
        waited += piece;
        if waited > most {
            return violate("a task does not end".into());
        }
    }
    sleep(plan.quiet_at.saturating_sub(crate::exec::now() / 1_000_000) + 1).await;
    settle(&plan, &mut rng, engines).await;
    world(|w| {
        let time = w.clock(None);
        if let Some(claim) = w.store.shared.as_ref().and_then(|shared| shared.held(time)) {
            w.violate(format!("c{claim} is left behind"));
        }
    });
    done();
}

impl Worker {
    async fn work(mut self, operations: usize) {
        for _ in 0..operations {
            sleep(self.rng.u64(0..=self.lease)).await;
            let mut worker = self.clone();
            worker.rng = Rng::with_seed(self.rng.u64(..));
            let operation = AssertUnwindSafe(Box::pin(async move { worker.operate().await })).catch_unwind();
            let ended = if self.rng.u32(..6) == 0 {
                let limit = self.rng.u64(0..=self.lease * 2);
                match select(pin!(operation), pin!(sleep(limit))).await {
                    Either::Left((ended, _)) => Some(ended),
                    Either::Right(_) => None,
                }
            } else {
                Some(operation.await)
            };
            if let Some(Err(payload)) = ended
                && !payload.is::<Thrown>()
            {
                std::panic::resume_unwind(payload);
            }
        }
    }

    fn wait(&mut self) -> Wait {
        Wait::For(Duration::from_millis(self.rng.u64(1..=self.lease * 8)))
    }

    async fn operate(&mut self) {
        let wait = self.wait();
        match self.rng.u32(..10) {
            0..=3 => {
                let result = self.locks.lock("page").read().with_wait(wait).acquire().await;
                self.hold(result, "page", Mode::Shared).await;
            }
            4..=5 => {
                let result = self.locks.lock("page").with_wait(wait).acquire().await;
                self.hold(result, "page", Mode::Exclusive).await;
            }
            6..=7 => {
                let take = self.rng.u32(1..=2);
                let permits = self.locks.semaphore("gpu", PERMITS).take(take).with_wait(wait);
                let result = permits.acquire().await;
                self.hold(result, "gpu", Mode::Permits { of: PERMITS, take }).await;
            }
            8 => self.batch(wait).await,
            _ => {
                let call = Call(world(|w| {
                    let key = w.key("till");
                    w.joins(key)
                }));
                let result = self.locks.lock("till").with_fairness(true).with_wait(wait).acquire().await;
                world(|w| w.leaves_line(call.0, result.is_ok()));
                drop(call);
                self.hold(result, "till", Mode::Exclusive).await;
            }
        }
    }

    /// Two keys in one call, one of them only read.
    async fn batch(&mut self, wait: Wait) {
        let batch = self.locks.lock_all([read("page"), write("desk")]).with_wait(wait);
        let Ok(guards) = batch.acquire().await else { return };
        let held = guards.held();
        for _ in 0..self.rng.u32(0..=2) {
            sleep(self.rng.u64(0..=self.lease / 2)).await;
            if held.check().is_ok() && guards.fences().count() != 2 {
                violate("a batch was granted without one of its keys".into());
            }
        }
        if self.rng.bool() {
            let _ = guards.release().await;
        }
    }

    /// Steps under a lock, each of which looks first whether it is still held.
    async fn hold(&mut self, result: Result<Guard, Error>, name: &str, mode: Mode) {
        let mut guard = match result {
            Ok(guard) => guard,
            Err(error) => return self.judge_error(&error),
        };
        let held = guard.held();
        let number = world(|w| {
            let key = w.key(name);
            tell!(w, Some(self.process), "holds {name} to {mode}");
            w.holds(self.process, key, mode, held.clone())
        });
        let view = View(number);
        let downgrades = name == "page" && mode == Mode::Exclusive && self.rng.bool();
        for step in 0..self.rng.u32(1..=4) {
            if held.check().is_err() {
                break;
            }
            judge_belief(number);
            if downgrades && step == 1 {
                world(|w| w.reads(number));
                self.downgrade(&mut guard).await;
                continue;
            }
            sleep(self.rng.u64(0..=self.lease / 2)).await;
        }
        drop(view);
        match self.rng.u32(..6) {
            0 => drop(guard),
            1 => {
                let _guard = guard;
                throw();
            }
            _ => drop(guard.release().await),
        }
    }

    async fn downgrade(&mut self, guard: &mut Guard) {
        if self.rng.u32(..3) == 0 {
            let limit = self.rng.u64(0..=10);
            drop(select(pin!(guard.downgrade()), pin!(sleep(limit))).await);
        } else if let Err(error) = guard.downgrade().await {
            self.judge_error(&error);
        }
        if guard.mode() == Mode::Exclusive && guard.check().is_ok() {
            violate(format!("p{} downgraded a lock, and has it alone", self.process));
        }
    }

    fn judge_error(&self, error: &Error) {
        use dlock_core::ErrorKind::{Lost, Suspect, TimedOut, Unavailable, Unknown};
        let healthy = world(|w| w.plan.healthy);
        let expected = match error.kind() {
            TimedOut => true,
            Unknown => !healthy || error.waited().is_some(),
            Unavailable | Lost | Suspect => !healthy,
            _ => false,
        };
        if !expected {
            violate(format!("p{}: {error}", self.process));
        }
    }
}

struct View(u64);

impl Drop for View {
    fn drop(&mut self) {
        drop(world(|w| w.holds_no_more(self.0)));
    }
}

/// A call that waits for its turn. One that is dropped does not any more.
struct Call(u64);

impl Drop for Call {
    fn drop(&mut self) {
        world(|w| w.leaves_line(self.0, false));
    }
}

/// Drops what is left of the views.
pub(crate) fn drop_views() {
    while let Some(view) = world(World::any_holder) {
        drop(view);
    }
}
