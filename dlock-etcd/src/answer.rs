//! What the servers answer: the entries of a directory, and what stands in them.
//!
//! The value of a claim of dlock is `mode=<mode> <line of the holder>`. That of a key that was left has
//! `left=1 for=<milliseconds> ` before it. Any other key below a directory counts as an exclusive claim.

use std::time::Duration;

use dlock_core::backend::{LEFT_BEHIND, Mode};
use dlock_core::{Fence, Holder};
use etcd_client::{Compare, CompareOp, KeyValue, TxnOpResponse, TxnResponse};

use crate::names::is_claim;
use crate::rule;
use crate::semaphore::Number;

/// A key below the directory of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The name as a text.
    pub(crate) key: String,
    /// The name as it is stored: that of another client need not be a text.
    pub(crate) name: Vec<u8>,
    pub(crate) revision: i64,
    /// The revision of the last change.
    pub(crate) changed: i64,
    pub(crate) lease: i64,
    pub(crate) mode: Mode,
    text: String,
}

/// The longest value that is read; another client may store more.
const LONGEST: usize = 4_096;

impl Entry {
    pub(crate) fn of(stored: &KeyValue) -> Self {
        let key = String::from_utf8_lossy(stored.key()).into_owned();
        let value = stored.value();
        let text = String::from_utf8_lossy(&value[..value.len().min(LONGEST)]).into_owned();
        let mode = if is_claim(&key) { mode_of(&text) } else { Mode::Exclusive };
        let (revision, changed) = (stored.create_revision(), stored.mod_revision());
        let name = stored.key().to_owned();
        Self { key, name, revision, changed, lease: stored.lease(), mode, text }
    }

    /// Returns the time for which the key was left taken.
    pub(crate) fn left_for(&self) -> Option<Duration> {
        let millis = self.text.strip_prefix(LEFT_BEHIND)?.strip_prefix("for=")?.split(' ').next()?;
        millis.parse().ok().filter(|_| is_claim(&self.key)).map(Duration::from_millis)
    }

    pub(crate) fn holder(&self, number: Option<u32>) -> Holder {
        let mut holder = Holder::default();
        if is_claim(&self.key) {
            holder = Holder::parse(&self.text);
        } else {
            // Go's mutex stores nothing, and its election what the program proclaims.
            let name = self.key.rsplit('/').next().unwrap_or_default();
            holder.label = Some(if self.text.is_empty() { name } else { &*self.text }.to_owned());
        }
        holder.fence = Some(fence(self.revision));
        holder.mode = match self.mode {
            Mode::Permits { of, take } => Mode::Permits { of: number.unwrap_or(of), take },
            mode => mode,
        };
        holder
    }
}

pub(crate) fn fence(revision: i64) -> Fence {
    Fence::new(revision.unsigned_abs())
}

/// Returns the value of a claim.
pub(crate) fn value(mode: Mode, line: &str) -> String {
    match mode {
        Mode::Shared => format!("mode=read {line}"),
        Mode::Permits { of, take } => format!("mode=permits:{of}:{take} {line}"),
        _ => format!("mode=write {line}"),
    }
}

/// Returns the value of a key that is left.
pub(crate) fn left(line: &str, taken_for: Duration) -> String {
    format!("{LEFT_BEHIND}for={} {}", taken_for.as_millis(), value(Mode::Exclusive, line))
}

fn mode_of(value: &str) -> Mode {
    let mode = value.split(' ').find_map(|field| field.strip_prefix("mode=")).unwrap_or_default();
    let permits = || {
        let (of, take) = mode.strip_prefix("permits:")?.split_once(':')?;
        Some(Mode::Permits { of: of.parse().ok()?, take: take.parse().ok()? })
    };
    // What cannot be read keeps everybody out, as a foreign key does.
    permits().unwrap_or(if mode == "read" { Mode::Shared } else { Mode::Exclusive })
}

/// Returns the comparison that holds if nothing in the directory was put after this revision.
pub(crate) fn unchanged(number_key: &str, revision: i64) -> Compare {
    Compare::mod_revision(format!("{number_key}/"), CompareOp::Less, revision + 1).with_prefix()
}

/// The answer to a transaction.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) term: u64,
    pub(crate) revision: i64,
    pub(crate) succeeded: bool,
    /// In the order of their create revisions, each once.
    pub(crate) entries: Vec<Entry>,
    pub(crate) number: Option<Number>,
    /// Something else stands where the number of permits would.
    pub(crate) is_foreign: bool,
}

impl Answer {
    /// Reads an answer about the lock whose number of permits has this key.
    pub(crate) fn of(answer: &TxnResponse, number_key: &str) -> Self {
        let mut all = Self { succeeded: answer.succeeded(), ..Self::default() };
        if let Some(header) = answer.header() {
            (all.term, all.revision) = (header.raft_term(), header.revision());
        }
        for response in answer.op_responses() {
            if let TxnOpResponse::Get(got) = response {
                got.kvs().iter().for_each(|stored| all.note(stored, number_key));
            }
        }
        all.sort();
        all
    }

    /// Adds a key, if it belongs to this lock.
    pub(crate) fn note(&mut self, stored: &KeyValue, number_key: &str) {
        match stored.key().strip_prefix(number_key.as_bytes()) {
            Some([]) => {
                self.number = Number::of(stored);
                self.is_foreign = self.number.is_none();
            }
            Some([b'/', ..]) => self.entries.push(Entry::of(stored)),
            _ => {}
        }
    }

    pub(crate) fn sort(&mut self) {
        // A foreign client may put several keys of one directory in one step.
        self.entries.sort_by(|one, other| (one.revision, &one.key).cmp(&(other.revision, &other.key)));
        self.entries.dedup_by(|one, other| one.key == other.key);
    }

    /// Is `true` if nothing of this lock was read.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.number.is_none() && !self.is_foreign
    }

    pub(crate) fn find(&self, key: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.key == key)
    }

    pub(crate) fn modes(&self) -> Vec<Mode> {
        self.entries.iter().map(|entry| entry.mode).collect()
    }

    /// Returns the number of permits, also where it was forgotten while permits are held.
    pub(crate) fn permits(&self) -> Option<u32> {
        let stored = self.number.as_ref().map(|number| number.permits);
        stored.or_else(|| self.entries.first().and_then(|first| first.mode.permits()))
    }

    pub(crate) fn holding(&self) -> usize {
        rule::holding(&self.modes(), self.permits().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_was_written_and_what_is_strange_keeps_everybody_out() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { of: 4, take: 2 }] {
            let text = value(mode, "host=a pid=7 since=5");
            assert_eq!(mode_of(&text), mode);
            assert_eq!(Holder::parse(&text).pid, Some(7));
        }
        for strange in ["", "mode=", "mode=permits:4", "mode=permits:x:1", "mode=reads", "read"] {
            assert_eq!(mode_of(strange), Mode::Exclusive, "{strange}");
        }
        let holder = Holder::parse(&left("host=a pid=7", Duration::from_secs(2)));
        assert!(holder.left_behind && holder.pid == Some(7));
    }
}
