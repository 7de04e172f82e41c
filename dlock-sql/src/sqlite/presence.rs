//! The processes that have a file open under one path.
//!
//! A database file that is deleted or replaced while processes work with it lives on for them, unseen by processes that
//! come later. So that the two sides do not give one lock to two holders, every process leaves a mark for as long as it
//! has a database open: a read lock on a byte of a file beside it, `.name.dlock`, at an offset made of the database's
//! identity, the table, and the name of the [boot](super::boot) that is used in it. The kernel removes a mark with its
//! process. The file can be opened by users who may write the database, and by no others.
//!
//! | marks of other processes | a process that finds them |
//! |---|---|
//! | of another identity: `has_others` | waits until they are gone, or until every lease there has ended |
//! | of another name of the boot: `has_strangers` | does not open it: each would take leases of the other for ended |
//! | of this name: `has_equals` | uses the name, since a living process of this boot does |
//!
//! A process that opens the database by a symbolic link leaves an equal mark beside the link, where it is found by
//! those that come when the link has been turned to another database.

use std::path::Path;

use super::file::Identity;
#[cfg(target_os = "linux")]
use super::file::is_trusted;
use crate::table::TableName;
use crate::text::number;

/// The files of the marks, with the mark of this process in each of them: beside the database, and beside the link that
/// led to it. The marks are removed when this is dropped.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(super) struct Presence(Vec<std::fs::File>);

/// The offset of a mark: some bits of the identity, then some of the table, then some of the name of its boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(i64);

impl Mark {
    /// The number of offsets that a table has.
    const TABLE: i64 = 1 << 16;
    /// The number of offsets that an identity has.
    const IDENTITY: i64 = 1 << 30;

    pub(super) fn of(identity: &Identity, table: &TableName, boot: &[u8]) -> Self {
        // The high bits of such a number hardly depend on the last bytes.
        let bits = |number: u64, below: i64| i64::from(number as u32 ^ (number >> 32) as u32) % below;
        // SQLite takes names that differ in case for the same.
        let table =
            bits(number(table.to_string().to_ascii_lowercase().into_bytes()), Self::IDENTITY / Self::TABLE);
        let boot = bits(number(boot.iter().copied()), Self::TABLE);
        // In this order, so that the marks of one identity stand together, and among these those of one table: one
        // system call asks about such a range.
        Self(bits(identity.number(), 1 << 32) * Self::IDENTITY + table * Self::TABLE + boot)
    }

    /// Returns the first of the offsets of an identity or table, by how many each has, and the one after the last.
    #[cfg(target_os = "linux")]
    fn within(self, size: i64) -> (i64, i64) {
        let first = self.0 / size * size;
        (first, first + size)
    }
}

#[cfg(target_os = "linux")]
impl Presence {
    /// Opens the file of the marks beside a database, whose path leads through no symbolic link, and beside the path as
    /// it was given if that is a link. Returns `None` where there can be none beside the database; a replaced one is
    /// then noticed only by the processes themselves, at their next renewal.
    pub(super) fn beside(database: &Path, given: &Path) -> Option<Self> {
        let mut files = vec![beside(database)?];
        if given.is_symlink() {
            files.extend(beside(given));
        }
        Some(Self(files))
    }

    /// Leaves a mark. Returns `None` where the file system has no such locks.
    pub(super) fn show(mut self, mark: Mark) -> Option<Self> {
        use nix::fcntl::{FcntlArg, fcntl};

        // A read lock, of which many processes may have one on the same byte; and of the open file, since closing any
        // other handle of a file ends the locks of its process.
        let mark = range(nix::libc::F_RDLCK, mark.0, 1);
        let shown = |file: &std::fs::File| fcntl(file, FcntlArg::F_OFD_SETLK(&mark)).is_ok();
        if !shown(self.0.first()?) {
            return None;
        }
        // The mark beside the database decides. One beside the link is a help for those that come by it.
        let beside_link = self.0.split_off(1);
        self.0.extend(beside_link.into_iter().filter(shown));
        Some(self)
    }

    /// Returns `true` if another process, or another handle of this one, has left an equal mark.
    pub(super) fn has_equals(&self, mark: Mark) -> bool {
        self.finds(mark.0, mark.0 + 1)
    }

    /// Returns `true` if another process, or another handle of this one, has another database open under the same name.
    pub(super) fn has_others(&self, than: Mark) -> bool {
        let (first, beyond) = than.within(Mark::IDENTITY);
        // All marks but those of this identity, which are a range in the middle.
        self.finds(0, first) || self.finds(beyond, i64::MAX)
    }

    /// Returns `true` if another process, or another handle of this one, uses this table, and another name of the boot.
    pub(super) fn has_strangers(&self, to: Mark) -> bool {
        let (first, beyond) = to.within(Mark::TABLE);
        self.finds(first, to.0) || self.finds(to.0 + 1, beyond)
    }

    fn finds(&self, from: i64, to: i64) -> bool {
        use nix::fcntl::{FcntlArg, fcntl};

        if from >= to {
            return false;
        }
        // A write lock is only asked about: it collides with every mark, but for those of this very handle.
        self.0.iter().any(|file| {
            let mut found = range(nix::libc::F_WRLCK, from, to - from);
            let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut found));
            // Where the question fails, the file system has no such locks, and `show` leaves no mark either.
            asked.is_ok() && i32::from(found.l_type) != nix::libc::F_UNLCK
        })
    }
}

/// Opens the file of the marks beside this path of a database.
#[cfg(target_os = "linux")]
fn beside(path: &Path) -> Option<std::fs::File> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name()?);
    name.push(".dlock");
    open(&path.with_file_name(name), &path.metadata().ok()?)
}

/// Opens the file of the marks, which is made with the rights of a database, but for users who may only read it.
#[cfg(target_os = "linux")]
fn open(path: &Path, database: &std::fs::Metadata) -> Option<std::fs::File> {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};

    let mut options = std::fs::OpenOptions::new();
    // No link is followed: in a directory that others can write to, it could lead to any file of this user.
    options.read(true).write(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    let Ok(file) = options.clone().create_new(true).open(path) else {
        let file = options.open(path).ok()?;
        // If everybody may make files, another user may have made this one.
        let (owner, anybody) =
            (file.metadata().ok()?.uid(), path.parent()?.metadata().ok()?.mode() & 0o002 != 0);
        return (!anybody || owner == database.uid() || is_trusted(owner)).then_some(file);
    };
    let writers = database.mode() & 0o222;
    // Only the administrator can give it to the owner of the database, who could not open it otherwise.
    if fchown(&file, Some(database.uid()), Some(database.gid())).is_err() {
        let _ = fchown(&file, None, Some(database.gid()));
    }
    // After it has its owner: rights that were given before would count for this user.
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

/// Stands for marks where there are none: a replaced file is noticed by the processes themselves, at their next
/// renewal.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(super) struct Presence;

#[cfg(not(target_os = "linux"))]
impl Presence {
    pub(super) fn beside(_: &Path, _: &Path) -> Option<Self> {
        None
    }

    pub(super) fn show(self, _: Mark) -> Option<Self> {
        Some(self)
    }

    pub(super) fn has_equals(&self, _: Mark) -> bool {
        false
    }

    pub(super) fn has_others(&self, _: Mark) -> bool {
        false
    }

    pub(super) fn has_strangers(&self, _: Mark) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::file::{Files, Found};
    use super::*;

    #[test]
    fn a_mark_says_which_table_of_which_database_is_open_and_how_the_boot_is_named_in_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db");
        let identity = |of: &str| {
            std::fs::write(directory.path().join(of), "").unwrap();
            let Found::Database(found) = Files::of(&directory.path().join(of)).unwrap().look().unwrap()
            else {
                panic!("{of}")
            };
            found
        };
        let (one, another) = (identity("a.db"), identity("b.db"));
        let (table, beside) = (TableName::default(), TableName::new("dlocks").unwrap());
        let ours = Mark::of(&one, &table, b"boot");
        let us = Presence::beside(&path, &path).unwrap().show(ours).unwrap();
        assert!(!us.has_equals(ours) && !us.has_others(ours) && !us.has_strangers(ours), "it finds itself");
        for (theirs, expected) in [
            (ours, (true, false, false)),
            (Mark::of(&another, &table, b"boot"), (false, true, false)),
            (Mark::of(&one, &table, b"boot 2"), (false, false, true)),
            (Mark::of(&one, &beside, b"boot 2"), (false, false, false)),
        ] {
            let them = Presence::beside(&path, &path).unwrap().show(theirs).unwrap();
            assert_eq!(
                (us.has_equals(ours), us.has_others(ours), us.has_strangers(ours)),
                expected,
                "{theirs:?}"
            );
            drop(them);
            assert!(
                !us.has_equals(ours) && !us.has_others(ours) && !us.has_strangers(ours),
                "{theirs:?} is left"
            );
        }
    }
}
