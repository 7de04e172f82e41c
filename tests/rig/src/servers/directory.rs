//! Directories for servers.

use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use tempfile::TempDir;

use super::ServerError;

/// Where Linux keeps files in memory.
const IN_MEMORY: &str = "/dev/shm";

/// How much room there has to be for a directory in memory: containers have 64 MiB of it by default.
const ROOM: u64 = 4 << 30;

/// Makes an empty directory: where `TMPDIR` says, else in memory where there is room.
///
/// The data directory of a database server has a thousand files. ext4 gives no number of a file away again for five
/// seconds after the file was deleted, and searches past all of those for a free one. Tests that make and delete such
/// directories one after the other spend a third of their processor time on that search.
pub(crate) fn temporary() -> Result<TempDir, ServerError> {
    let made = match in_memory() {
        Some(place) => TempDir::new_in(place),
        None => TempDir::new(),
    };
    made.map_err(|error| ServerError::because("a directory for a server", &error))
}

fn in_memory() -> Option<PathBuf> {
    if std::env::var_os("TMPDIR").is_some() {
        return None;
    }
    let room = statvfs(IN_MEMORY).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize));
    room.filter(|bytes| *bytes >= ROOM).map(|_| Path::new(IN_MEMORY).to_owned())
}
