//! The names of keys on the servers, which are those of etcd's Go client.
//!
//! | what | key |
//! |---|---|
//! | the directory of a lock | `<prefix>/<key>/` |
//! | a claim: a hold, or a place in the queue | `<prefix>/<key>/dlock-<token>` |
//! | the number of permits of a semaphore | `<prefix>/<key>` |
//!
//! A key with a `/` or a control character is escaped, as [`escape_key`] does, so that no directory is inside another.

use dlock_core::backend::{escape_key, unescape_key};
use dlock_core::{Key, Token};

const CLAIM: &str = "dlock-";

/// Returns the key of the number of permits, which is that of the directory without the slash at its end.
pub(crate) fn number_key(prefix: &str, key: &Key) -> String {
    let name = escape_key(key.as_str(), false, |c| c != '/' && !c.is_control());
    format!("{prefix}/{name}")
}

pub(crate) fn claim_key(number_key: &str, token: &Token) -> String {
    format!("{number_key}/{CLAIM}{}", token.to_hex())
}

/// Returns whether a claim of dlock has this key.
pub(crate) fn is_claim(key: &str) -> bool {
    let name = key.rsplit('/').next().and_then(|name| name.strip_prefix(CLAIM));
    name.is_some_and(|token| Token::from_hex(token).is_some())
}

/// Returns the lock to which a key below the prefix belongs: its claims, and the number of its permits.
pub(crate) fn lock_of(prefix: &str, key: &str) -> Option<Key> {
    let name = key.strip_prefix(prefix)?.strip_prefix('/')?.split('/').next()?;
    unescape_key(name).filter(|key| number_key(prefix, key)[prefix.len() + 1..] == *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_each_of_its_keys_is_found_again() {
        for text in dlock_testkit::generated_keys(2_000) {
            let (key, token) = (Key::new(text).unwrap(), Token::from_bytes([7; 16]));
            let number = number_key("a/b", &key);
            let claim = claim_key(&number, &token);
            assert_eq!(claim.matches('/').count(), 3, "{claim}");
            assert!(is_claim(&claim) && !is_claim(&number));
            assert_eq!((lock_of("a/b", &number), lock_of("a/b", &claim)), (Some(key.clone()), Some(key)));
        }
    }

    #[test]
    fn keys_of_others_are_no_claims_of_dlock() {
        for key in ["a/k/694d7a1b2c3d4e5f", "a/k/dlock-", "a/k/dlock-7", "a/k", "a/dlock-07/x"] {
            assert!(!is_claim(key), "{key}");
        }
        assert_eq!(lock_of("a", "a/%k/x"), None, "escaped for no reason");
        assert_eq!(lock_of("a", "ab/k"), None);
    }
}
