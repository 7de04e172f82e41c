//! What is not known, in sentences.

use std::time::Duration;

use super::time_of;
use crate::clocks::Pair;
use crate::report::{Doubt, DoubtKind, ProcessName, Violation};
use crate::trail::RunTrail;

/// How many pairs that are not decided are named; more are counted.
const NAMED: usize = 10;

/// What is not known.
#[derive(Default)]
pub(super) struct Doubts {
    found: Vec<Doubt>,
    undecided: usize,
}

impl Doubts {
    pub(super) fn done(mut self) -> Vec<Doubt> {
        if let Some(more) = self.undecided.checked_sub(NAMED).filter(|more| *more > 0) {
            self.add(DoubtKind::Undecided, None, (None, None), format!("{more} more pairs like these"));
        }
        self.found
    }

    fn add(
        &mut self,
        kind: DoubtKind,
        process: Option<&ProcessName>,
        (from, until): (Option<u64>, Option<u64>),
        what: impl Into<String>,
    ) {
        let (from, until) = (from.map(time_of), until.map(time_of));
        self.found.push(Doubt { kind, process: process.cloned(), from, until, what: what.into() });
    }

    /// Notes what is not known of a run, from `since` on.
    pub(super) fn of_run(&mut self, run: &RunTrail, since: u64) {
        let process = ProcessName { host: run.host.clone(), pid: run.pid };
        let at = |pair: &Pair| (pair.wall > 0).then_some(pair.wall);
        let (part, began) = run.first;
        if part > 1 && began.wall >= since {
            let what = format!("{} of its first files are not there; ask for a later time", part - 1);
            self.add(DoubtKind::Removed, Some(&process), (None, Some(began.wall)), what);
        }
        for (count, from, until) in run.lost.iter().filter(|(_, _, until)| until.wall >= since) {
            let what = format!("{count} records were lost: the queue was full, or the disk failed");
            self.add(DoubtKind::Lost, Some(&process), (at(from), at(until)), what);
        }
        for (count, from, until) in run.missing.iter().filter(|(_, _, until)| until.wall >= since) {
            let what = format!("{count} records that were written are not in its files");
            self.add(DoubtKind::Missing, Some(&process), (at(from), at(until)), what);
        }
        for (path, line) in &run.unread {
            let what = format!("line {line} of {} cannot be read", path.display());
            self.add(DoubtKind::Unread, Some(&process), (None, None), what);
        }
        let last = at(&run.last);
        match run.end {
            None => {
                let what = "its file has no last line: it was killed or runs still, and what it held then is not recorded";
                self.add(DoubtKind::Unfinished, Some(&process), (last, None), what);
            }
            Some(end) if end.held > 0 => {
                let what = format!("it ended with {} holds that were not released or not recorded", end.held);
                self.add(DoubtKind::StillHeld, Some(&process), (last, None), what);
            }
            Some(_) => {}
        }
    }

    pub(super) fn clock_was_set(&mut self, host: &str, by: Option<Duration>) {
        if let Some(by) = by {
            let host = host.escape_debug();
            let what =
                format!("the wall clock of {host} was set by {by:.1?}, so that its times do not compare");
            self.add(DoubtKind::ClockSet, None, (None, None), what);
        }
    }

    pub(super) fn undecided(&mut self, violation: &Violation) {
        self.undecided += 1;
        if self.undecided > NAMED {
            return;
        }
        let [first, second] = &violation.holds;
        let (by, error) = (violation.by, violation.error);
        let what = format!(
            "{} of {} and of {} overlap by {by:.1?}, and the clocks may be wrong by {error:.1?}",
            violation.key.escape_debug(),
            first.process,
            second.process
        );
        let doubt = Doubt {
            kind: DoubtKind::Undecided,
            process: None,
            from: Some(second.from),
            until: Some(first.until.min(second.until)),
            what,
        };
        self.found.push(doubt);
    }

    pub(super) fn nothing(&mut self, key: Option<&str>) {
        let what = match key {
            Some(_) => "no hold of this key is recorded in that time",
            None => "no hold is recorded in that time",
        };
        self.add(DoubtKind::Nothing, None, (None, None), what);
    }
}
