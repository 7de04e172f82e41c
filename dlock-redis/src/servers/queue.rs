//! Requests that wait to be sent together, and their makers: the tasks that wait for the replies.
//!
//! Requests that share a call share one list of makers, so that a request costs no channel of its own. A request whose
//! maker is dropped before it is sent is not sent.
//!
//! ```text
//!  push()             pop()                  answer(replies)
//!    ---> Building ---------> Call, on the wire ---------> the makers are woken
//!            |                 |
//!            |                 '- a Pending is dropped: its maker is `Gone`, and its
//!            |                    request is carried out all the same
//!            '- a Pending is dropped: its request leaves a gap
//! ```
//!
//! | `Maker` | its `Pending` | becomes |
//! |---|---|---|
//! | `New` | was not polled yet | `Waits` when it is polled, `Answered` when the reply comes first, `Gone` when it is dropped |
//! | `Waits` | waits for the reply | `Answered` with the reply, `Gone` when it is dropped |
//! | `Answered` | has not read the reply yet | `Gone` when it has, or is dropped |
//! | `Gone` | is gone | stays so: a reply is dropped, and its request is never sent again |

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

/// The most requests in one call. A larger call would keep the server from its other clients for too long.
const MOST_IN_A_CALL: usize = 32;

/// The requests that wait to be sent, in the order of their makers.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    news: Notify,
    /// The number of requests that wait or are under way, queued or sent directly.
    open: AtomicUsize,
    /// `true` if several requests shared the last call.
    crowded: AtomicBool,
}

/// A call that bypasses the queue, and counts as open until this is dropped.
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
    /// `true` once another connection is in the place of this one.
    retired: bool,
}

/// A call that is not sent yet. A request that its maker took back leaves a gap, so that the others keep their
/// positions.
struct Building {
    makers: Arc<Makers>,
    requests: Vec<Option<Request>>,
}

/// A call that was taken from the queue to be sent. Answers all its makers, also when it is dropped.
pub(super) struct Call {
    queue: Arc<Queue>,
    makers: Arc<Makers>,
    pub(super) requests: Vec<Request>,
    /// The position of each request among the makers.
    places: Vec<usize>,
    answered: bool,
}

/// The makers of the requests of one call. The list grows only when a maker is polled, dropped or answered.
#[derive(Default)]
struct Makers(Mutex<Vec<Maker>>);

#[derive(Default)]
/// The state of one maker, see the [table](self).
enum Maker {
    #[default]
    New,
    Waits(Waker),
    Gone,
    Answered(Result<Reply, Fault>),
}

/// A request's maker, which waits for the reply.
///
/// Dropping it takes the request back if it was not sent yet.
pub(super) struct Pending<'a> {
    queue: &'a Queue,
    makers: Arc<Makers>,
    place: usize,
    answered: bool,
}

impl Queue {
    /// Lets a request bypass the queue if nothing waits or is under way. Where several requests shared the last call
    /// they are likely to share the next one too, which costs less than one call for the first of them and one for the
    /// others.
    pub(super) fn direct(&self) -> Option<Direct<'_>> {
        // A wrong guess costs one request the time of the queue, and corrects itself with the next call.
        if self.crowded.load(Ordering::Relaxed) {
            return None;
        }
        // One of several callers at once goes directly, and the others collect behind its call.
        self.open.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok().then(|| Direct(self))
    }

    /// Lets a call bypass the queue that shares none with others, and may overtake the queued ones.
    pub(super) fn unbatched(&self) -> Direct<'_> {
        self.open.fetch_add(1, Ordering::AcqRel);
        Direct(self)
    }

    fn done(&self, count: usize) {
        self.open.fetch_sub(count, Ordering::AcqRel);
    }

    /// Adds a request. Returns `None` if the queue is closed, or open for withdrawals only.
    pub(super) fn push(&self, request: Request) -> Option<Pending<'_>> {
        let mut waiting = self.waiting.lock();
        // A withdrawal goes behind the attempts of its claim also on a retired connection, where they were sent.
        if waiting.closed || waiting.retired && !request.step.withdraws() {
            return None;
        }
        // Marked as queued before it can be popped: from then on the engine may give the request up, and knows whether
        // it was sent.
        if let Some(clock) = &request.clock {
            clock.queued();
        }
        self.open.fetch_add(1, Ordering::AcqRel);
        // The pump is notified by the first request only: it takes all that wait, and looks again after each call.
        let first = waiting.calls.is_empty();
        // Only the last call is looked at: a request that went into an earlier one would overtake those behind it.
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

    /// Waits until there may be something to send, or the queue was closed.
    pub(super) async fn changed(&self) {
        self.news.notified().await;
    }

    /// Takes the next call that has a request left to send.
    pub(super) fn pop(self: &Arc<Self>) -> Option<Call> {
        let mut waiting = self.waiting.lock();
        loop {
            // Under the lock: from here on, dropping a maker cannot take its request back any more.
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

    /// Returns `true` if the engine has not given the request up while it waited. The engine counts on it that such a
    /// request is never sent.
    fn may_be_sent(&self, request: &Request) -> bool {
        let may = request.clock.as_ref().is_none_or(RequestClock::written);
        if !may {
            self.done(1);
        }
        may
    }

    /// Returns the number of requests in the next call, gaps included.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().calls.front().map_or(0, |call| call.requests.len())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.waiting.lock().closed
    }

    /// Accepts no more requests. Those that wait are still sent.
    pub(super) fn close(&self) {
        // The pump is woken to find that out: it waits for news, and would not end by itself.
        self.waiting.lock().closed = true;
        self.news.notify_one();
    }

    /// Returns the waiting requests to their makers, except for withdrawals, which have to follow the requests that
    /// were sent on this connection. Accepts nothing but withdrawals from now on.
    pub(super) fn retire(&self, fault: &Fault) {
        // `retired` is set under the lock that empties the queue, so that no request slips in behind.
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
        // Makers are answered with the queue unlocked: a waker may run code that locks it.
        drop(waiting);
        // Before the makers are woken, as in `deliver`.
        self.done(returned.len());
        for (makers, place) in returned {
            let waker = answer(&mut makers.0.lock(), place, Err(fault.clone()));
            waker.into_iter().for_each(Waker::wake);
        }
    }

    /// Accepts no more requests, and answers those that wait with this fault.
    pub(super) fn fail(self: &Arc<Self>, fault: &Fault) {
        self.close();
        // Closed first: nothing can be pushed behind the last call.
        while let Some(call) = self.pop() {
            let replies = smallvec![Err(fault.clone()); call.requests.len()];
            call.answer(replies);
        }
    }
}

impl Building {
    /// Returns `true` if there is room, and no other request for the same lock. Tracked renewals share a call with
    /// nothing else: up to Redis 7.0 a server remembers all keys of a call for a read within its script, and would
    /// track locks that are not to be tracked.
    fn has_room_for(&self, request: &Request) -> bool {
        let conflicts = |other: &Request| {
            other.step.is_tracked() != request.step.is_tracked()
                || other.names.hash == request.names.hash && other.names.lock == request.names.lock
        };
        self.requests.len() < MOST_IN_A_CALL && !self.requests.iter().flatten().any(conflicts)
    }
}

impl Call {
    /// Returns `true` if the maker of a request is gone.
    pub(super) fn is_unwanted(&self, index: usize) -> bool {
        self.places
            .get(index)
            .is_none_or(|place| matches!(self.makers.0.lock().get(*place), Some(Maker::Gone)))
    }

    /// Answers all makers.
    pub(super) fn answer(mut self, replies: Replies) {
        self.deliver(replies);
    }

    fn deliver(&mut self, replies: Replies) {
        self.answered = true;
        // A hint for `direct`, and no more: nothing is read by it that another store has to precede.
        self.queue.crowded.store(self.places.len() > 1, Ordering::Relaxed);
        // Before the makers are woken: a maker that asks again at once has to see that nothing is under way.
        self.queue.done(self.places.len());
        // Locked once for the whole call. The wakers run when it is unlocked again: a maker that runs at once locks it
        // to read its reply.
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
    /// Answers the makers if the runtime that drives the connection ended before the replies.
    fn drop(&mut self) {
        if !self.answered {
            let fault = Fault::Cut("its runtime is gone".into());
            self.deliver(smallvec![Err(fault); self.places.len()]);
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
                    // Replaced at each poll: a select may poll from another task than the one before.
                    waker.clone_from(cx.waker());
                    return Poll::Pending;
                }
                // Stored at the first poll: a request that is answered before it costs no waker.
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
        // The request first: either it is taken back here, or it was popped already, and then the mark on its maker
        // keeps it from being sent again.
        let mut waiting = self.queue.waiting.lock();
        // By the list of makers, which is one for each call: the position alone would fit any call.
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

/// Stores the reply to one maker. Returns its waker, if it waits.
fn answer(makers: &mut Vec<Maker>, place: usize, reply: Result<Reply, Fault>) -> Option<Waker> {
    if makers.len() <= place {
        makers.resize_with(place + 1, Maker::default);
    }
    match std::mem::replace(&mut makers[place], Maker::Answered(reply)) {
        Maker::Waits(waker) => Some(waker),
        // The maker gave the request up, and its claim withdraws what it took.
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
