//! The number of permits of a semaphore, and which nodes have some.
//!
//! | number | where |
//! |---|---|
//! | permits of the semaphore | `permits=<number>` in the data of the directory of the key |
//! | permits that a node takes | in its name, see `recipe.rs` |
//!
//! Permits are given in the order of the queue: a node has its own once those of the nodes before it and its own are no
//! more than there are. So no node passes one that wants many permits, and all nodes behind a node that waits wait too.
//!
//! ```text
//!  4 permits    takes 2    takes 1    takes 3    takes 1
//!               Granted    Granted    Next       Behind
//! ```

use dlock_core::Failure;

use crate::recipe::Recipe;

const PERMITS: &str = "permits=";

/// The position of a node that takes permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PermitPosition {
    /// The node has its permits.
    Granted {
        /// `true` if others stand behind it, which may have to be woken.
        followed: bool,
    },
    /// The node is the first that waits, for any of those that have permits.
    Next {
        /// A node that has permits; the node itself, if it stands in front and takes more than there are.
        first: String,
    },
    /// The node waits behind another node that waits.
    Behind {
        /// A node that has permits.
        first: String,
        /// The node before it.
        previous: String,
    },
    /// The node is gone.
    Missing,
}

/// The reason why no permits are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// A node before it uses the key as a lock.
    Lock,
    /// This child was numbered for another recipe.
    Unclear(String),
    /// The directory has run out of numbers.
    Exhausted,
}

impl PermitPosition {
    /// Returns the position of the node `own` among `children`, of a semaphore of so many permits.
    pub(crate) fn of(recipe: Recipe, children: &[String], own: &str, permits: u32) -> Result<Self, Unusable> {
        if !children.iter().any(|name| name == own) {
            return Ok(Self::Missing);
        }
        // Both come first: without an order, or with nodes of another recipe, no position is known.
        if recipe.has_no_order(own) {
            return Err(Unusable::Exhausted);
        }
        if let Some(foreign) = children.iter().find(|name| recipe.is_foreign(name)) {
            return Err(Unusable::Unclear(foreign.clone()));
        }
        let queue = recipe.in_order(children);
        let at = queue.iter().position(|name| *name == own).unwrap_or(queue.len());
        if queue[..at].iter().any(|name| recipe.takes(name).is_none()) {
            return Err(Unusable::Lock);
        }
        let has = holding(recipe, &queue, permits);
        Ok(match (queue.first(), at.checked_sub(1).and_then(|before| queue.get(before))) {
            _ if at < has => Self::Granted { followed: queue.len() > at + 1 },
            (Some(first), Some(_)) if at == has => Self::Next { first: (*first).to_owned() },
            (Some(first), Some(previous)) => {
                Self::Behind { first: (*first).to_owned(), previous: (*previous).to_owned() }
            }
            // The node takes more permits than there are, and waits for an operator to change the number.
            _ => Self::Next { first: own.to_owned() },
        })
    }
}

/// Returns how many of the nodes of a queue, in its order, have their permits.
pub(crate) fn holding(recipe: Recipe, in_order: &[&str], permits: u32) -> usize {
    let mut left = permits;
    in_order
        .iter()
        .take_while(|name| match recipe.takes(name).and_then(|taken| left.checked_sub(taken)) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        })
        .count()
}

/// Returns the data of the directory of a semaphore of so many permits.
pub(crate) fn content(permits: u32) -> String {
    format!("{PERMITS}{permits}")
}

/// Returns how many permits the semaphore of a directory with this data has, or `None` if it is not known to be one.
pub(crate) fn permits(content: &[u8]) -> Option<u32> {
    std::str::from_utf8(content).ok()?.strip_prefix(PERMITS)?.parse().ok().filter(|permits| *permits > 0)
}

/// Returns the failure of a claim for permits, of a directory whose data is not that of a semaphore.
pub(crate) fn strange(directory: &str) -> Failure {
    Failure::invalid_config(format!(
        "{directory} has data that dlock did not write, so that it cannot keep the number of permits there: use another \
         key, or delete the data"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: char, take: u32, number: u32) -> String {
        format!("_c_00000000-0000-0000-0000-00000000000{id}-permits-{take}-lock-{number:010}")
    }

    fn place(children: &[String], own: &str, permits: u32) -> Result<PermitPosition, Unusable> {
        PermitPosition::of(Recipe::Mutex, children, own, permits)
    }

    #[test]
    fn permits_are_given_in_the_order_of_the_queue() {
        let queue = [node('a', 2, 1), node('b', 1, 2), node('c', 3, 3), node('d', 1, 4)];
        let mut children = queue.to_vec();
        children.reverse();
        let first = queue[0].clone();
        assert_eq!(place(&children, &queue[0], 4), Ok(PermitPosition::Granted { followed: true }));
        assert_eq!(place(&children, &queue[1], 4), Ok(PermitPosition::Granted { followed: true }));
        assert_eq!(place(&children, &queue[2], 4), Ok(PermitPosition::Next { first: first.clone() }));
        assert_eq!(
            place(&children, &queue[3], 4),
            Ok(PermitPosition::Behind { first, previous: queue[2].clone() })
        );
        assert_eq!(place(&children[..1], &queue[3], 4), Ok(PermitPosition::Granted { followed: false }));
        assert_eq!(place(&children[1..], &queue[3], 4), Ok(PermitPosition::Missing));
    }

    #[test]
    fn fewer_permits_than_one_wants_let_it_wait_alone() {
        let alone = [node('a', 3, 1)];
        assert_eq!(place(&alone, &alone[0], 2), Ok(PermitPosition::Next { first: alone[0].clone() }));
    }

    #[test]
    fn locks_before_and_foreign_nodes_grant_nothing() {
        let own = node('b', 1, 2);
        let lock = "_c_00000000-0000-0000-0000-00000000000a-lock-0000000001".to_owned();
        assert_eq!(place(&[own.clone(), lock], &own, 9), Err(Unusable::Lock));
        let behind = "_c_00000000-0000-0000-0000-00000000000c-lock-0000000003".to_owned();
        assert_eq!(place(&[own.clone(), behind], &own, 9), Ok(PermitPosition::Granted { followed: true }));
        let foreign = "_c_00000000-0000-0000-0000-00000000000a-__READ__0000000001".to_owned();
        assert_eq!(place(&[own.clone(), foreign.clone()], &own, 9), Err(Unusable::Unclear(foreign)));
        let last = node('b', 1, i32::MAX.unsigned_abs());
        assert_eq!(place(std::slice::from_ref(&last), &last, 9), Err(Unusable::Exhausted));
    }

    #[test]
    fn the_number_of_permits_is_read_as_it_was_written_and_nothing_else_is_one() {
        assert_eq!(permits(content(1_000_000).as_bytes()), Some(1_000_000));
        for strange in ["", "permits=", "permits=0", "permits=-1", "permits=4294967296", "4", "permits=4 "] {
            assert_eq!(permits(strange.as_bytes()), None, "{strange:?}");
        }
        assert_eq!(permits(&[0xff, 0xfe]), None);
    }
}
