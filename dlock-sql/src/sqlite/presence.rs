//! Who has which file open under one path.
//!
//! A database file that is deleted or replaced while processes work with it lives on for them, unseen by those who come
//! later. So that the two sides do not give the same lock to two holders, every process leaves a mark for as long as it
//! has a database open: a read lock on a byte of the *directory*, at an offset made of the file's name and of its identity.
//! Who finds a mark of another identity under the same name waits until it is gone, or until every lease that may still run
//! there has ended. The kernel removes a mark with its process.

use std::path::Path;

use super::file::Identity;

/// The mark of one open database. Removed when dropped.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Presence {
    directory: std::fs::File,
    /// The offsets of the name, and the one of this identity among them.
    first: i64,
    own: i64,
}

/// How many offsets a name has.
#[cfg(target_os = "linux")]
const PER_NAME: i64 = 1 << 30;

#[cfg(target_os = "linux")]
impl Presence {
    /// Leaves a mark. `None` where the file system has no such locks; a replaced file is then noticed only by the
    /// processes themselves, at their next renewal.
    pub(super) fn show(path: &Path, identity: &Identity) -> Option<Self> {
        use nix::fcntl::{FcntlArg, fcntl};
        use std::os::unix::ffi::OsStrExt;

        let directory = std::fs::File::open(path.parent()?).ok()?;
        let name = crate::text::number(path.file_name()?.as_bytes().iter().copied());
        let within = |number: u64, limit: i64| i64::try_from(number % limit.unsigned_abs()).unwrap_or(0);
        let first = within(name, 1 << 32) * PER_NAME;
        let own = first + within(identity.number(), PER_NAME);
        fcntl(&directory, FcntlArg::F_OFD_SETLK(&range(nix::libc::F_RDLCK, own, 1))).ok()?;
        Some(Self { directory, first, own })
    }

    /// Whether another process, or another handle of this one, has an other database open under the same name.
    pub(super) fn has_others(&self) -> bool {
        use nix::fcntl::{FcntlArg, fcntl};

        let end = self.first + PER_NAME;
        [(self.first, self.own), (self.own + 1, end)].into_iter().filter(|(from, to)| from < to).any(
            |(from, to)| {
                let mut found = range(nix::libc::F_WRLCK, from, to - from);
                let asked = fcntl(&self.directory, FcntlArg::F_OFD_GETLK(&mut found));
                asked.is_ok() && i32::from(found.l_type) != nix::libc::F_UNLCK
            },
        )
    }
}

#[cfg(target_os = "linux")]
fn range(kind: i32, start: i64, length: i64) -> nix::libc::flock {
    nix::libc::flock {
        l_type: i16::try_from(kind).unwrap_or(0),
        l_whence: 0,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

/// Nothing of the kind here: a replaced file is noticed by the processes themselves, at their next renewal.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Presence;

#[cfg(not(target_os = "linux"))]
impl Presence {
    pub(super) fn show(_: &Path, _: &Identity) -> Option<Self> {
        None
    }

    pub(super) fn has_others(&self) -> bool {
        false
    }
}
