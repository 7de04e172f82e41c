//! The driving of a connection that keeps locks: by the task on dlock's own thread, or by a caller.
//!
//! The task drives it for all callers. While the task has nothing to do, one caller at a time drives its own command,
//! which spares the way to that thread. The task goes on with such a command when its caller is cancelled, when another
//! command comes, and when the connection needs a sign of life: no lock depends on the runtime of a caller.
//!
//! ```text
//!             `begin`, if open                `take`: a command, a sign of life,
//!      Free ------------------> Lent(number)  or the caller is gone
//!      ^  ^                      |       |
//!      |  +- the caller's `poll`-+       +------> Taken: the task goes on with it
//!      |     has ended it                           |  ^
//!      +-------------- the task is done ------------+  +--- `take` from Free
//! ```
//!
//! A number is used once, so that a caller whose command was taken over does not poll that of the next one. A panic of
//! the task leaves `Taken` for ever: its inbox is gone, and commands are refused as after an end.

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

/// The time that the task sleeps while there is no connection.
const FAR: Duration = Duration::from_secs(3_600);

/// The place of the connection.
enum ActorState<M: Strategy> {
    /// It is not in use.
    Free(Box<ConnectionActor<M>>),
    /// A caller drives the command with this number.
    Lent(u64, Driving<M>),
    /// The task has it, or has lost it in a panic.
    Taken,
}

/// A connection that keeps locks, and the state of its driving.
pub(super) struct Driver<M: Strategy> {
    state: Mutex<(ActorState<M>, u64)>,
    /// The moment until which the task sleeps.
    sleeps_until: Mutex<Instant>,
    wake: Notify,
}

impl<M: Strategy> Driver<M> {
    pub(super) fn new(actor: ConnectionActor<M>) -> Arc<Self> {
        let state = Mutex::new((ActorState::Free(Box::new(actor)), 0));
        Arc::new(Self { state, sleeps_until: Mutex::new(Instant::now()), wake: Notify::new() })
    }

    /// Begins to carry out a command in the caller's place, unless the connection is in use or not open, or the command
    /// needs several answers, which come sooner to dlock's own thread.
    pub(super) fn begin(self: &Arc<Self>, command: Command) -> Result<Driven<M>, Box<Command>> {
        if !M::TAKES_AT_ONCE && !matches!(command, Command::Release(_)) {
            return Err(Box::new(command));
        }
        let mut state = self.state.lock();
        // A connection that is not open is opened by the task, on whose thread its I/O is.
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
                // Put back as it was, also where another caller has it: that one goes on.
                state.0 = other;
                Err(Box::new(command))
            }
        }
    }

    /// Takes the connection, after what a caller is doing with it.
    async fn take(&self) -> Option<Box<ConnectionActor<M>>> {
        // Taken out of the mutex before it is awaited: the caller whose command it was finds another state, and only
        // waits for the answer.
        let taken = std::mem::replace(&mut self.state.lock().0, ActorState::Taken);
        match taken {
            ActorState::Free(actor) => Some(actor),
            ActorState::Lent(_, driving) => Some(driving.await),
            ActorState::Taken => None,
        }
    }

    /// Drives the connection until no command can be sent any more.
    pub(super) async fn run(self: Arc<Self>, mut inbox: mpsc::UnboundedReceiver<Command>) {
        let mut commands = Vec::new();
        loop {
            let until = *self.sleeps_until.lock();
            // In this order: under many commands the sign of life is not put off, and a caller that has gone is
            // followed up.
            let received = tokio::select! {
                biased;
                () = sleep_until(until) => None,
                () = self.wake.notified() => None,
                some = inbox.recv_many(&mut commands, super::actor::AT_ONCE) => Some(some),
            };
            // Also for a sign of life: the command of a caller comes to its end first, as it may have been sent in
            // part.
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

    /// Sets the time of the next look. It is never far, so that the task need not be woken for each lock that is taken.
    fn sleep(&self, actor: &ConnectionActor<M>) {
        let now = Instant::now();
        // A connection that is not open is opened by a command, which wakes the task.
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
            // The task has it: the answer comes by the channel alone.
            _ => {
                drop(state);
                self.driver = None;
                return;
            }
        };
        let Poll::Ready(actor) = done else { return };
        // A lock with a shorter lease than the others needs its sign of life before the task would look.
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
        // The command may be half sent: the task wakes, finds it lent, and ends it.
        if let Some(driver) = &self.driver {
            driver.wake.notify_one();
        }
    }
}
