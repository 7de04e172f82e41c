//! The boot of the machine that a lease belongs to.
//!
//! An expiry is a reading of a clock that starts with the kernel, so every row names the boot that it is of. A table
//! has one name for the current one, in its own row, which all processes under one kernel use. It is the kernel's boot
//! id where that can be seen. A container may have a file mounted over it, as LXC, LXD and systemd-nspawn do, which
//! says nothing about the kernel: such a process uses the name that it finds, or invents one. Two things that no
//! container has of its own then decide whether a name still stands for this boot:
//!
//! * [marks](super::presence): a process that uses the name and is alive is one of this kernel;
//! * the start of the machine, by the wall clock. Only a step of that clock moves it.
//!
//! | the process sees | name in the table | decided by | otherwise |
//! |---|---|---|---|
//! | the kernel's boot id | a boot id | equality | its boot id, for certain |
//! | the kernel's boot id | an invented one | marks, or the start | its boot id, in doubt |
//! | none | any | marks, or the start | an invented name, in doubt |
//!
//! If the start says that the machine has restarted, the clock may as well have been set. The leases under the earlier
//! name are then waited for.

use std::path::Path;

use dlock_core::{Failure, Token};

use super::time;

/// The first byte of a name that is no boot id.
const INVENTED: u8 = b'~';
/// The milliseconds by which two readings of the machine's start may differ, for the small steps with which the wall
/// clock is set. A machine that restarts as fast keeps its locks for this time at the most.
const TOLERANCE: u64 = 5_000;

/// The boot, as this process knows it.
#[derive(Debug)]
pub(super) struct Boot {
    /// The boot id, if it is the kernel's.
    id: Option<Vec<u8>>,
    /// The start of the machine, in milliseconds of the wall clock.
    start: i64,
}

/// The boot, as a table names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BootName {
    /// The name in rows of this boot.
    pub(super) name: Vec<u8>,
    /// The start of the machine; earlier versions did not note it.
    start: Option<i64>,
    /// The moment at which it got this name, if it may have had another one before.
    pub(super) doubted: Option<i64>,
}

impl Boot {
    /// Looks at the boot id, which is at `path` on Linux.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        time::enter_namespace()?;
        Ok(Self { id: kernel_id(path)?, start: time::start() })
    }

    /// Decides on the name to use in a table whose own row says `stored`. `is_used` returns whether a process that uses
    /// a name is alive.
    pub(super) fn name(
        &self,
        stored: &[u8],
        is_used: impl FnOnce(&[u8]) -> bool,
    ) -> Result<BootName, Failure> {
        let stored = BootName::parse(stored);
        let agrees = stored.start.is_some_and(|start| start.abs_diff(self.start) <= TOLERANCE);
        let (is_same, is_certain) = match &self.id {
            Some(id) if !stored.is_invented() => (stored.name == *id, true),
            // The start first, which costs nothing: marks take a system call.
            _ => (agrees || is_used(&stored.name), stored.name.is_empty()),
        };
        if is_same {
            // The name holds although the start differs: the clock was set. Noted anew, so that it speaks for the name
            // again.
            let start = if agrees { stored.start } else { Some(self.start) };
            return Ok(BootName { start, ..stored });
        }
        let invent = || Ok([&[INVENTED], Token::random()?.to_hex().as_bytes()].concat());
        Ok(BootName {
            name: self.id.clone().map_or_else(invent, Ok)?,
            start: Some(self.start),
            doubted: (!is_certain).then(time::now),
        })
    }

    /// Returns `true` if the marks decide which leases this process takes for those of this boot.
    pub(super) fn needs_marks(&self, name: &BootName) -> bool {
        self.id.is_none() || name.is_invented()
    }
}

impl BootName {
    pub(super) fn parse(stored: &[u8]) -> Self {
        let mut parts = stored.split(|byte| *byte == b';');
        let name = parts.next().unwrap_or_default().to_vec();
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        Self { name, start: number(), doubted: number() }
    }

    /// Returns the stored form: `name;start`, or `name;start;doubted`.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut stored = self.name.clone();
        for number in [self.start, self.doubted].into_iter().flatten() {
            stored.extend(format!(";{number}").into_bytes());
        }
        stored
    }

    fn is_invented(&self) -> bool {
        self.name.first() == Some(&INVENTED)
    }
}

/// Returns the kernel's boot id; `None` where something else is mounted over it, and be it another file of the kernel.
#[cfg(target_os = "linux")]
fn kernel_id(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    use std::io::Read;

    use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

    use super::file::is_mount;

    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        let what = format!(
            "{shown} cannot be read, so that leases of different boots cannot be distinguished; mount /proc"
        );
        Failure::invalid_config(what).with_source(error)
    };
    let mut file = std::fs::File::open(path).map_err(unreadable)?;
    // Another file of the kernel may be mounted there, too.
    let is_of_kernel =
        fstatfs(&file).map_err(|error| unreadable(error.into()))?.filesystem_type() == PROC_SUPER_MAGIC;
    if !is_of_kernel || is_mount(path).map_err(unreadable)? {
        return Ok(None);
    }
    let mut id = String::new();
    file.read_to_string(&mut id).map_err(unreadable)?;
    match id.trim() {
        "" => Err(Failure::invalid_config(format!(
            "{shown} is empty, so that leases of different boots cannot be distinguished"
        ))),
        id => Ok(Some(id.as_bytes().to_vec())),
    }
}

/// Returns a name that never changes: times of the wall clock are good across boots.
#[cfg(not(target_os = "linux"))]
fn kernel_id(_: &Path) -> Result<Option<Vec<u8>>, Failure> {
    Ok(Some(b"wall clock".to_vec()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
