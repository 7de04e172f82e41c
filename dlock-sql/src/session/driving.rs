//! Who drives a connection that keeps locks.
//!
//! The task on dlock's own thread does, for whoever asks. While it has nothing to do, one caller at a time drives his
//! own command, which spares the way to that thread. The task goes on with such a command when its caller is cancelled,
//! when another command comes, and when the connection needs a sign of life: no lock depends on the runtime of a
//! caller.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dlock_core::backend::{Mutex, sleep_until};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::actor::{ConnectionActor, PAUSE};
use super::command::Command;
use super::strategy::Strategy;

type Driving<M> = Pin<Box<dyn Future<Output = Box<ConnectionActor<M>>> + Send>>;

/// How long the task sleeps while there is no connection.
const FAR: Duration = Duration::from_secs(3_600);

/// Where the connection is.
enum ActorState<M: Strategy> {
    /// Nobody does anything with it.
    Free(Box<ConnectionActor<M>>),
    /// A caller drives a command, the one of this number.
    Lent(u64, Driving<M>),
    /// The task has it, or has lost it in a panic.
    Taken,
}

/// A connection that keeps locks, and who drives it.
pub(super) struct Driver<M: Strategy> {
    state: Mutex<(ActorState<M>, u64)>,
    /// Until when the task sleeps.
    sleeps_until: Mutex<Instant>,
    wake: Notify,
}

impl<M: Strategy> Driver<M> {
    pub(super) fn new(actor: ConnectionActor<M>) -> Arc<Self> {
        let state = Mutex::new((ActorState::Free(Box::new(actor)), 0));
        Arc::new(Self { state, sleeps_until: Mutex::new(Instant::now()), wake: Notify::new() })
    }

    /// Begins to carry out a command in the caller's place, unless somebody uses the connection, it is not open, or
    /// the command needs several answers, which come to dlock's own thread.
    pub(super) fn begin(self: &Arc<Self>, command: Command) -> Result<Driven<M>, Box<Command>> {
        if !M::TAKES_AT_ONCE && !matches!(command, Command::Release(_)) {
            return Err(Box::new(command));
        }
        let mut state = self.state.lock();
        match std::mem::replace(&mut state.0, ActorState::Taken) {
            ActorState::Free(mut actor) if actor.is_open() => {
                state.1 += 1;
                let number = state.1;
                state.0 = ActorState::Lent(
                    number,
                    Box::pin(async move {
                        actor.carry_out(&mut vec![command]).await;
                        actor
                    }),
                );
                Ok(Driven { driver: Some(Arc::clone(self)), number })
            }
            other => {
                state.0 = other;
                Err(Box::new(command))
            }
        }
    }

    /// The connection, after what a caller is doing with it.
    async fn take(&self) -> Option<Box<ConnectionActor<M>>> {
        let taken = std::mem::replace(&mut self.state.lock().0, ActorState::Taken);
        match taken {
            ActorState::Free(actor) => Some(actor),
            ActorState::Lent(_, driving) => Some(driving.await),
            ActorState::Taken => None,
        }
    }

    /// Drives the connection until nobody can send it a command any more.
    pub(super) async fn run(self: Arc<Self>, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut commands = Vec::new();
        loop {
            let until = *self.sleeps_until.lock();
            let received = tokio::select! {
                biased;
                () = sleep_until(until) => None,
                () = self.wake.notified() => None,
                some = inbox.recv_many(&mut commands, super::actor::AT_ONCE) => Some(some),
            };
            let Some(mut actor) = self.take().await else { return };
            match received {
                Some(0) => return actor.close().await,
                Some(_) => actor.carry_out(&mut commands).await,
                None => actor.look_after().await,
            }
            self.sleep(&actor);
            self.state.lock().0 = ActorState::Free(actor);
        }
    }

    /// Never for long, so that it need not be woken for each lock that is taken.
    fn sleep(&self, actor: &ConnectionActor<M>) {
        let now = Instant::now();
        // One that is not open is opened by the task.
        let until = if actor.is_open() { actor.due().min(now + PAUSE) } else { now + FAR };
        *self.sleeps_until.lock() = until;
    }
}

/// A command that its caller drives. Dropping it leaves the rest to the task.
pub(super) struct Driven<M: Strategy> {
    driver: Option<Arc<Driver<M>>>,
    number: u64,
}

impl<M: Strategy> Driven<M> {
    /// Goes on with the command, as far as the task has not taken it over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        let Some(driver) = &self.driver else { return };
        let mut state = driver.state.lock();
        let done = match &mut state.0 {
            ActorState::Lent(number, driving) if *number == self.number => driving.as_mut().poll(context),
            _ => {
                drop(state);
                self.driver = None;
                return;
            }
        };
        let Poll::Ready(actor) = done else { return };
        let sooner = actor.due() < *driver.sleeps_until.lock();
        state.0 = ActorState::Free(actor);
        drop(state);
        if sooner {
            driver.wake.notify_one();
        }
        self.driver = None;
    }
}

impl<M: Strategy> Drop for Driven<M> {
    fn drop(&mut self) {
        if let Some(driver) = &self.driver {
            driver.wake.notify_one();
        }
    }
}
