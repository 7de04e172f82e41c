//! The files that batons are kept in.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Seek, Write, stdin, stdout};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dlock::Baton;

use crate::run::warn;
use crate::trouble::Trouble;

/// The most bytes that are read of a file.
const LONGEST: u64 = 64 * 1024;
/// The content of a file until its baton is written: blanks, at least as many as the longest text.
const ROOM: [u8; 2048] = [b' '; 2048];

/// A baton, and the file that it was read from.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) baton: Baton,
    pub(super) file: PathBuf,
}

impl Kept {
    pub(super) fn read(file: PathBuf) -> Result<Self, Trouble> {
        let mut text = String::new();
        let read = match is_standard(&file) {
            true => stdin().lock().take(LONGEST).read_to_string(&mut text),
            false => File::open(&file).and_then(|file| file.take(LONGEST).read_to_string(&mut text)),
        };
        read.map_err(|error| Trouble::usage(format!("{} cannot be read: {error}", file.display())))?;
        let baton = text.parse().map_err(|_: dlock::Error| {
            let what = format!("{} holds no baton, whose text begins with `dlock-baton:`", file.display());
            Trouble::usage(what)
        })?;
        Ok(Self { baton, file })
    }

    /// Removes the file, whose baton was taken over and is worthless.
    pub(super) fn remove(&self) {
        if is_standard(&self.file) {
            return;
        }
        let file = self.file.display();
        match self.is_there().map(|it_is| it_is.then(|| fs::remove_file(&self.file)).transpose()) {
            Ok(Ok(_)) => {}
            Ok(Err(error)) | Err(error) => {
                warn(&format!("{file} cannot be removed: {error}; its baton is worthless"));
            }
        }
    }

    /// Is `true` if the file still holds this baton, and not that of another lock. A file that is gone does not.
    fn is_there(&self) -> io::Result<bool> {
        match fs::read_to_string(&self.file) {
            Ok(text) => Ok(text.parse().is_ok_and(|baton: Baton| baton == self.baton)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A file for the next baton, which is made before the lock is taken: a file that cannot be made costs no lock. Dropped
/// before a baton is written, the draft removes the file.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// `None` for the standard output.
    made: Option<Made>,
    /// The file that the draft replaces, in one step of the file system.
    replaces: Option<&'a Kept>,
}

#[derive(Debug)]
struct Made {
    file: File,
    path: PathBuf,
}

impl<'a> Draft<'a> {
    /// Makes the file itself, at a path where nothing is.
    pub(super) fn new(path: &Path) -> Result<Self, Trouble> {
        let made = if is_standard(path) { None } else { Some(Made::create(path.to_owned())?) };
        Ok(Self { made, replaces: None })
    }

    /// Makes a file in the directory of a baton.
    pub(super) fn beside(kept: &'a Kept) -> Result<Self, Trouble> {
        if is_standard(&kept.file) {
            return Ok(Self { made: None, replaces: None });
        }
        let mut name = kept.file.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{:016x}", RandomState::new().hash_one(std::process::id())));
        let made = Made::create(kept.file.with_file_name(name))?;
        Ok(Self { made: Some(made), replaces: Some(kept) })
    }

    pub(super) fn write(mut self, baton: &Baton) -> io::Result<()> {
        let text = format!("{}\n", baton.to_text());
        let Some(made) = &mut self.made else {
            let mut out = stdout().lock();
            return out.write_all(text.as_bytes()).and_then(|()| out.flush());
        };
        // The text goes over the blanks, which needs no more room on the disk. Blanks that a crash leaves behind it are
        // no part of the text.
        made.file.rewind()?;
        made.file.write_all(text.as_bytes())?;
        made.file.set_len(text.len() as u64)?;
        made.file.sync_all()?;
        let changed = |what| Err(io::Error::other(what));
        // Another process may have replaced either file meanwhile, and its content must not be lost.
        if !made.is_there() {
            return changed("it was removed meanwhile");
        }
        if let Some(kept) = self.replaces {
            if kept.file.exists() && !kept.is_there()? {
                return changed("it holds something else by now");
            }
            fs::rename(&made.path, &kept.file)?;
        }
        self.made = None;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Some(made) = self.made.take().filter(Made::is_there) {
            let _ = fs::remove_file(&made.path);
        }
    }
}

impl Made {
    /// Creates the file for this user alone, with the room on the disk that the baton needs.
    fn create(path: PathBuf) -> Result<Self, Trouble> {
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let filled = made.and_then(|mut file| {
            let room = file.write_all(&ROOM).and_then(|()| file.sync_all());
            room.inspect_err(|_| drop(fs::remove_file(&path)))?;
            Ok(file)
        });
        let file = filled.map_err(|error| {
            let file = path.display();
            Trouble::usage(match error.kind() {
                ErrorKind::AlreadyExists => {
                    format!("{file} is there already, and may be the baton of a lock")
                }
                _ => format!("{file} cannot be written: {error}"),
            })
        })?;
        Ok(Self { file, path })
    }

    /// Is `true` if the path still leads to the file.
    fn is_there(&self) -> bool {
        let file = |found: io::Result<fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
        let ours = file(self.file.metadata());
        ours.is_some() && ours == file(fs::symlink_metadata(&self.path))
    }
}

/// Is `true` for `-`, which is standard input or output.
pub(super) fn is_standard(file: &Path) -> bool {
    file.as_os_str() == "-"
}
