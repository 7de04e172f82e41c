//! A wall clock of their own for processes, which can be set while they run.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Failed;

/// Where Debian's package keeps the library that is loaded before the others.
const PACKAGE: &str = "libfaketime";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";
const DIRECTORIES: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/usr/local/lib"];

/// The wall clock of the processes of one arena, as of one machine. No other process has it, and clocks that nobody can
/// set are left as they are.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    /// What the library reads at each look at the clock: how far it is from the machine's.
    offset: PathBuf,
}

impl WallClock {
    /// A clock that agrees with the machine's, kept in the file `offset`.
    pub(crate) fn new(offset: PathBuf) -> Result<Self, Failed> {
        let there =
            DIRECTORIES.iter().map(|directory| Path::new(directory).join(LIBRARY)).find(|it| it.exists());
        let library = there.ok_or_else(|| {
            format!("{LIBRARY} is not there; install it with: sudo apt-get install --yes {PACKAGE}")
        })?;
        std::fs::write(&offset, "+0\n")?;
        Ok(Self { library, offset })
    }

    /// Lets a process have this clock.
    pub(crate) fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.offset)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("DONT_FAKE_MONOTONIC", "1");
    }

    /// Sets the clock to `seconds` after the machine's, or before.
    pub(crate) fn set(&self, seconds: i64) -> Result<(), Failed> {
        // Replaced as a whole, since the library may read at any time.
        let next = self.offset.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(next, &self.offset)?)
    }
}
