//! Requests that find no connection free, and go out together when there is one.
//!
//! What comes first goes out at once, on a connection of its own. What comes while all connections are in use waits in
//! a line, and the next one that is free is used for the line: in one statement where the server can do that. Only the
//! first of those who want the same lock asks for it; what the others are notified follows from its answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::backend::by_then;
use dlock_core::{ErrorKind, Failure, Holder, Key, Token};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::connections::{Connections, Kind, Limits};
use super::driven::{Caller, gone};
use super::lane::Lane;
use super::progress::Progress;
use super::steps::{ReleaseAll, Step, TakeAll};
use crate::failure::copy;
use crate::server::{Ask, Released, Server, Taken};
use crate::stored;

/// How far into the line one who sends looks for requests that fit together.
const LOOK: usize = 1_000;

/// The answer to a request; nothing where it was not asked for, and has to be asked for by itself.
type JointResult<R> = Result<Option<R>, Failure>;

/// A request that waits for a connection.
struct Waiter<Q, R> {
    request: Q,
    limits: Limits,
    progress: Arc<Progress>,
    answer: Option<oneshot::Sender<JointResult<R>>>,
}

impl<Q, R> Waiter<Q, R> {
    fn is_awaited(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| !answer.is_closed())
    }

    fn answer(mut self, answer: JointResult<R>) {
        match &answer {
            Err(failure) if failure.kind() == ErrorKind::Unknown => self.progress.lose(),
            _ => self.progress.settle(),
        }
        if let Some(sender) = self.answer.take() {
            drop(sender.send(answer));
        }
    }
}

impl<Q, R> Drop for Waiter<Q, R> {
    fn drop(&mut self) {
        self.progress.lose();
    }
}

/// Requests of one kind that wait for a connection.
pub(super) struct Line<Q, R>(Mutex<State<Q, R>>);

struct State<Q, R> {
    waiting: VecDeque<Waiter<Q, R>>,
    /// Somebody is there who sends what waits.
    is_driven: bool,
}

impl<Q, R> Default for Line<Q, R> {
    fn default() -> Self {
        Self(Mutex::new(State { waiting: VecDeque::new(), is_driven: false }))
    }
}

impl<Q, R> Line<Q, R> {
    fn state(&self) -> MutexGuard<'_, State<Q, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether nobody waits any more. Then whoever comes next sends what waits.
    fn is_done(&self) -> bool {
        let mut state = self.state();
        state.is_driven = !state.waiting.is_empty();
        !state.is_driven
    }
}

/// Who sends what waits is cancelled before it is done: nothing of it will be sent.
struct Leaving<'a, Q, R>(&'a Line<Q, R>);

impl<Q, R> Drop for Leaving<'_, Q, R> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_driven = false;
        state.waiting.clear();
    }
}

/// A request of which some can be sent together.
pub(super) trait Joint<S: Server>: Send + Sync + Sized + 'static {
    const KIND: Kind;
    type Reply: Send + 'static;
    type All: Step<S, Reply = Vec<Option<Self::Reply>>>;

    fn line(lane: &Lane<S>) -> &Line<Self, Self::Reply>;
    fn key(&self) -> &Key;
    /// They are for different keys.
    fn all(requests: &[&Self]) -> Self::All;
    /// What the same request comes to after another one for the same key.
    fn after(&self, first: &Self, reply: &Self::Reply) -> Option<Self::Reply>;
}

impl Ask {
    /// Who has the lock after this attempt, as far as is known.
    pub(super) fn seen_by_others(&self, taken: &Taken) -> Option<Box<Holder>> {
        match taken {
            Taken::Granted(fence) => {
                // One that is not known is below zero in a row.
                let fence = fence.and_then(|fence| i64::try_from(fence.get()).ok()).unwrap_or(-1);
                Some(Box::new(stored::holder(&self.holder, fence, self.lease)))
            }
            Taken::Busy(holder) => holder.clone(),
        }
    }
}

impl<S: Server> Joint<S> for Ask {
    const KIND: Kind = Kind::Ordinary;
    type Reply = Taken;
    type All = TakeAll;

    fn line(lane: &Lane<S>) -> &Line<Self, Taken> {
        &lane.takes
    }

    fn key(&self) -> &Key {
        &self.key
    }

    fn all(requests: &[&Self]) -> TakeAll {
        TakeAll(requests.iter().copied().cloned().collect())
    }

    fn after(&self, first: &Self, reply: &Taken) -> Option<Taken> {
        Some(match reply {
            Taken::Granted(fence) if self.token == first.token => Taken::Granted(*fence),
            taken => Taken::Busy(first.seen_by_others(taken)),
        })
    }
}

impl<S: Server> Joint<S> for (Key, Token) {
    const KIND: Kind = Kind::Release;
    type Reply = Released;
    type All = ReleaseAll;

    fn line(lane: &Lane<S>) -> &Line<Self, Released> {
        &lane.releases
    }

    fn key(&self) -> &Key {
        &self.0
    }

    fn all(requests: &[&Self]) -> ReleaseAll {
        ReleaseAll(requests.iter().copied().cloned().collect())
    }

    fn after(&self, _: &Self, _: &Released) -> Option<Released> {
        None
    }
}

impl<S: Server> Connections<S> {
    /// Asks together with others who wait for a connection; nothing when that came to nothing.
    pub(super) async fn together<Q: Joint<S>>(
        self: &Arc<Self>,
        lane: Arc<Lane<S>>,
        request: Q,
        limits: Limits,
        progress: &Arc<Progress>,
    ) -> JointResult<Q::Reply> {
        let end = Instant::now() + limits.patience;
        let (answer, mut receiver) = oneshot::channel();
        let is_driven = {
            let mut state = Q::line(&lane).state();
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
            lane.runtime.clone().spawn(Arc::clone(self).send_all::<Q>(lane));
        }
        let answer = match by_then(end, &mut receiver).await {
            Some(answer) => answer,
            None if progress.try_cancel() => return Err(super::connections::busy(limits.patience)),
            // It was sent.
            None => receiver.await,
        };
        answer.unwrap_or_else(|_| Err(gone()))
    }

    /// Sends what waits until nobody waits any more.
    async fn send_all<Q: Joint<S>>(self: Arc<Self>, lane: Arc<Lane<S>>) {
        let line = Q::line(&lane);
        let leaving = Leaving(line);
        while !line.is_done() {
            let patience = line.state().waiting.front().map(|first| first.limits.patience);
            let lent = self.lend_from(Q::KIND, Arc::clone(&lane), patience.unwrap_or_default()).await;
            let firsts = self.draw(line);
            match lent {
                Ok((lent, permit)) if firsts.is_empty() => {
                    self.done_with(lent, false);
                    drop(permit);
                }
                Ok((mut lent, mut permit)) => {
                    let connections = Arc::clone(&self);
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
    fn draw<Q: Joint<S>>(&self, line: &Line<Q, Q::Reply>) -> Vec<Group<Q, Q::Reply>> {
        let mut firsts: Vec<Group<Q, Q::Reply>> = Vec::new();
        let mut state = line.state();
        let looked_at = state.waiting.len().min(LOOK);
        let mut later = Vec::new();
        for waiter in state.waiting.drain(..looked_at) {
            let is_full = firsts.len() >= S::TOGETHER;
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
            other.answer(after.map_err(|failure| crate::failure::unchanged(copy(failure))));
        }
        first.answer(reply);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dlock_core::Fence;

    use super::*;

    #[test]
    fn the_fence_of_a_grant_that_has_none_is_none_for_the_others_too() {
        let (key, token, lease) = (Key::new("k").unwrap(), Token::random().unwrap(), Duration::from_secs(30));
        let ask = Ask { key, token, lease, holder: "host=h".to_owned(), fences: 1 };
        let seen = |fence| ask.seen_by_others(&Taken::Granted(fence)).unwrap().fence;
        assert_eq!(seen(None), None);
        assert_eq!(seen(Some(Fence::new(9))), Some(Fence::new(9)));
    }
}
