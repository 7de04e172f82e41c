//! One hot key split into segments, each a lock of its own.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::scope;
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::held::Held;
use crate::handles::lock::Lock;
use crate::handles::section::Section;
use crate::key::Key;
use crate::options::Wait;

/// The time to wait for one segment before the others are looked at again: at first, and at the most.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// One hot key split into segments, each a lock of its own, so that as many callers work at a time as there are
/// segments. Made by [`Locks::segmented`](crate::Locks::segmented) and [`Lock::segmented`].
///
/// It is for what can be divided: a stock of 1,000 as 20 stocks of 50, a queue as 20 queues. The body gets its
/// segment and touches that part only. Segment 3 of `stock` is the lock `stock#3`, of 20 segments 0 to 19; all callers
/// have to agree on the number. A lock on `stock` itself excludes none of them; a [batch](crate::Batch) of all segments
/// does.
///
/// A caller starts at a random segment and takes the first that is free. If none is, it waits for one, and looks again
/// at the others now and then. A body that finds nothing left in its segment calls [`exhausted`](Segment::exhausted);
/// the lock is then released and another segment tried, until all are exhausted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use std::sync::Mutex;
/// use dlock_core::{Error, ErrorKind, Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let stock = Mutex::new([1, 0, 1]);
/// let segments = locks.segmented("stock", 3);
/// let take = || segments.run(|segment| {
///     let stock = &stock;
///     async move {
///         let left = &mut stock.lock().unwrap()[segment.number() as usize];
///         *left = u32::checked_sub(*left, 1).ok_or_else(|| segment.exhausted())?;
///         Ok::<_, Error>(())
///     }
/// });
/// take().await??;
/// take().await??;
/// assert_eq!(take().await.unwrap_err().kind(), ErrorKind::Exhausted);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a segmented lock does nothing until it is run"]
pub struct Segmented {
    lock: Lock,
    segments: u32,
}

/// The segment that a body has.
#[derive(Clone, Debug)]
pub struct Segment {
    number: u32,
    held: Held,
    exhausted: Arc<AtomicBool>,
}

impl Segment {
    /// Returns its number: 0 to the number of segments less one.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the view of its lock.
    #[must_use]
    pub const fn held(&self) -> &Held {
        &self.held
    }

    /// Marks this segment as exhausted, so that another one is to be tried. Whatever the body then returns is dropped;
    /// the error is for bodies that return a `Result`, and its kind is [`ErrorKind::Exhausted`].
    pub fn exhausted(&self) -> Error {
        self.exhausted.store(true, Ordering::Release);
        let what = format!("segment {} has said so", self.number);
        Error::new(Operation::Hold, Failure::new(ErrorKind::Exhausted, what))
    }
}

impl Segmented {
    /// The largest number of segments.
    pub const MAX: u32 = 10_000;

    pub(crate) const fn new(lock: Lock, segments: u32) -> Self {
        Self { lock, segments }
    }

    /// Takes a segment, runs the body that `body` makes for it, and releases the segment; again with another segment
    /// when the body found it [exhausted](Segment::exhausted). See [`Lock::run`].
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Exhausted`]: every segment was tried, and is exhausted.
    /// * [`ErrorKind::Busy`], [`ErrorKind::TimedOut`]: each segment that may have something left has another holder.
    ///   The time that bodies take is no part of the wait.
    /// * [`ErrorKind::InvalidConfig`]: there are no segments, or more than [`MAX`](Self::MAX).
    /// * Others of [`Lock::acquire`], and [`ErrorKind::Lost`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the body is dropped first and the lock is then released in the background.
    pub async fn run<F: Future>(&self, mut body: impl FnMut(Segment) -> F) -> Result<F::Output> {
        let mut section = SegmentedSection::new(self.clone());
        loop {
            let segment = section.enter().await?;
            let body = std::pin::pin!(body(segment));
            if let Some(output) = section.run(body).await? {
                return Ok(output);
            }
        }
    }

    /// Returns the lock of one segment.
    pub fn lock(&self, segment: u32) -> Lock {
        self.lock.renamed(|key| format!("{key}#{segment}"))
    }

    /// Returns the number that `key` has, if it is that of a segment.
    fn number_of(&self, key: &Key) -> Option<u32> {
        let rest = key.as_str().strip_prefix(self.lock.key()?.as_str())?;
        rest.strip_prefix('#')?.parse().ok()
    }
}

/// A critical section in one segment after the other. [`Segmented::run`] and the attribute are made of it.
#[derive(Debug)]
pub struct SegmentedSection {
    segmented: Segmented,
    /// The segments that may have something left, in the order in which they are tried; `None` before the first try.
    left: Option<Vec<u32>>,
    waited: Duration,
    inside: Option<(Section, Segment)>,
}

impl SegmentedSection {
    /// Creates a section that has no segment yet.
    #[must_use]
    pub const fn new(segmented: Segmented) -> Self {
        Self { segmented, left: None, waited: Duration::ZERO, inside: None }
    }

    /// Takes a segment, unless one is taken already, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`Segmented::run`], but for `Lost`.
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::acquire`].
    pub async fn enter(&mut self) -> Result<Segment> {
        if let Some((_, segment)) = &self.inside {
            return Ok(segment.clone());
        }
        let timers = self.segmented.lock.engine().timers.clone();
        let started = timers.now();
        let entered = self.find().await;
        self.waited += timers.now() - started;
        let (number, section) = entered.map_err(|error| error.after_all(self.waited))?;
        let segment = Segment { number, held: section.held(), exhausted: Arc::default() };
        self.inside = Some((section, segment.clone()));
        Ok(segment)
    }

    /// Runs `body` in the segment that is taken, or takes one, and releases it. `None` when the body found it
    /// exhausted.
    ///
    /// # Errors
    ///
    /// Those of [`Segmented::run`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lock is released in the background once the section is dropped too.
    pub async fn run<F: Future>(&mut self, body: Pin<&mut F>) -> Result<Option<F::Output>> {
        let output = self.run_body(body).await?;
        self.leave().await;
        Ok(output)
    }

    /// Runs `body` as [`run`](Self::run) does, but keeps the lock of a body that was not exhausted until
    /// [`leave`](Self::leave), so that the caller can drop first what belongs to the body.
    ///
    /// # Errors
    ///
    /// Those of [`Segmented::run`].
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_body<F: Future>(&mut self, body: Pin<&mut F>) -> Result<Option<F::Output>> {
        let segment = self.enter().await?;
        let Some((section, _)) = &mut self.inside else { unreachable!("it was entered") };
        // A lock that is lost stays here until the caller has dropped the body.
        let output = section.run_body(body).await?;
        if !segment.exhausted.load(Ordering::Acquire) {
            return Ok(Some(output));
        }
        // Dropped under the lock, as the body is.
        drop(output);
        self.leave().await;
        let lock = &self.segmented.lock;
        lock.engine().telemetry.segment_moved(lock.site());
        if let Some(left) = &mut self.left {
            left.retain(|number| *number != segment.number);
        }
        Ok(None)
    }

    /// Releases the segment that is taken; a failure is logged. A segment whose body has not returned, or that was
    /// lost, is released in the background.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the release goes on in the background.
    pub async fn leave(&mut self) {
        if let Some((mut section, _)) = self.inside.take() {
            section.leave().await;
        }
    }

    /// Takes the first segment that is free; if none is, the first that becomes so.
    async fn find(&mut self) -> Result<(u32, Section)> {
        let Segmented { lock, segments } = &self.segmented;
        let refuse = |failure| Err(lock.error(Operation::Acquire, failure));
        if !(1..=Segmented::MAX).contains(segments) {
            let what = format!("{segments} segments; use 1 to {}", Segmented::MAX);
            return refuse(Failure::invalid_config(what));
        }
        lock.checked(lock.options())?;
        let left = self.left.get_or_insert_with(|| {
            let start = lock.engine().entropy.below(*segments as usize) as u32;
            (start..*segments).chain(0..start).collect()
        });
        if left.is_empty() {
            return refuse(Failure::new(ErrorKind::Exhausted, format!("all {segments} were tried")));
        }
        // A nested call goes to the segment of its caller.
        let ours = scope::find_key(lock.engine(), |key| self.segmented.number_of(key));
        if let Some(place) = left.iter().position(|number| Some(*number) == ours) {
            left.rotate_left(place);
        }
        let timers = &lock.engine().timers;
        let begun = timers.now();
        let mut patience = PATIENCE.0;
        let still = || match lock.options().wait {
            Wait::No => Duration::ZERO,
            Wait::For(limit) => limit.saturating_sub(self.waited + (timers.now() - begun)),
            Wait::Forever => Duration::MAX,
        };
        // A wait of zero, too, tries all of them.
        let is_bounded = lock.options().waits() && lock.options().wait != Wait::Forever;
        loop {
            let registry = &lock.engine().registry;
            let (mut busy, mut slowest) = (None, Duration::ZERO);
            for number in &*left {
                let bound = if is_bounded { still() } else { Duration::MAX };
                // A segment that can hardly be answered in time would end in doubt.
                if busy.is_some() && bound <= slowest * 2 {
                    break;
                }
                // A segment that another caller of this process holds is busy without a request.
                let key = self.segmented.lock(*number);
                if Some(*number) != ours && key.key().is_some_and(|key| registry.holds_key(key)) {
                    continue;
                }
                let asked_at = timers.now();
                match enter(&self.segmented, *number, Wait::No, bound).await {
                    Ok(section) => return Ok((*number, section)),
                    Err(error) if error.is_busy() => busy = Some(error),
                    Err(error) => return Err(error),
                }
                slowest = slowest.max(timers.now() - asked_at);
            }
            let still = still();
            if still <= slowest * 2 {
                if let Some(error) = busy {
                    return Err(error);
                }
                // All are held in this process: the backend has the last word.
                return Ok((left[0], enter(&self.segmented, left[0], Wait::No, Duration::MAX).await?));
            }
            let number = left[lock.engine().entropy.below(left.len())];
            let wait = if still == Duration::MAX { Wait::Forever } else { Wait::For(still) };
            match enter(&self.segmented, number, wait, patience).await {
                Ok(section) => return Ok((number, section)),
                Err(error) if error.is_busy() && patience < still => {}
                Err(error) => return Err(error),
            }
            patience = (patience * 2).min(PATIENCE.1);
        }
    }
}

/// Enters a segment that is free, or that becomes so within `patience`.
async fn enter(segmented: &Segmented, number: u32, wait: Wait, patience: Duration) -> Result<Section> {
    let mut section = Section::new(segmented.lock(number).with_wait(wait).with_patience(patience));
    section.enter().await?;
    Ok(section)
}

impl Lock {
    /// Splits the key into this many segments, each a lock of its own.
    pub const fn segmented(self, segments: u32) -> Segmented {
        Segmented::new(self, segments)
    }
}
