//! The names of locks on the server, which are Curator's. Their queues are in `recipe.rs`.
//!
//! | node | path |
//! |---|---|
//! | lock | `<base>/<key>` |
//! | proof that a session lives | `<base>/%sessions/<session>` |
//!
//! A key that cannot be the name of one node is stored as `%` followed by the key, in which `%`, `/` and all that
//! ZooKeeper refuses in names are percent-escaped; so is a key that begins with `%`. So no two keys share a name, and
//! plain keys stay plain.

use std::sync::Arc;

use dlock_core::backend::{escape_key, unescape_key};
use dlock_core::{Failure, Key};

/// The directory in which the sessions prove that they live. No key has this name: a key that begins with `%` is
/// encoded otherwise.
const SESSIONS: &str = "%sessions";
const MAX_BASE: usize = 512;

/// The directory of all locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// The path without a slash at its end; empty for the root.
    path: String,
}

impl Base {
    /// Checks the parts of the path, which stand one below the other.
    pub(crate) fn new(parts: &[&str]) -> Result<Self, Failure> {
        let mut path = String::new();
        for part in parts {
            let refuse = |what: &str| Err(Failure::invalid_config(format!("the path {part:?} {what}")));
            let Some(rest) = part.strip_prefix('/') else {
                return refuse("does not begin with a slash");
            };
            if rest.is_empty() {
                continue;
            }
            for name in rest.split('/') {
                if name.is_empty() || name == "." || name == ".." || !name.chars().all(is_legal) {
                    return refuse("has an element that ZooKeeper does not allow");
                }
            }
            path.push_str(part);
        }
        if path.len() > MAX_BASE {
            return Err(Failure::invalid_config(format!("the base path is longer than {MAX_BASE} bytes")));
        }
        if path == "/zookeeper" || path.starts_with("/zookeeper/") {
            return Err(Failure::invalid_config(
                "the path /zookeeper belongs to the server; use another base",
            ));
        }
        Ok(Self { path })
    }

    /// Returns the directory of a lock's queue.
    pub(crate) fn directory(&self, key: &Key) -> Arc<str> {
        let key = key.as_str();
        let is_dots = matches!(key, "." | "..");
        let is_reserved = is_dots || (self.path.is_empty() && key == "zookeeper");
        let name = escape_key(key, is_reserved, |c| c != '/' && !is_dots && is_legal(c));
        format!("{}/{name}", self.path).into()
    }
}

impl Base {
    /// Returns the directory of all locks.
    pub(crate) fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// Returns the directory in which sessions have their nodes.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/{SESSIONS}", self.path)
    }

    /// Returns the key whose directory has this name below the base, or `None` if it is the directory of no lock.
    pub(crate) fn key_of(&self, name: &str) -> Option<Key> {
        let key = unescape_key(name)?;
        // Only the one form that `directory` makes of a key: other escapes of it are not dlock's.
        (*self.directory(&key) == *format!("{}/{name}", self.path)).then_some(key)
    }
}

/// Returns `true` if ZooKeeper takes the character in a name. It looks at UTF-16, where all beyond the first plane are
/// surrogates.
fn is_legal(c: char) -> bool {
    !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(base: &str, key: &str) -> String {
        Base::new(&[base]).unwrap().directory(&Key::new(key).unwrap()).to_string()
    }

    #[test]
    fn plain_keys_stay_plain_and_others_are_escaped() {
        assert_eq!(directory("/dlock", "room_7"), "/dlock/room_7");
        assert_eq!(directory("/dlock", "Zürich 50%"), "/dlock/Zürich 50%");
        assert_eq!(directory("/", "room"), "/room");
        assert_eq!(directory("/dlock", "a/b"), "/dlock/%a%2Fb");
        assert_eq!(directory("/dlock", "%a%2Fb"), "/dlock/%%25a%252Fb");
        assert_eq!(directory("/dlock", "."), "/dlock/%%2E");
        assert_eq!(directory("/dlock", ".."), "/dlock/%%2E%2E");
        assert_eq!(directory("/dlock", "..."), "/dlock/...");
        assert_eq!(directory("/", "zookeeper"), "/%zookeeper");
        assert_eq!(directory("/dlock", "zookeeper"), "/dlock/zookeeper");
        assert_eq!(directory("/dlock", "a\n"), "/dlock/%a%0A");
        assert_eq!(directory("/dlock", "🔒"), "/dlock/%%F0%9F%94%92");
        assert_eq!(directory("/dlock", "\u{f8ff}\u{fff0}\u{7f}"), "/dlock/%%EF%A3%BF%EF%BF%B0%7F");
    }

    #[test]
    fn the_key_of_a_directory_is_found_again_and_nothing_else_is_one() {
        for base in ["/", "/dlock"] {
            let base = Base::new(&[base]).unwrap();
            for text in ["room_7", "a/b", "%", "%%2E", ".", "..", "zookeeper", "a\n", "Zürich 🔒", "\u{f8ff}"]
            {
                let key = Key::new(text).unwrap();
                let directory = base.directory(&key);
                let name = directory.rsplit_once('/').unwrap().1;
                assert_eq!(base.key_of(name), Some(key), "{text:?}");
            }
            // Encoded for no reason, or badly.
            for name in ["%a", "%", "%a%2f", "%%G0", "%%F", "%%FF", "."] {
                assert_eq!(base.key_of(name), None, "{name:?}");
            }
        }
        assert_eq!(Base::new(&["/"]).unwrap().key_of("zookeeper"), None);
        assert_eq!(Base::new(&["/"]).unwrap().path(), "/");
    }

    #[test]
    fn the_keys_of_generated_directories_are_found_again() {
        for base in ["/", "/dlock"] {
            let base = Base::new(&[base]).unwrap();
            for text in dlock_testkit::generated_keys(10_000) {
                let key = Key::new(text).unwrap();
                let directory = base.directory(&key);
                let name = directory.rsplit_once('/').unwrap().1;
                assert_eq!(base.key_of(name), Some(key));
            }
        }
    }

    #[test]
    fn no_two_keys_share_a_directory() {
        let keys = [
            "a/b",
            "a%2Fb",
            "%a%2Fb",
            "%a/b",
            "a",
            "%a",
            "%%a",
            "%",
            "%%",
            "%25",
            "/",
            "//",
            ".",
            "..",
            "%.",
            "%..",
            "%2E",
            "%%2E",
            "zookeeper",
            "%zookeeper",
            "a\n",
            "a%0A",
            "%a%0A",
            "A",
            "é",
            "e\u{301}",
            "🔒",
        ];
        for base in ["/", "/dlock"] {
            let names: std::collections::HashSet<String> =
                keys.iter().map(|key| directory(base, key)).collect();
            assert_eq!(names.len(), keys.len());
            let below = base.trim_end_matches('/').len() + 1;
            assert!(names.iter().all(|name| !name[below..].contains('/')), "{names:?}");
        }
    }

    #[test]
    fn a_base_is_a_legal_path() {
        assert_eq!(Base::new(&["/app", "/dlock"]).unwrap().path, "/app/dlock");
        assert_eq!(Base::new(&["/", "/"]).unwrap().path, "");
        let long = format!("/{}", "x".repeat(MAX_BASE));
        for wrong in
            ["", "dlock", "/a/", "//", "/a//b", "/a/./b", "/..", "/a\n", "/zookeeper", "/zookeeper/x", &long]
        {
            let failure = Base::new(&[wrong]).unwrap_err();
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig, "{wrong:?}");
        }
    }
}
