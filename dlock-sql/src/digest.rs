//! Names of locks where the server wants a number or a short name.

use sha2::{Digest, Sha256};

/// Returns a digest of `parts`, each with its length so that no two lists are one text.
pub(crate) fn digest(kind: &str, parts: &[&str]) -> [u8; 32] {
    Sha256::digest(input(kind, parts)).into()
}

/// Returns the input of the digest.
pub(crate) fn input(kind: &str, parts: &[&str]) -> Vec<u8> {
    let mut input = Vec::new();
    for part in std::iter::once(&kind).chain(parts) {
        input.extend((part.len() as u64).to_be_bytes());
        input.extend(part.as_bytes());
    }
    input
}

/// Returns 64 bits of the digest.
#[cfg(all(feature = "postgres", feature = "tx"))]
pub(crate) fn number(kind: &str, parts: &[&str]) -> i64 {
    let [a, b, c, d, e, f, g, h, ..] = digest(kind, parts);
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_have_different_digests() {
        let keys = dlock_testkit::generated_keys(10_000);
        let digests: std::collections::HashSet<_> =
            keys.iter().map(|key| digest("dlock", &["locks", key])).collect();
        assert_eq!(digests.len(), keys.len());
    }

    #[test]
    fn where_one_part_ends_and_the_next_begins_counts() {
        assert_eq!(digest("a", &["b", "c"]), digest("a", &["b", "c"]));
        for other in [
            digest("a", &["bc"]),
            digest("ab", &["c"]),
            digest("a", &["c", "b"]),
            digest("a", &["b", "c", ""]),
        ] {
            assert_ne!(digest("a", &["b", "c"]), other);
        }
    }
}
