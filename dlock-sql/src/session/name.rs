//! What a lock is called on the server.

use dlock_core::Key;

use crate::digest::{digest, input};

/// What the rows begin with that are locked, and those with the fences.
pub(crate) const ROW: u8 = 0xfe;
/// See [`ROW`].
pub(crate) const FENCE: u8 = 0xff;

/// What a lock is called on the server.
#[derive(Clone, Debug)]
pub struct Name {
    /// A digest, for servers that want something short.
    pub(crate) digest: [u8; 32],
    /// The row that is locked, in row mode. No text begins with these bytes: leases, fences and locked rows are never
    /// mixed up.
    pub(crate) row: Vec<u8>,
    /// The row with the fence.
    pub(crate) fence: Vec<u8>,
}

impl Name {
    pub(crate) fn of(place: &str, key: &Key) -> Self {
        let bytes = key.as_str().as_bytes();
        let row = |mark: u8| std::iter::once(mark).chain(bytes.iter().copied()).collect();
        Self { digest: digest("session", &[place, key.as_str()]), row: row(ROW), fence: row(FENCE) }
    }

    /// What the digest of a name at this place is of, except for the key with its length.
    pub(crate) fn prefix(place: &str) -> Vec<u8> {
        input("session", &[place])
    }

    /// The key that a row is of.
    pub(crate) fn key(row: &[u8]) -> Option<Key> {
        Key::new(std::str::from_utf8(row.get(1..)?).ok()?).ok()
    }
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
}
