//! Which waiters for permits look again: those for whom enough permits have come free since their last look.
//!
//! An entry holds its permits once those up to its own are no more than there are, and nothing is ever put before it.
//! So a waiter [lacks](crate::rule::Place::Lacks) a number of permits, and these have to come free of entries that
//! stand before it. The stream of watches keeps a log of the last ends in the directory, each with its revision, the
//! place of what has ended (its create revision) and its permits. A waiter is woken with the log, and takes from what
//! it lacks whatever is newer than its look and had a place before its own. While it lacks anything, it waits on. So a
//! release is one event for each process, and a look for each waiter that has room.
//!
//! No wake-up is lost, since a waiter waits on only if all that came after its look is in the log. Whatever the log
//! cannot say stands there as the end of [everything](ALL), so that all look that have not looked since:
//!
//! | what happens | in the log | who looks |
//! |---|---|---|
//! | a release, a waiter that gives up, a lease that ends, a key deleted by others | its end | those behind it that lack no more |
//! | the own key is deleted | its end | the waiter itself |
//! | the number of permits is written or deleted | the end of everything | all |
//! | an end of which the servers do not know any more what it was | the end of everything | all |
//! | the watch has begun, and what came before is not in the log | the end of everything, at its revision | those whose look is older |
//! | the log gets too long for its oldest end | the end of everything, at its revision | those whose look is older |
//! | the stream breaks | there is none | all |
//! | a look found no number of permits | its end, whatever it says | the waiter, at each end |
//! | another program changes what a key takes, or an event is lost | nothing | the waiter, at its next look by itself |

use std::collections::VecDeque;
use std::fmt;

use etcd_client::{Event, EventType};

use crate::answer::Entry;

/// The most ends in a log.
const MOST: usize = 64;
/// The permits of everything.
const ALL: i64 = i64::MAX;

/// The last ends in a directory, the newest first: the revision of each, the place of what has ended and its permits.
/// The oldest one is that of everything.
#[derive(Default)]
pub(crate) struct Ends(VecDeque<[i64; 3]>);

impl Ends {
    /// Notes the end of an entry with this place, or, with [`ALL`], that of everything until this revision.
    fn note(&mut self, revision: i64, place: i64, taken: i64) {
        self.0.push_front([revision, place, taken]);
        self.0.truncate(MOST);
        if let Some([_, place, taken]) = self.0.back_mut() {
            (*place, *taken) = (0, ALL);
        }
    }

    /// Notes that the watch has begun with what comes after this revision.
    pub(crate) fn begin(&mut self, revision: i64) {
        self.note(revision, 0, ALL);
    }

    /// Notes an event of the lock whose number of permits has this key, and returns whether it is news.
    pub(crate) fn hear(&mut self, event: &Event, number_key: &str) -> bool {
        let Some(stored) = event.kv() else { return false };
        let before =
            event.prev_kv().map(|before| (before.create_revision(), Entry::of(before).mode.taken().into()));
        let (place, taken) = match stored.key().strip_prefix(number_key.as_bytes()) {
            Some([]) => (0, ALL),
            Some([b'/', ..]) if event.event_type() == EventType::Delete => before.unwrap_or((0, ALL)),
            // A key that is added stands behind those that wait. Between the number of permits and the directory there
            // are keys of other locks.
            _ => return false,
        };
        self.note(stored.mod_revision(), place, taken);
        true
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|[revision, place, taken]| writeln!(f, "{revision} {place} {taken}"))
    }
}

/// What a waiter knows of the permits that it waits for.
pub(crate) struct Room {
    pub(crate) place: i64,
    /// The revision of its last look, or of the last end that it has heard of since.
    pub(crate) seen: i64,
    pub(crate) lacks: i64,
}

impl Room {
    /// Returns whether there may be room, by the log of the directory.
    pub(crate) fn opens(&mut self, log: Option<&str>) -> bool {
        let seen = self.seen;
        for line in log.unwrap_or("none").lines() {
            let numbers: Vec<i64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
            let [revision, place, taken] = numbers[..] else { return true };
            if revision <= seen {
                break;
            }
            self.seen = self.seen.max(revision);
            if place <= self.place {
                let freed = if place == self.place { ALL } else { taken };
                self.lacks = self.lacks.saturating_sub(freed);
            }
        }
        self.lacks <= 0
    }
}

#[cfg(test)]
mod tests {
    use dlock_core::backend::Mode;

    use super::*;
    use crate::rule::{Place, place};

    /// Numbers that are the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(self.0 >> 33).unwrap() % most
        }
    }

    /// A directory, and what its waiters know.
    #[derive(Default)]
    struct Directory {
        revision: i64,
        permits: u32,
        entries: Vec<(i64, u32, Option<Room>)>,
        log: Ends,
        looks: u32,
        wasted: u32,
    }

    impl Directory {
        fn lacks(&self, at: usize) -> Option<u32> {
            let modes: Vec<_> =
                self.entries.iter().map(|(_, take, _)| Mode::Permits { of: 4, take: *take }).collect();
            match place(&modes, at, self.permits) {
                Place::Lacks(lacks) => Some(lacks),
                other => {
                    assert_eq!(other, Place::Holds);
                    None
                }
            }
        }

        fn look(&mut self, at: usize) {
            let (place, seen) = (self.entries[at].0, self.revision);
            self.entries[at].2 = self.lacks(at).map(|lacks| Room { place, seen, lacks: lacks.into() });
        }

        fn put(&mut self, take: u32) {
            self.revision += 1;
            self.entries.push((self.revision, take, None));
            self.look(self.entries.len() - 1);
        }

        fn end(&mut self, at: usize, is_heard: bool) {
            let (place, take, _) = self.entries.remove(at);
            if is_heard {
                self.log.note(self.revision, place, take.into());
            }
        }

        /// A waiter hears the log, and looks if that opens.
        fn hear(&mut self, at: usize) {
            let has_room = self.lacks(at).is_none();
            let Some(room) = &mut self.entries[at].2 else { return };
            let opens = room.opens(Some(&self.log.to_string()));
            assert!(opens || !has_room, "it waits on, and {} have room", room.place);
            if opens {
                self.looks += 1;
                self.wasted += u32::from(!has_room);
                self.look(at);
            }
        }
    }

    #[test]
    fn whatever_a_waiter_has_heard_it_waits_on_only_without_room() {
        let mut numbers = Numbers(7);
        let mut directory = Directory { permits: 4, ..Directory::default() };
        for _ in 0..40_000 {
            let length = directory.entries.len();
            match numbers.below(40) {
                0..12 if length < 30 => directory.put(1 + u32::try_from(numbers.below(4)).unwrap()),
                // Some in one step.
                12..23 if length > 0 => {
                    directory.revision += 1;
                    for _ in 0..=numbers.below(directory.entries.len().min(3)) {
                        directory.end(numbers.below(directory.entries.len()), true);
                    }
                }
                23 => {
                    directory.revision += 1;
                    directory.permits = 4 + u32::try_from(numbers.below(4)).unwrap();
                    directory.log.note(directory.revision, 0, ALL);
                }
                // The stream breaks: nobody hears of what happens until the next watch has begun.
                24 => {
                    for _ in 0..numbers.below(directory.entries.len() + 1) {
                        directory.revision += 1;
                        directory.end(numbers.below(directory.entries.len()), false);
                    }
                    directory.log = Ends::default();
                    directory.log.begin(directory.revision);
                }
                // Nobody listens while more happens than the log is long for.
                25 if numbers.below(10) == 0 => {
                    for _ in 0..=MOST {
                        directory.put(1);
                        directory.revision += 1;
                        directory.end(numbers.below(directory.entries.len()), true);
                    }
                }
                _ if length > 0 => directory.hear(numbers.below(length)),
                _ => {}
            }
        }
        assert!(directory.looks > 500, "{}", directory.looks);
    }

    #[test]
    fn while_nothing_is_missed_each_look_finds_room() {
        let mut numbers = Numbers(3);
        let mut directory = Directory { permits: 4, ..Directory::default() };
        directory.log.begin(0);
        for _ in 0..8_000 {
            while directory.entries.len() < 20 {
                directory.put(1 + u32::try_from(numbers.below(4)).unwrap());
            }
            directory.revision += 1;
            directory.end(numbers.below(directory.entries.len()), true);
            for at in 0..directory.entries.len() {
                directory.hear(at);
            }
        }
        assert!(directory.looks > 500 && directory.wasted == 0, "{} {}", directory.looks, directory.wasted);
    }

    #[test]
    fn who_hears_of_no_log_or_of_its_own_end_looks() {
        let room = || Room { place: 5, seen: 8, lacks: 9 };
        let mut log = Ends::default();
        log.begin(3);
        assert!(!room().opens(Some(&log.to_string())));
        assert!(room().opens(None));
        assert!(room().opens(Some("room")));
        for (place, opens) in [(4, false), (6, false), (5, true)] {
            let mut log = Ends::default();
            log.begin(3);
            log.note(9, place, 1);
            assert_eq!(room().opens(Some(&log.to_string())), opens, "{place}");
        }
    }
}
