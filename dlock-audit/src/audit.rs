//! The check of what all processes recorded.

mod cause;
mod doubts;

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use self::cause::{cause, kind_of};
use self::doubts::Doubts;
use crate::checker::{Finding, Findings, HeldAs, HoldRecord, What, beside, order};
use crate::clocks::nanos;
use crate::line::{HASHED, ModeField};
use crate::report::{Held, ProcessName, Report, Summary, Violation, ViolationKind};
use crate::trail::{Ended, RecordedHold, RunTrail, Trail};

/// Checks that no two holders overlapped.
///
/// ```
/// use std::time::Duration;
/// use dlock_audit::{Audit, Outcome, Trail};
///
/// let report = Audit::new().with_clock_error(Duration::from_millis(50)).check(&Trail::default());
/// assert_eq!(report.outcome(), Outcome::Unknown, "there is no record");
/// ```
///
/// # Rules
///
/// Holds of one key of one store are compared, those that do not go together: one that is held alone with any other,
/// and permits with as many as there are. Times of one boot of one host are of one clock, and compare exactly. Times of
/// different hosts compare by their wall clocks, each of which may be wrong by the [clock
/// error](Self::with_clock_error).
///
/// | what the records say | the outcome |
/// |---|---|
/// | both were believed in, for longer than the clocks may be wrong | overlapped |
/// | one fence twice, of which one was alone | overlapped |
/// | the later one has the lower fence, and the clocks show that it is the later | overlapped |
/// | it seems that both were believed in, for less than the clocks may be wrong, and the fences differ | held; an overlap as long as [that](Summary::resolution) would be hidden |
/// | the same, without fences, or of permits | unknown |
/// | they follow each other more closely than the clocks may be wrong | held; an overlap as long as that would be hidden |
/// | gaps between fences | held: acquires and sections that were not needed have used them |
/// | a record was lost, or is missing; a line cannot be read; a file is gone | unknown |
/// | a file without a last line, or with one that counts holds | unknown: a process was killed, runs, or ended without a release |
/// | the wall clock of a host was set by more than twice the clock error, and there are several hosts | unknown, and that much is added to its error |
///
/// What overlapped counts whatever else is unknown.
///
/// Not guaranteed: what processes do that do not use dlock, or write no records; and work that goes on although
/// `check()` fails. Virtual machines that were resumed from one snapshot have one boot id, and count as one host.
#[derive(Clone, Debug)]
pub struct Audit {
    clock_error: Duration,
    since: Option<SystemTime>,
    key: Option<String>,
}

impl Default for Audit {
    fn default() -> Self {
        Self::new()
    }
}

/// How long before the time that was asked for the last line of a run must be for the run to be left out: the wall
/// clock of its host may be behind.
const SILENCE: Duration = Duration::from_secs(300);

impl Audit {
    /// Creates an audit of all keys and all times, whose wall clocks are right within 100 ms.
    #[must_use]
    pub const fn new() -> Self {
        Self { clock_error: Duration::from_millis(100), since: None, key: None }
    }

    /// Sets by how much the wall clock of a host may differ from the true time. Default 100 ms.
    #[must_use]
    pub const fn with_clock_error(mut self, error: Duration) -> Self {
        self.clock_error = error;
        self
    }

    /// Leaves out what was over before this time: holds, runs of processes that ended five minutes before it, and
    /// doubts.
    ///
    /// A run without a last line stays, however old it is: a process that was killed leaves the same file as one that
    /// still runs and cannot write.
    #[must_use]
    pub const fn with_since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }

    /// Looks at this key alone, also where its hash is recorded.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Checks the records.
    #[must_use]
    pub fn check(&self, trail: &Trail) -> Report {
        let mut timelines = trail.timelines.clone();
        timelines.iter_mut().for_each(crate::trail::Timeline::sort);
        let set: Vec<_> = timelines.iter().map(|timeline| timeline.was_set(self.clock_error)).collect();
        let errors: Vec<_> =
            set.iter().map(|set| nanos(self.clock_error).saturating_add(set.map_or(0, nanos))).collect();
        let since = self.since.map_or(0, nanos_of);
        let counts =
            |run: &RunTrail| run.end.is_none() || run.last.wall.saturating_add(nanos(SILENCE)) >= since;
        let runs: Vec<bool> = trail.runs.iter().map(counts).collect();
        let keys = self.key.as_deref().map(|key| keys_of(trail, key));
        let mut checking = Checking { trail, report: empty(), doubts: Doubts::default() };
        let mut clocks = HashSet::new();
        for (run, _) in trail.runs.iter().zip(&runs).filter(|(_, counts)| **counts) {
            clocks.insert(run.clock);
            checking.doubts.of_run(run, since);
        }
        let mut holds: Vec<Placed<'_>> = Vec::new();
        for hold in trail.holds.iter().filter(|hold| runs[hold.run]) {
            let clock = trail.runs[hold.run].clock;
            let (from, until) = (timelines[clock].wall(hold.from), timelines[clock].wall(hold.until));
            if until.0 < since || keys.as_ref().is_some_and(|keys| !keys.contains(&hold.key)) {
                continue;
            }
            let error = errors[clock].saturating_add(from.1.max(until.1));
            holds.push(Placed { hold, clock, shared: (from.0, until.0.max(from.0)), error });
        }
        holds.sort_by_key(|placed| (placed.hold.locks, placed.hold.key));
        let mut stores = HashSet::new();
        for of_a_key in holds.chunk_by(|a, b| (a.hold.locks, a.hold.key) == (b.hold.locks, b.hold.key)) {
            checking.key(of_a_key);
            stores.extend(of_a_key.first().map(|placed| placed.hold.locks));
        }
        let is_several = clocks.len() > 1;
        for (clock, by) in set.iter().enumerate().filter(|(clock, _)| is_several && clocks.contains(clock)) {
            let host = trail.runs.iter().find(|run| run.clock == clock).map_or("", |run| run.host.as_str());
            checking.doubts.clock_was_set(host, *by);
        }
        let Checking { mut report, mut doubts, .. } = checking;
        let span = holds.iter().fold(None, |span: Option<(u64, u64)>, placed| {
            let (from, until) = span.unwrap_or(placed.shared);
            Some((from.min(placed.shared.0), until.max(placed.shared.1)))
        });
        if holds.is_empty() {
            doubts.nothing(self.key.as_deref());
        }
        report.violations.sort_by_key(|violation| violation.holds[1].from);
        report.doubts = doubts.done();
        report.summary = Summary {
            holds: holds.len(),
            stores: stores.len(),
            processes: runs.iter().filter(|counts| **counts).count(),
            hosts: clocks.len(),
            left_out: runs.iter().filter(|counts| !**counts).count(),
            span: span.map(|(from, until)| (time_of(from), time_of(until))),
            ..report.summary
        };
        report
    }
}

/// The numbers of a key and of its hash.
fn keys_of(trail: &Trail, key: &str) -> HashSet<usize> {
    let hash =
        dlock_core::Key::new(key).map(|key| format!("{HASHED}{}", key.hash_shown())).unwrap_or_default();
    let is_it = |name: &String| *name == key || *name == hash;
    trail.keys.iter().enumerate().filter(|(_, name)| is_it(name)).map(|(at, _)| at).collect()
}

const fn empty() -> Report {
    let summary = Summary {
        holds: 0,
        keys: 0,
        stores: 0,
        processes: 0,
        hosts: 0,
        left_out: 0,
        span: None,
        resolution: Duration::ZERO,
    };
    Report { summary, violations: Vec::new(), doubts: Vec::new() }
}

fn nanos_of(time: SystemTime) -> u64 {
    nanos(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn time_of(nanos: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanos)
}

/// A hold, with its place on the clock that all have.
struct Placed<'a> {
    hold: &'a RecordedHold,
    clock: usize,
    shared: (u64, u64),
    error: u64,
}

impl Placed<'_> {
    /// Returns the record of it, in two parts if it became a reader's.
    fn records(&self) -> impl Iterator<Item = HoldRecord> {
        let hold = self.hold;
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let part = move |held_as, from: u64, until: u64| HoldRecord {
            process: small(hold.run),
            number: hold.number,
            fence: hold.fence,
            held_as,
            asked: None,
            from,
            until,
            promised_until: if from < until { until } else { 0 },
            clock: small(self.clock),
            shared: (
                self.shared.0.saturating_add(from - hold.from),
                self.shared.1.saturating_sub(hold.until - until),
            ),
            error: self.error,
        };
        let held_as = match hold.mode {
            ModeField::Alone => HeldAs::Alone,
            ModeField::Reader => HeldAs::Reader,
            ModeField::Permits { taken, of } => HeldAs::Permits { taken, of },
        };
        let parts = match hold.alone_until.map(|at| at.clamp(hold.from, hold.until)) {
            Some(at) => [Some(part(held_as, hold.from, at)), Some(part(HeldAs::Reader, at, hold.until))],
            None => [Some(part(held_as, hold.from, hold.until)), None],
        };
        parts.into_iter().flatten()
    }
}

struct Checking<'a> {
    trail: &'a Trail,
    report: Report,
    doubts: Doubts,
}

impl Checking<'_> {
    /// Checks the holds of one key.
    fn key(&mut self, placed: &[Placed<'_>]) {
        self.report.summary.keys += 1;
        let parts: Vec<(usize, HoldRecord)> = placed
            .iter()
            .enumerate()
            .flat_map(|(at, placed)| placed.records().map(move |record| (at, record)))
            .collect();
        let records: Vec<HoldRecord> = parts.iter().map(|(_, record)| *record).collect();
        let Findings { certain, undecided, resolution } = beside(&records);
        let fences = order(&records).certain.into_iter().filter(|finding| {
            // What overlaps was found, and the clocks may be too far apart for it to be certain of another pair.
            finding.what == What::SameFence || !finding.holds_overlap(&records)
        });
        for finding in certain.into_iter().chain(fences) {
            let violation = self.violation(&finding, placed, &parts);
            self.report.violations.push(violation);
        }
        for finding in &undecided {
            let violation = self.violation(finding, placed, &parts);
            self.doubts.undecided(&violation);
        }
        let resolution = Duration::from_nanos(resolution);
        self.report.summary.resolution = self.report.summary.resolution.max(resolution);
    }

    fn violation(
        &self,
        finding: &Finding,
        placed: &[Placed<'_>],
        parts: &[(usize, HoldRecord)],
    ) -> Violation {
        let kind = kind_of(finding.what);
        let mut pair = finding.holds.map(|part| parts[part].0);
        // The earlier one first: of fences that went back it is the one with the higher fence.
        pair.sort_by_key(|at| placed[*at].shared);
        let [first, second] = pair.map(|at| placed[at].hold);
        let both = finding.holds.map(|part| &parts[part].1);
        let span = both[0].both(both[1]);
        let overlaps = u64::try_from(span.by).unwrap_or(0);
        Violation {
            kind,
            backend: self.trail.locks[first.locks].backend.clone(),
            key: self.trail.keys[first.key].clone(),
            holds: pair.map(|at| self.held(&placed[at])),
            by: Duration::from_nanos(if kind == ViolationKind::FenceWentBack { 0 } else { overlaps }),
            error: Duration::from_nanos(span.error),
            cause: cause(kind, first, second),
        }
    }

    fn held(&self, placed: &Placed<'_>) -> Held {
        let run = &self.trail.runs[placed.hold.run];
        Held {
            process: ProcessName { host: run.host.clone(), pid: run.pid },
            number: placed.hold.number,
            fence: placed.hold.fence,
            mode: match placed.hold.mode {
                ModeField::Alone => "alone",
                ModeField::Reader => "reader",
                ModeField::Permits { .. } => "permits",
            },
            from: time_of(placed.shared.0),
            until: time_of(placed.shared.1),
            end: match placed.hold.end {
                Ended::Released => "released",
                Ended::HandedOver => "handed over",
                Ended::Expired => "its lease ran out",
                Ended::Gone => "the store had it no more",
                Ended::Lost => "lost",
            },
        }
    }
}

impl Finding {
    fn holds_overlap(&self, records: &[HoldRecord]) -> bool {
        let [one, other] = self.holds.map(|at| &records[at]);
        one.both(other).is_certain()
    }
}
