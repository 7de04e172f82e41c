//! What this process knows of the queue of one key, shared by all its claims on it.
//!
//! At most [`NODES`] claims have a node on the servers at a time; the others wait in here, first come, first served. So
//! a crowd of waiters in one process costs the servers no more than a few, and takes turns with other processes.

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

/// How many nodes one process has in one queue: enough that the next ones are in line before a lock is released.
pub(crate) const NODES: usize = 16;

/// How often one process looks for what was left in front of its waiters, in each queue where other libraries wait.
const LOOKS: Duration = Duration::from_secs(10);

/// How many keys are remembered before those that nobody needs any more are looked for.
const FEW: usize = 64;

/// Of so many queues the numbers are kept when nobody is in them.
const RECENT: usize = 256;

/// The children of a directory; `None` when it is missing.
pub(crate) type Children = Option<Arc<[String]>>;

/// The queue of one key.
pub(crate) struct Queue {
    pub(crate) directory: Arc<str>,
    slots: Arc<Semaphore>,
    /// A node before which there is none, and never will be one.
    head: Mutex<Option<Arc<str>>>,
    pub(crate) numbers: Arc<Numbers>,
    listings: Mutex<Listings>,
    /// When somebody last looked for what was left in front.
    looked: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Listings {
    /// How many were asked for so far.
    asked: u64,
    last: Option<Listing>,
}

/// A listing that was sent.
#[derive(Clone)]
struct Listing {
    /// The session that sent it.
    session: i64,
    /// How many had asked before.
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

    /// Whether it is time that one of those who wait looks for what was left in front; if so it is the caller.
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

    /// Whether certainly no node stands before this one.
    pub(crate) fn is_head(&self, name: &str) -> bool {
        self.head.lock().as_deref() == Some(name)
    }

    /// Lists the directory as it is after this call, by one request for all who ask at the same time. The answer may
    /// lack what other sessions did; it has all that stood before a node of this session when that was made.
    pub(crate) async fn list(&self, session: &Session, until: Instant) -> Result<Children, Failure> {
        let mine = {
            let mut listings = self.listings.lock();
            listings.asked += 1;
            listings.asked
        };
        let list = async {
            loop {
                let listing = self.listing(session, mine)?;
                let suffices = listing.suffices(session, mine);
                let mut answer = listing.answer;
                let listed = match answer.wait_for(Option::is_some).await {
                    Ok(listed) => listed.clone().unwrap_or(Ok(None)),
                    // Its runtime has ended with the process.
                    Err(_) => Err(Error::ClientClosed),
                };
                if suffices {
                    return listed;
                }
            }
        };
        read(&self.directory, until, list).await.map(Option::flatten)
    }

    /// The listing to wait for: one that was sent after the question `mine`, or another one that is under way. It is
    /// waited for by a task of its own, so that one who asked and is not polled holds up nobody.
    fn listing(&self, session: &Session, mine: u64) -> Result<Listing, Error> {
        let mut listings = self.listings.lock();
        if let Some(last) = &listings.last
            && (last.suffices(session, mine) || last.is_under_way())
        {
            return Ok(last.clone());
        }
        let failed = |failure: Failure| Error::UnexpectedError(failure.to_string());
        let runtime = keeper::runtime().map_err(failed)?;
        let (tell, answer) = watch::channel(None);
        let listed = session.client.get_children(&self.directory);
        runtime.spawn(async move {
            let listed = match listed.await {
                Ok((children, _)) => Ok(Some(children.into())),
                Err(Error::NoNode) => Ok(None),
                Err(error) => Err(error),
            };
            tell.send_replace(Some(listed));
        });
        let listing = Listing { session: session.id, covers: listings.asked, answer };
        Ok(listings.last.insert(listing).clone())
    }
}

impl Listing {
    /// Whether it tells `session` what was there after the question `mine`.
    fn suffices(&self, session: &Session, mine: u64) -> bool {
        self.session == session.id && self.covers >= mine
    }

    fn is_under_way(&self) -> bool {
        self.answer.borrow().is_none() && self.answer.has_changed().is_ok()
    }
}

/// The queues that somebody of this process is in.
#[derive(Default)]
pub(crate) struct Queues(Mutex<Known>);

#[derive(Default)]
struct Known {
    queues: HashMap<Arc<str>, Weak<Queue>>,
    /// With so many it is time to forget those that nobody needs any more.
    limit: usize,
    /// Of queues that somebody may be in again soon.
    numbers: HashMap<Arc<str>, Arc<Numbers>>,
    /// The same, the oldest first.
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
        // Its watch is removed, outside of the mutex.
        drop(oldest);
        queue
    }
}

/// The turn of a claim: to have a node, and to ask something of the servers.
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
    /// Takes the turn if it has come. The place among the others is taken by the first call, and is kept.
    pub(crate) fn take(&mut self, queue: &Queue, session: &Session, needs_slot: bool) -> bool {
        let has_slot = self.slot.is_some() || !needs_slot;
        if has_slot && self.request.is_some() {
            return true;
        }
        if let Some(waiting) = &mut self.waiting {
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return match polled {
                std::task::Poll::Ready(taken) => self.has(taken),
                std::task::Poll::Pending => false,
            };
        }
        let (requests, client) = (Arc::clone(&session.requests.ordinary), &session.client);
        let slot = match self.slot.take() {
            None if needs_slot => match Arc::clone(&queue.slots).try_acquire_owned() {
                Ok(slot) => Some(slot),
                Err(_) => {
                    let (slots, client) = (Arc::clone(&queue.slots), client.clone());
                    self.waiting = Some(Box::pin(async move {
                        let slot = slots.acquire_owned().await.ok();
                        Taken { slot, request: requests.enter(client).await }
                    }));
                    // Joins the queue of those who wait.
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

    /// Waits until the turn has come. Dropping it loses nothing.
    pub(crate) async fn come(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            let taken = waiting.await;
            self.has(taken);
        }
    }

    /// The claim asks for nothing more at the moment.
    pub(crate) fn asked(&mut self) {
        self.request = None;
    }

    /// The claim has its lock, and needs no place among those who wait any more.
    pub(crate) fn leave_place(&mut self) {
        self.slot = None;
    }

    /// The claim has no node any more.
    pub(crate) fn left(&mut self) {
        *self = Self::default();
    }
}
