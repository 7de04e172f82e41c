//! Holds, put together from events.

use std::collections::HashMap;

use crate::history::{Event, HeldAs, Op, Outcome};

/// What one process did with one grant.
#[derive(Clone, Debug)]
pub(super) struct HoldRecord<'a> {
    pub(super) process: u32,
    pub(super) hold: u64,
    pub(super) key: &'a str,
    pub(super) fence: Option<u64>,
    pub(super) held_as: HeldAs,
    /// When the acquire began and ended.
    pub(super) invoked: u64,
    pub(super) acquired: u64,
    /// The last moment at which the holder certainly believed in it.
    pub(super) believed_until: u64,
    /// Until when the backend had promised it.
    pub(super) valid_until: u64,
    /// When a release began.
    pub(super) release_invoked: Option<u64>,
}

impl HoldRecord<'_> {
    /// When the belief in it was over.
    pub(super) fn end(&self) -> u64 {
        self.believed_until.min(self.release_invoked.unwrap_or(u64::MAX))
    }

    /// Until when nobody else was to have what it has.
    pub(super) fn promised_until(&self) -> u64 {
        self.valid_until.min(self.release_invoked.unwrap_or(u64::MAX))
    }
}

/// All grants, in the order of the events. Nested acquires are part of their outer hold.
pub(super) fn holds(events: &[Event]) -> Vec<HoldRecord<'_>> {
    let mut holds: Vec<HoldRecord<'_>> = Vec::new();
    let mut index: HashMap<(u32, u64, &str), usize> = HashMap::new();
    for event in events {
        let id = (event.process, event.hold, event.key.as_str());
        match (event.op, index.get(&id)) {
            (Op::Acquire, None) if event.outcome == Outcome::Ok => {
                index.insert(id, holds.len());
                holds.push(HoldRecord {
                    process: event.process,
                    hold: event.hold,
                    key: &event.key,
                    fence: event.fence,
                    held_as: event.held_as,
                    invoked: event.invoked,
                    acquired: event.returned,
                    believed_until: event.returned,
                    valid_until: event.valid_until.unwrap_or(event.returned),
                    release_invoked: None,
                });
            }
            (Op::Check, Some(&at)) if event.outcome == Outcome::Ok => {
                let hold = &mut holds[at];
                // It held when it was asked, at some moment after this.
                hold.believed_until = hold.believed_until.max(event.invoked);
                hold.valid_until = hold.valid_until.max(event.valid_until.unwrap_or(0));
            }
            (Op::Release, Some(&at)) => {
                let hold = &mut holds[at];
                hold.release_invoked = Some(hold.release_invoked.unwrap_or(u64::MAX).min(event.invoked));
            }
            _ => {}
        }
    }
    holds
}
