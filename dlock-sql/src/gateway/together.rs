//! Requests that find no connection free, and go out together when there is one.
//!
//! The first one goes out at once, on a connection of its own. Those that come while all connections are in use wait in
//! a queue, and the next free connection is used for the queue: in one statement where the server can do that. Only the
//! first request for a lock is sent; the answers to the others for it follow from its answer.
//!
//! ```text
//!     `ask_together`            `draw`, with a connection in hand
//!     waiter ------> waiting ---------------------------------> first of its key: `send` -> asked -> answer
//!                    |   ^  |                                   same key: `count` ----------------> `after`
//!                    |   |  +- given up: dropped                for a full statement: back in front
//!                    |   |
//!                    |   +- no task sends: one is spawned (`is_driven`)
//!                    +- patience ends: cancelled if unsent, else it waits for the answer
//! ```

use std::sync::Arc;

use dlock_core::backend::by_then;
use dlock_core::{Failure, Key};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connections::{Connections, busy};
use super::driven::Caller;
use super::progress::Progress;
use super::route::Kind;
use super::runtime_pool::RuntimePool;
use super::steps::Step;
use super::waiters::{JointResult, Leaving, PendingBatch, Waiter};
use crate::failure::{copy, unchanged};
use crate::keeper_task::gone;
use crate::limits::Limits;
use crate::server::Server;

/// The number of requests in the queue among which those are looked for that fit together.
const LOOK: usize = 1_000;

/// A request that can be sent together with others.
pub(crate) trait Joint<S: Server>: Send + Sync + Sized + 'static {
    const KIND: Kind;
    /// The largest number that is sent together.
    const AT_ONCE: usize;
    type Reply: Send + 'static;
    type All: Step<S, Reply = Vec<Option<Self::Reply>>>;

    fn pending(runtime_pool: &RuntimePool<S>) -> &PendingBatch<Self, Self::Reply>;
    fn key(&self) -> &Key;
    /// Makes one step of requests for different keys.
    fn all(requests: &[&Self]) -> Self::All;
    /// Returns the answer to the same request after another one for its key was answered; `None` where it has to be
    /// sent.
    fn after(&self, first: &Self, reply: &Self::Reply) -> Option<Self::Reply>;
}

/// Asks together with others that wait for a connection. Returns `None` where the request has to be sent by itself.
pub(crate) async fn ask_together<S: Server, Q: Joint<S>>(
    connections: &Arc<Connections<S>>,
    runtime_pool: &Arc<RuntimePool<S>>,
    request: Q,
    limits: Limits,
    progress: &Arc<Progress>,
) -> JointResult<Q::Reply> {
    let end = Instant::now() + limits.patience;
    let (answer, mut receiver) = oneshot::channel();
    // Under one mutex, so that a request that is queued is sent: either a task is there and has not seen the queue
    // empty, or this call spawns one.
    let is_driven = {
        let mut state = Q::pending(runtime_pool).state();
        state.waiting.push_back(Waiter {
            request,
            limits,
            progress: Arc::clone(progress),
            answer: Some(answer),
        });
        std::mem::replace(&mut state.is_driven, true)
    };
    if !is_driven {
        // Not by the caller, on which the others would then depend.
        runtime_pool.runtime.spawn(send_all::<S, Q>(Arc::clone(connections), Arc::clone(runtime_pool)));
    }
    let answer = match by_then(end, &mut receiver).await {
        // A request that was sent may be carried out: only its answer can end it.
        Some(answer) => answer,
        None if progress.try_cancel() => return Err(busy(limits.patience)),
        None => receiver.await,
    };
    answer.unwrap_or_else(|_| Err(gone()))
}

/// Sends the requests of a queue until it is empty.
async fn send_all<S: Server, Q: Joint<S>>(
    connections: Arc<Connections<S>>,
    runtime_pool: Arc<RuntimePool<S>>,
) {
    let line = Q::pending(&runtime_pool);
    let leaving = Leaving(line);
    while !line.is_done() {
        // That of the first one: the others came later, and wait for as long by themselves.
        let patience = line.state().waiting.front().map(|first| first.limits.patience);
        let lent =
            connections.lend_from(Q::KIND, Arc::clone(&runtime_pool), patience.unwrap_or_default()).await;
        // After the connection is there: while it was waited for more requests have come, which can go along. Also
        // after a failure, which is the answer to all that wait.
        let firsts = draw::<S, Q>(line);
        match lent {
            // All of them gave up meanwhile.
            Ok((lent, permit)) if firsts.is_empty() => {
                connections.done_with(lent, false);
                drop(permit);
            }
            Ok((mut lent, mut permit)) => {
                // In a task, so that the next connection serves the next requests while this statement is under way.
                let connections = Arc::clone(&connections);
                runtime_pool.runtime.spawn(async move {
                    let requests: Vec<&Q> = firsts.iter().map(|(first, _)| &first.request).collect();
                    let limits = firsts.iter().map(|(first, _)| first.limits).reduce(Limits::longest);
                    let (step, limits) = (Q::all(&requests), limits.unwrap_or_default());
                    // Without a caller the statement is bounded by its limits alone: it is of many, of whom each may
                    // leave.
                    let caller = Caller::new(false);
                    let done = connections.perform(&step, &mut lent, limits, &mut permit, &caller).await;
                    let broken = matches!(&done, Err(fault) if fault.broken);
                    // The connection is back before the answers are: a caller that asks again at once finds it.
                    connections.done_with(lent, broken);
                    drop(permit);
                    tell::<S, Q>(firsts, done.map_err(|fault| fault.failure));
                });
            }
            Err(failure) => tell::<S, Q>(firsts, Err(failure)),
        }
    }
    // Only a task that was cancelled, or has panicked, empties the queue behind it.
    std::mem::forget(leaving);
}

/// Returns the requests to send next, each with those whose answers follow from it.
fn draw<S: Server, Q: Joint<S>>(line: &PendingBatch<Q, Q::Reply>) -> Vec<Group<Q, Q::Reply>> {
    let mut firsts: Vec<Group<Q, Q::Reply>> = Vec::new();
    let mut state = line.state();
    let looked_at = state.waiting.len().min(LOOK);
    let mut later = Vec::new();
    for waiter in state.waiting.drain(..looked_at) {
        let is_full = firsts.len() >= Q::AT_ONCE;
        // A follower is counted as written, since the statement answers it too. One whose caller has gone is dropped,
        // and so cancelled.
        match firsts.iter_mut().find(|(first, _)| first.request.key() == waiter.request.key()) {
            Some((_, others)) if waiter.progress.count() => others.push(waiter),
            Some(_) => {}
            // A new key finds no room in this statement; more requests for keys in it still come along.
            None if is_full => later.push(waiter),
            // A request that was given up is not sent.
            None if waiter.is_awaited() && waiter.progress.send() => firsts.push((waiter, Vec::new())),
            None => {}
        }
    }
    // In front and in their order: they are older than all that came since.
    later.into_iter().rev().for_each(|waiter| state.waiting.push_front(waiter));
    firsts
}

/// The first request for a lock, and the others.
type Group<Q, R> = (Waiter<Q, R>, Vec<Waiter<Q, R>>);

fn tell<S: Server, Q: Joint<S>>(
    firsts: Vec<Group<Q, Q::Reply>>,
    done: Result<Vec<Option<Q::Reply>>, Failure>,
) {
    let mut replies = done.map(Vec::into_iter);
    for (first, others) in firsts {
        let reply = match &mut replies {
            Ok(replies) => Ok(replies.next().flatten()),
            Err(failure) => Err(copy(failure)),
        };
        for other in others {
            let after = reply
                .as_ref()
                .map(|reply| reply.as_ref().and_then(|r| other.request.after(&first.request, r)));
            // Nothing was sent for it: whatever became of the first request, this one has changed nothing.
            other.answer(after.map_err(|failure| unchanged(copy(failure))));
        }
        first.answer(reply);
    }
}
