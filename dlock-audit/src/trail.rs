//! Reading the files of all processes.

#[doc(hidden)]
pub mod made;
mod part;
mod timeline;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use self::part::Part;
pub(crate) use self::timeline::Timeline;
use crate::clocks::Pair;
use crate::line::State;

/// The beginning of the names of files.
pub(crate) const PREFIX: &str = "dlock-audit-";

/// The records of all processes, as their files have them.
#[derive(Debug, Default)]
pub struct Trail {
    pub(crate) runs: Vec<RunTrail>,
    pub(crate) holds: Vec<RecordedHold>,
    pub(crate) locks: Vec<LocksName>,
    pub(crate) keys: Vec<String>,
    pub(crate) timelines: Vec<Timeline>,
}

/// The files of one run of a process.
#[derive(Debug)]
pub(crate) struct RunTrail {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// Its clock, by number.
    pub(crate) clock: usize,
    /// The first file that is there, and when it began.
    pub(crate) first: (u32, Pair),
    /// The last line that is one of the clocks.
    pub(crate) last: Pair,
    /// What the last line says, if that is a last line.
    pub(crate) end: Option<State>,
    /// Records that were lost: how many, and between which times.
    pub(crate) lost: Vec<(u64, Pair, Pair)>,
    /// Numbers of records that are not there, and between which times.
    pub(crate) missing: Vec<(u64, Pair, Pair)>,
    /// Lines that say nothing.
    pub(crate) unread: Vec<(PathBuf, usize)>,
}

/// The locks that a record is of, as all processes name them.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
pub(crate) struct LocksName {
    pub(crate) backend: String,
    pub(crate) store: String,
    /// The run, where locks exclude each other in one process alone.
    pub(crate) run: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordedHold {
    pub(crate) run: usize,
    pub(crate) number: u64,
    pub(crate) locks: usize,
    pub(crate) key: usize,
    pub(crate) fence: Option<u64>,
    pub(crate) mode: crate::line::ModeField,
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) alone_until: Option<u64>,
    pub(crate) end: Ended,
}

/// How a hold ended, as far as that explains an overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Released,
    HandedOver,
    Expired,
    Gone,
    Lost,
}

/// A file that cannot be read as one of an audit.
#[derive(Debug)]
pub struct ReadError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1 upwards; 0 where it is the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub wrong: Wrong,
}

/// What is wrong with a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// It cannot be read.
    Io(io::Error),
    /// It does not begin as a file of an audit does.
    NoAudit,
    /// It was written by a version of dlock that writes another format.
    Version(u32),
    /// There is no file of an audit in the directory.
    Empty,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if self.line > 0 {
            write!(f, ", line {}", self.line)?;
        }
        match &self.wrong {
            Wrong::Io(error) => write!(f, ": {error}"),
            Wrong::NoAudit => f.write_str(": this is no file of an audit"),
            Wrong::Version(version) => {
                write!(f, ": the format has version {version}; use a newer `dlock` to read it")
            }
            Wrong::Empty => write!(f, ": no file here has a name that begins with {PREFIX}"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.wrong {
            Wrong::Io(error) => Some(error),
            Wrong::NoAudit | Wrong::Version(_) | Wrong::Empty => None,
        }
    }
}

impl Trail {
    /// Reads files, and those in directories whose names begin with `dlock-audit-`.
    ///
    /// A line that cannot be read is noted, and makes the outcome unknown; half a line at the end is what a process
    /// leaves that was killed.
    ///
    /// ```
    /// use dlock_audit::{Trail, Wrong};
    ///
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let directory = directory.path();
    /// let error = Trail::read([directory]).unwrap_err();
    /// assert!(matches!(error.wrong, Wrong::Empty));
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`] for a file that cannot be opened, is no file of an audit, or has another version.
    pub fn read<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, ReadError> {
        let mut files = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let fail = |error| ReadError { path: path.to_owned(), line: 0, wrong: Wrong::Io(error) };
            if !std::fs::metadata(path).map_err(fail)?.is_dir() {
                files.push(path.to_owned());
                continue;
            }
            let before = files.len();
            for entry in std::fs::read_dir(path).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                    files.push(entry.path());
                }
            }
            if files.len() == before {
                return Err(ReadError { path: path.to_owned(), line: 0, wrong: Wrong::Empty });
            }
        }
        files.sort();
        files.dedup();
        let mut runs: BTreeMap<String, Vec<Part>> = BTreeMap::new();
        for file in files {
            let part = Part::read(&file)?;
            runs.entry(part.run.run.clone().into_owned()).or_default().push(part);
        }
        let mut trail = Builder::default();
        for mut parts in runs.into_values() {
            parts.sort_by_key(|part| part.run.part);
            // The same file under two names has the same records.
            parts.dedup_by_key(|part| part.run.part);
            trail.add(parts);
        }
        Ok(trail.trail)
    }
}

/// Puts files together.
#[derive(Default)]
struct Builder {
    trail: Trail,
    clocks: HashMap<String, usize>,
    locks: HashMap<LocksName, usize>,
    keys: HashMap<String, usize>,
}

impl Builder {
    /// Adds the files of one run, in their order.
    fn add(&mut self, parts: Vec<Part>) {
        let Some(Part { run, .. }) = parts.first() else { return };
        let clocks = self.clocks.len();
        let clock = *self.clocks.entry(run.clock.clone().into_owned()).or_insert(clocks);
        if clock == self.trail.timelines.len() {
            self.trail.timelines.push(Timeline::default());
        }
        let at = self.trail.runs.len();
        let begin = Pair { mono: run.mono, wall: run.wall };
        let mut trail = RunTrail {
            host: run.host.clone().into_owned(),
            pid: run.pid,
            clock,
            first: (run.part, begin),
            last: begin,
            end: None,
            lost: Vec::new(),
            missing: Vec::new(),
            unread: Vec::new(),
        };
        let mut state =
            State { n: run.first - 1, lost: 0, held: 0, mono: run.mono, wall: run.wall, goes_on: false };
        let mut next = run.first;
        let mut is_first = run.part == 1;
        for part in parts {
            let begin = Pair { mono: part.run.mono, wall: part.run.wall };
            if let Some(gap) = part.run.first.checked_sub(next).filter(|gap| *gap > 0) {
                trail.missing.push((gap, trail.last, begin));
                next = part.run.first;
            }
            self.trail.timelines[clock].add(begin);
            trail.last = begin;
            let mut names: HashMap<u64, usize> = HashMap::new();
            for locks in &part.locks {
                let run = locks.in_process.then_some(at);
                let (backend, store) = (locks.backend.clone().into_owned(), locks.store.clone().into_owned());
                let name = LocksName { backend, store, run };
                let count = self.locks.len();
                let number = *self.locks.entry(name.clone()).or_insert(count);
                if number == self.trail.locks.len() {
                    self.trail.locks.push(name);
                }
                names.insert(locks.locks, number);
            }
            trail.unread.extend(part.unread.iter().map(|line| (part.path.clone(), *line)));
            trail.end = None;
            for (line, entry) in part.entries {
                match entry {
                    part::Entry::Hold(hold) => {
                        if let Some(gap) = hold.n.checked_sub(next).filter(|gap| *gap > 0) {
                            trail.missing.push((gap, trail.last, Pair { mono: hold.until, ..trail.last }));
                        }
                        next = next.max(hold.n + 1);
                        trail.end = None;
                        let Some(locks) = names.get(&hold.locks) else {
                            trail.unread.push((part.path.clone(), line));
                            continue;
                        };
                        let count = self.keys.len();
                        let key = match self.keys.get(&*hold.key) {
                            Some(key) => *key,
                            None => {
                                self.trail.keys.push(hold.key.clone().into_owned());
                                *self.keys.entry(hold.key.into_owned()).or_insert(count)
                            }
                        };
                        self.trail.holds.push(RecordedHold {
                            run: at,
                            number: hold.n,
                            locks: *locks,
                            key,
                            fence: hold.fence,
                            mode: hold.mode,
                            from: hold.from,
                            until: hold.until,
                            alone_until: hold.alone_until,
                            end: ended(&hold.end),
                        });
                    }
                    part::Entry::Told(told, is_end) => {
                        let (before, now) = (trail.last, Pair { mono: told.mono, wall: told.wall });
                        self.trail.timelines[clock].add(now);
                        // Of a run whose first files are gone, the count of before is not known to be later.
                        let lost = told.lost.saturating_sub(state.lost);
                        if lost > 0 {
                            let since = if is_first { before } else { Pair { mono: 0, wall: 0 } };
                            trail.lost.push((lost, since, now));
                        }
                        if let Some(gap) = (told.n + 1).checked_sub(next).filter(|gap| *gap > 0) {
                            trail.missing.push((gap, before, now));
                            next = told.n + 1;
                        }
                        (state, trail.last, is_first) = (told, now, true);
                        trail.end = (is_end && !told.goes_on).then_some(told);
                    }
                }
            }
        }
        self.trail.runs.push(trail);
    }
}

fn ended(word: &str) -> Ended {
    match word {
        "released" => Ended::Released,
        "handed_over" => Ended::HandedOver,
        "lease_expired" => Ended::Expired,
        "gone" | "backend" => Ended::Gone,
        _ => Ended::Lost,
    }
}
