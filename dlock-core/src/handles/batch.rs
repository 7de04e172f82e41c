//! Several locks as one: all of them or none.

mod guard;
mod keys;

use std::sync::Arc;
use std::time::Duration;

use crate::engine::acquire::{Start, acquire_all, begin, only_share};
use crate::engine::attended::{Attended, Begun};
use crate::engine::release::Share;
use crate::engine::{Spec, scope};
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::guarded::guard;
use crate::handles::lock::Lock;
use crate::key::Key;
use crate::options::{OnLost, Options, Wait};
pub use guard::BatchGuard;
pub use keys::{BatchKey, KeyInMode, read, write};

/// Several locks as one: all of them or none. Made by [`Locks::lock_all`](crate::Locks::lock_all) and [`Batch::of`].
///
/// Batches cannot deadlock with each other: whatever the order in which keys are given, all processes take them in one
/// order, that of their [ids](crate::backend::LockId): by the place that keeps them, then by key, byte by byte.
/// Processes give servers the same names for that: `localhost` and `127.0.0.1` are two places. A lock that is given
/// twice is taken once, with the options given first, and for writing if either is; also when it is reached through two
/// [`Locks`](crate::Locks).
/// Where the backend can (memory, SQLite, one Redis server or one slot of a cluster), the locks of one `Locks` are
/// taken in one step, a single request, and while one of them is busy none is held; otherwise, and when that was in
/// vain several times, one after the other.
///
/// The wait is for all of them together. If one cannot be had, those taken before it are released; losing one is losing
/// the batch. Keys that the calling [scope](crate::Locks::scope) holds already are entered again, and only the others
/// are taken. Such a caller holds a lock while it waits for others, which the order cannot make good: two of them can
/// wait for each other until their waits end. So it is with locks that are taken over from a [baton](Lock::from_baton)
/// beside others.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let guard = locks.lock_all(["account_9", "account_4"]).acquire().await?;
/// guard.check()?;
/// for (account, fence) in guard.fences() {
///     println!("{account} with fence {fence:?}");
/// }
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a batch does nothing until it is acquired"]
pub struct Batch {
    /// The locks, in the order in which they are taken.
    locks: Vec<Lock>,
    wait: Option<Wait>,
    /// A lock that its backend failed to identify, and the message of the panic.
    unordered: Option<(Lock, Arc<str>)>,
}

impl Batch {
    /// The largest number of locks in a batch.
    pub const MAX_LEN: usize = 1_000;

    pub(super) fn first(&self) -> Option<&Lock> {
        self.locks.first()
    }

    /// Creates a batch of these locks, also of several [`Locks`](crate::Locks). Each keeps its own options but for the
    /// wait: that of the batch is the shortest among them, unless [`with_wait`](Self::with_wait) sets another.
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        let locks = locks.into_iter();
        let mut unordered = None;
        let mut id = |lock: &Lock| {
            let key = lock.key()?;
            let id = guard(|| lock.engine().backend.lock_id(key));
            id.map_err(|panic| unordered = Some((lock.clone(), panic.to_string().into()))).ok()
        };
        let mut by_id: Vec<_> = locks.map(|lock| (id(&lock), lock)).collect();
        // A lock that is both read and written has to be written.
        let reads = |lock: &Lock| !lock.options().mode.is_exclusive();
        by_id.sort_by(|(a, one), (b, other)| a.cmp(b).then(reads(one).cmp(&reads(other))));
        // Locks with invalid keys stay, to be refused.
        by_id.dedup_by(|(a, _), (b, _)| a.is_some() && a == b);
        Self { locks: by_id.into_iter().map(|(_, lock)| lock).collect(), wait: None, unordered }
    }

    /// Sets how long to wait for all locks together.
    pub fn with_wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = Some(wait.into());
        self
    }

    /// Sets the lease of each lock; see [`Lock::with_lease`].
    pub fn with_lease(self, lease: Duration) -> Self {
        self.with_each(|lock| lock.with_lease(lease))
    }

    /// Changes every lock, for other options.
    pub fn with_each(mut self, change: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(change).collect();
        self
    }

    /// Returns the keys, in the order in which they are taken, without those that are invalid.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().filter_map(Lock::key).map(Key::as_str)
    }

    /// Takes all locks, waiting for as long as the options allow for all of them together.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`], which name the key that could not be had, and
    /// [`ErrorKind::InvalidConfig`] for a batch of no keys, or more than [`MAX_LEN`](Self::MAX_LEN). Whatever the
    /// error, locks that were taken are released; that is waited for no longer than one request, and goes on in the
    /// background.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: when dropped at any await, whatever was taken is released in the background.
    pub async fn acquire(&self) -> Result<BatchGuard> {
        let mut batch = self.acquire_unnoted().await?;
        for (guard, lock) in batch.guards_mut().iter_mut().zip(&self.locks) {
            guard.note(lock.options().max_depth)?;
        }
        Ok(batch)
    }

    /// Takes all locks if all of them are free; `None` if one has a holder.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but for a lock that is held.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<BatchGuard>> {
        match self.clone().with_wait(Wait::No).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn wait(&self) -> Wait {
        let waits = self.locks.iter().map(|lock| lock.options().wait);
        self.wait.or_else(|| waits.min_by_key(Wait::limit)).unwrap_or(Wait::No)
    }

    pub(super) fn on_lost(&self) -> OnLost {
        match self.locks.iter().all(|lock| lock.options().on_lost == OnLost::Continue) {
            true => OnLost::Continue,
            false => OnLost::Abort,
        }
    }

    pub(super) async fn acquire_unnoted(&self) -> Result<BatchGuard> {
        let wanted: Arc<[Spec]> = self.wanted(self.wait())?.into();
        let begin = |start| -> Begun<BatchGuard> { Box::pin(take_all(Arc::clone(&wanted), start)) };
        let begun = begin(Start::At(wanted[0].engine.timers.now()));
        if wanted.iter().any(|one| one.options.takes_over.is_some()) {
            // It is not taken back when it is not polled: a baton that was taken over cannot be taken over again.
            return begun.await;
        }
        let mut taking = Attended::Begun(begun);
        let mut again = |started| Ok(begin(Start::Again(started)));
        std::future::poll_fn(|context| {
            taking.poll(context, &wanted[0].engine.acquires.attendance, &mut again)
        })
        .await
    }

    /// Returns the requests for all locks, if all of them can work.
    fn wanted(&self, wait: Wait) -> Result<Vec<Spec>> {
        let refuse = |what: String| Err(Error::new(Operation::Acquire, Failure::invalid_config(what)));
        match self.locks.len() {
            0 => return refuse("the batch has no keys, so that nothing would be locked".into()),
            n if n > Self::MAX_LEN => {
                return refuse(format!("the batch has {n} keys; use up to {}", Self::MAX_LEN));
            }
            _ => {}
        }
        if let Some((lock, panic)) = &self.unordered {
            let what = format!(
                "the backend panicked in `lock_id`, by which a batch has its order: {panic}; build the batch again"
            );
            return Err(lock.error(Operation::Acquire, Failure::unavailable(what)));
        }
        let wanted = self.locks.iter().map(|lock| {
            let options = Options { wait, ..*lock.options() };
            Ok(lock.spec(lock.checked(&options)?, options))
        });
        wanted.collect()
    }
}

/// Takes all locks, or none.
async fn take_all(wanted: Arc<[Spec]>, start: Start) -> Result<BatchGuard> {
    let mut taken = Vec::with_capacity(wanted.len());
    for one in &*wanted {
        // The baton stands for another hold than the caller's.
        taken.push(match one.options.takes_over {
            Some(_) => None,
            None => scope::reenter(&one.engine, &one.key, &one.options, false)?,
        });
    }
    match take(&wanted, &mut taken, start).await {
        Ok(()) => {
            if let [first, ..] = &*wanted {
                first.engine.telemetry.batch_taken(first.site, wanted.len());
            }
            Ok(BatchGuard::new(taken.into_iter().flatten()))
        }
        Err(error) => {
            let limit = wanted.iter().map(|one| one.options.request_timeout()).max();
            let guard = BatchGuard::new(taken.into_iter().flatten());
            guard.give_back(limit.unwrap_or_default()).await;
            Err(error.after_all(start.waited(&wanted[0].engine)))
        }
    }
}

/// Takes the locks that are not yet `taken`, in their order.
async fn take(wanted: &[Spec], taken: &mut [Option<Share>], start: Start) -> Result<()> {
    let mut from = 0;
    for group in wanted.chunk_by(|a, b| Arc::ptr_eq(&a.engine, &b.engine)) {
        let taken = &mut taken[from..from + group.len()];
        from += group.len();
        let missing = group.iter().zip(&*taken).filter(|(_, taken)| taken.is_none()).map(|(one, _)| one);
        if missing.clone().count() > 1
            && missing.clone().all(|one| one.options.takes_over.is_none())
            && let Some(shares) = acquire_all(missing.cloned().collect(), start).await?
        {
            let places = taken.iter_mut().filter(|taken| taken.is_none());
            places.zip(shares).for_each(|(place, share)| *place = Some(share));
            continue;
        }
        for (one, place) in group.iter().zip(taken) {
            if place.is_none() {
                *place = Some(only_share(begin(one.clone(), start)?.await?));
            }
        }
    }
    Ok(())
}
