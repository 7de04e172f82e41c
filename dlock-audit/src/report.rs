//! What an audit says.

use std::fmt;
use std::time::{Duration, SystemTime};

/// The outcome of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// No two holders overlapped, and every record is there.
    Held,
    /// Two holders overlapped, or two fences say that they may have.
    Overlapped,
    /// Nothing overlapped among the records that are there, and some are not; or what seems to overlap may be an error
    /// of the clocks.
    Unknown,
}

impl Outcome {
    /// Returns it in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Overlapped => "overlapped",
            Self::Unknown => "unknown",
        }
    }
}

/// What an audit found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was looked at.
    pub summary: Summary,
    /// What is wrong for certain, in the order in which it happened.
    pub violations: Vec<Violation>,
    /// What is not known.
    pub doubts: Vec<Doubt>,
}

impl Report {
    /// Returns the outcome. A violation counts whatever else is not known.
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        match (self.violations.is_empty(), self.doubts.is_empty()) {
            (false, _) => Outcome::Overlapped,
            (true, false) => Outcome::Unknown,
            (true, true) => Outcome::Held,
        }
    }
}

/// What an audit looked at.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Holds.
    pub holds: usize,
    /// Keys, each of them once for each store that has it.
    pub keys: usize,
    /// Stores, by the [names](dlock_core::audit::AuditedLocks::store) that processes have for them. More than are
    /// meant: processes reach one store by different URLs, and their holds are not compared.
    pub stores: usize,
    /// Runs of processes.
    pub processes: usize,
    /// Hosts, or boots of one.
    pub hosts: usize,
    /// The runs that were left out since all of them is before the time that was asked for.
    pub left_out: usize,
    /// From the beginning of the first hold until the end of the last one.
    pub span: Option<(SystemTime, SystemTime)>,
    /// The longest overlap that the clocks of different hosts would have hidden; zero where all was on one.
    pub resolution: Duration,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProcessName {
    /// Its host.
    pub host: String,
    /// Its id there.
    pub pid: u32,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} on {}", self.pid, self.host.escape_debug())
    }
}

/// A hold, as an audit names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The process that had it.
    pub process: ProcessName,
    /// The number of its record there.
    pub number: u64,
    /// Its fence.
    pub fence: Option<u64>,
    /// `alone`, `reader` or `permits`.
    pub mode: &'static str,
    /// From when it was believed in, by its host's clock.
    pub from: SystemTime,
    /// Until when.
    pub until: SystemTime,
    /// How it ended.
    pub end: &'static str,
}

/// What is wrong with two holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ViolationKind {
    /// Both were believed in at the same time.
    Overlap,
    /// With the second, more permits were taken than there are.
    TooManyPermits,
    /// Both have the same fence.
    SameFence,
    /// The later one has the lower fence.
    FenceWentBack,
}

impl ViolationKind {
    /// Returns it in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::TooManyPermits => "too_many_permits",
            Self::SameFence => "same_fence",
            Self::FenceWentBack => "fence_went_back",
        }
    }
}

/// Two holds that do not go together.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// The name of the backend.
    pub backend: String,
    /// The key, or `#` and its hash.
    pub key: String,
    /// The two, the earlier one first.
    pub holds: [Held; 2],
    /// For how long both were believed in; zero where they were not.
    pub by: Duration,
    /// By how much that may be wrong, since clocks differ; zero where both were on one host.
    pub error: Duration,
    /// What probably led to it, and what to do.
    pub cause: &'static str,
}

/// What is not known.
#[derive(Clone, Debug)]
pub struct Doubt {
    /// The kind.
    pub kind: DoubtKind,
    /// The process of which it is not known.
    pub process: Option<ProcessName>,
    /// Since when; `None` where that is not known.
    pub from: Option<SystemTime>,
    /// Until when; `None` where that is not known.
    pub until: Option<SystemTime>,
    /// A sentence, without process and time.
    pub what: String,
}

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DoubtKind {
    /// Records were lost: the queue was full, or the disk failed.
    Lost,
    /// Records that were written are not in the files.
    Missing,
    /// The file has no last line: the process was killed, or runs.
    Unfinished,
    /// The process ended while it held locks.
    StillHeld,
    /// The first files of a run were removed.
    Removed,
    /// A line cannot be read.
    Unread,
    /// The wall clock of a host was set by more than its error.
    ClockSet,
    /// What seems to overlap may be an error of the clocks, and no fences show the order.
    Undecided,
    /// There is no hold to look at.
    Nothing,
}

impl DoubtKind {
    /// Returns it in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Missing => "missing",
            Self::Unfinished => "unfinished",
            Self::StillHeld => "still_held",
            Self::Removed => "removed",
            Self::Unread => "unread",
            Self::ClockSet => "clock_set",
            Self::Undecided => "undecided",
            Self::Nothing => "nothing",
        }
    }
}
