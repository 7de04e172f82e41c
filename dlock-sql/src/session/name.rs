//! The names of a lock on the server.

use dlock_core::backend::Mode;
use dlock_core::{Holder, Key, Token};

use crate::digest::{digest, input};
use crate::text::{hex, unhex};

/// The first byte of the rows that are locked; see [`FENCE`] for those with the fences.
pub(crate) const ROW: u8 = 0xfe;
/// The first byte of the rows with the fences of sessions and locked rows.
pub(crate) const FENCE: u8 = 0xff;
/// The first byte of the rows about readers.
pub(crate) const READER: u8 = 0xfb;

/// The names of a lock on the server.
#[derive(Clone, Debug)]
pub struct Name {
    /// The digest, for servers that want something short.
    pub(crate) digest: [u8; 32],
    /// The row that is locked, in row mode. No text begins with these bytes: leases, fences and locked rows are never
    /// mixed up.
    pub(crate) row: Vec<u8>,
    /// The row with the fence.
    pub(crate) fence: Vec<u8>,
    /// The reader whose name it is; `None` where it is held alone.
    pub(crate) reader: Option<Reader>,
}

/// One of the readers of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// The row about the reader.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "on MariaDB it is that of the session")
    )]
    pub(crate) row: Vec<u8>,
    /// Set if others read by the same session, which has the lock for all of them.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only sessions of PostgreSQL read"))]
    pub(crate) beside: bool,
}

impl Name {
    pub(crate) fn of(place: &str, key: &Key) -> Self {
        let bytes = key.as_str().as_bytes();
        let row = |mark: u8| std::iter::once(mark).chain(bytes.iter().copied()).collect();
        let digest = digest("session", &[place, key.as_str()]);
        Self { digest, row: row(ROW), fence: row(FENCE), reader: None }
    }

    /// Returns the name for this reader.
    pub(crate) fn read_by(mut self, token: &Token, beside: bool) -> Self {
        let row = [&self.readers(), &token.as_bytes()[..]].concat();
        self.reader = Some(Reader { row, beside });
        self
    }

    /// Returns `true` if it is read, and not held alone.
    pub(crate) const fn is_read(&self) -> bool {
        self.reader.is_some()
    }

    /// Returns the first bytes of the rows about all readers.
    pub(crate) fn readers(&self) -> Vec<u8> {
        [&[READER], &self.digest[..24]].concat()
    }

    /// Returns the input of the digest of every name at this place, up to the key with its length.
    pub(crate) fn prefix(place: &str) -> Vec<u8> {
        input("session", &[place])
    }

    /// Returns the key that a row is of.
    pub(crate) fn key(row: &[u8]) -> Option<Key> {
        Key::new(std::str::from_utf8(row.get(1..)?).ok()?).ok()
    }
}

/// The first bytes of the line about a reader.
const OF: &str = "of=";
/// The longest line that a table has room for.
const LONGEST_LINE: usize = 2_048;

/// Returns the line about a reader, with the key that it reads, since the row has no room for that.
pub(crate) fn line_of_reader(key: &Key, line: &str) -> String {
    let mut line = format!("{OF}{} {line}", hex(key.as_str().as_bytes()));
    while line.len() > LONGEST_LINE {
        line.pop();
    }
    line
}

/// Returns the holder by the line that is stored.
pub(crate) fn holder_of(line: &str) -> Holder {
    let mut holder = Holder::parse(line);
    if line.starts_with(OF) {
        holder.mode = Mode::Shared;
    }
    holder
}

/// Returns the key that a reader reads, by the line about it.
pub(crate) fn key_of_reader(line: &str) -> Option<Key> {
    let digits = line.strip_prefix(OF)?.split(' ').next()?;
    Key::new(String::from_utf8(unhex(digits)).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_and_key_has_a_name_and_rows_of_its_own() {
        let name = |place: &str, key: &str| Name::of(place, &Key::new(key).unwrap());
        let one = name("public.dlock", "a");
        assert_eq!((&*one.row, &*one.fence), (&b"\xfea"[..], &b"\xffa"[..]));
        assert_eq!(one.digest, name("public.dlock", "a").digest);
        for other in [name("public.dlock", "b"), name("other.dlock", "a"), name("public.dloc", "ka")] {
            assert_ne!(one.digest, other.digest);
        }
        assert!(std::str::from_utf8(&one.row).is_err() && std::str::from_utf8(&one.fence).is_err());
    }

    #[test]
    fn the_line_about_a_reader_says_what_it_reads_and_has_room_in_the_table() {
        for key in ["a", "Zürich = 🔒", &"x".repeat(512)] {
            let key = Key::new(key).unwrap();
            for line in ["pid=7 label=l", &"ä".repeat(2_000)] {
                let stored = line_of_reader(&key, line);
                assert!(stored.len() <= LONGEST_LINE, "{}", stored.len());
                assert_eq!(key_of_reader(&stored), Some(key.clone()));
                assert_eq!(holder_of(&stored).mode, Mode::Shared);
            }
            assert_eq!(holder_of(&line_of_reader(&key, "pid=7 label=l")).pid, Some(7));
        }
        assert_eq!(holder_of("pid=7").mode, Mode::Exclusive);
        assert_eq!(
            (key_of_reader("pid=7"), key_of_reader("of=zz"), key_of_reader("of=")),
            (None, None, None)
        );
    }
}
