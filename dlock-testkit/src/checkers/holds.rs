//! Holds, put together from events, in the form that [`dlock_audit::checker`] decides about.

use std::collections::{BTreeMap, HashMap};

use dlock_audit::checker::{HeldAs, HoldRecord};

use crate::history::{Event, Op, Outcome};

/// A hold whose end is not known yet.
struct Begun {
    record: HoldRecord,
    /// Until when the backend had promised it.
    valid_until: u64,
    /// When a release began.
    release_invoked: u64,
}

impl Begun {
    /// A release ends the belief and the promise when it begins.
    fn ended(self) -> HoldRecord {
        let until = self.record.until.min(self.release_invoked);
        let promised_until = self.valid_until.min(self.release_invoked);
        HoldRecord { until, promised_until, shared: (self.record.from, until), ..self.record }
    }
}

/// All grants, by key and then in the order of the events. Nested acquires are part of their outer hold.
pub(super) fn holds(events: &[Event]) -> BTreeMap<&str, Vec<HoldRecord>> {
    let mut holds: BTreeMap<&str, Vec<Begun>> = BTreeMap::new();
    let mut index: HashMap<(u32, u64, &str), usize> = HashMap::new();
    for event in events {
        let key = event.key.as_str();
        let id = (event.process, event.hold, key);
        let of_the_key = holds.entry(key).or_default();
        match (event.op, index.get(&id)) {
            (Op::Acquire, None) if event.outcome == Outcome::Ok => {
                index.insert(id, of_the_key.len());
                // The holder certainly believed in it when it was granted.
                let believed = (event.returned, event.returned);
                of_the_key.push(Begun {
                    record: HoldRecord {
                        process: event.process,
                        fence: event.fence,
                        asked: Some(event.invoked),
                        ..HoldRecord::new(event.hold, event.held_as, believed)
                    },
                    valid_until: event.valid_until.unwrap_or(event.returned),
                    release_invoked: u64::MAX,
                });
            }
            (Op::Check, Some(&at)) if event.outcome == Outcome::Ok => {
                let hold = &mut of_the_key[at];
                // It held when it was asked, at some moment after this.
                hold.record.until = hold.record.until.max(event.invoked);
                hold.valid_until = hold.valid_until.max(event.valid_until.unwrap_or(0));
            }
            (Op::Release, Some(&at)) => {
                let hold = &mut of_the_key[at];
                hold.release_invoked = hold.release_invoked.min(event.invoked);
            }
            _ => {}
        }
    }
    holds.into_iter().map(|(key, holds)| (key, holds.into_iter().map(Begun::ended).collect())).collect()
}

/// The same as if each were held alone.
pub(super) fn alone(mut holds: BTreeMap<&str, Vec<HoldRecord>>) -> BTreeMap<&str, Vec<HoldRecord>> {
    holds.values_mut().flatten().for_each(|hold| hold.held_as = HeldAs::Alone);
    holds
}
