//! Bounds the requests of one session that are under way.
//!
//! The servers answer the requests of a session in their order, so that each request waits for all before it. A request
//! that would have to wait there waits in this process instead, where it is not sent if it is no longer needed, and
//! where an urgent one overtakes it.
//!
//! | a [`Gate`] is | a sender that comes | a round of `attend` |
//! |---|---|---|
//! | open: a pass is free | gets a pass | ends `attend` |
//! | full: no pass is free | waits, and starts `attend` | takes [`LEFT_LYING`], and until all requests of earlier rounds are answered; if there are passes of earlier rounds, the gate is open again |

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Mutex, sleep};
use dlock_core::keeper;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zookeeper::{Client, Error};

use super::driver::{Driver, together};
use crate::wire::Answer;

/// The number of claims that may have requests under way, each a creation and a listing, or the looks of a waiter.
const ORDINARY: usize = 128;
/// The number of deletions that may be under way besides.
const DELETIONS: usize = 128;
/// The time for which a caller may leave an answer unread that has come, before other callers send requests in its
/// stead.
const LEFT_LYING: Duration = Duration::from_millis(50);

/// The bounds of one session. Proofs of life have none, since there are few of them.
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

    /// Deletes a node, ahead of all requests that are not under way yet. The deletion is sent at once, or soon if very
    /// many are under way, whether or not the answer is waited for.
    pub(crate) fn delete(&self, path: &Arc<str>) -> Answer<Result<(), Error>> {
        let Self { client, driver, .. } = self;
        match self.deletions.try_enter() {
            // A deletion frees a lock or a place: it never waits behind the requests of claims that want one.
            Some(pass) => {
                // Sent before this returns. The pass stays with the answer.
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
                // In a task, so that the deletion is sent also if its answer is not waited for: the node keeps other
                // clients waiting.
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

/// Lets a bounded number of senders in at a time.
///
/// A sender is in until it has seen its answer, which a future that is not polled never does. So while others wait,
/// `attend` finds out whose answers have come, and gives their passes to others.
pub(crate) struct Gate {
    most: usize,
    state: Mutex<State>,
}

struct State {
    /// Replaced when the senders that were let in have had their answers.
    passes: Arc<Semaphore>,
    /// The number of the round of `attend`, which grows while senders wait.
    round: u64,
    /// The number of senders that were let in in this round, and are still in.
    recent: usize,
    /// `attend` runs.
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
        // Passes of earlier rounds are not counted in `recent`.
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
        // Under the lock: `attend` cannot replace the semaphore between the pass and its count.
        let pass = Arc::clone(&state.passes).try_acquire_owned().ok()?;
        Some(self.pass(&mut state, pass))
    }

    fn pass(self: &Arc<Self>, state: &mut State, pass: OwnedSemaphorePermit) -> Pass {
        state.recent += 1;
        Pass { gate: Arc::clone(self), round: state.round, _pass: pass }
    }

    /// Waits for a pass, in the order of the callers. `client` is used to find out whether answers have come.
    pub(crate) async fn enter(self: Arc<Self>, client: Client) -> Pass {
        loop {
            let passes = {
                let mut state = self.state.lock();
                // The first sender that has to wait starts the task.
                if !std::mem::replace(&mut state.attended, true) {
                    match keeper::runtime() {
                        Ok(runtime) => drop(runtime.spawn(Arc::clone(&self).attend(client.clone()))),
                        // Without the task, the senders wait for passes that are returned, and the next one tries to
                        // start it again.
                        Err(_) => state.attended = false,
                    }
                }
                Arc::clone(&state.passes)
            };
            // The semaphore is closed once it was replaced; the new one is in `state`. A pass of the semaphore before
            // is one more than the bound for a moment, and counts in the round that goes on now.
            if let Ok(pass) = passes.acquire_owned().await {
                return self.pass(&mut self.state.lock(), pass);
            }
        }
    }

    /// Finds out whose answers have come, and lets other senders in for those, until a pass is free.
    async fn attend(self: Arc<Self>, client: Client) {
        loop {
            {
                let mut state = self.state.lock();
                state.round += 1;
                state.recent = 0;
            }
            sleep(LEFT_LYING).await;
            // Once this is answered, so is all that was sent before. Without a connection, all requests are answered.
            drop(client.check_stat("/").await);
            let mut state = self.state.lock();
            let free = state.passes.available_permits();
            if free > 0 {
                state.attended = false;
                return;
            }
            // The passes of earlier rounds are of senders whose answers have come: others get as many. Senders of this
            // round may be in besides, so that the bound can be exceeded by them.
            if state.recent < self.most {
                let replaced = std::mem::replace(&mut state.passes, Arc::new(Semaphore::new(self.most)));
                drop(state);
                replaced.close();
            }
        }
    }
}
