//! The queue of one key, as this process knows it, shared by all its claims on that key.
//!
//! At most [`NODES`] claims have a node on the servers at a time; the others wait in this process, first come, first
//! served. So a crowd of waiters in one process costs the servers no more than a few do, and takes turns with other
//! processes.
//!
//! | a [`Turn`] is | fields that are set | what leads there |
//! |---|---|---|
//! | empty | none | a new claim; `left` |
//! | waiting | `waiting`, which gets the slot if one is needed, then the pass | `take`, if either is not free |
//! | taken | `request`, and `slot` if one is needed | `take`, `come` |
//! | between requests | `slot` | `asked`: the next `take` needs a pass again |
//! | without a place | `request`, while requests are under way | `leave_place`: the claim has its lock |

mod numbers;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;

use dlock_core::backend::Mutex;
use dlock_core::{Failure, keeper};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use zookeeper::Error;

pub(crate) use self::numbers::{Numbers, Watched};
use crate::session::{Pass, Session};
use crate::wire::{Answer, read};

/// The number of nodes that one process has in one queue: enough that the next waiters are in it before a lock is
/// released.
pub(crate) const NODES: usize = 16;

/// The time after which one process looks again for what was left in front of its waiters, in each queue where other
/// libraries wait.
const LOOKS: Duration = Duration::from_secs(10);

/// The number of queues beyond which unused ones are looked for.
const FEW: usize = 64;

/// The number of queues whose numbers are kept, also while no claim is in them.
const RECENT: usize = 256;

/// The children of a directory; `None` if it is missing.
pub(crate) type Children = Option<Arc<[String]>>;

/// The queue of one key.
pub(crate) struct Queue {
    pub(crate) directory: Arc<str>,
    slots: Arc<Semaphore>,
    /// A node that stands in front: no node stands before it, and none ever will.
    head: Mutex<Option<Arc<str>>>,
    pub(crate) numbers: Arc<Numbers>,
    listings: Mutex<Listings>,
    /// The time at which a waiter last looked for what was left in front.
    looked: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Listings {
    /// The number of callers that have asked for a listing.
    asked: u64,
    last: Option<Listing>,
}

/// A listing that was sent.
#[derive(Clone)]
struct Listing {
    /// The session that sent it.
    session: i64,
    /// The number of callers that had asked when it was sent. It is new enough for all of them.
    covers: u64,
    answer: watch::Receiver<Option<Listed>>,
}

type Listed = Result<Children, Error>;

impl Queue {
    fn new(directory: Arc<str>, numbers: Arc<Numbers>) -> Self {
        Self {
            directory,
            slots: Arc::new(Semaphore::new(NODES)),
            head: Mutex::default(),
            numbers,
            listings: Mutex::default(),
            looked: Mutex::default(),
        }
    }

    /// Returns `true` if it is time for a waiter to look for what was left in front. The caller then has to look.
    pub(crate) fn takes_look(&self) -> bool {
        let (mut looked, now) = (self.looked.lock(), Instant::now());
        let due = looked.is_none_or(|at| now.duration_since(at) >= LOOKS);
        if due {
            *looked = Some(now);
        }
        due
    }

    /// Notes that no node stands before this one.
    pub(crate) fn note_head(&self, name: &str) {
        let mut head = self.head.lock();
        if head.as_deref() != Some(name) {
            *head = Some(name.into());
        }
    }

    /// Returns `true` if certainly no node stands before this one.
    pub(crate) fn is_head(&self, name: &str) -> bool {
        self.head.lock().as_deref() == Some(name)
    }

    /// Lists the directory as it is after this call, by one request for all callers of the same moment. The answer may
    /// lack changes by other sessions; it has all nodes that stood before a node of this session when that was made.
    pub(crate) async fn list(&self, session: &Session, until: Instant) -> Result<Children, Failure> {
        let mine = {
            let mut listings = self.listings.lock();
            // Numbered before a listing is looked for, so that one that is sent from now on covers this call.
            listings.asked += 1;
            listings.asked
        };
        let list = async {
            loop {
                let listing = self.listing(session, mine)?;
                // A listing that is too old is waited for too: all that ask meanwhile share the next one.
                let suffices = listing.suffices(session, mine);
                let mut answer = listing.answer;
                let listed = match answer.wait_for(Option::is_some).await {
                    Ok(listed) => listed.clone().unwrap_or(Ok(None)),
                    // The runtime of its task has ended with the process.
                    Err(_) => Err(Error::ClientClosed),
                };
                if suffices {
                    return listed;
                }
            }
        };
        read(&self.directory, until, list).await.map(Option::flatten)
    }

    /// Returns the listing to wait for: one that was sent after the question `mine`, or an older one that is under way,
    /// or a new one. A task of its own waits for the answer, so that a caller that is not polled holds up no other.
    fn listing(&self, session: &Session, mine: u64) -> Result<Listing, Error> {
        let mut listings = self.listings.lock();
        if let Some(last) = &listings.last
            && (last.suffices(session, mine) || last.is_under_way())
        {
            return Ok(last.clone());
        }
        let failed = |failure: Failure| Error::UnexpectedError(failure.to_string());
        let runtime = keeper::runtime().map_err(failed)?;
        let (sender, answer) = watch::channel(None);
        // Without a `sync`, since the order of the session suffices: see `list`.
        let listed = session.client.get_children(&self.directory);
        runtime.spawn(async move {
            let listed = match listed.await {
                Ok((children, _)) => Ok(Some(children.into())),
                Err(Error::NoNode) => Ok(None),
                Err(error) => Err(error),
            };
            sender.send_replace(Some(listed));
        });
        let listing = Listing { session: session.id, covers: listings.asked, answer };
        Ok(listings.last.insert(listing).clone())
    }
}

impl Listing {
    /// Returns `true` if it shows `session` the directory as it was after the question `mine`.
    fn suffices(&self, session: &Session, mine: u64) -> bool {
        self.session == session.id && self.covers >= mine
    }

    fn is_under_way(&self) -> bool {
        // A channel that is closed without an answer has lost its task.
        self.answer.borrow().is_none() && self.answer.has_changed().is_ok()
    }
}

/// The queues that claims of this process are in.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Known>);

#[derive(Default)]
struct Known {
    queues: HashMap<Arc<str>, Weak<Queue>>,
    /// The number of queues at which unused ones are forgotten.
    limit: usize,
    /// The numbers of queues that claims may be in again soon.
    numbers: HashMap<Arc<str>, Arc<Numbers>>,
    /// The directories in `numbers`, the oldest first.
    recent: VecDeque<Arc<str>>,
}

impl Queues {
    pub(crate) fn of(&self, directory: Arc<str>) -> Arc<Queue> {
        let mut known = self.0.lock();
        let Known { queues, limit, numbers, recent } = &mut *known;
        if let Some(queue) = queues.get(&directory).and_then(Weak::upgrade) {
            return queue;
        }
        if queues.len() >= (*limit).max(FEW) {
            // Twice as many as are left may come before the next search, so that its cost is spread over them.
            queues.retain(|_, queue| queue.strong_count() > 0);
            *limit = queues.len() * 2;
        }
        let mut oldest = None;
        let numbers = match numbers.get(&directory) {
            Some(numbers) => Arc::clone(numbers),
            None => {
                if recent.len() == RECENT {
                    oldest = recent.pop_front().and_then(|oldest| numbers.remove(&oldest));
                }
                recent.push_back(Arc::clone(&directory));
                Arc::clone(numbers.entry(Arc::clone(&directory)).or_default())
            }
        };
        let queue = Arc::new(Queue::new(Arc::clone(&directory), numbers));
        queues.insert(directory, Arc::downgrade(&queue));
        drop(known);
        // Dropped without the mutex, since its watch is removed then.
        drop(oldest);
        queue
    }
}

/// The turn of a claim to have a node, and to send requests to the servers.
#[derive(Default)]
pub(crate) struct Turn {
    slot: Option<OwnedSemaphorePermit>,
    request: Option<Pass>,
    waiting: Option<Answer<Taken>>,
}

struct Taken {
    slot: Option<OwnedSemaphorePermit>,
    request: Pass,
}

impl Turn {
    /// Takes the turn if it has come. The first call takes a place among the claims of this process, and later calls
    /// keep it.
    pub(crate) fn take(&mut self, queue: &Queue, session: &Session, needs_slot: bool) -> bool {
        let has_slot = self.slot.is_some() || !needs_slot;
        if has_slot && self.request.is_some() {
            return true;
        }
        // Only looked at here: `come` waits for it.
        if let Some(waiting) = &mut self.waiting {
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return match polled {
                std::task::Poll::Ready(taken) => self.has(taken),
                std::task::Poll::Pending => false,
            };
        }
        let (requests, client) = (Arc::clone(&session.requests.ordinary), &session.client);
        // The slot is kept from one attempt to the next, and only the pass is taken anew.
        let slot = match self.slot.take() {
            None if needs_slot => match Arc::clone(&queue.slots).try_acquire_owned() {
                Ok(slot) => Some(slot),
                Err(_) => {
                    let (slots, client) = (Arc::clone(&queue.slots), client.clone());
                    // The slot first, so that no pass is kept while a slot is waited for.
                    self.waiting = Some(Box::pin(async move {
                        let slot = slots.acquire_owned().await.ok();
                        Taken { slot, request: requests.enter(client).await }
                    }));
                    // Polled once, to join the waiters of the semaphore, which keeps their order.
                    return self.take(queue, session, needs_slot);
                }
            },
            slot => slot,
        };
        match requests.try_enter() {
            Some(request) => self.has(Taken { slot, request }),
            None => {
                let client = client.clone();
                self.waiting =
                    Some(Box::pin(async move { Taken { slot, request: requests.enter(client).await } }));
                self.take(queue, session, needs_slot)
            }
        }
    }

    fn has(&mut self, taken: Taken) -> bool {
        (self.slot, self.request, self.waiting) = (taken.slot, Some(taken.request), None);
        true
    }

    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Waits until the turn has come. Dropping this future loses nothing.
    pub(crate) async fn come(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            let taken = waiting.await;
            self.has(taken);
        }
    }

    /// Lets other claims send requests, since this one asks for nothing more at the moment.
    pub(crate) fn asked(&mut self) {
        self.request = None;
    }

    /// Leaves the place among the waiters, since the claim has its lock.
    pub(crate) fn leave_place(&mut self) {
        self.slot = None;
    }

    /// Leaves everything, since the claim has no node any more.
    pub(crate) fn left(&mut self) {
        *self = Self::default();
    }
}
