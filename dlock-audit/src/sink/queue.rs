//! The records on their way from the threads that use locks to the one that writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::Key;
use dlock_core::audit::{AuditedHold, AuditedLocks, HoldEnd};
use dlock_core::backend::Mode;

use super::Totals;

/// How long records wait at the most before they are written, and how often the writer looks. Nobody wakes it for one
/// record: that would cost the caller more than all else that a record does.
pub(super) const LOOK: Duration = Duration::from_millis(250);

/// A record that waits.
pub(super) struct Waiting {
    pub(super) locks: Arc<AuditedLocks>,
    pub(super) key: Key,
    pub(super) fence: Option<u64>,
    pub(super) mode: Mode,
    pub(super) passed_on: bool,
    pub(super) believed: (u64, u64),
    pub(super) alone_until: Option<u64>,
    pub(super) end: HoldEnd,
}

/// What the writer is to do.
pub(super) struct Work {
    pub(super) records: Vec<Waiting>,
    /// The last line is wanted, for this number of calls.
    pub(super) closes: Option<u64>,
    /// Nothing more will come.
    pub(super) quits: bool,
}

pub(super) struct Queue {
    capacity: usize,
    state: Mutex<State>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes those that wait for the last line.
    closed: Condvar,
    began: AtomicU64,
    ended: AtomicU64,
    written: AtomicU64,
    /// The records that found no room in the queue.
    dropped: AtomicU64,
    /// The records that could not be written.
    failed: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: Vec<Waiting>,
    /// The calls that want the last line, and those of them that have it.
    asked: u64,
    answered: u64,
    quits: bool,
    /// The writer has ended, so that nobody is to wait for it.
    is_over: bool,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            state: Mutex::default(),
            work: Condvar::new(),
            closed: Condvar::new(),
            began: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn began(&self) {
        self.began.fetch_add(1, Ordering::Relaxed);
    }

    /// Puts a record into the queue, or counts it as lost.
    pub(super) fn push(&self, hold: &AuditedHold<'_>) {
        let record = Waiting {
            locks: Arc::clone(hold.locks()),
            key: hold.key().clone(),
            fence: hold.fence().map(dlock_core::Fence::get),
            mode: hold.mode(),
            passed_on: hold.was_passed_on(),
            believed: (hold.believed_from().as_nanos(), hold.believed_until().as_nanos()),
            alone_until: hold.alone_until().map(dlock_core::Timestamp::as_nanos),
            end: hold.end(),
        };
        let (refused, is_half_full) = {
            let mut state = self.state();
            // Counted under the lock: the writer that takes the records finds the number that they make.
            self.ended.fetch_add(1, Ordering::Relaxed);
            match state.waiting.len() < self.capacity && !state.is_over {
                true => {
                    state.waiting.push(record);
                    (None, state.waiting.len() == self.capacity / 2)
                }
                false => (Some(record), false),
            }
        };
        // Not under the lock: the drop of a record may be the last one of its key.
        if refused.is_some() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        if is_half_full {
            self.work.notify_one();
        }
    }

    pub(super) fn failed(&self, records: u64) {
        self.failed.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn wrote(&self, records: u64) {
        self.written.fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn totals(&self) -> Totals {
        // The ends first: a hold that ends between the two reads counts as held, which is not less than there are.
        let ended = self.ended.load(Ordering::Relaxed);
        Totals {
            written: self.written.load(Ordering::Relaxed),
            lost: self.dropped() + self.failed.load(Ordering::Relaxed),
            held: self.began.load(Ordering::Relaxed).saturating_sub(ended),
        }
    }

    /// Returns how many records found no room.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns how many holds have begun.
    pub(super) fn begun(&self) -> u64 {
        self.began.load(Ordering::Relaxed)
    }

    /// Waits for the next look, or until the writer is wanted earlier.
    pub(super) fn next(&self, spare: Vec<Waiting>) -> Work {
        let is_idle = |state: &mut State| {
            state.waiting.len() < self.capacity / 2 && state.asked == state.answered && !state.quits
        };
        let waited = self.work.wait_timeout_while(self.state(), LOOK, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let records = std::mem::replace(&mut state.waiting, spare);
        let closes = (state.asked != state.answered).then_some(state.asked);
        Work { records, closes, quits: state.quits }
    }

    /// Notes that those who asked so far have the last line.
    pub(super) fn answer(&self, asked: u64) {
        self.state().answered = asked;
        self.closed.notify_all();
    }

    pub(super) fn close(&self) -> Totals {
        let mut state = self.state();
        state.asked += 1;
        let mine = state.asked;
        self.work.notify_one();
        let is_open = |state: &mut State| state.answered < mine && !state.is_over;
        drop(self.closed.wait_while(state, is_open).unwrap_or_else(PoisonError::into_inner));
        self.totals()
    }

    pub(super) fn quit(&self) {
        self.state().quits = true;
        self.work.notify_one();
    }

    /// Notes that the writer has ended: what comes is counted as lost.
    pub(super) fn is_over(&self) {
        let left = {
            let mut state = self.state();
            state.is_over = true;
            std::mem::take(&mut state.waiting)
        };
        self.dropped.fetch_add(left.len() as u64, Ordering::Relaxed);
        self.closed.notify_all();
    }
}
