//! The identity of the lock that a key names, the same in all processes.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

/// Names one lock among all locks of all backends: the place that keeps it, and its name there.
///
/// Two ids are equal exactly when they name the same lock, in whatever process they are made, and
/// [batches](crate::Batch) take their locks in the order of the ids. The place is first in that order, then the name,
/// byte by byte.
///
/// ```
/// use dlock_core::backend::LockId;
///
/// let on_a = LockId::new("redis://a:6379/0", "room_7");
/// assert_eq!(on_a, LockId::new(format_args!("redis://{}/0", "a:6379"), "room_7"));
/// assert!(on_a < LockId::new("redis://b:6379/0", "room_1"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(Arc<str>);

impl LockId {
    /// Creates the id of the lock that is called `name` in `place`.
    ///
    /// The place is the kind of the backend and all that distinguishes its locks from those of others: servers,
    /// database, table. It has no passwords, and is the same in all processes that are configured alike.
    #[must_use]
    pub fn new(place: impl Display, name: impl AsRef<str>) -> Self {
        // No place and no name has a NUL, so that place "a" comes before place "ab" whatever the names.
        Self(format!("{place}\0{}", name.as_ref()).into())
    }

    /// Creates the id of a lock that consists of several, in whatever order they are given.
    #[must_use]
    pub fn of_all(kind: impl Display, parts: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<_> = parts.into_iter().collect();
        parts.sort();
        let mut text = kind.to_string();
        for part in parts {
            let _ = write!(text, "\0{}", part.0);
        }
        Self(text.into())
    }

    /// Returns the name of the lock in its place.
    pub(crate) fn name(&self) -> &str {
        self.0.split_once('\0').map_or(&self.0, |(_, name)| name)
    }
}

impl fmt::Debug for LockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.split('\0')).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_first_in_the_order_and_then_the_key() {
        let ids = [("a", "z"), ("a", "zz"), ("ab", "a"), ("b", "a")];
        let sorted = ids.map(|(place, name)| LockId::new(place, name));
        assert!(sorted.is_sorted());
    }

    #[test]
    fn the_order_of_the_parts_does_not_matter_and_their_places_do() {
        let of = |places: [&str; 2]| LockId::of_all("quorum", places.map(|place| LockId::new(place, "k")));
        assert_eq!(of(["a", "b"]), of(["b", "a"]));
        assert_ne!(of(["a", "b"]), of(["a", "c"]));
    }
}
