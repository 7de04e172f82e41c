//! A lock: a key with options.

use std::convert::identity;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::backend::Mode;
use crate::backend::requirement;
use crate::engine::acquire::{Shares, Start, begin, only_share};
use crate::engine::attended::Attended;
use crate::engine::{Engine, Spec, scope};
use crate::error::{Error, ErrorKind, Failure, Operation, Result};
use crate::handles::guard::Guard;
use crate::key::Key;
use crate::options::{OnLost, Options, Overrides, Role, Wait, option_setters};
use crate::telemetry::Site;
use crate::token::Token;

/// A lock: a key of one [`Locks`](crate::Locks), with options. A value; nothing is taken before
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) or [`run`](Self::run).
///
/// A lock with a lease cannot stop a holder that is paused for longer than its lease from acting when it wakes up.
/// dlock reports the loss at the first `check`, stops the body, and hands out a [`Fence`](crate::Fence) with which the
/// resource refuses stale writes; only the fence holds whatever happens.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use std::time::Duration;
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let lock = locks.lock("room_7").with_wait(Duration::from_secs(5)).with_lease(Duration::from_secs(10));
/// let guard = lock.acquire().await?;
/// assert!(lock.try_acquire().await?.is_none(), "it is taken");
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    engine: Arc<Engine>,
    key: std::result::Result<Key, Arc<str>>,
    options: Options,
    site: Site,
}

impl Lock {
    pub(crate) fn new(engine: Arc<Engine>, key: &str, options: Options) -> Self {
        let key = Key::new(key).map_err(|failure| failure.message().into());
        Self { engine, key, options, site: Site::default() }
    }

    option_setters!(identity);

    /// Returns the lock for reading: any number of readers hold it at a time, and no writer does meanwhile.
    ///
    /// * Readers come in at the same time, from all processes. A writer, which acquires the lock without this, is
    ///   alone.
    /// * A writer that waits keeps new readers out, for 10 s; when it does not get in by then, new readers are let in
    ///   for 10 s, and so on. So neither of them starves.
    /// * The fence of a reader is higher than that of every writer before it, and lower than that of every writer after
    ///   it.
    /// * A holder that writes may read: inside a body or a [scope](crate::Locks::scope) the read lock is a further
    ///   share of its hold. A reader that asks to write would wait for itself, and gets [`ErrorKind::Deadlock`].
    ///
    /// A backend without readers refuses the acquire with [`ErrorKind::Unsupported`]; have that checked at start-up by
    /// requiring [`Requirement::Shared`](crate::Requirement::Shared).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let page = locks.lock("page_7");
    /// let (one, other) = (page.clone().read().acquire().await?, page.clone().read().acquire().await?);
    /// assert!(page.try_acquire().await?.is_none(), "it is being read");
    /// one.release().await?;
    /// other.release().await?;
    /// let writer = page.acquire().await?;
    /// assert!(page.clone().read().try_acquire().await?.is_none(), "it is being written");
    /// writer.release().await?;
    /// # Ok(()) }
    /// ```
    pub const fn read(mut self) -> Self {
        self.options.mode = Mode::Shared;
        self
    }

    /// Keeps the key taken until so long after the grant, also when the lock is released before: 1 ms to 30 days.
    ///
    /// The release leaves the key taken for what is missing, by the server's clock. The key has no owner then, and no
    /// process or task has to live for it: [`inspect`](crate::Locks::inspect) shows its last holder as
    /// [`left_behind`](crate::Holder::left_behind), with the time that is left, and
    /// [`force_release`](crate::Locks::force_release) frees it. A guard that is dropped, a call that is cancelled and a
    /// body that panics release the lock in this way too. A release after that time is an ordinary one.
    ///
    /// Limits:
    ///
    /// * A holder that dies without a release leaves the key for what is left of its lease, however long this is. Give
    ///   it a lease as long as this time if that is too short. So it is if no release reaches the servers before the
    ///   lease ends. If a session keeps the lock, as on ZooKeeper, the key is free once that has ended.
    /// * A store may have to be cleaned of keys whose time is over: on ZooKeeper the next process that comes to the key
    ///   does that, or `ZooKeeper::prune`.
    /// * A lock that was lost is not kept.
    /// * A nested acquire of a lock that the caller holds keeps the option of the outer one.
    ///
    /// Such a lock is never passed on inside the process. Readers, permits and fair locks are refused with
    /// [`ErrorKind::Unsupported`], as is a backend that cannot: see
    /// [`Requirement::HoldAtLeast`](crate::Requirement::HoldAtLeast).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let lock = locks.lock("mail:7").with_hold_at_least(Duration::from_secs(60));
    /// lock.run(async { /* send it */ }).await?;
    /// assert!(lock.try_acquire().await?.is_none(), "not within the same minute");
    /// # Ok(()) }
    /// ```
    pub const fn with_hold_at_least(mut self, least: Duration) -> Self {
        self.options.hold_at_least = Some(least);
        self
    }

    /// Sets the options that `overrides` has, and leaves the others as they are.
    #[doc(hidden)]
    pub fn with_overrides(mut self, overrides: &Overrides) -> Self {
        overrides.options.set(&mut self.options);
        self
    }

    /// Stops waiting for a busy lock after so long, though the rest of the wait is there for the answers of requests.
    pub(super) const fn with_patience(mut self, patience: Duration) -> Self {
        self.options.patience = Some(patience);
        self
    }

    /// Sets the pattern from which the key was made, such as `room_<id>`: a label with few values, for spans and
    /// metrics. The attribute sets it by itself.
    pub const fn with_template(mut self, template: &'static str) -> Self {
        self.site.template = Some(template);
        self
    }

    /// Sets the function that uses the lock: a label for spans and metrics. The attribute sets it by itself.
    pub const fn with_function(mut self, function: &'static str) -> Self {
        self.site.function = Some(function);
        self
    }

    /// Takes the lock, waiting for as long as the options allow.
    ///
    /// If the calling [scope](crate::Locks::scope) holds it already, this returns at once with a further guard of
    /// that hold, which keeps the lease and the `max_hold` of the outer acquire; an event of level `debug` reports
    /// others that are asked for here.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Busy`] with `Wait::No`, [`ErrorKind::TimedOut`] otherwise: it has another holder.
    /// * [`ErrorKind::Unknown`]: a request was sent, and its effect could not be found out. Clean-up goes on in the
    ///   background; [`Error::maybe_held_for_at_most`] returns for how long the lock may be blocked.
    /// * [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] and other kinds of the backend. A backend that is away is
    ///   asked again for as long as the wait allows, and so is a backend that refuses what it allowed when the wait
    ///   began: a removed right, a renamed table.
    /// * [`ErrorKind::Deadlock`]: the caller would wait for itself, or nests too deep. So it would where it holds the
    ///   lock by other [`Locks`](crate::Locks) of the same store: only clones of one `Locks` enter it again.
    /// * [`ErrorKind::InvalidKey`], [`ErrorKind::InvalidConfig`]: the key or an option cannot work.
    /// * [`ErrorKind::Unsupported`], [`ErrorKind::Conflict`]: the backend has no readers, or the key is in use as a
    ///   [semaphore](crate::Semaphore).
    /// * [`ErrorKind::Closed`]: the locks were shut down, belong to the process before a `fork`, or dlock's own thread
    ///   has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: when dropped at any await, whatever the attempt left on the server is withdrawn in the
    /// background, at once on a healthy connection, and never outlives the lease. The place among waiters is lost.
    pub async fn acquire(&self) -> Result<Guard> {
        let key = self.checked(&self.options)?;
        let mut guard = match self.reenter(key, true)? {
            Some(guard) => guard,
            None => {
                let mut taking = self.begin(key)?;
                std::future::poll_fn(|context| self.poll_taking(&mut taking, context)).await?
            }
        };
        guard.note(self.options.max_depth)?;
        Ok(guard)
    }

    /// Takes the lock if it is free; `None` if it has a holder. Never waits for others.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), but for a lock that is held.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard>> {
        match self.clone().with_wait(Wait::No).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::Busy => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a further guard, if the calling scope holds the lock already: by its key, which was
    /// [checked](Self::checked).
    #[inline]
    pub(super) fn reenter(&self, key: &Key, by_hand: bool) -> Result<Option<Guard>> {
        if self.options.takes_over.is_some() {
            // The baton stands for another hold than the caller's.
            return Ok(None);
        }
        let share = scope::reenter(&self.engine, key, &self.options, by_hand)?;
        if share.is_some() {
            self.engine.telemetry.reentered(self.site);
        }
        Ok(share.map(Guard::new))
    }

    /// Begins to take a lock that the calling scope does not hold: by its key, which was [checked](Self::checked).
    pub(super) fn begin(&self, key: &Key) -> Result<Attended<Option<Shares>>> {
        Ok(Attended::Begun(begin(self.spec(key, self.options), Start::Now)?))
    }

    /// Polls what [`begin`](Self::begin) began.
    pub(super) fn poll_taking(
        &self,
        taking: &mut Attended<Option<Shares>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Guard>> {
        if let (Attended::Begun(begun), true) = (&mut *taking, self.options.takes_over.is_some()) {
            // It is not taken back when it is not polled: a baton that was taken over cannot be taken over again.
            let taken = ready!(begun.as_mut().poll(context))?;
            return Poll::Ready(Ok(Guard::new(only_share(taken))));
        }
        let mut again =
            |started| begin(self.spec(self.checked(&self.options)?, self.options), Start::Again(started));
        let taken = ready!(taking.poll(context, &self.engine.acquires.attendance, &mut again))?;
        Poll::Ready(Ok(Guard::new(only_share(taken))))
    }

    /// Returns the request for this lock: by a key that was [checked](Self::checked), with these options.
    pub(crate) fn spec(&self, key: &Key, options: Options) -> Spec {
        let mode = options.role.map_or_else(|| options.mode.label(), |role| Some(role.label()));
        let site = Site { mode, ..self.site };
        Spec { engine: Arc::clone(&self.engine), key: key.clone(), site, options }
    }

    /// Returns the key, if it and these options can work.
    #[inline]
    pub(crate) fn checked(&self, options: &Options) -> Result<&Key> {
        // Checked before any request, and not by the backend: a mistake of the program must not depend on the server.
        let refuse = |failure| self.error(Operation::Acquire, failure);
        let key = self.key.as_ref().map_err(|why| refuse(Failure::invalid_key(why.to_string())))?;
        options.check().map_err(refuse)?;
        if options.mode != Mode::Exclusive {
            requirement::check_mode(options.mode, &self.engine.capabilities).map_err(refuse)?;
        }
        if options.fair {
            requirement::check_fair(options.mode, &self.engine.capabilities).map_err(refuse)?;
        }
        if options.takes_over.is_some() {
            requirement::check_takes_over(options, &self.engine.capabilities).map_err(refuse)?;
        }
        if options.hold_at_least.is_some() {
            requirement::check_hold_at_least(options.mode, options.fair, &self.engine.capabilities)
                .map_err(refuse)?;
        }
        Ok(key)
    }

    /// Returns this lock in another mode.
    pub(super) const fn with_mode(mut self, mode: Mode) -> Self {
        self.options.mode = mode;
        self
    }

    /// Returns this lock, to be taken over by this token, left in this mode, and not otherwise.
    pub(super) const fn taking_over(mut self, token: Token, mode: Mode) -> Self {
        self.options.takes_over = Some((token, mode));
        self
    }

    /// Goes by the number of permits that is stored.
    pub(super) const fn resizable(mut self) -> Self {
        self.options.resizable = true;
        self
    }

    /// Returns this lock for a candidate of an election: its holder leads. A campaign asks for it, which waits without
    /// end, and it is granted by way of the servers only.
    pub(super) fn leading(mut self) -> Self {
        (self.options.role, self.options.mode) = (Some(Role::Leader), Mode::Exclusive);
        self.with_wait(Wait::Forever).with_handoff(false).with_reentrancy(false)
    }

    /// Returns this lock for a job that is to run once: it is tried for, alone, and is granted by way of the servers
    /// only.
    pub(super) fn for_job(mut self) -> Self {
        (self.options.role, self.options.mode, self.options.fair) = (Some(Role::Job), Mode::Exclusive, false);
        self.with_wait(Wait::No).with_handoff(false).with_reentrancy(false).with_on_lost(OnLost::Abort)
    }

    pub(crate) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns a lock with these options and a key made of this one's.
    pub(super) fn renamed(&self, key: impl FnOnce(&str) -> String) -> Self {
        let rename = |old: &Key| Key::new(key(old.as_str())).map_err(|failure| failure.message().into());
        Self { key: self.key.as_ref().map_err(Arc::clone).and_then(rename), ..self.clone() }
    }

    /// Returns the key, unless it is invalid.
    pub(crate) fn key(&self) -> Option<&Key> {
        self.key.as_ref().ok()
    }

    pub(crate) const fn site(&self) -> Site {
        self.site
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn error(&self, operation: Operation, failure: Failure) -> Error {
        let error = self.engine.error(operation, failure);
        match &self.key {
            Ok(key) => error.of(key),
            Err(_) => error,
        }
    }
}
