//! What the tasks of the processes do: lock, wait, nest, batch, cancel, panic.

mod batons;

use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Held, Locks, OnLost, Wait, in_current_scope};
use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::{Either, select};

use crate::exec::{Thrown, sleep, spawn, throw};
use crate::judge::{NewOp, OpId};
use crate::world::{Access, Event, tell, world};

/// One task of a process.
#[derive(Clone)]
pub(crate) struct Worker {
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) locks: Locks,
    /// Whether it wants the lock for moments only, again and again.
    pub(crate) hot: bool,
    /// Whether it writes to the resource. Several tasks of one owner would need a lock among themselves.
    pub(crate) updates: bool,
    pub(crate) rng: Rng,
    /// The operation, of all in the run.
    pub(crate) owner: u64,
    /// Counts those who are at work.
    pub(crate) _users: Arc<()>,
}

/// How an operation is disturbed.
enum Disturbed {
    Not,
    After(u64),
    /// And whether it is polled that time.
    AtPoll(u32, bool),
}

impl Worker {
    /// Does so many things, one after the other.
    pub(crate) async fn work(mut self, operations: usize) {
        let lease = world(|w| w.plan.lease);
        for _ in 0..operations {
            sleep(self.rng.u64(0..=if self.hot { 1 } else { lease })).await;
            let disturbed = match self.rng.u32(..8) {
                0 => Disturbed::After(self.rng.u64(0..=lease * 2)),
                1 => Disturbed::AtPoll(self.rng.u32(1..=8), !self.hot || self.rng.bool()),
                _ => Disturbed::Not,
            };
            let mut worker = self.clone();
            worker.rng = Rng::with_seed(self.rng.u64(..));
            worker.owner = world(|w| {
                w.owner += 1;
                w.owner
            });
            let operation = AssertUnwindSafe(Box::pin(async move { worker.operate().await })).catch_unwind();
            let ended = match disturbed {
                Disturbed::Not => Some(operation.await),
                Disturbed::After(millis) => match select(pin!(operation), pin!(sleep(millis))).await {
                    Either::Left((ended, _)) => Some(ended),
                    Either::Right(_) => None,
                },
                Disturbed::AtPoll(polls, polled) => {
                    AtPoll { future: Some(Box::pin(operation)), polls, polled }.await
                }
            };
            if let Some(Err(payload)) = ended
                && !payload.is::<Thrown>()
            {
                std::panic::resume_unwind(payload);
            }
        }
    }

    async fn operate(&mut self) {
        let _at_work = AtWork::new(self.process, self.engine);
        let name = self.key();
        if world(|w| w.plan.batons) && self.rng.u32(..4) > 0 {
            return self.carry(&name).await;
        }
        let what = if self.hot && self.rng.u32(..4) > 0 { 0 } else { self.rng.u32(..16) };
        match what {
            0..=5 => self.guard(&name).await,
            6..=7 => self.nest(&name).await,
            8 => self.scope(&name).await,
            9..=10 => self.batch().await,
            11 => self.segments(&name).await,
            12 => self.share(&name).await,
            13..=14 => self.try_once(&name).await,
            _ => drop(self.locks.inspect(&name).await),
        }
    }

    fn key(&mut self) -> String {
        let keys = world(|w| w.plan.keys);
        format!("k{}", self.rng.usize(..keys))
    }

    /// How long to wait, in milliseconds.
    fn wait(&mut self) -> (Wait, Option<u64>) {
        let (lease, quiet) = world(|w| (w.plan.lease, w.quiet));
        match self.rng.u32(..10) {
            0 => (Wait::Forever, None),
            1..=2 => {
                let millis = self.rng.u64(1..=lease);
                (Wait::For(Duration::from_millis(millis)), Some(millis))
            }
            _ => {
                let millis = self.rng.u64(lease..=lease * if quiet { 12 } else { 6 });
                (Wait::For(Duration::from_millis(millis)), Some(millis))
            }
        }
    }

    fn begin(&self, name: &str, in_line: bool, wait: Option<u64>, size: u64, what: &str) -> Called {
        let op = world(|w| {
            let key = w.key(name);
            let (process, engine) = (self.process, self.engine);
            let op = w.begin(NewOp { process, engine, key, in_line, wait, size, takes_over: false });
            tell!(w, Some(self.process), "o{op} begins: {what} {name}, wait {wait:?}");
            op
        });
        Called(op)
    }

    /// A guard by hand.
    async fn guard(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let called = self.begin(name, true, millis, 1, "acquire");
        let result = self.locks.lock(name).with_wait(wait).acquire().await;
        called.end(&result);
        let Ok(guard) = result else { return };
        if let Some(fence) = guard.fence() {
            world(|w| {
                let key = w.key(name);
                w.section(self.process, key, fence.get());
            });
        }
        self.hold(guard.held(), name).await;
        self.leave(guard).await;
    }

    async fn try_once(&mut self, name: &str) {
        let called = self.begin(name, false, Some(0), 1, "try");
        let result = self.locks.lock(name).try_acquire().await;
        called.end(&result);
        let Ok(Some(guard)) = result else { return };
        self.hold(guard.held(), name).await;
        self.leave(guard).await;
    }

    async fn leave(&mut self, guard: Guard) {
        if world(|w| w.plan.batons) && self.rng.u32(..3) == 0 {
            return self.hand_on(guard).await;
        }
        match self.rng.u32(..8) {
            0..=1 => drop(guard),
            2 => {
                let _guard = guard;
                throw();
            }
            _ => {
                let started = tokio::time::Instant::now();
                let paused = world(|w| w.processes[self.process].paused());
                let key = world(|w| w.key(guard.key()));
                let fence = guard.fence().map_or(0, |fence| fence.get());
                world(|w| w.releases(key, fence));
                let released = guard.release().await;
                world(|w| w.released(key, fence));
                let took = started.elapsed().as_millis();
                world(|w| {
                    let p = self.process;
                    let text = released.map_or_else(|e| e.kind().as_str().to_owned(), |()| "ok".into());
                    tell!(w, Some(p), "release ends: {text}");
                    let plan = &w.plan;
                    let most = u128::from((u64::from(plan.rechecks) + 3) * plan.request_timeout + 20);
                    let paused = u128::from((w.processes[p].paused() - paused) / 1_000_000);
                    if took > most + paused {
                        w.violate(format!("a release took {took} ms, {most} at the most"));
                    }
                });
            }
        }
    }

    /// A body under a lock, with one like it inside.
    async fn nest(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let on_lost = if self.rng.bool() { OnLost::Abort } else { OnLost::Continue };
        let lock = self.locks.lock(name).with_wait(wait).with_on_lost(on_lost);
        let mut inner = self.clone();
        inner.rng = Rng::with_seed(self.rng.u64(..));
        let called = self.begin(name, true, millis, 1, "run under");
        let ended = called.0;
        let inside = lock.clone();
        let body = |held: Held| async move {
            world(|w| w.end(ended, Some(Ok(()))));
            inner.hold(held.clone(), name).await;
            if !held.is_held() {
                // What a session keeps is there until the guard goes: asked for again, it would be waited for by its
                // owner.
                return;
            }
            let deeper = inside.run_with(|again| {
                let fences = (held.fence(), again.fence(), held.check().is_ok());
                async move { fences }
            });
            let deeper = deeper.await;
            if let Ok((outer, again, true)) = deeper
                && outer != again
            {
                world(|w| w.violate(format!("a nested acquire of {} is not the same hold", w.keys[0])));
            }
            if inner.rng.u32(..8) == 0 {
                throw();
            }
            inner.hold(held, name).await;
        };
        let result = lock.run_with(body).await;
        called.end(&result);
    }

    /// Two guards of one owner.
    async fn scope(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let locks = self.locks.clone();
        let lock = locks.lock(name).with_wait(wait);
        locks
            .scope(async {
                let called = self.begin(name, true, millis, 1, "in a scope, acquire");
                let outer = lock.acquire().await;
                called.end(&outer);
                let Ok(outer) = outer else { return };
                let called = self.begin(name, false, millis, 1, "once more, acquire");
                let inner = lock.acquire().await;
                called.end(&inner);
                self.hold(outer.held(), name).await;
                drop(outer);
                if let Ok(inner) = inner {
                    self.hold(inner.held(), name).await;
                    self.leave(inner).await;
                }
            })
            .await;
    }

    /// Several locks, all or none.
    async fn batch(&mut self) {
        let names: Vec<String> = (0..3).map(|_| self.key()).collect();
        let (wait, millis) = self.wait();
        let batch = self.locks.lock_all(&names).with_wait(wait);
        let called = self.begin(&names[0], false, millis, 3, "batch of 3 from");
        let result = batch.acquire().await;
        called.end(&result);
        let Ok(guards) = result else { return };
        for name in &names {
            let held = guards.fence_of(name).is_some();
            if !held && world(|w| w.plan.majority.is_none()) {
                world(|w| w.violate(format!("a batch was granted without {name}")));
            }
        }
        sleep(self.rng.u64(0..=world(|w| w.plan.lease))).await;
        if self.rng.bool() {
            let _ = guards.release().await;
        }
    }

    async fn segments(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let segmented = self.locks.lock(name).with_wait(wait).segmented(2);
        let called = self.begin(name, false, millis, 4, "run in a segment of");
        let op = called.0;
        let result = segmented
            .run(|segment| {
                world(|w| w.end(op, Some(Ok(()))));
                let mut inner = self.clone();
                inner.rng = Rng::with_seed(self.rng.u64(..));
                async move {
                    let held = segment.held().clone();
                    if let Some(key) = held.key().map(str::to_owned) {
                        inner.hold(held, &key).await;
                    }
                }
            })
            .await;
        called.end(&result);
    }

    /// A body whose locks go along into a task of its own.
    async fn share(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let lock = self.locks.lock(name).with_wait(wait);
        let called = self.begin(name, true, millis, 1, "share");
        let op = called.0;
        let mut inner = self.clone();
        inner.updates = false;
        inner.rng = Rng::with_seed(self.rng.u64(..));
        let result = lock
            .run_with(|held| {
                world(|w| w.end(op, Some(Ok(()))));
                let (process, owned) = (self.process, name.to_owned());
                let mut sharing = inner.clone();
                async move {
                    // Inside the body, where the scope is the one of the lock.
                    let shared = held.clone();
                    let other = in_current_scope(async move { sharing.hold(shared, &owned).await });
                    spawn(process, Box::pin(other));
                    inner.hold(held, name).await;
                }
            })
            .await;
        called.end(&result);
    }

    /// Steps under a lock, each of which looks first whether it is still held.
    async fn hold(&mut self, held: Held, name: &str) {
        let Some(fence) = held.fence().map(|fence| fence.get()) else {
            return self.hold_without_fence(held, name).await;
        };
        let (process, key) = (self.process, world(|w| w.key(name)));
        let view = View(world(|w| w.guarded(process, key, fence, held.clone())));
        let (lease, most) = match world(|w| (w.plan.lease, w.plan.straggling)) {
            _ if self.hot => (1, 1),
            (lease, true) => (lease / 8, 2),
            (lease, false) => (lease, 3),
        };
        let steps = async {
            for _ in 0..self.rng.u32(0..=most) {
                let millis = match self.rng.u32(..6) {
                    0 => self.rng.u64(0..=lease * 2),
                    _ => self.rng.u64(0..=lease / 3),
                };
                sleep(millis).await;
                world(|w| w.judge_untold(process, key, fence));
                if let Err(error) = held.check() {
                    if error.kind() == ErrorKind::NotHeld {
                        world(|w| w.released_under(process, self.engine, key));
                    }
                    return true;
                }
                world(|w| w.believes(process, key, fence));
                if self.updates && self.rng.bool() {
                    self.update(key, fence).await;
                }
            }
            false
        };
        let is_lost = match select(pin!(held.lost()), pin!(steps)).await {
            Either::Left(_) if held.check().is_ok() => {
                world(|w| w.violate(format!("p{process} was told of a loss of what it holds")));
                false
            }
            Either::Left(_) => true,
            Either::Right((ended, _)) => ended && held.check().is_err_and(|e| e.kind() == ErrorKind::Lost),
        };
        if is_lost {
            self.lost(&held, key, fence).await;
        }
        drop(view);
    }

    /// Steps under a lock that has no fence, each of which looks first whether it is still held, and whether others
    /// believe that they hold it.
    async fn hold_without_fence(&mut self, held: Held, name: &str) {
        let (process, owner, key) = (self.process, self.owner, world(|w| w.key(name)));
        let view = View(world(|w| w.guarded_without_fence(process, key, owner, held.clone())));
        let lease = world(|w| w.plan.lease);
        let steps = async {
            for n in 0..=self.rng.u32(0..=3) {
                if n > 0 {
                    let most = if self.rng.u32(..6) == 0 { lease * 2 } else { lease / 3 };
                    sleep(self.rng.u64(0..=most)).await;
                }
                if let Err(error) = held.check() {
                    return error.kind() == ErrorKind::Lost;
                }
                for (other, theirs) in world(|w| w.believes_without_fence(key, owner)) {
                    if theirs.is_held() {
                        world(|w| w.violate(format!("p{process} and p{other} believe to hold {name}")));
                    }
                }
            }
            false
        };
        let is_lost = match select(pin!(held.lost()), pin!(steps)).await {
            Either::Left(_) if held.check().is_ok() => {
                world(|w| w.violate(format!("p{process} was told of a loss of what it holds")));
                false
            }
            Either::Left(_) => true,
            Either::Right((is_lost, _)) => is_lost,
        };
        if is_lost {
            self.lost(&held, key, owner).await;
        }
        drop(view);
    }

    /// A loss is final, whatever arrives later.
    async fn lost(&mut self, held: &Held, key: usize, fence: u64) {
        world(|w| w.lost(self.process, key, fence));
        sleep(self.rng.u64(0..=world(|w| w.plan.request_timeout))).await;
        if held.check().is_ok() {
            world(|w| w.violate(format!("p{} holds again what it has lost", self.process)));
        }
    }

    /// Reads the resource and writes it, with the fence.
    async fn update(&mut self, key: usize, fence: u64) {
        let Some(value) = world(|w| w.read(key, fence)) else { return };
        let delay = self.rng.u64(0..=3);
        sleep(self.rng.u64(0..=3)).await;
        world(|w| {
            let access = Box::new(Access { key, fence, value: value + 1 });
            w.tasks.after(delay, Event::Write(access));
        });
        sleep(delay + 1).await;
    }
}

/// An operation that is under way.
struct AtWork((usize, usize));

impl AtWork {
    fn new(process: usize, engine: usize) -> Self {
        world(|w| w.judge.at_work.push((process, engine)));
        Self((process, engine))
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        world(|w| {
            let at = w.judge.at_work.iter().position(|one| *one == self.0);
            at.map(|at| w.judge.at_work.swap_remove(at));
        });
    }
}

/// A call under way; one that is dropped was cancelled.
struct Called(OpId);

impl Called {
    fn end<T>(self, result: &Result<T, Error>) {
        world(|w| w.end(self.0, Some(result.as_ref().map(|_| ()))));
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        world(|w| w.end(self.0, None));
    }
}

struct View(u64);

impl Drop for View {
    fn drop(&mut self) {
        drop(world(|w| w.unguarded(self.0)));
    }
}

/// Drops its future at one of its polls, after it or before, when it was woken for something.
struct AtPoll<F> {
    future: Option<Pin<Box<F>>>,
    polls: u32,
    polled: bool,
}

impl<F: Future> Future for AtPoll<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(future) = &mut this.future else { return Poll::Ready(None) };
        if this.polls <= 1 && !this.polled {
            this.future = None;
            return Poll::Ready(None);
        }
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if this.polls <= 1 => {
                this.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                this.polls -= 1;
                Poll::Pending
            }
        }
    }
}
