//! Requests that find no connection free, and go out together when there is one.
//!
//! What comes first goes out at once, on a connection of its own. What comes while all connections are in use waits in
//! a line, and the next one that is free is used for the line: in one statement where the server can do that. Only the
//! first of those who want the same lock asks for it; what the others are notified follows from its answer.

use std::sync::Arc;

use dlock_core::backend::by_then;
use dlock_core::{Failure, Key};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connections::{Connections, busy};
use super::driven::Caller;
use super::lane::Lane;
use super::progress::Progress;
use super::route::Kind;
use super::steps::Step;
use super::waiters::{JointResult, Leaving, Line, Waiter};
use crate::failure::{copy, unchanged};
use crate::keeper_task::gone;
use crate::limits::Limits;
use crate::server::Server;

/// How far into the line one who sends looks for requests that fit together.
const LOOK: usize = 1_000;

/// A request of which some can be sent together.
pub(crate) trait Joint<S: Server>: Send + Sync + Sized + 'static {
    const KIND: Kind;
    /// How many are sent together at the most.
    const AT_ONCE: usize;
    type Reply: Send + 'static;
    type All: Step<S, Reply = Vec<Option<Self::Reply>>>;

    fn line(lane: &Lane<S>) -> &Line<Self, Self::Reply>;
    fn key(&self) -> &Key;
    /// They are for different keys.
    fn all(requests: &[&Self]) -> Self::All;
    /// What the same request comes to after another one for the same key.
    fn after(&self, first: &Self, reply: &Self::Reply) -> Option<Self::Reply>;
}

/// Asks together with others who wait for a connection; nothing when that came to nothing.
pub(crate) async fn ask_together<S: Server, Q: Joint<S>>(
    connections: &Arc<Connections<S>>,
    lane: &Arc<Lane<S>>,
    request: Q,
    limits: Limits,
    progress: &Arc<Progress>,
) -> JointResult<Q::Reply> {
    let end = Instant::now() + limits.patience;
    let (answer, mut receiver) = oneshot::channel();
    let is_driven = {
        let mut state = Q::line(lane).state();
        state.waiting.push_back(Waiter {
            request,
            limits,
            progress: Arc::clone(progress),
            answer: Some(answer),
        });
        std::mem::replace(&mut state.is_driven, true)
    };
    if !is_driven {
        // Not by the caller, on whom the others would then depend.
        lane.runtime.spawn(send_all::<S, Q>(Arc::clone(connections), Arc::clone(lane)));
    }
    let answer = match by_then(end, &mut receiver).await {
        Some(answer) => answer,
        None if progress.try_cancel() => return Err(busy(limits.patience)),
        // It was sent.
        None => receiver.await,
    };
    answer.unwrap_or_else(|_| Err(gone()))
}

/// Sends what waits until nobody waits any more.
async fn send_all<S: Server, Q: Joint<S>>(connections: Arc<Connections<S>>, lane: Arc<Lane<S>>) {
    let line = Q::line(&lane);
    let leaving = Leaving(line);
    while !line.is_done() {
        let patience = line.state().waiting.front().map(|first| first.limits.patience);
        let lent = connections.lend_from(Q::KIND, Arc::clone(&lane), patience.unwrap_or_default()).await;
        let firsts = draw::<S, Q>(line);
        match lent {
            Ok((lent, permit)) if firsts.is_empty() => {
                connections.done_with(lent, false);
                drop(permit);
            }
            Ok((mut lent, mut permit)) => {
                let connections = Arc::clone(&connections);
                lane.runtime.spawn(async move {
                    let requests: Vec<&Q> = firsts.iter().map(|(first, _)| &first.request).collect();
                    let limits = firsts.iter().map(|(first, _)| first.limits).reduce(Limits::longest);
                    let (step, limits) = (Q::all(&requests), limits.unwrap_or_default());
                    let caller = Caller::new(false);
                    let done = connections.perform(&step, &mut lent, limits, &mut permit, &caller).await;
                    let broken = matches!(&done, Err(fault) if fault.broken);
                    connections.done_with(lent, broken);
                    drop(permit);
                    tell::<S, Q>(firsts, done.map_err(|fault| fault.failure));
                });
            }
            Err(failure) => tell::<S, Q>(firsts, Err(failure)),
        }
    }
    std::mem::forget(leaving);
}

/// The next ones to send, each with those that follow from it.
fn draw<S: Server, Q: Joint<S>>(line: &Line<Q, Q::Reply>) -> Vec<Group<Q, Q::Reply>> {
    let mut firsts: Vec<Group<Q, Q::Reply>> = Vec::new();
    let mut state = line.state();
    let looked_at = state.waiting.len().min(LOOK);
    let mut later = Vec::new();
    for waiter in state.waiting.drain(..looked_at) {
        let is_full = firsts.len() >= Q::AT_ONCE;
        match firsts.iter_mut().find(|(first, _)| first.request.key() == waiter.request.key()) {
            Some((_, others)) if waiter.progress.count() => others.push(waiter),
            Some(_) => {}
            None if is_full => later.push(waiter),
            // Who has given up is not asked for.
            None if waiter.is_awaited() && waiter.progress.send() => firsts.push((waiter, Vec::new())),
            None => {}
        }
    }
    later.into_iter().rev().for_each(|waiter| state.waiting.push_front(waiter));
    firsts
}

/// The first who wants a lock, and the others.
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
            // Nothing was sent for it.
            other.answer(after.map_err(|failure| unchanged(copy(failure))));
        }
        first.answer(reply);
    }
}
