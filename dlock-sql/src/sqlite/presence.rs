//! Who has which file open under one path.
//!
//! A database file that is deleted or replaced while processes work with it lives on for them, unseen by those who come
//! later. So that the two sides do not give the same lock to two holders, every process leaves a mark for as long as it
//! has a database open: a read lock on a byte of a file beside it, `.name.dlock`, at an offset made of the database's
//! identity. Who finds a mark of another identity waits until it is gone, or until every lease that may still run there
//! has ended. The kernel removes a mark with its process. The file can be opened by those who may write the database,
//! and by nobody else.

use std::path::Path;

use super::file::Identity;
#[cfg(target_os = "linux")]
use super::file::is_trusted;

/// The mark of one open database. Removed when dropped.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Presence {
    file: std::fs::File,
    /// The offset of this identity.
    own: i64,
}

#[cfg(target_os = "linux")]
impl Presence {
    /// Leaves a mark. `None` where no file for it can be made, or the file system has no such locks; a replaced
    /// database is then noticed only by the processes themselves, at their next renewal.
    pub(super) fn show(path: &Path, identity: &Identity) -> Option<Self> {
        use nix::fcntl::{FcntlArg, fcntl};

        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name()?);
        name.push(".dlock");
        let file = open(&path.with_file_name(name), &path.metadata().ok()?)?;
        let own = i64::try_from(identity.number() >> 1).unwrap_or(0).min(i64::MAX - 2);
        fcntl(&file, FcntlArg::F_OFD_SETLK(&range(nix::libc::F_RDLCK, own, 1))).ok()?;
        Some(Self { file, own })
    }

    /// Whether another process, or another handle of this one, has an other database open under the same name.
    pub(super) fn has_others(&self) -> bool {
        use nix::fcntl::{FcntlArg, fcntl};

        [(0, self.own), (self.own + 1, i64::MAX)].into_iter().filter(|(from, to)| from < to).any(
            |(from, to)| {
                let mut found = range(nix::libc::F_WRLCK, from, to - from);
                let asked = fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut found));
                asked.is_ok() && i32::from(found.l_type) != nix::libc::F_UNLCK
            },
        )
    }
}

/// Opens the file of the marks, which is made with the rights of a database, but for those who may only read it.
#[cfg(target_os = "linux")]
fn open(path: &Path, database: &std::fs::Metadata) -> Option<std::fs::File> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};

    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    let Ok(file) = options.clone().create_new(true).open(path) else {
        let file = options.open(path).ok()?;
        // Where everybody may make files, somebody else may have made this one.
        let (owner, anybody) =
            (file.metadata().ok()?.uid(), path.parent()?.metadata().ok()?.mode() & 0o002 != 0);
        return (!anybody || owner == database.uid() || is_trusted(owner)).then_some(file);
    };
    let writers = database.mode() & 0o222;
    let _ = fchown(&file, None, Some(database.gid()));
    file.set_permissions(std::fs::Permissions::from_mode(writers | writers << 1)).ok()?;
    Some(file)
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
