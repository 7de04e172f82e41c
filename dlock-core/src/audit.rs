//! What a hold leaves when it ends, so that it can be shown later that no two holders overlapped.

use std::fmt;
use std::sync::Arc;

use crate::clock::Timestamp;
use crate::fence::Fence;
use crate::key::Key;
use crate::mode::Mode;

/// Gets one record of each hold when it ends. See [`LocksBuilder::with_audit`](crate::LocksBuilder::with_audit);
/// `FileSink` of the crate `dlock-audit` writes them to files that `dlock audit` checks.
///
/// Both functions are called on the thread that takes or releases a lock, or on dlock's own, so they must not block: a
/// release waits for them, and so do the renewals of other locks. A panic in them is caught and changes nothing. They
/// must not use the lock that they are called for.
///
/// Not guaranteed: a process that is killed leaves no record of what it held then, and neither does one that ends
/// without releasing. A sink that counts what [began](Self::hold_began) knows how many records are outstanding.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::sync::Arc;
/// use dlock_core::audit::{AuditSink, AuditedHold};
/// use dlock_core::{Locks, Memory};
///
/// #[derive(Default)]
/// struct Count(AtomicU64);
///
/// impl AuditSink for Count {
///     fn hold_ended(&self, _: &AuditedHold<'_>) {
///         self.0.fetch_add(1, Ordering::Relaxed);
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// let count = Arc::new(Count::default());
/// let locks = Locks::builder(Memory::new()).with_audit(Arc::clone(&count)).build()?;
/// locks.lock("room_7").acquire().await?.release().await?;
/// assert_eq!(count.0.load(Ordering::Relaxed), 1);
/// # Ok(()) }
/// ```
pub trait AuditSink: Send + Sync {
    /// Notes that a hold begins, whose end is reported later. The default does nothing.
    fn hold_began(&self, locks: &Arc<AuditedLocks>) {
        let _ = locks;
    }

    /// Notes that a hold has ended: it was released, handed over or lost. Called once for each hold that
    /// [began](Self::hold_began).
    fn hold_ended(&self, hold: &AuditedHold<'_>);
}

impl<S: AuditSink + ?Sized> AuditSink for Arc<S> {
    fn hold_began(&self, locks: &Arc<AuditedLocks>) {
        (**self).hold_began(locks);
    }

    fn hold_ended(&self, hold: &AuditedHold<'_>) {
        (**self).hold_ended(hold);
    }
}

/// The [`Locks`](crate::Locks) that a hold was of.
#[derive(Debug)]
pub struct AuditedLocks {
    pub(crate) number: u64,
    pub(crate) backend: &'static str,
    pub(crate) store: String,
    pub(crate) in_process: bool,
    pub(crate) label: Option<String>,
    pub(crate) process: u32,
}

impl AuditedLocks {
    /// Returns the number of these locks, which no other `Locks` of this process have.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the name of the backend.
    #[must_use]
    pub const fn backend(&self) -> &'static str {
        self.backend
    }

    /// Returns a name of the place that keeps the locks, and of their prefix: equal in two processes whose keys name
    /// the same locks. It is a hash, of 16 hexadecimal digits, of what distinguishes them; no password is in that.
    ///
    /// Not guaranteed: one server under two addresses has two names.
    #[must_use]
    pub fn store(&self) -> &str {
        &self.store
    }

    /// Is `true` if the locks exclude each other in this process alone.
    #[must_use]
    pub const fn is_in_process(&self) -> bool {
        self.in_process
    }

    /// Returns the [label](crate::LocksBuilder::with_label) of this process.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Returns the id of the process that built these locks. A child made by `fork` has none of its parent's.
    #[must_use]
    pub const fn process(&self) -> u32 {
        self.process
    }
}

/// The end of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldEnd {
    /// It was released, by a call or by the drop of its last guard, or passed on to the next section of its process.
    Released,
    /// It was handed over, for whoever brings the baton.
    HandedOver,
    /// It was lost, by the cause that the label `dlock.loss` of metrics has: `lease_expired`, `max_hold`, `gone`,
    /// `backend`, `shutdown`, `ineligible` or `keeper`.
    Lost(&'static str),
}

impl HoldEnd {
    /// Returns it in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::HandedOver => "handed_over",
            Self::Lost(cause) => cause,
        }
    }
}

/// A hold that has ended. All guards of one owner that share it, and its nested ones, are one hold.
#[derive(Clone, Copy)]
pub struct AuditedHold<'a> {
    pub(crate) locks: &'a Arc<AuditedLocks>,
    pub(crate) key: &'a Key,
    pub(crate) fence: Option<Fence>,
    pub(crate) mode: Mode,
    pub(crate) passed_on: bool,
    pub(crate) believed: (Timestamp, Timestamp),
    pub(crate) alone_until: Option<Timestamp>,
    pub(crate) end: HoldEnd,
}

impl<'a> AuditedHold<'a> {
    /// Returns the locks that it was of.
    #[must_use]
    pub const fn locks(&self) -> &'a Arc<AuditedLocks> {
        self.locks
    }

    /// Returns its key, without the prefix of the locks.
    #[must_use]
    pub const fn key(&self) -> &'a Key {
        self.key
    }

    /// Returns its fence, where the backend has such.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Returns the mode in which it was granted.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Is `true` if the section before it in this process passed the lock on, without a request.
    #[must_use]
    pub const fn was_passed_on(&self) -> bool {
        self.passed_on
    }

    /// Returns when it was granted here: `check()` was not Ok before. In the clock of its backend, as all times.
    #[must_use]
    pub const fn believed_from(&self) -> Timestamp {
        self.believed.0
    }

    /// Returns until when it could be relied on. `check()` was not Ok from then on, but for the moment in which the end
    /// was noted:
    ///
    /// | end | until |
    /// |---|---|
    /// | release, drop, panic, passed on | the release began, before any request |
    /// | handed over | the hand-over began, before any request |
    /// | the deadline has passed, whoever noticed it when | the deadline |
    /// | the backend has it no more, a shutdown, the end of a term | that was noticed, or the deadline before it |
    /// | any of these while its session was suspect | it became suspect |
    ///
    /// It is no earlier than [`believed_from`](Self::believed_from): a grant that came too late has an empty time.
    #[must_use]
    pub const fn believed_until(&self) -> Timestamp {
        self.believed.1
    }

    /// Returns when a hold that was granted alone became a reader's; `None` for one that did not.
    #[must_use]
    pub const fn alone_until(&self) -> Option<Timestamp> {
        self.alone_until
    }

    /// Returns how it ended.
    #[must_use]
    pub const fn end(&self) -> HoldEnd {
        self.end
    }
}

impl fmt::Debug for AuditedHold<'_> {
    /// Shows no key, as log lines do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditedHold")
            .field("backend", &self.locks.backend)
            .field("fence", &self.fence)
            .field("believed", &self.believed)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
