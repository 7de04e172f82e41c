//! Names for keys, on servers whose names have fewer characters than a [`Key`] may have.
//!
//! A key that cannot be a name is stored as `%` followed by the key, in which `%` and all that may not stand in a name
//! are percent-escaped; so is a key that begins with `%`. So no two keys share a name, and plain keys stay plain.

use std::borrow::Cow;
use std::fmt::Write;

use crate::key::Key;

const MARK: char = '%';

/// Returns the name of `key`: the key itself if `stands` allows each of its characters, and otherwise an escaped form,
/// in which a character that may not stand is written as its bytes. Where `is_reserved`, the key itself is no name of
/// it.
///
/// ```
/// use dlock_core::backend::{escape_key, unescape_key};
///
/// let name = |key| escape_key(key, false, |c| c != '/');
/// assert_eq!(name("room 50%"), "room 50%");
/// assert_eq!(name("a/b"), "%a%2Fb");
/// assert_eq!(name("%a"), "%%25a");
/// assert_eq!(unescape_key("%a%2Fb").unwrap().as_str(), "a/b");
/// ```
pub fn escape_key(key: &str, is_reserved: bool, stands: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !is_reserved && !key.starts_with(MARK) && key.chars().all(&stands) {
        return key.into();
    }
    let mut name = String::from(MARK);
    for c in key.chars() {
        if c != MARK && stands(c) {
            name.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            let _ = write!(name, "{MARK}{byte:02X}");
        }
    }
    name.into()
}

/// Returns the key that has this name; `None` if none has. A key has one name only, so that a caller compares it with
/// that of the key: other escapes of its characters are the name of no key.
#[must_use]
pub fn unescape_key(name: &str) -> Option<Key> {
    let Some(escaped) = name.strip_prefix(MARK) else { return Key::new(name).ok() };
    let mut parts = escaped.split(MARK);
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Key::new(String::from_utf8(bytes).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_name_is_found_again_and_no_two_keys_share_a_name() {
        let keys = [
            "a/b", "a%2Fb", "%a%2Fb", "%a/b", "a", "%a", "%%a", "%", "%%", "%25", "/", "//", "é/", "🔒",
            "a\n",
        ];
        let names: Vec<_> =
            keys.iter().map(|key| escape_key(key, false, |c| c != '/' && c != '\n')).collect();
        for (key, name) in keys.iter().zip(&names) {
            assert!(!name.contains(['/', '\n']), "{name}");
            assert_eq!(unescape_key(name).unwrap().as_str(), *key);
            assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_reserved_key_is_escaped_although_its_characters_may_stand() {
        assert_eq!(escape_key("zookeeper", true, |_| true), "%zookeeper");
        assert_eq!(escape_key("..", true, |c| c != '.'), "%%2E%2E");
    }

    #[test]
    fn what_is_no_name_has_no_key() {
        for name in ["%", "%%G0", "%%F", "%%FF", ""] {
            assert_eq!(unescape_key(name), None, "{name:?}");
        }
    }
}
