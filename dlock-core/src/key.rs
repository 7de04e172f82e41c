//! The name of a lock.

use std::borrow::Borrow;
use std::fmt::{self, Write};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::failure::Failure;

/// The name of a lock: any UTF-8 text of 1 to [`Key::MAX_LEN`] bytes without a NUL.
///
/// Two keys name the same lock exactly when their bytes are equal: nothing is trimmed, folded or normalised, so
/// `A` and `a`, `é` written in two ways, and `room` with and without a trailing space are different locks on every
/// backend. Cloning shares the text.
///
/// ```
/// use dlock_core::Key;
///
/// assert!(Key::new("room_7").is_ok());
/// assert!(Key::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes. Backends with a shorter limit of their own encode longer keys.
    pub const MAX_LEN: usize = 512;

    /// Checks `text` and makes a key of it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) when the text is empty, longer than
    /// [`Key::MAX_LEN`] bytes, or contains a NUL.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Failure> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(Failure::invalid_key("the key is empty; give it at least one character"));
        }
        if text.len() > Self::MAX_LEN {
            return Err(Failure::invalid_key(format!(
                "the key has {} bytes and the longest allowed is {}; use an identifier or a digest instead",
                text.len(),
                Self::MAX_LEN
            )));
        }
        if text.contains('\0') {
            return Err(Failure::invalid_key("the key contains a NUL character; remove it"));
        }
        Ok(Self(text.into()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first 16 hexadecimal digits of the key's SHA-256, which spans and log lines show in place of the
    /// key, unless [`LocksBuilder::with_keys_shown`](crate::LocksBuilder::with_keys_shown) was called. To find the key
    /// of a log line, compare its hash with that of each key that is held: `dlock inspect --hash` does so.
    ///
    /// ```
    /// # fn main() -> Result<(), dlock_core::Failure> {
    /// assert_eq!(dlock_core::Key::new("room_4")?.hash_shown(), "90f5fb40f5f3f42a");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn hash_shown(&self) -> String {
        let digest = Sha256::digest(self.as_str());
        digest.iter().take(8).fold(String::with_capacity(16), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    /// Escapes control characters, so that a key cannot forge a log line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Returns the longest start of `text` of at most `bytes` bytes that is whole characters.
pub(crate) fn start_of(text: &str, bytes: usize) -> &str {
    // As `str::floor_char_boundary`, which needs a newer Rust than the rest of the crate.
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn empty_long_and_nul_keys_are_refused_with_a_reason() {
        for (text, word) in
            [(String::new(), "empty"), ("x".repeat(10_240), "512"), ("a\0b".to_owned(), "NUL")]
        {
            let failure = Key::new(&text).unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::InvalidKey);
            assert!(failure.message().contains(word), "{}", failure.message());
        }
    }

    #[test]
    fn keys_that_look_alike_stay_different() {
        let texts = ["a", "A", "a ", " a", "é", "e\u{301}", "a\n", "../a", "{a}", "'a'", "\\a", "🔒"];
        let keys: std::collections::HashSet<Key> = texts.iter().map(|t| Key::new(t).unwrap()).collect();
        assert_eq!(keys.len(), texts.len());
    }

    #[test]
    fn the_start_of_a_text_is_as_long_as_can_be_and_of_whole_characters() {
        let starts = (0..=6).map(|bytes| start_of("aé🔒", bytes));
        assert_eq!(starts.collect::<Vec<_>>(), ["", "a", "a", "aé", "aé", "aé", "aé"]);
        assert_eq!(start_of("aé🔒", 7), "aé🔒");
        assert_eq!(start_of("aé🔒", 100), "aé🔒");
    }

    #[test]
    fn debug_escapes_line_breaks() {
        assert_eq!(format!("{:?}", Key::new("a\nb").unwrap()), r#""a\nb""#);
    }
}
