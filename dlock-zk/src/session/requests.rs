//! How many requests of one session are under way.
//!
//! The servers answer the requests of a session in their order, so that each one waits for all before it. What would
//! make a queue waits in this process instead, where what nobody needs any more is never sent, and what is urgent
//! overtakes it.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, sleep};
use dlock_core::keeper;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zookeeper::{Client, Error};

use super::driver::{Driver, together};
use crate::wire::Answer;

/// How many claims may have requests under way, each a creation and a listing or the looks of one who waits.
const ORDINARY: usize = 128;
/// How many deletions may be under way besides.
const DELETIONS: usize = 128;
/// How long a caller may leave an answer lying that came, before others send requests in its stead.
const LEFT_LYING: Duration = Duration::from_millis(50);

/// The bounds of one session. Proofs of life have none: there are few of them.
pub(crate) struct Requests {
    client: Client,
    driver: Arc<Driver>,
    pub(crate) ordinary: Arc<Gate>,
    pub(crate) deletions: Arc<Gate>,
}

impl Requests {
    pub(super) fn new(client: Client, driver: Arc<Driver>) -> Self {
        Self { client, driver, ordinary: Gate::new(ORDINARY), deletions: Gate::new(DELETIONS) }
    }

    /// Deletes a node, ahead of whatever is not under way yet. Sent at once, or soon when very many are, whether or not
    /// the answer is waited for.
    pub(crate) fn delete(&self, path: &Arc<str>) -> Answer<Result<(), Error>> {
        let Self { client, driver, .. } = self;
        match self.deletions.try_enter() {
            Some(pass) => {
                let deletion = driver.send(|| client.delete(path, None));
                together(Box::pin(async move {
                    let deleted = deletion.await;
                    drop(pass);
                    deleted
                }))
            }
            None => {
                let (client, path, gate) = (client.clone(), Arc::clone(path), Arc::clone(&self.deletions));
                let deletion = async move {
                    let _pass = gate.enter(client.clone()).await;
                    client.delete(&path, None).await
                };
                // It is sent also when nobody waits for its answer: the node would keep others waiting.
                match keeper::runtime() {
                    Ok(runtime) => {
                        let deleted = runtime.spawn(deletion);
                        Box::pin(async move { deleted.await.unwrap_or(Err(Error::ClientClosed)) })
                    }
                    Err(_) => Box::pin(deletion),
                }
            }
        }
    }
}

/// Lets so many in at a time that send requests.
///
/// Who sends is let in until it has seen the answer, which one that is not polled never does. So while others wait, it
/// is found out whose answers have come, and their passes go to others.
pub(crate) struct Gate {
    most: usize,
    state: Mutex<State>,
}

struct State {
    /// Replaced when those who were let in have had their answers.
    passes: Arc<Semaphore>,
    /// Grows while answers are waited for.
    round: u64,
    /// How many were let in in this round, and are still in.
    recent: usize,
    /// Somebody finds out whose answers have come.
    attended: bool,
}

/// The right to send requests.
pub(crate) struct Pass {
    gate: Arc<Gate>,
    round: u64,
    _pass: OwnedSemaphorePermit,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        if state.round == self.round {
            state.recent -= 1;
        }
    }
}

impl Gate {
    fn new(most: usize) -> Arc<Self> {
        let passes = Arc::new(Semaphore::new(most));
        Arc::new(Self { most, state: Mutex::new(State { passes, round: 0, recent: 0, attended: false }) })
    }

    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<Pass> {
        let mut state = self.state.lock();
        let pass = Arc::clone(&state.passes).try_acquire_owned().ok()?;
        Some(self.pass(&mut state, pass))
    }

    fn pass(self: &Arc<Self>, state: &mut State, pass: OwnedSemaphorePermit) -> Pass {
        state.recent += 1;
        Pass { gate: Arc::clone(self), round: state.round, _pass: pass }
    }

    /// Waits in line. Whether answers have come is asked with `client`.
    pub(crate) async fn enter(self: Arc<Self>, client: Client) -> Pass {
        loop {
            let passes = {
                let mut state = self.state.lock();
                if !std::mem::replace(&mut state.attended, true) {
                    match keeper::runtime() {
                        Ok(runtime) => drop(runtime.spawn(Arc::clone(&self).attend(client.clone()))),
                        Err(_) => state.attended = false,
                    }
                }
                Arc::clone(&state.passes)
            };
            // They were replaced if there are none.
            if let Ok(pass) = passes.acquire_owned().await {
                return self.pass(&mut self.state.lock(), pass);
            }
        }
    }

    /// As long as nobody can enter: finds out whose answers have come, and lets others in for those.
    async fn attend(self: Arc<Self>, client: Client) {
        loop {
            {
                let mut state = self.state.lock();
                state.round += 1;
                state.recent = 0;
            }
            sleep(LEFT_LYING).await;
            // Once this is answered, so is all that was sent before. Without a connection all is.
            drop(client.check_stat("/").await);
            let mut state = self.state.lock();
            let free = state.passes.available_permits();
            if free > 0 {
                state.attended = false;
                return;
            }
            if state.recent < self.most {
                let replaced = std::mem::replace(&mut state.passes, Arc::new(Semaphore::new(self.most)));
                drop(state);
                replaced.close();
            }
        }
    }
}
