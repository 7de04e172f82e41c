//! Reading one file.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::{ReadError, Wrong};
use crate::line::{HoldLine, Line, LocksLine, Run, State, VERSION};

/// One file.
pub(super) struct Part {
    pub(super) path: PathBuf,
    pub(super) run: Run<'static>,
    pub(super) locks: Vec<LocksLine<'static>>,
    /// The lines of holds and of clocks, with their numbers.
    pub(super) entries: Vec<(usize, Entry)>,
    /// The numbers of the lines that say nothing.
    pub(super) unread: Vec<usize>,
}

pub(super) enum Entry {
    Hold(HoldLine<'static>),
    /// The counts; `true` for a last line.
    Told(State, bool),
}

/// The version alone, of a first line whose other fields are not known.
#[derive(serde::Deserialize)]
struct VersionOf {
    t: String,
    v: u32,
}

impl Part {
    pub(super) fn read(path: &Path) -> Result<Self, ReadError> {
        let fail = |line, wrong| ReadError { path: path.to_owned(), line, wrong };
        let file = File::open(path).map_err(|error| fail(0, Wrong::Io(error)))?;
        let mut file = BufReader::with_capacity(1 << 16, file);
        let mut bytes = Vec::new();
        let mut number = 0;
        // Returns whether there was a line, and whether it is whole.
        let mut next = |bytes: &mut Vec<u8>, number: &mut usize| {
            bytes.clear();
            *number += 1;
            let read = file.read_until(b'\n', bytes).map_err(|error| fail(*number, Wrong::Io(error)))?;
            let is_whole = bytes.last() == Some(&b'\n');
            Ok::<_, ReadError>((read > 0).then_some(is_whole))
        };
        next(&mut bytes, &mut number)?;
        let run = match serde_json::from_slice::<VersionOf>(&bytes) {
            Ok(VersionOf { t, v }) if t == "run" && v != VERSION => return Err(fail(1, Wrong::Version(v))),
            Ok(_) => match serde_json::from_slice(&bytes) {
                Ok(Line::Run(run)) if run.first > 0 && run.part > 0 => owned_run(run),
                _ => return Err(fail(1, Wrong::NoAudit)),
            },
            Err(_) => return Err(fail(1, Wrong::NoAudit)),
        };
        let mut part =
            Self { path: path.to_owned(), run, locks: Vec::new(), entries: Vec::new(), unread: Vec::new() };
        while let Some(is_whole) = next(&mut bytes, &mut number)? {
            if bytes.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice(&bytes) {
                // Half a line at the end: the process was killed, which the missing last line says.
                _ if !is_whole => {}
                Ok(Line::Locks(locks)) => part.locks.push(owned_locks(locks)),
                Ok(Line::Hold(hold)) if hold.from <= hold.until => {
                    part.entries.push((number, Entry::Hold(owned_hold(hold))));
                }
                Ok(Line::Clock(state)) => part.entries.push((number, Entry::Told(state, false))),
                Ok(Line::End(state)) => part.entries.push((number, Entry::Told(state, true))),
                Ok(Line::Run(_) | Line::Hold(_)) | Err(_) => part.unread.push(number),
            }
        }
        Ok(part)
    }
}

fn owned_run(run: Run<'_>) -> Run<'static> {
    Run {
        run: run.run.into_owned().into(),
        host: run.host.into_owned().into(),
        clock: run.clock.into_owned().into(),
        ..run
    }
}

fn owned_locks(locks: LocksLine<'_>) -> LocksLine<'static> {
    LocksLine {
        backend: locks.backend.into_owned().into(),
        store: locks.store.into_owned().into(),
        label: locks.label.map(|label| label.into_owned().into()),
        ..locks
    }
}

fn owned_hold(hold: HoldLine<'_>) -> HoldLine<'static> {
    HoldLine { key: hold.key.into_owned().into(), end: hold.end.into_owned().into(), ..hold }
}
