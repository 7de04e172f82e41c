//! The waiters of one process in their queue.

use std::sync::Arc;

use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread;

use super::{HOUR, join, key};
use crate::backend::PauseLimit;
use crate::engine::wait_queue::{Ticket, WaitQueue};
use crate::key::Key;

/// A lock of one process with waiters in line, as the engine uses the queue.
struct Lined {
    queue: WaitQueue,
    taken: AtomicBool,
    inside: AtomicUsize,
}

impl Lined {
    fn taken() -> Arc<Self> {
        let queue = WaitQueue::new(PauseLimit::new(HOUR, HOUR), false);
        Arc::new(Self { queue, taken: AtomicBool::new(true), inside: AtomicUsize::new(0) })
    }

    fn release(&self) {
        self.taken.store(false, Ordering::SeqCst);
        self.queue.released(&key());
    }

    fn try_take(&self) -> bool {
        !self.taken.swap(true, Ordering::SeqCst)
    }

    /// Asks for the lock unless others wait; `None` when it was had, and else a place in line.
    fn ask<'a>(&'a self, key: &'a Key) -> Option<Ticket<'a>> {
        let seen = self.queue.releases(key);
        let asks = !self.queue.has(key);
        if asks && self.try_take() {
            return None;
        }
        let ticket = self.queue.join(key, asks.then_some(seen));
        if asks {
            ticket.poll_after(HOUR);
        }
        Some(ticket)
    }

    async fn take(&self) {
        let key = key();
        let Some(ticket) = self.ask(&key) else { return };
        loop {
            ticket.turn().await;
            ticket.ask();
            if self.try_take() {
                return ticket.win(HOUR);
            }
            ticket.poll_after(HOUR);
        }
    }

    fn have_a_turn(&self) {
        block_on(self.take());
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.release();
    }

    /// Waits, and gives up whenever the scheduler likes.
    fn give_up(&self) {
        let key = key();
        match self.ask(&key) {
            Some(ticket) => {
                thread::yield_now();
                drop(ticket);
            }
            None => self.release(),
        }
    }
}

pub(super) fn releases_reach_waiters() {
    let lined = Lined::taken();
    let run = |step: fn(&Lined)| {
        let lined = Arc::clone(&lined);
        thread::spawn(move || step(&lined))
    };
    let threads = [run(Lined::have_a_turn), run(Lined::give_up), run(Lined::have_a_turn)];
    lined.release();
    join(threads);
    assert!(!lined.queue.has(&key()));
}

pub(super) fn left_with_a_release() {
    let lined = Lined::taken();
    let first = {
        let lined = Arc::clone(&lined);
        thread::spawn(move || {
            let key = key();
            let ticket = lined.queue.join(&key, None);
            block_on(ticket.turn());
            // Dropped with the request under way.
            ticket.ask();
            thread::yield_now();
        })
    };
    let second = {
        let lined = Arc::clone(&lined);
        thread::spawn(move || lined.have_a_turn())
    };
    lined.release();
    join([first, second]);
}

/// A lock that readers share, of which a writer had the first turn.
struct Shared {
    queue: WaitQueue,
    /// The number of readers, or [`WRITER`].
    holders: AtomicUsize,
    granted: AtomicUsize,
}

const WRITER: usize = usize::MAX;

impl Shared {
    fn take(&self, reads: bool) {
        let key = key();
        let ticket = self.queue.join(&key, None);
        if reads {
            ticket.reads();
        }
        let taken = |holders| match reads {
            true => (holders != WRITER).then(|| holders + 1),
            false => (holders == 0).then_some(WRITER),
        };
        loop {
            block_on(ticket.turn());
            ticket.ask();
            if self.holders.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_ok() {
                break;
            }
            ticket.poll_after(HOUR);
        }
        match reads {
            true => {
                ticket.invite_readers();
                if ticket.is_first() {
                    ticket.tell();
                }
                drop(ticket);
            }
            false => ticket.win(HOUR),
        }
        self.granted.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self, reads: bool) {
        match reads {
            true => drop(self.holders.fetch_sub(1, Ordering::SeqCst)),
            false => self.holders.store(0, Ordering::SeqCst),
        }
        self.queue.released(&key());
    }
}

pub(super) fn readers_are_invited() {
    let queue = WaitQueue::new(PauseLimit::new(HOUR, HOUR), false);
    let holders = AtomicUsize::new(WRITER);
    let shared = Arc::new(Shared { queue, holders, granted: AtomicUsize::new(0) });
    let threads = [true, false, true, true].map(|reads| {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            shared.take(reads);
            shared.end(reads);
        })
    });
    let gives_up = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || {
            let key = key();
            let ticket = shared.queue.join(&key, None);
            ticket.reads();
            thread::yield_now();
            drop(ticket);
        })
    };
    shared.end(false);
    join(threads);
    join([gives_up]);
    assert_eq!(shared.granted.load(Ordering::SeqCst), 4);
    assert!(!shared.queue.has(&key()));
}
