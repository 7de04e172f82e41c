//! A lock that is held.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Mode;
use crate::engine::downgrade::downgrade;
use crate::engine::hold::Hold;
use crate::engine::release::{Release, Share};
use crate::engine::scope::{self, Noted};
use crate::error::Result;
use crate::fence::Fence;
use crate::handles::held::{Ended, Held};

/// A lock that is held, until this is released or dropped.
///
/// [`release`](Self::release) waits for the backend's confirmation. Dropping is best effort: it never blocks and never
/// panics, works on any thread, without a runtime, while unwinding and after the runtime is gone; dlock's own thread
/// then releases the lock, and the lease is the floor if it cannot. **Release on drop is not immediate.**
///
/// A guard does not prove that the lock is *still* held: a lease can run out while the process is paused. Ask
/// [`check`](Self::check) before a step that matters, and send the [`fence`](Self::fence) along with every write.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let guard = locks.lock("room_7").acquire().await?;
/// guard.check()?;
/// println!("fence {:?}, lease ends in {:?}", guard.fence(), guard.remaining());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct Guard {
    share: Share,
    /// The entry of a guard that was taken by hand.
    noted: Option<Box<Noted>>,
}

impl Guard {
    pub(crate) const fn new(share: Share) -> Self {
        Self { share, noted: None }
    }

    /// Notes that the guard was taken by hand, for as long as it is there.
    pub(super) fn note(&mut self, max_depth: u32) -> Result<()> {
        if self.share.is_nested() {
            return Ok(());
        }
        self.noted = scope::note(&mut self.share, max_depth)?;
        Ok(())
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.share.hold()
    }

    /// Returns a view that can be cloned and given to other tasks. It does not keep the lock, but can
    /// [hand it over](Held::hand_over).
    #[must_use]
    pub fn held(&self) -> Held {
        Held::of(Arc::clone(self.hold()))
    }

    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold().key.as_str()
    }

    /// Returns the fencing token of this grant; `None` on backends without fences.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.hold().fence()
    }

    /// Checks that the lock is held at this moment: a local test of a deadline that lies before the end of the lease on
    /// the server. No I/O.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost, for good.
    /// [`ErrorKind::Suspect`](crate::ErrorKind::Suspect) while the backend cannot be reached to confirm it.
    /// [`ErrorKind::Closed`](crate::ErrorKind::Closed) in a child made by `fork`, whose parent holds it.
    pub fn check(&self) -> Result<()> {
        self.hold().check()
    }

    /// Returns how long the lock stays valid if no renewal succeeds; zero when it is lost, `None` when a session keeps
    /// it without a known end.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.hold().remaining()
    }

    /// Waits until the lock is lost; never resolves once it was released. A task that watches a lock which others
    /// release waits for [`ended`](Self::ended), and does not stay behind.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.hold().lost().await;
    }

    /// Waits until the lock is no longer held, and returns how it ended. See [`Held::ended`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn ended(&self) -> Ended {
        self.held().ended().await
    }

    /// Returns the mode in which the lock is held: as it was taken, or for reading since it was
    /// [downgraded](Self::downgrade).
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().mode()
    }

    /// Turns a lock that is held alone into a reader's, in one step: no writer gets in between, and readers that wait
    /// may come in, those behind a writer when that has had its turn. Resolves when the backend has confirmed it.
    ///
    /// * **The guard is a reader's from the call on**, whatever comes of it: it is not held alone any more, and there
    ///   is no way back but to release it and write anew. On the server it may stay held alone for longer, which keeps
    ///   others out and lets none in.
    /// * **The fence stays.** It is higher than that of every writer before, and lower than that of every writer after;
    ///   readers that come in later have higher ones. The lease runs for its full length again; `max_hold` counts from
    ///   the acquire.
    /// * **Only the last share.** While the owner has further guards of the hold, or bodies or tasks run under it, it
    ///   is refused: they rely on being alone. From then on a nested acquire reads, and a nested acquire to write is a
    ///   [`Deadlock`](crate::ErrorKind::Deadlock).
    /// * **It is not passed on** inside the process any more, like every lock that is read.
    /// * A guard that reads already stays as it is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let page = locks.lock("page_7");
    /// let mut guard = page.acquire().await?;
    /// // It is written, and no other reads. From here on all may read what was written, and none writes.
    /// guard.downgrade().await?;
    /// assert!(page.clone().read().try_acquire().await?.is_some());
    /// assert!(page.try_acquire().await?.is_none());
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Conflict`](crate::ErrorKind::Conflict): it has further shares, as above. Nothing was changed.
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the backend cannot (see
    ///   [`Requirement::Downgrade`](crate::Requirement::Downgrade)), these are permits of a semaphore, or the lock is
    ///   fair or stays taken after its release. Nothing was changed.
    /// * [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lock was lost, before or meanwhile.
    ///   [`ErrorKind::Suspect`](crate::ErrorKind::Suspect) as of [`check`](Self::check).
    /// * [`ErrorKind::Unknown`](crate::ErrorKind::Unknown), [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable),
    ///   [`ErrorKind::Denied`](crate::ErrorKind::Denied),
    ///   [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): the backend did not confirm. The guard reads,
    ///   and the request is repeated in the background until it is confirmed or the lock has ended. Calling this again
    ///   waits for that. After other kinds it is not repeated.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, the guard reads, and the rest goes on in the background. Before its first poll nothing was
    /// changed.
    pub async fn downgrade(&mut self) -> Result<()> {
        downgrade(self.hold()).await
    }

    /// Releases the lock and waits until the backend confirms it. A nested guard only steps back: the lock is released
    /// with the last guard of its owner.
    ///
    /// # Errors
    ///
    /// After any error this guard is gone and `check` of its views is an error.
    ///
    /// * [`ErrorKind::NotHeld`](crate::ErrorKind::NotHeld): the lock had been lost, or was removed; a successor's lock
    ///   is not touched.
    /// * [`ErrorKind::Unknown`](crate::ErrorKind::Unknown), [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable)
    ///   and final kinds: the backend did not confirm; the release goes on in the background, until it is confirmed or
    ///   the lease has ended the lock.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, the release goes on in the background.
    pub async fn release(self) -> Result<()> {
        match self.close() {
            // Not by `end`: a future that is handed out is moved, which a nested guard would pay for.
            Ok(release) => release.finish().await,
            Err(result) => result,
        }
    }

    /// Closes the hold, and returns the rest of the release; the result where nothing is left to do.
    pub(super) fn end(self) -> std::result::Result<impl Future<Output = Result<()>> + Send, Result<()>> {
        Ok(self.close()?.finish())
    }

    /// Ends the share, and takes the entry of the guard out.
    #[inline(always)]
    fn close(self) -> std::result::Result<Release, Result<()>> {
        let Self { share, noted: _noted } = self;
        share.release()
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(self.hold()).finish()
    }
}
