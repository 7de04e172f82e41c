//! From a release to the acquire that it made possible.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use dlock_testkit::history::{self, Event, Op};

/// Reads the histories of all processes in a directory.
///
/// # Errors
///
/// When one cannot be read.
pub fn read_all(directory: &Path) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        events.extend(history::read(&path).with_context(|| path.display().to_string())?);
    }
    Ok(events)
}

/// How long it took from the call of a release to the return of the next acquire, for every handoff of the lock `key`
/// by a process in `from` to another process in `to` that was already waiting. In order of length.
#[must_use]
pub fn handoffs(
    events: &[Event],
    key: &str,
    from: impl Fn(u32) -> bool,
    to: impl Fn(u32) -> bool,
) -> Vec<Duration> {
    let of = |op| events.iter().filter(move |event| event.op == op && event.key == key);
    let released: HashMap<_, _> = of(Op::Release).map(|e| ((e.process, e.hold), e.invoked)).collect();
    let mut acquired: Vec<&Event> = of(Op::Acquire).collect();
    acquired.sort_by_key(|event| event.returned);
    let mut took: Vec<Duration> = acquired
        .windows(2)
        .filter_map(|pair| {
            let [before, after] = pair else { return None };
            let released = *released.get(&(before.process, before.hold))?;
            let others = from(before.process) && to(after.process) && before.process != after.process;
            let waited = after.invoked < released;
            (others && waited).then(|| Duration::from_nanos(after.returned.saturating_sub(released)))
        })
        .collect();
    took.sort();
    took
}

/// The value below which `percent` of the sorted `values` lie.
#[must_use]
pub fn percentile(values: &[Duration], percent: usize) -> Duration {
    let index = (values.len() * percent / 100).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(process: u32, hold: u64, op: Op, invoked: u64, returned: u64) -> Event {
        Event { returned, ..Event::without_fence(process, hold, "k", op, invoked) }
    }

    #[test]
    fn only_a_process_that_waited_was_handed_the_lock() {
        let events = [
            event(1, 1, Op::Acquire, 0, 10),
            event(2, 1, Op::Acquire, 15, 27),
            event(1, 1, Op::Release, 20, 30),
            event(2, 1, Op::Release, 40, 41),
            // Asked after the release.
            event(1, 2, Op::Acquire, 42, 50),
            event(1, 2, Op::Release, 60, 61),
        ];
        let between = |from, to| handoffs(&events, "k", move |p| p == from, move |p| p == to);
        assert_eq!(between(1, 2), [Duration::from_nanos(7)]);
        assert!(between(2, 1).is_empty());
        assert!(handoffs(&events, "other", |_| true, |_| true).is_empty());
    }
}
