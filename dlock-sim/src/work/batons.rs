//! Locks that are handed over, and taken over by whoever has a baton.

use std::future::IntoFuture;
use std::pin::pin;
use std::time::Duration;

use dlock_core::{Baton, Error, ErrorKind, Guard, Held};
use fastrand::Rng;
use futures_util::future::{Either, select};

use super::{AtPoll, Called, View, Worker};
use crate::exec::{now, sleep, throw};
use crate::judge::{Handing, NewOp};
use crate::world::{tell, violate, world};

const MS: u64 = 1_000_000;

impl Worker {
    /// Something with batons.
    pub(super) async fn carry(&mut self, name: &str) {
        match self.rng.u32(..8) {
            0 => self.give_one(name).await,
            1 => self.give_inside(name).await,
            2 => self.give_batch().await,
            3..=6 => self.take_one(name).await,
            _ => self.take_batch().await,
        }
    }

    async fn give_one(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let called = self.begin(name, true, millis, 1, "acquire, to hand over,");
        let result = self.locks.lock(name).with_wait(wait).acquire().await;
        called.end(&result);
        let Ok(guard) = result else { return };
        self.hold(guard.held(), name).await;
        self.hand_on(guard).await;
    }

    /// A body that goes on without its lock.
    async fn give_inside(&mut self, name: &str) {
        let (wait, millis) = self.wait();
        let lock = self.locks.lock(name).with_wait(wait);
        let called = self.begin(name, true, millis, 1, "run, to hand over, under");
        let op = called.0;
        let result = lock.run_with(|held| self.clone().body(op, held, self.rng.u64(..))).await;
        called.end(&result);
    }

    async fn body(mut self, op: usize, held: Held, seed: u64) {
        world(|w| w.end(op, Some(Ok(()))));
        self.rng = Rng::with_seed(seed);
        let Some(name) = held.key().map(str::to_owned) else { return };
        self.hold(held.clone(), &name).await;
        self.hand_over(&held).await;
        sleep(self.rng.u64(0..=world(|w| w.plan.lease / 4))).await;
    }

    async fn give_batch(&mut self) {
        let names: Vec<String> = (0..self.rng.usize(1..=3)).map(|_| self.key()).collect();
        let (wait, millis) = self.wait();
        let batch = self.locks.lock_all(&names).with_wait(wait);
        let called = self.begin(&names[0], false, millis, 3, "batch, to hand over, from");
        let result = batch.acquire().await;
        called.end(&result);
        let Ok(guard) = result else { return };
        sleep(self.rng.u64(0..=world(|w| w.plan.lease / 2))).await;
        self.hand_over(&guard.held()).await;
        if self.rng.bool() {
            let _ = guard.release().await;
        }
    }

    /// Hands the lock of a guard over, which then has nothing to release.
    pub(super) async fn hand_on(&mut self, guard: Guard) {
        self.hand_over(&guard.held()).await;
        match self.rng.u32(..6) {
            0 => {
                let _guard = guard;
                throw();
            }
            1..=2 => drop(guard),
            _ => drop(guard.release().await),
        }
    }

    /// Hands over all that is held, unless it is dropped in the middle of that.
    async fn hand_over(&mut self, held: &Held) {
        let (process, lease) = (self.process, world(|w| w.plan.lease));
        let at_most = match self.rng.u32(..16) {
            0..=4 => None,
            5..=8 => Some(self.rng.u64(50..=lease)),
            9..=13 => Some(self.rng.u64(lease..=lease * 4)),
            _ => Some(self.rng.u64(lease * 10..=lease * 20 + 10_000)),
        };
        let (mut views, mut handings) = (Vec::new(), Vec::new());
        world(|w| {
            for (name, fence) in held.fences() {
                let (key, fence) = (w.key(name), fence.map_or(0, |fence| fence.get()));
                views.push(View(w.guarded(process, key, fence, held.clone())));
                handings.push(w.hands_over(process, self.engine, (key, fence), at_most.unwrap_or(lease)));
                tell!(w, Some(process), "hands over {name} for {at_most:?} ms");
            }
        });
        let mut call = Handings { handings, held: held.clone() };
        let (began, paused) = (now(), world(|w| w.processes[process].paused()));
        let asked = held.hand_over_all();
        let asked = match at_most {
            Some(millis) => asked.for_at_most(Duration::from_millis(millis)),
            None => asked,
        };
        let asked = asked.into_future();
        let result = match self.rng.u32(..6) {
            0 => match select(asked, pin!(sleep(self.rng.u64(0..=lease / 2)))).await {
                Either::Left((result, _)) => Some(result),
                Either::Right(_) => None,
            },
            1 => {
                AtPoll { future: Some(Box::pin(asked)), polls: self.rng.u32(1..=4), polled: self.rng.bool() }
                    .await
            }
            _ => Some(asked.await),
        };
        world(|w| {
            let took = (now() - began - (w.processes[process].paused() - paused)) / MS;
            let most = w.plan.lease + 3 * w.plan.request_timeout + 1_020;
            if took > most {
                w.violate(format!("a hand-over took {took} ms, {most} at the most"));
            }
        });
        match result {
            None => drop(call),
            Some(Ok(batons)) => call.given(&batons, &mut self.rng),
            Some(Err(error)) => {
                drop(call);
                self.judge_hand_over(&error);
            }
        }
        drop(views);
    }

    fn judge_hand_over(&self, error: &Error) {
        use ErrorKind::{Lost, NotHeld, Suspect, Unavailable, Unknown};
        world(|w| {
            tell!(w, Some(self.process), "hands nothing over: {}", error.kind().as_str());
            let expected = match error.kind() {
                Lost if w.is_closing(self.process, self.engine) => true,
                Lost | NotHeld | Suspect | Unavailable | Unknown => !w.plan.healthy,
                _ => false,
            };
            if !expected {
                w.violate(format!("p{} hands over, and {error}", self.process));
            }
        });
    }

    async fn take_one(&mut self, name: &str) {
        let Some(baton) = world(|w| w.any_baton(&mut self.rng)) else { return self.give_one(name).await };
        let name = baton.key().to_owned();
        let (wait, millis) = self.wait();
        let lock = match self.locks.lock(&name).with_wait(wait).from_baton(&baton) {
            Ok(lock) => lock,
            Err(error) => return violate(error.to_string()),
        };
        if self.rng.u32(..4) == 0 {
            let called = self.begin_to_take(&name, millis, 1);
            let op = called.0;
            let result = lock.run_with(|held| self.clone().body(op, held, self.rng.u64(..))).await;
            return called.end(&result);
        }
        let tries = self.rng.u32(..4) == 0;
        let called = self.begin_to_take(&name, if tries { Some(0) } else { millis }, 1);
        let result = if tries { lock.try_acquire().await } else { lock.acquire().await.map(Some) };
        called.end(&result);
        match result {
            Ok(Some(guard)) => {
                if guard.fence() <= baton.fence() {
                    violate(format!("{name} was taken over with the fence {:?}", guard.fence()));
                }
                self.hold(guard.held(), &name).await;
                self.leave(guard).await;
            }
            Ok(None) => violate(format!("{name} is busy for its baton")),
            Err(_) => {}
        }
    }

    /// Several batons, all or none.
    async fn take_batch(&mut self) {
        let batons = (0..self.rng.usize(1..=3)).map_while(|_| world(|w| w.any_baton(&mut self.rng)));
        let mut batons: Vec<Baton> = batons.collect();
        // Two different ones of one key are refused; the same one may be given twice.
        let all = batons.clone();
        batons.retain(|baton| all.iter().find(|first| first.key() == baton.key()) == Some(baton));
        let Some(first) = batons.first() else { return self.give_batch().await };
        let called = self.begin_to_take(first.key(), Some(30_000), 3);
        let result = self.locks.take_over_all(&batons).await;
        called.end(&result);
        let Ok(guard) = result else { return };
        if batons.iter().any(|baton| guard.fence_of(baton.key()).is_none()) {
            violate(format!("p{} took over a batch without one of its locks", self.process));
        }
        sleep(self.rng.u64(0..=world(|w| w.plan.lease / 2))).await;
        match self.rng.u32(..3) {
            0 => drop(guard),
            1 => self.hand_over(&guard.held()).await,
            _ => drop(guard.release().await),
        }
    }

    fn begin_to_take(&self, name: &str, wait: Option<u64>, size: u64) -> Called {
        Called(world(|w| {
            let (process, engine, key) = (self.process, self.engine, w.key(name));
            let op = w.begin(NewOp { process, engine, key, in_line: false, wait, size, takes_over: true });
            tell!(w, Some(process), "o{op} begins: take over {name}, wait {wait:?}");
            op
        }))
    }
}

/// A hand-over under way. Dropped, it gave no baton.
struct Handings {
    handings: Vec<Handing>,
    held: Held,
}

impl Handings {
    fn given(&mut self, batons: &[Baton], rng: &mut Rng) {
        if batons.len() != self.handings.len() {
            violate(format!("{} batons of {} locks", batons.len(), self.handings.len()));
        }
        for (handing, baton) in self.handings.drain(..).zip(batons) {
            // As it goes along in a message.
            let copy = match baton.to_text().parse::<Baton>() {
                Ok(copy) => copy,
                Err(error) => return violate(error.to_string()),
            };
            world(|w| {
                w.given(&handing, baton);
                w.pass_on(copy, [1, 1, 1, 2, 3][rng.usize(..5)]);
            });
        }
        if self.held.is_held() {
            violate("a lock is held whose baton was given".into());
        }
    }
}

impl Drop for Handings {
    fn drop(&mut self) {
        // One that was never begun is held as before.
        if !self.handings.is_empty() && !self.held.is_held() {
            world(|w| self.handings.iter().for_each(|handing| w.not_given(handing)));
        }
    }
}
