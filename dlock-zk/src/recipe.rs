//! The nodes in the queue of a lock, as clients name them. Their order is in `recipe/order.rs`.
//!
//! | recipe | an exclusive holder | a reader |
//! |---|---|---|
//! | mutex | `_c_<uuid>-lock-<sequence>` | `_c_<uuid>-read-lock-<sequence>` |
//! | read-write lock | `_c_<uuid>-__WRIT__<sequence>` | `_c_<uuid>-__READ__<sequence>` |
//! | leader latch | `_c_<uuid>-latch-<sequence>` | |
//!
//! A claim for permits of a semaphore has the node `_c_<uuid>-permits-<taken>-lock-<sequence>` in the queue of a mutex:
//! see `semaphore.rs`. A key that stays taken after its release has a persistent node in the place of its last holder,
//! `_c_<uuid>-left-<milliseconds>-lock-<sequence>` or `_c_<uuid>-left-<milliseconds>-__WRIT__<sequence>`: see
//! `left.rs`.

mod order;

use std::sync::Arc;

use dlock_core::Token;
use dlock_core::backend::Mode;

pub(crate) use self::order::Position;

const PROTECTED: &str = "_c_";
/// The marks before the number in the nodes of Curator's mutex and of go-zookeeper, and in those of kazoo.
const LOCKS: [&str; 2] = ["-lock-", "__lock__"];
/// The mark before the number in the nodes of readers among them. A client that knows no readers takes such a node for
/// another lock.
const READER: &str = "-read-lock-";
/// The mark before the number of permits that a node takes. A client that knows no permits takes such a node for a
/// lock, and waits.
const PERMITS: &str = "-permits-";
/// The mark before the time for which a key stays taken, by a node that nobody owns. A client that does not know it
/// takes such a node for a lock, and waits.
const LEFT: &str = "-left-";
/// The marks before the number in the nodes of Curator's read-write lock.
const WRITE: &str = "__WRIT__";
const READ: &str = "__READ__";
/// The mark before the number in the nodes of Curator's leader latch.
const LATCH: &str = "-latch-";
/// The length of a UUID with its hyphens.
const UUID: usize = 36;
/// The least number of digits of a sequence, a sign among them.
const DIGITS: usize = 10;

/// The form of the nodes of locks, which decides which other clients share their queues. All clients of a lock, in Rust
/// and elsewhere, use one recipe: a client that finds nodes of another recipe grants nothing, with an error that names
/// such a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// The nodes of Curator's `InterProcessMutex`, go-zookeeper's `zk.Lock` and kazoo's `Lock`. The default. These
    /// clients have no readers, and wait behind readers of dlock as behind any other node.
    #[default]
    Mutex,
    /// The nodes of Curator's `InterProcessReadWriteLock`, for readers and writers.
    ReadWriteLock,
    /// The nodes of Curator's `LeaderLatch`, for elections together with it: the holder of the lock leads on either
    /// side, and Curator lists it as a participant by the data of its node. There are no readers.
    LeaderLatch,
}

/// A node in a queue, whichever client made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ParsedName<'a> {
    number: i64,
    kind: Kind,
    name: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Locks,
    Reads,
    /// Takes so many permits of a semaphore.
    Takes(u32),
    /// Has no owner, and keeps the key taken for so many milliseconds.
    Left(u64),
}

impl Recipe {
    /// Returns the recipe that a URL names.
    pub(crate) fn of(name: &str) -> Option<Self> {
        match name {
            "mutex" => Some(Self::Mutex),
            "read-write-lock" => Some(Self::ReadWriteLock),
            "leader-latch" => Some(Self::LeaderLatch),
            _ => None,
        }
    }

    /// Returns the prefix of the name of a claim's node, which no other claim's node has.
    pub(crate) fn prefix(self, token: &Token, mode: Mode) -> Arc<str> {
        let uuid = uuid(token);
        // Modes that the backend does not offer with this recipe are not asked for.
        let mark = match (self, mode) {
            (_, Mode::Permits { take, .. }) => {
                return format!("{PROTECTED}{uuid}{PERMITS}{take}{}", LOCKS[0]).into();
            }
            (Self::Mutex, Mode::Shared) => READER,
            (Self::Mutex, _) => LOCKS[0],
            (Self::ReadWriteLock, Mode::Shared) => "-__READ__",
            (Self::ReadWriteLock, _) => "-__WRIT__",
            (Self::LeaderLatch, _) => LATCH,
        };
        [PROTECTED, &uuid, mark].concat().into()
    }

    /// Returns `true` if there are semaphores.
    pub(crate) const fn has_permits(self) -> bool {
        matches!(self, Self::Mutex)
    }

    /// Returns `true` if a key can stay taken after its release. With a leader latch it cannot, since each of its
    /// participants has to be there.
    pub(crate) const fn has_left(self) -> bool {
        !matches!(self, Self::LeaderLatch)
    }

    /// Returns the name of the node that takes the place of `own` in the queue, for so many milliseconds.
    pub(crate) fn left_behind(self, token: &Token, own: &str, millis: u64) -> Option<String> {
        // Without its hyphen, which is written for both marks.
        let mark = if self == Self::ReadWriteLock { WRITE } else { &LOCKS[0][1..] };
        let (_, number) = own.rsplit_once(mark)?;
        Some(format!("{PROTECTED}{}{LEFT}{millis}-{mark}{number}", uuid(&token.left_behind())))
    }

    /// Returns the name of the reader's node that takes the place of `own`, a writer's.
    pub(crate) fn downgraded(self, own: &str) -> Option<String> {
        let (mark, reader) = match self {
            Self::Mutex => (LOCKS[0], READER),
            Self::ReadWriteLock => (WRITE, READ),
            Self::LeaderLatch => return None,
        };
        let (claim, number) = own.rsplit_once(mark)?;
        Some(format!("{claim}{reader}{number}"))
    }

    /// Returns for how many milliseconds a node without an owner keeps its key taken; `None` for any other node.
    pub(crate) fn left_for(self, name: &str) -> Option<u64> {
        match self.parse(name)?.kind {
            Kind::Left(millis) => Some(millis),
            Kind::Locks | Kind::Reads | Kind::Takes(_) => None,
        }
    }

    /// Returns `true` if the node may be one of another library, or of an older dlock, which do not know that keys can
    /// stay taken.
    pub(crate) fn is_strange(name: &str) -> bool {
        // A UUID of version 8, as `uuid` makes it.
        let uuid = name.strip_prefix(PROTECTED).unwrap_or_default();
        !(uuid.get(13..15) == Some("-8") && uuid.get(18..20) == Some("-8"))
    }

    /// Returns `true` if several clients may read at a time.
    pub(crate) const fn has_readers(self) -> bool {
        !matches!(self, Self::LeaderLatch)
    }

    /// Returns `true` if the node behind the first one has the lock once the first one is deleted. In a read-write lock
    /// it may not: a client of Curator that writes may leave a node of the same number behind it, by which it goes on
    /// reading.
    pub(crate) const fn passes_on(self) -> bool {
        matches!(self, Self::Mutex | Self::LeaderLatch)
    }

    fn parse(self, name: &str) -> Option<ParsedName<'_>> {
        let (kind, text) = match self {
            Self::Mutex => {
                let (_, text) = LOCKS.iter().find_map(|mark| name.rsplit_once(mark))?;
                (Kind::of(name), text)
            }
            Self::ReadWriteLock => match (name.rsplit_once(WRITE), name.rsplit_once(READ)) {
                (Some((_, text)), None) => (Kind::of(name), text),
                (None, Some((_, text))) => (Kind::Reads, text),
                _ => return None,
            },
            Self::LeaderLatch => (Kind::Locks, name.rsplit_once(LATCH)?.1),
        };
        let digits = text.strip_prefix('-').unwrap_or(text);
        let numeric = text.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = if numeric { text.parse().ok()? } else { return None };
        Some(ParsedName { number, kind, name })
    }

    /// Returns the sequence number of a node in a queue, whichever client made it.
    pub(crate) fn sequence(self, name: &str) -> Option<i64> {
        self.parse(name).map(|parsed| parsed.number)
    }

    /// Returns `true` if it is the node of a reader.
    pub(crate) fn reads(self, name: &str) -> bool {
        self.parse(name).is_some_and(|parsed| parsed.kind == Kind::Reads)
    }

    /// Returns how many permits of a semaphore the node takes; `None` for a node of a lock.
    pub(crate) fn takes(self, name: &str) -> Option<u32> {
        match self.parse(name)?.kind {
            Kind::Takes(permits) => Some(permits),
            Kind::Locks | Kind::Reads | Kind::Left(_) => None,
        }
    }

    /// Returns `true` if the server numbered the node, and it is in no queue of this recipe, so that it is not known
    /// whether it has a lock.
    pub(crate) fn is_foreign(self, name: &str) -> bool {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        // A negative number has its sign among its ten characters.
        let signed = name.as_bytes().iter().rev().nth(digits) == Some(&b'-');
        digits + usize::from(signed) >= DIGITS && digits >= DIGITS - 1 && self.sequence(name).is_none()
    }
}

impl Kind {
    /// Returns the kind of a node by the mark behind its UUID, unless another part of its name decides.
    fn of(name: &str) -> Self {
        let Some(rest) = name.strip_prefix(PROTECTED).and_then(|rest| rest.get(UUID..)) else {
            return Self::Locks;
        };
        if rest.starts_with(READER) {
            return Self::Reads;
        }
        let number = |mark: &str| Some(rest.strip_prefix(mark)?.split_once('-')?.0);
        if let Some(taken) = number(PERMITS).and_then(|taken| taken.parse().ok()) {
            return Self::Takes(taken);
        }
        number(LEFT).and_then(|millis| millis.parse().ok()).map_or(Self::Locks, Self::Left)
    }
}

/// Returns a token in the form that Curator has in its nodes: a UUID of version 8 (RFC 9562), where Curator draws those
/// of version 4.
fn uuid(token: &Token) -> String {
    let hex = token.to_hex();
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_a_uuid_in_the_name() {
        let token = Token::random().unwrap();
        let name = format!("{}0000000012", Recipe::Mutex.prefix(&token, Mode::Exclusive));
        assert!(!Recipe::is_strange(&name), "{name}");
        assert_eq!(Recipe::Mutex.sequence(&name), Some(12));
        let (mut hex, mut strange) = (token.to_hex(), name.clone());
        let version = "_c_01234567-89ab-".len();
        strange.replace_range(version..=version, "4");
        hex.replace_range(12..13, "8");
        hex.replace_range(16..17, "8");
        assert_eq!(name.replace('-', ""), format!("_c_{hex}lock0000000012"));
        assert!(Recipe::is_strange(&strange) && Recipe::is_strange("x-lock-0000000001"), "{strange}");
    }

    #[test]
    fn a_reader_of_a_mutex_is_a_lock_to_clients_that_know_no_readers() {
        let name = format!("{}0000000007", Recipe::Mutex.prefix(&Token::random().unwrap(), Mode::Shared));
        // As Curator sorts, and as kazoo and go-zookeeper read the number.
        assert_eq!(name.rsplit_once("lock-").map(|(_, number)| number), Some("0000000007"));
        assert_eq!(name.rsplit_once('-').map(|(_, number)| number), Some("0000000007"));
        assert!(Recipe::Mutex.reads(&name));
        // Not everything that looks like one is: another client's lock is one that is held alone.
        assert!(!Recipe::Mutex.reads("x-read-lock-0000000007"));
    }
}
