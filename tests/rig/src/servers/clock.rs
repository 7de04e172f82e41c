//! A clock that a test can set, for one server.

mod go;

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Program, ServerError};

/// Replaces what a program reads as wall-clock time. Compiled when it is needed, as a library that the program loads
/// first; libfaketime is no substitute, since it hangs servers that use jemalloc.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset; /* nanoseconds, in a file that the test writes to */

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("DLOCK_CLOCK_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset = page;
}

/* System calls, not the next library's functions: allocators read the clock before symbols can be looked up. */
int clock_gettime(clockid_t id, struct timespec *time) {
    if (syscall(SYS_clock_gettime, id, time) != 0) return -1;
    if (offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec + *offset;
        time->tv_sec = ns / 1000000000;
        time->tv_nsec = ns % 1000000000;
    }
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
"#;

const CC: Program = Program { name: "cc", package: "build-essential" };

/// The wall clock of one server, which a test can step.
///
/// Only the wall clock is moved; monotonic clocks run on. Needs a C compiler.
#[derive(Debug)]
pub struct SteppedClock {
    library: PathBuf,
    path: PathBuf,
    offset: File,
}

impl SteppedClock {
    /// A clock that shows the true time. Its files are put into `directory`, which must live as long as the server.
    ///
    /// # Errors
    ///
    /// When there is no C compiler, which names the command to install one, or the files cannot be written.
    pub fn in_directory(directory: &Path) -> Result<Self, ServerError> {
        let source = directory.join("clock.c");
        let library = directory.join("clock.so");
        write(&source, SOURCE)?;
        let options: [&OsStr; 7] = [
            "-shared".as_ref(),
            "-fPIC".as_ref(),
            "-O2".as_ref(),
            "-Wall".as_ref(),
            "-o".as_ref(),
            library.as_ref(),
            source.as_ref(),
        ];
        CC.run(options)?;
        Self::shown_by(library, directory)
    }

    /// [`in_directory`](Self::in_directory) for a server that is written in Go, on x86-64.
    ///
    /// # Errors
    ///
    /// As there, and on other processors.
    pub fn for_go_in_directory(directory: &Path) -> Result<Self, ServerError> {
        Self::shown_by(go::compile(directory)?, directory)
    }

    /// A clock that shows the true time to programs that load `library` first.
    fn shown_by(library: PathBuf, directory: &Path) -> Result<Self, ServerError> {
        let path = directory.join("clock.offset");
        let file = |error| ServerError::because(path.display(), &error);
        let offset = OpenOptions::new().create(true).truncate(true).write(true).open(&path).map_err(file)?;
        let clock = Self { library, path, offset };
        clock.write(0);
        Ok(clock)
    }

    /// The environment in which the server has to be started.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.library.clone()), ("DLOCK_CLOCK_OFFSET", self.path.clone())]
    }

    /// From now on the clock is this far ahead of the true time.
    pub fn ahead(&self, by: Duration) {
        self.write(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX));
    }

    /// From now on the clock is this far behind the true time.
    pub fn behind(&self, by: Duration) {
        self.write(i64::try_from(by.as_nanos()).map_or(i64::MIN, |ns| -ns));
    }

    /// From now on the clock shows the true time.
    pub fn right(&self) {
        self.write(0);
    }

    fn write(&self, ns: i64) {
        self.offset.write_all_at(&ns.to_ne_bytes(), 0).expect("the clock's file stays writable");
    }
}

fn write(path: &Path, text: &str) -> Result<(), ServerError> {
    std::fs::write(path, text).map_err(|error| ServerError::because(path.display(), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_sees_the_clock_that_the_test_sets() {
        let directory = tempfile::tempdir().unwrap();
        let clock = SteppedClock::in_directory(directory.path()).unwrap();
        let shown = || -> i64 {
            let output = Command::new("date").arg("+%s").envs(clock.environment()).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let truth = || i64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_secs()).unwrap();
        assert!((shown() - truth()).abs() <= 5);
        clock.ahead(Duration::from_secs(3600));
        assert!((shown() - truth() - 3600).abs() <= 5);
        clock.behind(Duration::from_secs(3600));
        assert!((shown() - truth() + 3600).abs() <= 5);
        clock.right();
        assert!((shown() - truth()).abs() <= 5);
    }
}
