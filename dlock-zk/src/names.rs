//! How locks and their queues are named on the server: as Curator names them.
//!
//! | what | path |
//! |---|---|
//! | lock | `<base>/<key>` |
//! | node in its queue | `<base>/<key>/_c_<uuid>-lock-<sequence>` |
//! | proof that a session lives | `<base>/%sessions/<session>` |
//!
//! A key that cannot be the name of one node is stored as `%` followed by the key with `%`, `/` and what ZooKeeper
//! refuses in names percent-escaped; so is one that begins with `%`. So no two keys share a name, and plain keys stay
//! plain.

use std::sync::Arc;

use dlock_core::{Failure, Key, Token};

const MARK: char = '%';
const PROTECTED: &str = "_c_";
const LOCK: &str = "-lock-";
/// What stands before the number in the nodes of all clients whose locks exclude each other: of Curator and of
/// go-zookeeper, and of kazoo.
const LOCKS: [&str; 2] = [LOCK, "__lock__"];
/// The least number of digits of a sequence, a sign among them.
const DIGITS: usize = 10;
/// Where the sessions prove that they live. No key is stored under this name: one that begins so is encoded otherwise.
const SESSIONS: &str = "%sessions";
const MAX_BASE: usize = 512;

/// Where all locks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Without a slash at its end; empty for the root.
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

    /// The directory of a lock's queue.
    pub(crate) fn directory(&self, key: &Key) -> Arc<str> {
        let mut directory = format!("{}/", self.path);
        let key = key.as_str();
        let reserved = matches!(key, "." | "..") || (self.path.is_empty() && key == "zookeeper");
        if reserved || key.starts_with(MARK) || !key.chars().all(|c| c != '/' && is_legal(c)) {
            encode(key, &mut directory);
        } else {
            directory.push_str(key);
        }
        directory.into()
    }
}

impl Base {
    /// The directory of all locks.
    pub(crate) fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// The directory in which sessions have their nodes.
    pub(crate) fn sessions(&self) -> String {
        format!("{}/{SESSIONS}", self.path)
    }

    /// The key whose directory has this name below the base; `None` when no lock's has.
    pub(crate) fn key_of(&self, name: &str) -> Option<Key> {
        let key = Key::new(decode(name)?).ok()?;
        (*self.directory(&key) == *format!("{}/{name}", self.path)).then_some(key)
    }
}

fn decode(name: &str) -> Option<String> {
    let Some(encoded) = name.strip_prefix(MARK) else { return Some(name.to_owned()) };
    let mut bytes = Vec::with_capacity(encoded.len());
    let mut parts = encoded.split(MARK);
    bytes.extend_from_slice(parts.next()?.as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Whether ZooKeeper takes the character in a name. It looks at UTF-16, where all beyond the first plane are
/// surrogates.
fn is_legal(c: char) -> bool {
    !matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

fn encode(key: &str, into: &mut String) {
    into.push(MARK);
    let dots = matches!(key, "." | "..");
    for c in key.chars() {
        if c != MARK && c != '/' && is_legal(c) && !dots {
            into.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            into.push_str(&format!("{MARK}{byte:02X}"));
        }
    }
}

/// What the name of a claim's node begins with: no other claim's does.
pub(crate) fn prefix(token: &Token) -> Arc<str> {
    let hex = token.to_hex();
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    [PROTECTED, &uuid, LOCK].concat().into()
}

/// The sequence number of a node in a queue, whichever client made it.
pub(crate) fn sequence(name: &str) -> Option<i64> {
    let text = LOCKS.iter().find_map(|mark| name.rsplit_once(mark))?.1;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let numeric = text.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if numeric { text.parse().ok() } else { None }
}

/// Whether the server numbered a node that is in no queue known here: that of a recipe of another kind. Whether it has
/// a lock cannot be told.
fn is_foreign(name: &str) -> bool {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let signed = name.as_bytes().iter().rev().nth(digits) == Some(&b'-');
    digits + usize::from(signed) >= DIGITS && digits >= DIGITS - 1 && sequence(name).is_none()
}

/// How far `sequence` stands behind `reference`; negative when it stands before.
///
/// The server counts in 32 bits and goes on at the lowest negative number after the highest positive one.
fn behind(sequence: i64, reference: i64) -> i64 {
    match (i32::try_from(sequence), i32::try_from(reference)) {
        (Ok(sequence), Ok(reference)) => sequence.wrapping_sub(reference).into(),
        _ => sequence.wrapping_sub(reference),
    }
}

/// The nodes of a queue, the first one first.
pub(crate) fn in_order<'a>(children: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let numbered = |name: &'a String| Some((sequence(name)?, name.as_str()));
    let mut nodes: Vec<(i64, &str)> = children.into_iter().filter_map(numbered).collect();
    // Compared with any one of them all are in order, because a queue is far shorter than half of the numbers.
    let Some(reference) = nodes.first().map(|(number, _)| *number) else { return Vec::new() };
    nodes.sort_by_key(|(number, _)| behind(*number, reference));
    nodes.into_iter().map(|(_, name)| name).collect()
}

/// Where a node stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// In front: the lock is ours.
    First,
    /// Others stand before.
    Behind {
        /// Who holds the lock.
        first: String,
        /// The one directly before.
        previous: String,
    },
    /// It is gone.
    Missing,
    /// Nobody can tell: this child was numbered for a recipe that is not known here.
    Unclear(String),
    /// Nobody can tell: the directory has run out of numbers.
    Exhausted,
}

/// Where the node `own` stands among `children`, in one pass.
pub(crate) fn position(children: &[String], own: &str) -> Position {
    let Some(reference) = sequence(own) else { return Position::Missing };
    // The servers give the highest number again and again, and now and then a negative one in between, so that nobody
    // can tell who came first.
    if reference < 0 || reference >= i32::MAX.into() {
        return Position::Exhausted;
    }
    let (mut first, mut previous) = (None::<(i64, &String)>, None::<(i64, &String)>);
    let mut found = false;
    for name in children {
        let Some(distance) = sequence(name).map(|number| behind(number, reference)) else {
            if is_foreign(name) {
                return Position::Unclear(name.clone());
            }
            continue;
        };
        found |= name == own;
        if distance >= 0 {
            continue;
        }
        if first.is_none_or(|(lowest, _)| distance < lowest) {
            first = Some((distance, name));
        }
        if previous.is_none_or(|(highest, _)| distance > highest) {
            previous = Some((distance, name));
        }
    }
    match (found, first, previous) {
        (false, ..) => Position::Missing,
        (true, Some((_, first)), Some((_, previous))) => {
            Position::Behind { first: first.clone(), previous: previous.clone() }
        }
        (true, ..) => Position::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "_c_00000000-0000-0000-0000-00000000000a-lock-";
    const B: &str = "_c_00000000-0000-0000-0000-00000000000b-lock-";
    const C: &str = "_c_00000000-0000-0000-0000-00000000000c-lock-";

    fn at(prefix: &str, number: i32) -> String {
        format!("{prefix}{number:010}")
    }

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

    #[test]
    fn a_token_is_a_uuid_in_the_name() {
        let token = Token::random().unwrap();
        let name = format!("{}0000000012", prefix(&token));
        assert_eq!(sequence(&name), Some(12));
        assert_eq!(name.replace('-', ""), format!("_c_{}lock0000000012", token.to_hex()));
    }

    #[test]
    fn the_nodes_of_all_locks_count_and_what_is_numbered_for_others_is_known() {
        let nodes = [
            at(A, 0),
            at(A, i32::MAX),
            at(A, i32::MIN),
            at(A, -1),
            format!("{A}0000000002147483648"),
            "_c_0123456789abcdef0123456789abcdef-lock-0000000001".to_owned(),
            "0123456789abcdef0123456789abcdef__lock__0000000001".to_owned(),
            "x-lock--000000005".to_owned(),
        ];
        for name in nodes {
            assert!(sequence(&name).is_some(), "{name}");
        }
        let others = [
            "",
            "x",
            "_c_00000000-0000-0000-0000-00000000000a-lock-",
            "_c_00000000-0000-0000-0000-00000000000a-lock-12",
            "_c_00000000-0000-0000-0000-00000000000a-lock-000000000x",
            "room_7",
            "20261122",
        ];
        for name in others {
            assert_eq!((sequence(name), is_foreign(name)), (None, false), "{name}");
        }
        let foreign = [
            "lock-0000000001",
            "_c_00000000-0000-0000-0000-00000000000a-latch-0000000001",
            "_c_00000000-0000-0000-0000-00000000000a-__WRIT__0000000001",
            "0123456789abcdef0123456789abcdef__rlock__0000000001",
            "latch--000000001",
            "é-2147483648",
        ];
        for name in foreign {
            assert_eq!((sequence(name), is_foreign(name)), (None, true), "{name}");
            let position = position(&[at(A, 1), name.to_owned()], &at(A, 1));
            assert_eq!(position, Position::Unclear(name.to_owned()));
        }
    }

    #[test]
    fn who_stands_first_has_the_lock_and_the_others_watch_the_one_before() {
        let queue = || vec![at(C, 12), "other".to_owned(), at(A, 3), at(B, 7)];
        let behind = |previous: String| Position::Behind { first: at(A, 3), previous };
        assert_eq!(position(&queue(), &at(A, 3)), Position::First);
        assert_eq!(position(&queue(), &at(B, 7)), behind(at(A, 3)));
        assert_eq!(position(&queue(), &at(C, 12)), behind(at(B, 7)));
        assert_eq!(position(&queue(), &at(A, 13)), Position::Missing);
        assert_eq!(position(&[], &at(A, 13)), Position::Missing);
        assert_eq!(in_order(&queue()), [&at(A, 3), &at(B, 7), &at(C, 12)]);
    }

    #[test]
    fn who_has_a_number_that_was_given_once_keeps_its_place_and_others_are_granted_nothing() {
        // The numbers of three places in the order in which they were created.
        let runs = [
            [0, 1, 2],
            [9, 10, 11],
            [999_999_999, 1_000_000_000, 1_000_000_001],
            [i32::MAX - 2, i32::MAX - 1, i32::MAX],
            [i32::MAX - 1, i32::MAX, i32::MIN],
            [i32::MAX, i32::MIN, i32::MIN + 1],
            [i32::MIN, i32::MIN + 1, i32::MIN + 2],
            [-1_000_000_000, -999_999_999, -99_999_999],
            [-11, -10, -9],
            [-2, -1, 0],
            [-1, 0, 1],
            [i32::MAX - 1_000_000, i32::MIN + 5, i32::MIN + 1_000_000],
        ];
        for run in runs {
            let names = [at(A, run[0]), at(B, run[1]), at(C, run[2])];
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                let queue = || order.iter().map(|at| names[*at].clone()).collect::<Vec<_>>();
                assert_eq!(in_order(&queue()), names, "{run:?}");
                for place in [0, 1, 2] {
                    let (first, previous) = (names[0].clone(), names[place.max(1) - 1].clone());
                    let expected = match (run[place], place) {
                        (i32::MIN..0 | i32::MAX, _) => Position::Exhausted,
                        (_, 0) => Position::First,
                        _ => Position::Behind { first, previous },
                    };
                    assert_eq!(position(&queue(), &names[place]), expected, "{run:?}");
                }
            }
        }
    }

    #[test]
    fn two_nodes_of_one_number_are_granted_nothing() {
        let queue = [at(A, i32::MAX), at(B, i32::MAX), at(C, i32::MIN)];
        for own in &queue {
            assert_eq!(position(&queue, own), Position::Exhausted);
        }
    }
}
