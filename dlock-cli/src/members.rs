//! The processes that signals reach: a command, and all that it started.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};

use rustix::process::{
    Pid, Signal, getpgrp, kill_process, kill_process_group, test_kill_process, test_kill_process_group,
};

/// The variable by which the processes of one run are known.
pub(crate) const MARK: &str = "DLOCK_RUN";

/// A command, and all that it started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    /// The command, once it is known.
    pub(crate) pid: Option<Pid>,
    /// Is `true` if the process leads a group, the whole of which is meant.
    pub(crate) all: bool,
    /// The mark in the environment of the command, which all that it starts inherits.
    mark: u64,
}

/// The facts about a process that are needed here.
struct Process {
    parent: i32,
    group: i32,
    /// The value of [`MARK`].
    marks: Vec<u8>,
}

impl Members {
    pub(crate) const fn new(pid: Option<Pid>, all: bool, mark: u64) -> Self {
        Self { pid, all, mark }
    }

    /// Draws a mark that distinguishes the processes of one run from all others.
    pub(crate) fn draw_mark() -> u64 {
        RandomState::new().hash_one(std::process::id())
    }

    /// Returns the value of [`MARK`]: the marks of the runs around this one, to which the command belongs too, and then
    /// its own.
    pub(crate) fn marked(mark: u64) -> OsString {
        let mut marks = std::env::var_os(MARK).unwrap_or_default();
        if !marks.is_empty() {
            marks.push(":");
        }
        marks.push(written(mark));
        marks
    }

    /// Parses the [mark](Self::mark_line), and the [line](Self::line) about the command if it was written already.
    pub(crate) fn parse(mark: &str, line: &str) -> Option<Self> {
        let mark = u64::from_str_radix(mark, 16).ok()?;
        let command = line.split_once(' ').and_then(|(pid, all)| {
            let pid = pid.parse().ok().and_then(Pid::from_raw)?;
            Some((pid, all.trim_end().parse().ok()?))
        });
        Some(command.map_or(Self::new(None, false, mark), |(pid, all)| Self::new(Some(pid), all, mark)))
    }

    /// Returns the mark, by which the processes are found even if nothing else is known of them.
    pub(crate) fn mark_line(mark: u64) -> String {
        written(mark)
    }

    pub(crate) fn line(self) -> String {
        format!("{} {}", self.pid.map_or(0, Pid::as_raw_pid), self.all)
    }

    /// Sends a signal to the group, or to the command if it leads none. Processes that are gone need no signal.
    pub(crate) fn send(self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = if self.all { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
        }
    }

    /// Sends a signal to the processes that would be the command's group if it led one.
    pub(crate) fn send_group(self, signal: Signal) {
        self.send(signal);
        if !self.all {
            let group = getpgrp().as_raw_pid();
            let processes = processes();
            for pid in self.others_of(&processes).filter(|pid| processes[pid].group == group) {
                let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, signal));
            }
        }
    }

    /// Sends a signal to all of them.
    pub(crate) fn send_all(self, signal: Signal) {
        self.send(signal);
        self.send_others(signal);
    }

    /// Sends a signal to the [others](Self::others).
    pub(crate) fn send_others(self, signal: Signal) {
        for pid in self.others() {
            let _ = kill_process(pid, signal);
        }
    }

    /// Is `true` if the group exists, or the command if it leads none.
    pub(crate) fn are_there(self) -> bool {
        let test = if self.all { test_kill_process_group } else { test_kill_process };
        self.pid.is_some_and(|pid| test(pid).is_ok())
    }

    /// Returns the processes that have left the group, or that a command without a group of its own has started: those
    /// with the mark, and what they have started. Without `/proc` there are none.
    pub(crate) fn others(self) -> Vec<Pid> {
        self.others_of(&processes()).filter_map(Pid::from_raw).collect()
    }

    fn others_of(self, processes: &BTreeMap<i32, Process>) -> impl Iterator<Item = i32> {
        let mark = written(self.mark);
        let is_marked =
            |process: &Process| process.marks.split(|byte| *byte == b':').any(|one| one == mark.as_bytes());
        let mut found: BTreeSet<i32> =
            processes.iter().filter(|(_, process)| is_marked(process)).map(|(pid, _)| *pid).collect();
        // A process may clear its environment, and lose the mark. Its parent still shows where it belongs.
        loop {
            let before = found.len();
            let children = processes.iter().filter(|(_, process)| found.contains(&process.parent));
            let children: Vec<_> = children.map(|(pid, _)| *pid).collect();
            found.extend(children);
            if found.len() == before {
                break;
            }
        }
        let ours = self.pid.map_or(0, Pid::as_raw_pid);
        let is_other = move |pid: &i32| if self.all { processes[pid].group != ours } else { *pid != ours };
        found.into_iter().filter(is_other)
    }
}

fn written(mark: u64) -> String {
    format!("{mark:016x}")
}

/// Reads all processes that are alive.
fn processes() -> BTreeMap<i32, Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let known = entries.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        // The name of a process stands in parentheses, and may itself hold any of these characters.
        let stat = std::fs::read(entry.path().join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let is_alive = !matches!(fields.next()?, "Z" | "X");
        let (parent, group) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        // The environment of another user's process cannot be read.
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let value =
            |variable: &[u8]| Some(variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"=")?.to_vec());
        let marks = environment.split(|byte| *byte == 0).find_map(value).unwrap_or_default();
        is_alive.then_some((pid, Process { parent, group, marks }))
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_known_by_the_mark_alone_until_the_command_is() {
        let (mark, pid) = (0xab, Pid::from_raw(7));
        let read = |line: &str| {
            Members::parse(&Members::mark_line(mark), line).map(|read| (read.pid, read.all, read.mark))
        };
        assert_eq!(read(&Members::new(pid, true, mark).line()), Some((pid, true, mark)));
        for cut in ["", "7", "7 tr", "0 true"] {
            assert_eq!(read(cut), Some((None, false, mark)), "{cut:?}");
        }
        assert!(Members::parse("", "7 true").is_none());
    }
}
