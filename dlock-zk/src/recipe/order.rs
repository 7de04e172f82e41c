//! The order of the nodes in a queue, and which of them hold the lock.
//!
//! ```text
//!  front   R 7   R 8   W 9   R 10   W 11      R reads, W writes; in the order of their numbers
//!          └─ hold ┘    │     │      │
//!                       │     │      └─ waits for R 10: every node before a writer is in its way
//!                       │     └─ waits for W 9: readers are not in the way of a reader
//!                       └─ waits for R 8
//! ```

use super::{Kind, ParsedName, Recipe};

/// The position of a node in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The node stands in front: it has the lock.
    First,
    /// The node reads, and only readers stand before it: it has the lock too.
    Reading,
    /// Other nodes stand before it that have to leave.
    Behind {
        /// The node in front, which holds the lock.
        first: String,
        /// The last of the nodes that have to leave.
        previous: String,
    },
    /// The node is gone.
    Missing,
    /// Nodes before it use the key as a semaphore.
    Semaphore,
    /// Not known: this child was numbered for another recipe.
    Unclear(String),
    /// Not known: the directory has run out of numbers.
    Exhausted,
}

impl Recipe {
    /// Returns the nodes of a queue in their order, the one in front first.
    pub(crate) fn in_order<'a>(self, children: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
        let mut nodes: Vec<_> = children.into_iter().filter_map(|name| self.parse(name)).collect();
        // Numbers may have wrapped. Compared with any one of them all are in order, since a queue is far shorter than
        // half of the numbers.
        let Some(reference) = nodes.first().map(|node| node.number) else { return Vec::new() };
        nodes.sort_by_key(|node| (behind(node.number, reference), node.kind == Kind::Reads));
        nodes.into_iter().map(|node| node.name).collect()
    }

    /// Returns `true` if the number of a node does not show its position.
    pub(crate) fn has_no_order(self, name: &str) -> bool {
        self.sequence(name).is_none_or(is_exhausted)
    }

    /// Returns how many of the nodes of a queue, in its order, hold the lock.
    pub(crate) fn holding(self, in_order: &[&str]) -> usize {
        match in_order.iter().position(|name| !self.reads(name)) {
            Some(0) => 1,
            Some(readers) => readers,
            None => in_order.len(),
        }
    }

    /// Returns the position of the node `own` among `children`, in one pass.
    pub(crate) fn position(self, children: &[String], own: &str) -> Position {
        let Some(ParsedName { number: reference, kind, .. }) = self.parse(own) else {
            return Position::Missing;
        };
        if is_exhausted(reference) {
            return Position::Exhausted;
        }
        let (mut first, mut previous) = (None::<(i64, &String)>, None::<(i64, &String)>);
        let mut found = false;
        for name in children {
            let Some(node) = self.parse(name) else {
                if self.is_foreign(name) {
                    return Position::Unclear(name.clone());
                }
                continue;
            };
            let distance = behind(node.number, reference);
            found |= name == own;
            if distance >= 0 {
                continue;
            }
            if first.is_none_or(|(lowest, _)| distance < lowest) {
                first = Some((distance, name));
            }
            // Behind the check of the distance: a semaphore behind the node does not concern it.
            if matches!(node.kind, Kind::Takes(_)) {
                return Position::Semaphore;
            }
            // Readers are in each other's way only by a writer between them.
            let in_the_way = (kind, node.kind) != (Kind::Reads, Kind::Reads);
            if in_the_way && previous.is_none_or(|(highest, _)| distance > highest) {
                previous = Some((distance, name));
            }
        }
        match (found, first, previous) {
            (false, ..) => Position::Missing,
            (true, Some((_, first)), Some((_, previous))) => {
                Position::Behind { first: first.clone(), previous: previous.clone() }
            }
            (true, Some(_), None) => Position::Reading,
            (true, None, _) => Position::First,
        }
    }
}

/// Returns `true` for a number that shows no order. Once the numbers have run out, the servers give the highest one
/// again and again, and now and then a negative one in between, so that it is not known which node came first.
fn is_exhausted(number: i64) -> bool {
    number < 0 || number >= i32::MAX.into()
}

/// Returns how far `sequence` stands behind `reference`; negative if it stands before.
///
/// The server counts in 32 bits and goes on at the lowest negative number after the highest positive one.
fn behind(sequence: i64, reference: i64) -> i64 {
    match (i32::try_from(sequence), i32::try_from(reference)) {
        (Ok(sequence), Ok(reference)) => sequence.wrapping_sub(reference).into(),
        _ => sequence.wrapping_sub(reference),
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::Token;
    use dlock_core::backend::Mode;

    use super::*;
    use crate::recipe::LATCH;

    const A: &str = "_c_00000000-0000-0000-0000-00000000000a-lock-";
    const B: &str = "_c_00000000-0000-0000-0000-00000000000b-lock-";
    const C: &str = "_c_00000000-0000-0000-0000-00000000000c-lock-";

    fn at(prefix: &str, number: i32) -> String {
        format!("{prefix}{number:010}")
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
            assert!(Recipe::Mutex.sequence(&name).is_some(), "{name}");
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
            assert_eq!(
                (Recipe::Mutex.sequence(name), Recipe::Mutex.is_foreign(name)),
                (None, false),
                "{name}"
            );
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
            assert_eq!(
                (Recipe::Mutex.sequence(name), Recipe::Mutex.is_foreign(name)),
                (None, true),
                "{name}"
            );
            let position = Recipe::Mutex.position(&[at(A, 1), name.to_owned()], &at(A, 1));
            assert_eq!(position, Position::Unclear(name.to_owned()));
        }
    }

    #[test]
    fn who_stands_first_has_the_lock_and_the_others_watch_the_one_before() {
        let queue = || vec![at(C, 12), "other".to_owned(), at(A, 3), at(B, 7)];
        let behind = |previous: String| Position::Behind { first: at(A, 3), previous };
        assert_eq!(Recipe::Mutex.position(&queue(), &at(A, 3)), Position::First);
        assert_eq!(Recipe::Mutex.position(&queue(), &at(B, 7)), behind(at(A, 3)));
        assert_eq!(Recipe::Mutex.position(&queue(), &at(C, 12)), behind(at(B, 7)));
        assert_eq!(Recipe::Mutex.position(&queue(), &at(A, 13)), Position::Missing);
        assert_eq!(Recipe::Mutex.position(&[], &at(A, 13)), Position::Missing);
        assert_eq!(Recipe::Mutex.in_order(&queue()), [&at(A, 3), &at(B, 7), &at(C, 12)]);
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
                assert_eq!(Recipe::Mutex.in_order(&queue()), names, "{run:?}");
                for place in [0, 1, 2] {
                    let (first, previous) = (names[0].clone(), names[place.max(1) - 1].clone());
                    let expected = match (run[place], place) {
                        (i32::MIN..0 | i32::MAX, _) => Position::Exhausted,
                        (_, 0) => Position::First,
                        _ => Position::Behind { first, previous },
                    };
                    assert_eq!(Recipe::Mutex.position(&queue(), &names[place]), expected, "{run:?}");
                }
            }
        }
    }

    #[test]
    fn two_nodes_of_one_number_are_granted_nothing() {
        let queue = [at(A, i32::MAX), at(B, i32::MAX), at(C, i32::MIN)];
        for own in &queue {
            assert_eq!(Recipe::Mutex.position(&queue, own), Position::Exhausted);
        }
    }

    const READERS: [(Recipe, [&str; 2]); 2] =
        [(Recipe::Mutex, ["-lock-", "-read-lock-"]), (Recipe::ReadWriteLock, ["-__WRIT__", "-__READ__"])];

    fn named(uuid: char, mark: &str, number: i32) -> String {
        format!("_c_00000000-0000-0000-0000-00000000000{uuid}{mark}{number:010}")
    }

    #[test]
    fn readers_wait_for_the_last_writer_before_them_and_writers_for_everybody() {
        for (recipe, [write, read]) in READERS {
            let line = [('a', read, 1), ('b', read, 2), ('c', write, 3), ('d', read, 4), ('e', write, 6)];
            let mut line: Vec<_> = line.map(|(uuid, mark, number)| named(uuid, mark, number)).into();
            line.push(named('f', read, 7));
            let behind = |previous: usize| Position::Behind {
                first: line[0].clone(),
                previous: line[previous].clone(),
            };
            let expected = [Position::First, Position::Reading, behind(1), behind(2), behind(3), behind(4)];
            for turned in 0..line.len() {
                let mut children = line.clone();
                children.rotate_left(turned);
                for (own, expected) in line.iter().zip(&expected) {
                    assert_eq!(recipe.position(&children, own), *expected, "{recipe:?} {own}");
                }
                let in_order = recipe.in_order(&children);
                assert_eq!(in_order, line);
                for (from, holding) in [(0, 2), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 0)] {
                    assert_eq!(recipe.holding(&in_order[from..]), holding, "from {from}");
                }
            }
            assert_eq!(
                recipe.position(&line[3..], &line[5]),
                Position::Behind { first: line[3].clone(), previous: line[4].clone() }
            );
        }
    }

    #[test]
    fn the_nodes_of_one_recipe_are_foreign_to_the_other() {
        for (recipe, [write, read]) in READERS {
            let other = if recipe == Recipe::Mutex { Recipe::ReadWriteLock } else { Recipe::Mutex };
            let own = other.prefix(&Token::random().unwrap(), Mode::Exclusive);
            for mark in [write, read] {
                let (name, own) = (named('a', mark, 1), format!("{own}0000000002"));
                assert!(recipe.sequence(&name).is_some());
                let position = other.position(&[name.clone(), own.clone()], &own);
                assert_eq!(position, Position::Unclear(name));
            }
        }
    }

    #[test]
    fn the_nodes_of_a_leader_latch_are_in_one_line_and_foreign_to_locks() {
        let own =
            format!("{}0000000002", Recipe::LeaderLatch.prefix(&Token::random().unwrap(), Mode::Exclusive));
        // As Curator names and sorts them.
        assert_eq!(own.rsplit_once("latch-").map(|(_, number)| number), Some("0000000002"));
        let java = named('a', LATCH, 1);
        let behind = Position::Behind { first: java.clone(), previous: java.clone() };
        assert_eq!(Recipe::LeaderLatch.position(&[own.clone(), java.clone()], &own), behind);
        assert_eq!(Recipe::LeaderLatch.position(&[own.clone(), java.clone()], &java), Position::First);
        assert_eq!(Recipe::LeaderLatch.in_order(&[own.clone(), java.clone()]), [&java, &own]);
        for other in [Recipe::Mutex, Recipe::ReadWriteLock] {
            let lock = format!("{}0000000003", other.prefix(&Token::random().unwrap(), Mode::Exclusive));
            assert_eq!(other.position(&[java.clone(), lock.clone()], &lock), Position::Unclear(java.clone()));
            let position = Recipe::LeaderLatch.position(&[lock.clone(), own.clone()], &own);
            assert_eq!(position, Position::Unclear(lock));
        }
    }

    /// It stands with its own write lock.
    #[test]
    fn a_writer_of_curator_that_reads_too_is_waited_for_by_writers_with_both_nodes() {
        let recipe = Recipe::ReadWriteLock;
        let (writer, reader) = (named('a', "-__WRIT__", 5), named('b', "-__READ__", 5));
        let (next, reads) = (named('c', "-__WRIT__", 6), named('d', "-__READ__", 7));
        let children = [reader.clone(), writer.clone(), next.clone(), reads.clone()];
        assert_eq!(recipe.in_order(&children), [&writer, &reader, &next, &reads]);
        assert!(matches!(recipe.position(&children, &next), Position::Behind { .. }));
        let left = [reader.clone(), next.clone(), reads.clone()];
        assert!(
            matches!(recipe.position(&left, &next), Position::Behind { previous, .. } if previous == reader)
        );
        assert_eq!(recipe.position(&[reader, reads.clone()], &reads), Position::Reading);
    }

    #[test]
    fn what_is_left_stands_where_its_last_holder_stood_and_is_a_lock_to_all_others() {
        let token = Token::random().unwrap();
        for (recipe, mark) in [(Recipe::Mutex, "lock-"), (Recipe::ReadWriteLock, "__WRIT__")] {
            let prefix = recipe.prefix(&token, Mode::Exclusive);
            let own = format!("{prefix}0000000007");
            let left = recipe.left_behind(&token, &own, 90_000).unwrap();
            // As Curator sorts.
            assert_eq!(left.rsplit_once(mark).map(|(_, number)| number), Some("0000000007"), "{left}");
            assert!(!left.starts_with(&*prefix), "nothing that looks for the holder finds it");
            assert_eq!((recipe.left_for(&left), recipe.left_for(&own)), (Some(90_000), None));
            assert!(!recipe.reads(&left) && recipe.takes(&left).is_none() && !recipe.is_foreign(&left));
            let reader = format!("{}0000000008", recipe.prefix(&token, Mode::Shared));
            let writer = format!("{prefix}0000000009");
            let children = [writer.clone(), left.clone(), reader.clone()];
            let behind =
                |previous: &String| Position::Behind { first: left.clone(), previous: previous.clone() };
            assert_eq!(recipe.position(&children, &reader), behind(&left));
            assert_eq!(recipe.position(&children, &writer), behind(&reader));
            assert_eq!(recipe.holding(&recipe.in_order(&children)), 1);
        }
        assert_eq!(
            Recipe::Mutex.left_for(&at("_c_00000000-0000-0000-0000-00000000000a-left-x-lock-", 1)),
            None
        );
    }
}
