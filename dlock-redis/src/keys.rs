//! The names of locks on the server.
//!
//! | item | name |
//! |---|---|
//! | lock | prefix, then the key |
//! | counter of fences | prefix, then `fence:{tag}`; one for a server, one for each hash slot of a cluster |
//! | channel | the name of the lock; `redisson_lock__channel:{lock}` if locks are shared with Redisson |
//!
//! A key with a brace could choose its hash slot. Such a key, and one that begins with the mark of encoded keys, is
//! stored as `%` followed by the key with `%`, `{` and `}` as `%25`, `%7B` and `%7D`. So no two keys share a name, and
//! only a prefix can name a slot. Locks that are shared with Redisson are stored under their keys as they are, and
//! their braces mean what they mean to Redis.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use dlock_core::{Failure, Key};

const MARK: char = '%';
pub(crate) const SLOTS: u16 = 16_384;
const MAX_PREFIX: usize = 128;

/// The names of one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) lock: Arc<str>,
    pub(crate) counter: Arc<str>,
    /// `true` if the counter belongs to this lock only.
    pub(crate) own_counter: bool,
    /// The hash slot, if the servers form a cluster.
    pub(crate) slot: u16,
    /// A hash of the lock's name, which differs for most names.
    pub(crate) hash: u16,
    /// `true` if the braces of the name are no hash tag: the lock, its counter, and the names that Redisson adds would
    /// lie in two slots.
    pub(crate) bad_hash_tag: bool,
}

impl Names {
    /// Refuses a lock whose names lie in several slots.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.bad_hash_tag {
            return Err(Failure::invalid_config(
                "on a cluster Redisson cannot lock a name whose braces are no hash tag; use another name",
            ));
        }
        Ok(())
    }
}

/// The counters that fences are drawn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counters {
    /// One for the whole server.
    Server,
    /// One for each hash slot, in that slot.
    Slot,
    /// Redisson's own counters, one for each lock that ever was.
    Lock,
}

/// Makes the names of locks.
#[derive(Clone, Debug)]
pub(crate) struct Namer {
    prefix: String,
    counters: Counters,
    cluster: bool,
    /// `true` if keys are stored as they are.
    raw: bool,
    server_counter: Arc<str>,
}

impl Namer {
    /// Creates a namer, and checks the prefix.
    pub(crate) fn new(prefix: &str, counters: Counters, cluster: bool, raw: bool) -> Result<Self, Failure> {
        let refuse = |what: &str| Err(Failure::invalid_config(format!("the prefix {prefix:?} {what}")));
        if prefix.len() > MAX_PREFIX {
            return Err(Failure::invalid_config("the prefix is longer than 128 bytes"));
        }
        if prefix.chars().any(char::is_control) {
            return refuse("contains a control character");
        }
        if prefix.contains(['{', '}']) {
            let tagged = prefix.split_once('{').and_then(|(before, rest)| {
                let (tag, after) = rest.split_once('}')?;
                Some(!tag.is_empty() && ![before, tag, after].iter().any(|part| part.contains(['{', '}'])))
            });
            if tagged != Some(true) {
                return refuse("may have braces only as one hash tag, such as {locks}:");
            }
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            counters,
            cluster,
            raw,
            server_counter: format!("{}fence:{{0}}", counter_prefix(prefix)).into(),
        })
    }

    /// Returns the key of the lock with this name; `None` if no lock has it.
    pub(crate) fn key_of(&self, lock: &str) -> Option<Key> {
        let stored = lock.strip_prefix(&self.prefix)?;
        if self.raw {
            return Key::new(stored).ok();
        }
        let key = Key::new(decode(stored)?).ok()?;
        (stored == encode(key.as_str())).then_some(key)
    }

    /// Returns the pattern for `SCAN` that the names of all locks match.
    pub(crate) fn pattern(&self) -> String {
        let mut pattern = String::with_capacity(self.prefix.len() + 1);
        for character in self.prefix.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '^' | '\\') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern.push('*');
        pattern
    }

    /// Returns the names of a lock.
    pub(crate) fn names(&self, key: &Key) -> Names {
        let key = if self.raw { Cow::Borrowed(key.as_str()) } else { encode(key.as_str()) };
        let none = self.prefix.is_empty();
        self.named(if none { (*key).into() } else { [&self.prefix, &*key].concat().into() })
    }

    fn named(&self, lock: Arc<str>) -> Names {
        let hash = slot_of(&lock);
        let slot = if self.cluster { hash } else { 0 };
        let counter = match self.counters {
            Counters::Server => Arc::clone(&self.server_counter),
            Counters::Slot => {
                format!("{}fence:{{{}}}", counter_prefix(&self.prefix), TAGS[usize::from(slot)]).into()
            }
            Counters::Lock => suffixed("redisson_lock_token", &lock).into(),
        };
        let bad_hash_tag =
            self.cluster && self.raw && slot_of(&suffixed("redisson_lock__channel", &lock)) != slot;
        Names { lock, counter, own_counter: self.counters == Counters::Lock, slot, hash, bad_hash_tag }
    }

    /// Returns the names of a lock that no key has, to check rights with.
    pub(crate) fn probe(&self) -> Names {
        // Encoded although it has no character to encode: no key is stored like this.
        self.named([&self.prefix, "%probe"].concat().into())
    }
}

/// Returns the prefix of counters. Without the braces of the prefix, as its hash tag would win over the counter's; and
/// never empty, as the counters would lie among data.
fn counter_prefix(prefix: &str) -> String {
    match prefix {
        "" => "dlock:".to_owned(),
        prefix => prefix.replace(['{', '}'], ""),
    }
}

/// Returns a name that belongs to a lock by Redisson's rule, with the kind before the lock.
pub(crate) fn suffixed(kind: &str, lock: &str) -> String {
    if lock.contains('{') { format!("{kind}:{lock}") } else { format!("{kind}:{{{lock}}}") }
}

/// Returns a name that belongs to a lock by Redisson's rule, with the kind behind the lock.
pub(crate) fn suffixed_with(name: &str, kind: &str) -> String {
    if name.contains('{') { format!("{name}:{kind}") } else { format!("{{{name}}}:{kind}") }
}

fn encode(key: &str) -> Cow<'_, str> {
    if !key.starts_with(MARK) && !key.contains(['{', '}']) {
        return key.into();
    }
    let mut encoded = String::with_capacity(key.len() + 8);
    encoded.push(MARK);
    for character in key.chars() {
        match character {
            '%' => encoded.push_str("%25"),
            '{' => encoded.push_str("%7B"),
            '}' => encoded.push_str("%7D"),
            other => encoded.push(other),
        }
    }
    encoded.into()
}

fn decode(stored: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = stored.strip_prefix(MARK) else { return Some(stored.into()) };
    let mut key = String::with_capacity(encoded.len());
    let mut parts = encoded.split(MARK);
    key.push_str(parts.next()?);
    for part in parts {
        key.push(match part.get(..2)? {
            "25" => '%',
            "7B" => '{',
            "7D" => '}',
            _ => return None,
        });
        key.push_str(&part[2..]);
    }
    Some(key.into())
}

/// Returns the hash slot of a name by the rules of Redis Cluster.
pub(crate) fn slot_of(name: &str) -> u16 {
    let hashed = name
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty())
        .unwrap_or(name);
    crc16(hashed.as_bytes()) % SLOTS
}

/// Returns the CRC-16/XMODEM of bytes.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ CRC[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The CRC of each byte.
const CRC: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The least number for each slot whose text lies in it, which is the same in every client.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![u32::MAX; usize::from(SLOTS)];
    let mut missing = tags.len();
    for number in 0.. {
        let tag = &mut tags[usize::from(crc16(number.to_string().as_bytes()) % SLOTS)];
        if *tag == u32::MAX {
            *tag = number;
            missing -= 1;
            if missing == 0 {
                break;
            }
        }
    }
    tags
});

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn names(prefix: &str, counters: Counters, key: &str) -> Names {
        Namer::new(prefix, counters, true, false).unwrap().names(&Key::new(key).unwrap())
    }

    #[test]
    fn slots_are_those_of_redis() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for (name, slot) in [("foo", 12_182), ("bar", 5_061), ("{foo}bar", 12_182), ("{}foo", 9_500)] {
            assert_eq!(slot_of(name), slot, "{name}");
        }
    }

    #[test]
    fn the_key_of_a_name_is_found_again_and_nothing_else_is_one() {
        for prefix in ["", "dlock:", "{locks}:"] {
            let namer = Namer::new(prefix, Counters::Slot, true, false).unwrap();
            for text in ["room_7", "a{b}c", "%", "%%", "%7B", "{", "}%25{", "Zürich 🔒", " "] {
                let key = Key::new(text).unwrap();
                assert_eq!(namer.key_of(&namer.names(&key).lock), Some(key), "{prefix:?} {text:?}");
            }
            // Encoded for no reason, badly encoded, or with nothing behind the prefix.
            for text in ["%a", "%%2", "%%ZZ", "%%7é", "a{b}", ""] {
                assert_eq!(namer.key_of(&format!("{prefix}{text}")), None, "{prefix:?} {text:?}");
            }
        }
        assert_eq!(Namer::new("dlock:", Counters::Server, false, false).unwrap().key_of("other:a"), None);
    }

    #[test]
    fn the_keys_of_generated_names_are_found_again() {
        for (prefix, raw) in [("", false), ("dlock:", false), ("{locks}:", false), ("redisson:", true)] {
            let namer = Namer::new(prefix, Counters::Slot, true, raw).unwrap();
            for text in dlock_testkit::generated_keys(10_000) {
                let key = Key::new(text).unwrap();
                assert_eq!(namer.key_of(&namer.names(&key).lock), Some(key));
            }
        }
    }

    #[test]
    fn the_pattern_takes_the_prefix_by_the_letter() {
        let pattern = |prefix| Namer::new(prefix, Counters::Server, false, false).unwrap().pattern();
        assert_eq!(pattern("dlock:"), "dlock:*");
        assert_eq!(pattern(""), "*");
        assert_eq!(pattern("a*b?[c]^\\:"), "a\\*b\\?\\[c\\]\\^\\\\:*");
    }

    #[test]
    fn plain_keys_are_stored_as_they_are() {
        let names = names("", Counters::Server, "room_7");
        assert_eq!(&*names.lock, "room_7");
        assert_eq!(suffixed("redisson_lock__channel", &names.lock), "redisson_lock__channel:{room_7}");
        assert_eq!(&*names.counter, "dlock:fence:{0}");
    }

    #[test]
    fn no_two_keys_share_a_name_and_none_is_a_counter() {
        let keys = [
            "a",
            "a{b}",
            "a%7Bb%7D",
            "%a%7Bb%7D",
            "%a",
            "%",
            "%%",
            "%25",
            "{",
            "}",
            "{}",
            "%7B",
            "a{",
            "a}",
            "fence:{0}",
            "fence:0",
            "dlock:fence:{0}",
        ];
        for counters in [Counters::Server, Counters::Slot, Counters::Lock] {
            let all: Vec<Names> = keys.iter().map(|key| names("dlock:", counters, key)).collect();
            let locks: HashSet<&str> = all.iter().map(|names| &*names.lock).collect();
            assert_eq!(locks.len(), keys.len());
            assert!(all.iter().all(|names| !locks.contains(&*names.counter)));
        }
    }

    #[test]
    fn lock_counter_and_channel_lie_in_one_slot_that_the_key_cannot_choose() {
        for prefix in ["", "dlock:", "{locks}:", "a{b}c"] {
            for key in ["a", "{x}a", "{x}b", "a}b{", "%{", "dlock:fence:{0}", "日本{語}"] {
                for counters in [Counters::Slot, Counters::Lock] {
                    let names = names(prefix, counters, key);
                    assert_eq!(slot_of(&names.lock), names.slot, "{prefix} {key}");
                    assert_eq!(slot_of(&names.counter), names.slot, "{prefix} {key} {}", names.counter);
                    assert!(!names.bad_hash_tag);
                }
            }
        }
        assert_ne!(
            names("", Counters::Slot, "{x}a").slot,
            names("", Counters::Slot, "{x}b").slot,
            "a tag in the key would have put both into one slot"
        );
    }

    #[test]
    fn names_that_are_shared_with_redisson_are_as_they_are_and_torn_where_its_own_would_be() {
        let namer = Namer::new("", Counters::Slot, true, true).unwrap();
        let names = |key: &str| namer.names(&Key::new(key).unwrap());
        for key in ["order:{42}", "%7B", "%", "room_7"] {
            let names = names(key);
            assert_eq!((&*names.lock, names.bad_hash_tag), (key, false));
            assert_eq!(slot_of(&names.counter), slot_of(key));
            assert_eq!(namer.key_of(key), Some(Key::new(key).unwrap()));
        }
        assert_eq!(names("order:{42}").slot, names("item:{42}").slot, "a hash tag names the slot");
        assert!(names("a}b{").bad_hash_tag && names("{}x").bad_hash_tag);
        let alone = Namer::new("", Counters::Server, false, true).unwrap();
        assert!(!alone.names(&Key::new("a}b{").unwrap()).bad_hash_tag, "one server has no slots");
    }

    #[test]
    fn no_key_has_the_name_of_the_probe() {
        let namer = Namer::new("dlock:", Counters::Slot, true, false).unwrap();
        let probe = namer.probe();
        assert_eq!(namer.key_of(&probe.lock), None);
        assert_eq!(slot_of(&probe.counter), probe.slot);
    }

    #[test]
    fn every_slot_has_a_short_tag() {
        for (slot, tag) in TAGS.iter().enumerate() {
            assert_eq!(usize::from(slot_of(&format!("dlock:fence:{{{tag}}}"))), slot);
        }
        assert!(TAGS.iter().all(|tag| *tag < 1_000_000));
    }

    #[test]
    fn odd_prefixes_are_refused() {
        for prefix in ["{", "}", "{}", "a{b", "}{", "{a}{b}", "{{a}}", "a\n", "a\0"] {
            assert!(Namer::new(prefix, Counters::Slot, true, false).is_err(), "{prefix:?}");
        }
        assert!(Namer::new(&"x".repeat(129), Counters::Server, false, false).is_err());
    }
}
