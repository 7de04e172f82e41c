//! The keys of a batch, each with its mode.

/// A key of a batch: a text, which is held alone, or the value that [`read`] and [`write()`] make of one. See
/// [`Locks::lock_all`](crate::Locks::lock_all).
pub trait BatchKey {
    /// Returns the key.
    fn key(&self) -> &str;

    /// Returns `true` if it is only read, together with other readers.
    fn reads(&self) -> bool {
        false
    }
}

impl<K: AsRef<str>> BatchKey for K {
    fn key(&self) -> &str {
        self.as_ref()
    }
}

/// A key of a batch, and its mode. Made by [`read`] and [`write()`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a key does nothing until it is part of a batch"]
pub struct KeyInMode {
    key: String,
    reads: bool,
}

impl BatchKey for KeyInMode {
    fn key(&self) -> &str {
        &self.key
    }

    fn reads(&self) -> bool {
        self.reads
    }
}

/// Returns `key` for a batch that only reads it, together with other readers; see [`Lock::read`](crate::Lock::read).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory, read, write};
///
/// let locks = Locks::new(Memory::new());
/// let guard = locks.lock_all([read("prices"), write("stock_7")]).acquire().await?;
/// assert!(locks.lock("prices").read().try_acquire().await?.is_some());
/// assert!(locks.lock("stock_7").read().try_acquire().await?.is_none());
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub fn read(key: impl Into<String>) -> KeyInMode {
    KeyInMode { key: key.into(), reads: true }
}

/// Returns `key` for a batch that holds it alone, beside others that it [reads](read).
pub fn write(key: impl Into<String>) -> KeyInMode {
    KeyInMode { key: key.into(), reads: false }
}
