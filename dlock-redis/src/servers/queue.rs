//! Requests that wait to be sent together, and their makers, who wait for the replies.
//!
//! Requests that share a call share one list of makers to wait in, so that a request costs no channel of its own. A
//! request whose maker is cancelled before it is sent, is not sent.
//!
//! | `Maker` | its `Pending` | becomes |
//! |---|---|---|
//! | `New` | was not polled yet | `Waits` when it is polled, `Answered` when the reply comes first, `Gone` when it is dropped |
//! | `Waits` | waits for the reply | `Answered` with the reply, `Gone` when it is dropped |
//! | `Answered` | has not read the reply yet | `Gone` when it has, or is dropped |
//! | `Gone` | is gone | stays so: a reply is thrown away, and nothing is sent again for it |

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use dlock_core::backend::{Mutex, RequestClock};
use smallvec::smallvec;
use tokio::sync::Notify;

use super::wire::{Replies, Reply};
use crate::error::Fault;
use crate::request::Request;

/// How many requests share one call at the most, so that no call keeps the server from others for long.
const MOST_IN_A_CALL: usize = 32;

/// The requests that wait to be sent, in the order of their makers.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
    /// Requests that wait or are under way, queued or sent directly.
    open: AtomicUsize,
    /// Whether several shared the last call.
    crowded: AtomicBool,
}

/// A call that goes past the queue, and counts as open until this is dropped.
pub(super) struct Direct<'a>(&'a Queue);

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.done(1);
    }
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<Building>,
    closed: bool,
    /// Another connection is in its place.
    retired: bool,
}

/// A call that is not sent yet. A request that was taken back leaves a gap.
struct Building {
    makers: Arc<Makers>,
    requests: Vec<Option<Request>>,
}

/// A call that is to be sent.
pub(super) struct Call {
    queue: Arc<Queue>,
    makers: Arc<Makers>,
    pub(super) requests: Vec<Request>,
    /// The place of each request among the makers.
    places: Vec<usize>,
    answered: bool,
}

/// Those who wait for the replies to one call.
#[derive(Default)]
struct Makers(Mutex<Vec<Maker>>);

#[derive(Default)]
enum Maker {
    #[default]
    New,
    Waits(Waker),
    Gone,
    Answered(Result<Reply, Fault>),
}

/// A request's maker, waiting for the reply.
///
/// Dropping it takes the request back if it was not sent yet.
pub(super) struct Pending<'a> {
    queue: &'a Queue,
    makers: Arc<Makers>,
    place: usize,
    answered: bool,
}

impl Queue {
    /// Lets a request go directly if nothing waits or is under way. Where several shared the last call they are
    /// likely to share the next one too, which costs less than one for the first of them and one for the others.
    pub(super) fn direct(&self) -> Option<Direct<'_>> {
        if self.crowded.load(Ordering::Relaxed) {
            return None;
        }
        self.open.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok().then(|| Direct(self))
    }

    /// Lets a call go directly that shares none with others, and may overtake what is queued.
    pub(super) fn unbatched(&self) -> Direct<'_> {
        self.open.fetch_add(1, Ordering::AcqRel);
        Direct(self)
    }

    fn done(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::AcqRel);
    }

    /// Adds a request; `None` when the queue is closed, or is only for withdrawals.
    pub(super) fn push(&self, request: Request) -> Option<Pending<'_>> {
        let mut waiting = self.waiting.lock();
        if waiting.closed || waiting.retired && !request.step.withdraws() {
            return None;
        }
        if let Some(clock) = &request.clock {
            clock.queued();
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        let first = waiting.calls.is_empty();
        let building = match waiting.calls.back_mut() {
            Some(building) if building.has_room_for(&request) => building,
            _ => {
                waiting.calls.push_back(Building { makers: Arc::default(), requests: Vec::with_capacity(8) });
                waiting.calls.back_mut()?
            }
        };
        building.requests.push(Some(request));
        let place = building.requests.len() - 1;
        let makers = Arc::clone(&building.makers);
        drop(waiting);
        if first {
            self.news.notify_one();
        }
        Some(Pending { queue: self, makers, place, answered: false })
    }

    /// Resolves when there may be something to send, or the queue was closed.
    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Takes the next call that somebody still wants.
    pub(super) fn pop(self: &Arc<Self>) -> Option<Call> {
        let mut waiting = self.waiting.lock();
        loop {
            let Building { makers, requests } = waiting.calls.pop_front()?;
            let wanted = requests.into_iter().enumerate();
            let (places, requests): (Vec<_>, Vec<_>) = wanted
                .filter_map(|(place, request)| Some((place, request?)))
                .filter(|(_, request)| self.may_be_sent(request))
                .unzip();
            if !requests.is_empty() {
                return Some(Call { queue: Arc::clone(self), makers, requests, places, answered: false });
            }
        }
    }

    /// One that the engine has given up while it waited must not be sent.
    fn may_be_sent(&self, request: &Request) -> bool {
        let may = request.clock.as_ref().is_none_or(RequestClock::written);
        if !may {
            self.done(1);
        }
        may
    }

    /// How many requests wait to be sent next.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().calls.front().map_or(0, |call| call.requests.len())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Accepts nothing more; what waits is still sent.
    pub(super) fn close(&self) {
        self.waiting.lock().closed = true;
        self.news.notify_one();
    }

    /// Returns what waits to its makers, but for withdrawals, which follow what was sent on this connection. Accepts
    /// nothing else from now on.
    pub(super) fn retire(&self, fault: &Fault) {
        let mut returned = Vec::new();
        let mut waiting = self.waiting.lock();
        waiting.retired = true;
        for call in &mut waiting.calls {
            for (place, request) in call.requests.iter_mut().enumerate() {
                if request.take_if(|request| !request.step.withdraws()).is_some() {
                    returned.push((Arc::clone(&call.makers), place));
                }
            }
        }
        drop(waiting);
        self.done(returned.len());
        for (makers, place) in returned {
            let waker = answer(&mut makers.0.lock(), place, Err(fault.clone()));
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Accepts nothing more, and answers what waits.
    pub(super) fn fail(self: &Arc<Self>, fault: &Fault) {
        self.close();
        while let Some(call) = self.pop() {
            let replies = smallvec![Err(fault.clone()); call.requests.len()];
            call.answer(replies);
        }
    }
}

impl Building {
    /// Whether there is room, and no other request of the same lock. Tracked renewals share a call with nothing else:
    /// for a read of a script, servers up to Redis 7.0 remember all keys of the call, and would track what was
    /// not to be tracked.
    fn has_room_for(&self, request: &Request) -> bool {
        let conflicts = |other: &Request| {
            other.step.is_tracked() != request.step.is_tracked()
                || other.names.hash == request.names.hash && other.names.lock == request.names.lock
        };
        self.requests.len() < MOST_IN_A_CALL && !self.requests.iter().flatten().any(conflicts)
    }
}

impl Call {
    /// Whether the maker of a request has gone.
    pub(super) fn is_unwanted(&self, index: usize) -> bool {
        self.places
            .get(index)
            .is_none_or(|place| matches!(self.makers.0.lock().get(*place), Some(Maker::Gone)))
    }

    /// Answers all.
    pub(super) fn answer(mut self, replies: Replies) {
        self.tell(replies);
    }

    fn tell(&mut self, replies: Replies) {
        self.answered = true;
        self.queue.crowded.store(self.places.len() > 1, Ordering::Relaxed);
        self.queue.done(self.places.len());
        let mut makers = self.makers.0.lock();
        let mut wakers = Vec::with_capacity(replies.len());
        for (place, reply) in self.places.iter().zip(replies) {
            wakers.extend(answer(&mut makers, *place, reply));
        }
        drop(makers);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Call {
    /// The runtime that drives it has ended.
    fn drop(&mut self) {
        if !self.answered {
            let fault = Fault::Cut("its runtime is gone".into());
            self.tell(smallvec![Err(fault); self.places.len()]);
        }
    }
}

impl Future for Pending<'_> {
    type Output = Result<Reply, Fault>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let place = self.place;
        let reply = {
            let mut makers = self.makers.0.lock();
            if makers.len() <= place {
                makers.resize_with(place + 1, Maker::default);
            }
            match &mut makers[place] {
                Maker::Waits(waker) => {
                    waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                maker @ (Maker::New | Maker::Gone) => {
                    *maker = Maker::Waits(cx.waker().clone());
                    return Poll::Pending;
                }
                answered => match std::mem::replace(answered, Maker::Gone) {
                    Maker::Answered(reply) => reply,
                    _ => return Poll::Pending,
                },
            }
        };
        self.answered = true;
        Poll::Ready(reply)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let mut waiting = self.queue.waiting.lock();
        let unsent = waiting.calls.iter_mut().find(|call| Arc::ptr_eq(&call.makers, &self.makers));
        if let Some(request) = unsent.and_then(|call| call.requests.get_mut(self.place)) {
            *request = None;
            self.queue.done(1);
        }
        drop(waiting);
        let mut makers = self.makers.0.lock();
        if makers.len() <= self.place {
            makers.resize_with(self.place + 1, Maker::default);
        }
        makers[self.place] = Maker::Gone;
    }
}

/// Answers one of them. Returns what wakes it.
fn answer(makers: &mut Vec<Maker>, place: usize, reply: Result<Reply, Fault>) -> Option<Waker> {
    if makers.len() <= place {
        makers.resize_with(place + 1, Maker::default);
    }
    match std::mem::replace(&mut makers[place], Maker::Answered(reply)) {
        Maker::Waits(waker) => Some(waker),
        Maker::Gone => {
            makers[place] = Maker::Gone;
            None
        }
        Maker::New | Maker::Answered(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::backend::Mode;
    use dlock_core::{Key, Token};

    use super::*;
    use crate::keys::{Counters, Namer};
    use crate::request::{ScriptKind, Step};

    #[test]
    fn tracked_renewals_share_a_call_with_each_other_only() {
        let namer = Namer::new("dlock:", Counters::Server, false, false).unwrap();
        let renewal = |tracked| Step::Renew { lease: 5_000, tracked };
        let steps = [
            renewal(true),
            renewal(true),
            renewal(false),
            Step::Withdraw { passes_on: false },
            renewal(true),
        ];
        let queue = Arc::new(Queue::default());
        let requests = steps.into_iter().enumerate().map(|(number, step)| Request {
            names: namer.names(&Key::new(format!("room_{number}")).unwrap()),
            token: Token::random().unwrap(),
            mode: Mode::Exclusive,
            kind: ScriptKind::Exclusive,
            step,
            clock: None,
        });
        let _pending: Vec<_> = requests.map(|request| queue.push(request).unwrap()).collect();
        let sizes = std::iter::from_fn(|| queue.pop().map(|call| call.requests.len()));
        assert_eq!(sizes.collect::<Vec<_>>(), [2, 2, 1]);
    }
}
