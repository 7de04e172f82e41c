//! A resource that checks fences.
//!
//! A lock with a lease cannot stop a holder that was paused from writing when it wakes up. The resource can: it
//! remembers the highest fence it has met and refuses lower ones. Reading counts too: a new holder that has only read
//! so far has built on what it saw, and an older one must not change it behind its back.

use std::fmt;

use dlock_core::Fence;
use dlock_core::backend::Mutex;

/// One number behind a fence, with a record of who asked for what.
///
/// ```
/// use dlock_core::Fence;
/// use dlock_testkit::register::Register;
///
/// let register = Register::fenced();
/// let (old, new) = (Fence::new(1), Fence::new(2));
/// let seen = register.read(old)?;
/// register.read(new)?;
/// assert!(register.write(old, seen, seen + 1).is_err(), "a newer holder was here");
/// register.write(new, seen, seen + 1)?;
/// # Ok::<(), dlock_testkit::register::Stale>(())
/// ```
#[derive(Debug)]
pub struct Register {
    fenced: bool,
    state: Mutex<RegisterState>,
}

#[derive(Debug, Default)]
struct RegisterState {
    highest: u64,
    value: u64,
    record: Vec<Access>,
}

/// One access, in the order in which they took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The fence it came with.
    pub fence: u64,
    /// What was asked for.
    pub ask: Ask,
    /// Whether it was carried out.
    pub accepted: bool,
}

/// What a register can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The value.
    Read,
    /// A new value.
    Write {
        /// The value that the writer had read.
        read: u64,
        /// The new one.
        value: u64,
    },
}

/// The access came with a lower fence than one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    /// The highest fence so far.
    pub highest: Fence,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a holder with fence {} was here since", self.highest)
    }
}

impl std::error::Error for Stale {}

impl Register {
    /// Creates a register that refuses lower fences.
    #[must_use]
    pub fn fenced() -> Self {
        Self { fenced: true, state: Mutex::default() }
    }

    /// Creates a register that accepts everything, as most resources do.
    #[must_use]
    pub fn unfenced() -> Self {
        Self { fenced: false, state: Mutex::default() }
    }

    /// Reads the value.
    ///
    /// # Errors
    ///
    /// [`Stale`] when a higher fence was here before.
    pub fn read(&self, fence: Fence) -> Result<u64, Stale> {
        self.access(fence, Ask::Read)
    }

    /// Replaces the value by `value`; the writer had read `read`.
    ///
    /// # Errors
    ///
    /// [`Stale`] when a higher fence was here before.
    pub fn write(&self, fence: Fence, read: u64, value: u64) -> Result<u64, Stale> {
        self.access(fence, Ask::Write { read, value })
    }

    fn access(&self, fence: Fence, ask: Ask) -> Result<u64, Stale> {
        let mut state = self.state.lock();
        let fresh = fence.supersedes(Fence::new(state.highest));
        let accepted = fresh || !self.fenced;
        state.record.push(Access { fence: fence.get(), ask, accepted });
        if !accepted {
            return Err(Stale { highest: Fence::new(state.highest) });
        }
        state.highest = state.highest.max(fence.get());
        if let Ask::Write { value, .. } = ask {
            state.value = value;
        }
        Ok(state.value)
    }

    /// Returns everything that was asked for so far.
    #[must_use]
    pub fn record(&self) -> Vec<Access> {
        self.state.lock().record.clone()
    }
}
