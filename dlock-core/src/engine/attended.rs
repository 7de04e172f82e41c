//! Acquires that the keeper takes back when they are not polled.
//!
//! An acquire may have the lock, be the first in its queue, or keep a place in the queue of a server, while its future
//! is not polled: a `select!` loop is busy in another branch, or the runtime is blocked. All others would wait for that
//! future, while the lock is free. So an acquire that was woken, and is not polled for 100 ms, is dropped by the keeper
//! as its caller might drop it: its place goes to the next waiter, and what it took is withdrawn. When it is polled
//! again it begins anew, within the wait that began with its first poll.
//!
//! ```text
//!                ┌──────────── poll ─────────────┐
//!                ▼                               │
//!   begun ──▶ polled ──▶ waits ──── wake ───▶ woken ── looks ──▶ taken back
//!                │ ▲       └── keeper, after 2 s ─┘                 │
//!     done ◀─────┘ └───────────────────── poll ─────────────────────┘
//! ```
//!
//! The waker of an acquire may be gone with its caller: the timers of a runtime that is not driven do not fire. And in
//! a queue of which no waiter is polled, each is woken only when the one before was taken back. So an acquire that is
//! not polled for 2 s is woken by the keeper, which finds out all of them at once.
//!
//! An acquire that never pends costs nothing of this. Each time that an acquire is taken back it gets twice the time,
//! so that a caller that polls rarely gets its lock all the same. And while acquires are polled late, as on an
//! overloaded runtime, all have twice the time that these took: the runtime is not kept busy with beginning anew.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use slab::Slab;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::Error;
use crate::guarded::{drop_guarded, wake};
use crate::runtime::tasks::Task;
use crate::runtime::timer::Timers;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::telemetry::Telemetry;

/// The pause between two looks of the keeper for acquires that were woken and not polled.
const LOOK: Duration = Duration::from_millis(50);

/// The number of looks that find an acquire woken before the first one takes it back: it had 100 ms at the least.
const LOOKS: u32 = 2;

/// The largest number of looks that all acquires have because some were polled late: 2 s.
const MOST_LOOKS: u32 = 40;

/// The number of looks, for each of the looks of an acquire's patience, that find it waiting and not polled before the
/// keeper wakes it: 2 s at first.
const QUIET: u32 = 20;

/// The number of looks in a row without any acquire that end the looking, so that acquires which follow each other need
/// not wake the keeper.
const REST: u32 = 20;

/// An acquire that has begun.
pub(crate) type Begun<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// An acquire, which the keeper takes back when it is not polled.
pub(crate) enum Attended<T: 'static> {
    /// It has not pended yet.
    Begun(Begun<T>),
    Listed(Box<Listed<T>>),
    Done,
}

impl<T: 'static> Attended<T> {
    /// Polls the acquire. Where the keeper took it back, `begin` begins it anew, with the moment at which its wait
    /// began.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
        attendance: &Arc<Attendance>,
        begin: &mut dyn FnMut(Instant) -> Result<Begun<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        let pends = &attendance.pends;
        let is_first = matches!(self, Self::Begun(_));
        if let Self::Begun(begun) = self {
            // Without a poll where acquires tend to pend: the poll below would only be repeated to hand over the waker.
            let polled =
                if pends.load(Ordering::Relaxed) { Poll::Pending } else { begun.as_mut().poll(context) };
            if let Poll::Ready(taken) = polled {
                *self = Self::Done;
                return Poll::Ready(taken);
            }
            pends.store(true, Ordering::Relaxed);
            if let Self::Begun(begun) = std::mem::replace(self, Self::Done) {
                *self = Self::Listed(Box::new(Listed::new(attendance, begun)));
            }
        }
        // Also after the poll above: the acquire has to know the waker that notes when it is woken.
        let Self::Listed(listed) = self else { unreachable!("an acquire is not polled after its end") };
        let taken = ready!(listed.poll(context, begin));
        if is_first {
            pends.store(false, Ordering::Relaxed);
        }
        *self = Self::Done;
        Poll::Ready(taken)
    }
}

/// An acquire in the list of its engine; dropping it drops the acquire.
pub(crate) struct Listed<T: 'static> {
    attendance: Arc<Attendance>,
    place: usize,
    slot: Arc<Slot<T>>,
    /// The waker of the slot, which the acquire is polled with.
    waker: Waker,
    since: Instant,
}

/// The place of an acquire while it is not polled.
struct Slot<T> {
    woken: AtomicBool,
    /// The number of looks left until the keeper wakes it.
    quiet: AtomicU32,
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    /// `None` while it is polled, and once it was taken back.
    acquire: Option<Begun<T>>,
    /// The caller's, since the last poll and until it is woken.
    waker: Option<Waker>,
    /// The number of looks that found it woken since the last poll, also after it was taken back.
    looks: u32,
    /// The number of them that it may have.
    patience: u32,
    /// Is `true` while the keeper drops it. It begins anew after that, so that it does not meet itself.
    leaves: bool,
}

impl<T: 'static> Listed<T> {
    fn new(attendance: &Arc<Attendance>, acquire: Begun<T>) -> Self {
        let inner = Inner { acquire: Some(acquire), waker: None, looks: 0, patience: LOOKS, leaves: false };
        let (woken, quiet) = (AtomicBool::new(false), AtomicU32::new(LOOKS * QUIET));
        let slot = Arc::new(Slot { woken, quiet, inner: Mutex::new(inner) });
        let place = attendance.list(Arc::<Slot<T>>::clone(&slot));
        let (attendance, waker) = (Arc::clone(attendance), Waker::from(Arc::clone(&slot)));
        let since = attendance.timers.now();
        Self { attendance, place, slot, waker, since }
    }

    fn poll(
        &self,
        context: &mut Context<'_>,
        begin: &mut dyn FnMut(Instant) -> Result<Begun<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        // Cloned before the slot is locked: the clone of a waker is code of others.
        let waker = context.waker().clone();
        let (before, acquire, leaves) = {
            let mut inner = self.slot.inner.lock();
            let looks = std::mem::take(&mut inner.looks);
            if self.slot.woken.swap(false, Ordering::SeqCst) {
                self.attendance.polled_after(looks);
            }
            // Set anew under the lock, as `woken` is. A look that counts down beside this costs one look of the two
            // seconds.
            self.slot.quiet.store(inner.patience.saturating_mul(QUIET), Ordering::Relaxed);
            (inner.waker.replace(waker), inner.acquire.take(), inner.leaves)
        };
        drop_guarded(before);
        // The caller's waker is stored above, and the keeper wakes it when the drop is done.
        if leaves {
            return Poll::Pending;
        }
        let mut acquire = match acquire {
            Some(acquire) => acquire,
            // `begin` runs outside of the lock as well, and may fail: the locks may have been shut down since.
            None => begin(self.since)?,
        };
        // Not under the lock: the acquire may wake itself during the poll, which locks the slot.
        let taken = acquire.as_mut().poll(&mut Context::from_waker(&self.waker));
        if taken.is_pending() {
            // A wake-up during the poll has set `woken` and woken the caller, so that it is not lost by this.
            self.slot.inner.lock().acquire = Some(acquire);
        }
        taken
    }
}

impl<T: 'static> Drop for Listed<T> {
    fn drop(&mut self) {
        // Off the list first, so that no further look finds an acquire that is about to be dropped. A look that has it
        // already drops it by itself, on the keeper.
        let slot = self.attendance.unlist(self.place);
        let (acquire, waker) = {
            let mut inner = self.slot.inner.lock();
            (inner.acquire.take(), inner.waker.take())
        };
        // The sources that the acquire waits for may keep the waker, and with it the slot.
        drop((slot, acquire));
        drop_guarded(waker);
    }
}

impl<T> Slot<T> {
    fn wake_caller(&self) {
        let waker = {
            let mut inner = self.inner.lock();
            // Under the lock: `poll` stores its waker and clears `woken` there, so that neither overwrites a later one.
            self.woken.store(true, Ordering::SeqCst);
            inner.waker.take()
        };
        wake(waker);
    }
}

impl<T: 'static> Wake for Slot<T> {
    fn wake(self: Arc<Self>) {
        self.wake_caller();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_caller();
    }
}

/// An acquire as the keeper sees it.
trait Attend: Send + Sync {
    /// Is `true` if the acquire was woken, or was not polled for long.
    fn wants_a_look(&self) -> bool;

    /// Takes the acquire back if it was woken, and at least `patience` looks have found it so. Returns whether it did.
    /// Wakes it if it was not woken.
    fn look(&self, patience: u32) -> bool;
}

impl<T> Attend for Slot<T> {
    fn wants_a_look(&self) -> bool {
        // The countdown cannot wrap around: the look that finds it at its end wakes the acquire, and `woken` ends the
        // counting until a poll sets it anew.
        self.woken.load(Ordering::SeqCst) || self.quiet.fetch_sub(1, Ordering::Relaxed) <= 1
    }

    fn look(&self, patience: u32) -> bool {
        if !self.woken.load(Ordering::SeqCst) {
            self.wake_caller();
            return false;
        }
        let acquire = {
            let mut inner = self.inner.lock();
            // Looked at again under the lock: a poll since then has it.
            if !self.woken.load(Ordering::SeqCst) {
                return false;
            }
            inner.looks = inner.looks.saturating_add(1);
            // Without an acquire it is being polled, or was taken back already; the looks are counted nevertheless,
            // since they show how late the next poll is.
            if inner.acquire.is_none() || inner.looks <= inner.patience.max(patience) {
                return false;
            }
            // Doubled for the acquire that begins anew: its caller was shown to poll rarely.
            inner.patience = inner.patience.saturating_mul(2);
            inner.leaves = true;
            inner.acquire.take()
        };
        // Not under the lock: the drop runs code of others. `leaves` keeps a poll meanwhile from beginning anew beside
        // it.
        drop_guarded(acquire);
        let waker = {
            let mut inner = self.inner.lock();
            inner.leaves = false;
            inner.waker.take()
        };
        // The waker of a poll that came during the drop.
        wake(waker);
        true
    }
}

/// The acquires of one engine that pend.
pub(crate) struct Attendance {
    acquires: Mutex<Slab<Arc<dyn Attend>>>,
    /// Is `true` while the keeper looks.
    watched: AtomicBool,
    /// Is `true` if the last acquire, or the first one, pended at its first poll. Then the next one is listed before
    /// that poll, since it is likely to pend too; where acquires do not pend, as in memory, they are not listed for
    /// nothing.
    pends: AtomicBool,
    /// The largest recent number of looks that found an acquire woken before it was polled, in sixteenths. It decays
    /// with each poll that follows.
    late: AtomicU32,
    keeper: mpsc::UnboundedSender<Task>,
    telemetry: Arc<Telemetry>,
    /// The timers by which the acquires wait.
    timers: Timers,
}

/// A list that had more acquires than this frees its memory when all have left.
const KEPT: usize = 1_024;

impl Attendance {
    /// Creates the list of an engine, at which its keeper is to look.
    pub(super) fn new(
        keeper: mpsc::UnboundedSender<Task>,
        telemetry: Arc<Telemetry>,
        timers: Timers,
    ) -> Arc<Self> {
        let (watched, pends, late) = (AtomicBool::new(false), AtomicBool::new(true), AtomicU32::new(0));
        Arc::new(Self { acquires: Mutex::default(), watched, pends, late, keeper, telemetry, timers })
    }

    /// Notes that an acquire that was woken is polled, after so many looks.
    fn polled_after(&self, looks: u32) {
        // Without an exchange: of two polls at once the figure of one may be lost, and the next late poll makes that
        // good.
        let before = self.late.load(Ordering::Relaxed);
        // An eighth less with each poll: one late poll gives all acquires time, and many that are in time take it back.
        let now = (looks.min(MOST_LOOKS) * 16).max(before - before.div_ceil(8));
        if now != before {
            self.late.store(now, Ordering::Relaxed);
        }
    }

    /// Returns the number of looks that each acquire has at the least.
    fn patience(&self) -> u32 {
        (self.late.load(Ordering::Relaxed) / 8).clamp(LOOKS, MOST_LOOKS)
    }

    /// Lists an acquire, and has the keeper look unless it does.
    fn list(self: &Arc<Self>, acquire: Arc<dyn Attend>) -> usize {
        let place = self.acquires.lock().insert(acquire);
        // Inserted before the flag is read, the reverse of the end of `watch`: either that sees this acquire, or the
        // flag is clear here. The load spares most acquires a contended write.
        if !self.watched.load(Ordering::SeqCst) && !self.watched.swap(true, Ordering::SeqCst) {
            // A keeper that is dead has reported so, and nothing is granted any more.
            let _ = self.keeper.send(Box::pin(watch(Arc::downgrade(self))));
        }
        place
    }

    fn unlist(&self, place: usize) -> Option<Arc<dyn Attend>> {
        let mut acquires = self.acquires.lock();
        let acquire = acquires.try_remove(place);
        if acquires.is_empty() && acquires.capacity() > KEPT {
            *acquires = Slab::new();
        }
        acquire
    }

    /// Takes back the acquires that were woken long enough ago, and wakes those that were not polled for long. Returns
    /// whether any are listed.
    fn look(&self) -> bool {
        // Collected first: `look` drops acquires, which unlists them under the same lock.
        let (found, are_some) = {
            let acquires = self.acquires.lock();
            let listed = acquires.iter().map(|(_, acquire)| acquire);
            let found = listed.filter(|acquire| acquire.wants_a_look()).map(Arc::clone);
            (found.collect::<Vec<_>>(), !acquires.is_empty())
        };
        let patience = self.patience();
        let taken_back = found.iter().filter(|acquire| acquire.look(patience)).count();
        if taken_back > 0 {
            self.telemetry.acquires_unpolled(taken_back);
        }
        are_some
    }
}

/// Looks again and again, until nothing has been listed for a while.
async fn watch(attendance: Weak<Attendance>) {
    let mut idle = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        // Weak, since the engine has the list and the keeper's tasks must not keep the engine.
        let Some(attendance) = attendance.upgrade() else { return };
        idle = if attendance.look() { 0 } else { idle + 1 };
        if idle < REST {
            continue;
        }
        attendance.watched.store(false, Ordering::SeqCst);
        // An acquire that was listed before the flag was cleared counted on this task.
        if attendance.acquires.lock().is_empty() || attendance.watched.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}
