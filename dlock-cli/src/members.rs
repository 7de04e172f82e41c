//! Whom signals reach: a command, and all that it started.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};

use rustix::process::{
    Pid, Signal, kill_process, kill_process_group, test_kill_process, test_kill_process_group,
};

/// The variable by which the processes of one run are known.
pub(crate) const MARK: &str = "DLOCK_RUN";

/// A command, and all that it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    pub(crate) pid: Pid,
    /// The whole group that the process leads.
    pub(crate) all: bool,
    /// What stands in the environment of the command, and so of all that it starts.
    mark: u64,
}

/// What is known of a process.
struct Process {
    parent: i32,
    group: i32,
    is_marked: bool,
}

impl Members {
    pub(crate) const fn new(pid: Pid, all: bool, mark: u64) -> Self {
        Self { pid, all, mark }
    }

    /// Draws what tells the processes of one run from those of all others.
    pub(crate) fn draw_mark() -> u64 {
        RandomState::new().hash_one(std::process::id())
    }

    /// The value of [`MARK`].
    pub(crate) fn marked(mark: u64) -> String {
        format!("{mark:016x}")
    }

    /// Reads what was [written](Self::line) of them.
    pub(crate) fn parse(pid: &str, all: &str, mark: &str) -> Option<Self> {
        let pid = pid.parse().ok().and_then(Pid::from_raw)?;
        Some(Self { pid, all: all.parse().ok()?, mark: u64::from_str_radix(mark, 16).ok()? })
    }

    pub(crate) fn line(self) -> String {
        format!("{} {} {}", self.pid.as_raw_nonzero(), self.all, Self::marked(self.mark))
    }

    /// Sends a signal to the group, or the command where it leads none. Those who are gone need none.
    pub(crate) fn send(self, signal: Signal) {
        let _ = if self.all { kill_process_group(self.pid, signal) } else { kill_process(self.pid, signal) };
    }

    /// Sends a signal to all of them.
    pub(crate) fn send_all(self, signal: Signal) {
        self.send(signal);
        self.send_others(signal);
    }

    /// Sends a signal to what has left the group, or the command that leads none.
    pub(crate) fn send_others(self, signal: Signal) {
        for pid in self.others() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether the group is there, or the command where it leads none.
    pub(crate) fn are_there(self) -> bool {
        if self.all { test_kill_process_group(self.pid) } else { test_kill_process(self.pid) }.is_ok()
    }

    /// The processes that have left the group, or that the command without a group of its own has started: those with
    /// the mark, and what they have started. Where the system has no `/proc` there are none.
    pub(crate) fn others(self) -> Vec<Pid> {
        let processes = processes(format!("{MARK}={}", Self::marked(self.mark)).as_bytes());
        let mut found: BTreeSet<i32> =
            processes.iter().filter(|(_, process)| process.is_marked).map(|(pid, _)| *pid).collect();
        loop {
            let before = found.len();
            let children = processes.iter().filter(|(_, process)| found.contains(&process.parent));
            let children: Vec<_> = children.map(|(pid, _)| *pid).collect();
            found.extend(children);
            if found.len() == before {
                break;
            }
        }
        let ours = self.pid.as_raw_nonzero().get();
        let is_other = |pid: &i32| if self.all { processes[pid].group != ours } else { *pid != ours };
        found.into_iter().filter(is_other).filter_map(Pid::from_raw).collect()
    }
}

/// All processes that live.
fn processes(mark: &[u8]) -> BTreeMap<i32, Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let known = entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // Its name, in parentheses, is whatever it likes.
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let is_alive = !matches!(fields.next()?, "Z" | "X");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // That of another user cannot be read.
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark);
        is_alive.then_some((pid, Process { parent, group, is_marked }))
    });
    known.collect()
}
