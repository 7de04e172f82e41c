//! Writing the records of a process to files.

mod queue;
mod writer;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use dlock_core::audit::{AuditSink, AuditedHold, AuditedLocks};

use self::queue::Queue;
use self::writer::Writer;

/// Writes the records of this process to a file of its own, one JSON document a line, on a thread of its own.
///
/// ```
/// use dlock_audit::FileSink;
/// use dlock_core::{Locks, Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let directory = directory.path();
/// let sink = FileSink::in_directory(directory).start()?;
/// let locks = Locks::builder(Memory::new()).with_audit(sink.clone()).build()?;
/// locks.lock("room_7").run(async {}).await?;
/// // At the end of the process, when nothing is held any more:
/// locks.shutdown(std::time::Duration::from_secs(5)).await?;
/// let totals = sink.close();
/// assert_eq!((totals.written, totals.lost, totals.held), (1, 0, 0));
/// # Ok(()) }
/// ```
///
/// * **One for a process**: give clones of it to all `Locks`. Each run of a process has files of its own, named after
///   host, process id and a random number, so that no two write to one. A child made by `fork` that builds locks with
///   its parent's sink gets a file of its own as well.
/// * **No record waits for a disk.** A hold is put into a queue in memory; where that is full, or the disk fails, the
///   record is dropped and counted, and the audit's outcome is *unknown* then.
/// * **Size**: about 150 bytes a hold. A file ends at [64 MiB](FileSinkOptions::with_part_size), and the newest
///   [16](FileSinkOptions::with_parts) of a run are kept.
/// * **No secrets**: no token, no URL, and [keys](FileSinkOptions::with_plain_keys) as hashes, as in log lines.
///
/// Not guaranteed: what was written in the last quarter of a second before a `SIGKILL`, or since the last write-back
/// before the machine lost its power. The file has no last line then, and the audit says so. A process whose disk
/// fails until its end looks the same; it logs a warning.
#[derive(Clone)]
pub struct FileSink(Arc<Running>);

struct Running {
    queue: Arc<Queue>,
    options: FileSinkOptions,
    process: u32,
    /// The sink of a child made by `fork`, in which the thread of this one does not run. `None` inside where it could
    /// not be started.
    child: OnceLock<Option<FileSink>>,
}

/// The options of a [`FileSink`].
#[derive(Clone, Debug)]
#[must_use = "start() makes the sink"]
pub struct FileSinkOptions {
    directory: PathBuf,
    plain_keys: bool,
    capacity: usize,
    part_size: u64,
    parts: u32,
}

impl FileSinkOptions {
    /// Writes keys in clear. By default there is the hash of each in their place, since keys often contain the ids of
    /// people: the first 16 hexadecimal digits of its SHA-256, as in [log lines](dlock_core::Key::hash_shown).
    /// Default `false`.
    pub const fn with_plain_keys(mut self, plain: bool) -> Self {
        self.plain_keys = plain;
        self
    }

    /// Sets how many records may wait to be written. Default 65,536; at least 2.
    pub const fn with_capacity(mut self, records: usize) -> Self {
        self.capacity = if records < 2 { 2 } else { records };
        self
    }

    /// Sets the size in bytes at which a file ends and the next one begins. Default 64 MiB; at least 4 KiB.
    pub const fn with_part_size(mut self, bytes: u64) -> Self {
        self.part_size = if bytes < 4_096 { 4_096 } else { bytes };
        self
    }

    /// Sets how many files of this run are kept; the oldest is removed for another one. Default 16; at least 2.
    pub const fn with_parts(mut self, parts: u32) -> Self {
        self.parts = if parts < 2 { 2 } else { parts };
        self
    }

    /// Makes the directory and the file, and starts the thread that writes.
    ///
    /// # Errors
    ///
    /// Those of the directory and the file, and when the operating system gives no thread or no random number.
    pub fn start(self) -> io::Result<FileSink> {
        let queue = Arc::new(Queue::new(self.capacity));
        let writer = Writer::open(&self, Arc::clone(&queue))?;
        std::thread::Builder::new().name("dlock-audit".into()).spawn(move || writer.run())?;
        let process = std::process::id();
        Ok(FileSink(Arc::new(Running { queue, options: self, process, child: OnceLock::new() })))
    }
}

/// What a [`FileSink`] has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records that were written.
    pub written: u64,
    /// Records that were dropped: the queue was full, or the disk failed.
    pub lost: u64,
    /// Holds that have begun and not ended.
    pub held: u64,
}

impl FileSink {
    /// Begins the options of a sink that writes to a file in this directory, which it makes if there is none.
    pub fn in_directory(directory: impl Into<PathBuf>) -> FileSinkOptions {
        FileSinkOptions {
            directory: directory.into(),
            plain_keys: false,
            capacity: 65_536,
            part_size: 64 << 20,
            parts: 16,
        }
    }

    /// Writes what is waiting, and the last line, and returns the totals. Blocks for the disk.
    ///
    /// To be called when the locks are shut down, directly before the process ends: a file without a last line, or with
    /// one that counts holds, makes the audit's outcome *unknown*. Records of later holds are written after it, and
    /// another last line when this is called again.
    pub fn close(&self) -> Totals {
        self.0.queue.close()
    }

    /// Returns the totals so far, without waiting for anything.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.0.queue.totals()
    }

    /// Returns the sink that runs in `process`.
    fn of(&self, process: u32) -> Option<&Self> {
        if self.0.process == process {
            return Some(self);
        }
        let start = || match self.0.options.clone().start() {
            Ok(sink) => Some(sink),
            Err(error) => {
                let what = "the child of a fork has no file for its audit, and its holds are not recorded";
                tracing::warn!(target: "dlock", { dlock.failure = %error }, "{what}");
                None
            }
        };
        self.0.child.get_or_init(start).as_ref()?.of(process)
    }
}

impl AuditSink for FileSink {
    fn hold_began(&self, locks: &Arc<AuditedLocks>) {
        if let Some(sink) = self.of(locks.process()) {
            sink.0.queue.began();
        }
    }

    fn hold_ended(&self, hold: &AuditedHold<'_>) {
        if let Some(sink) = self.of(hold.locks().process()) {
            sink.0.queue.push(hold);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not waited for: a drop does not block.
        self.queue.quit();
    }
}

impl fmt::Debug for FileSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileSink")
            .field("directory", &self.0.options.directory)
            .field("totals", &self.totals())
            .finish_non_exhaustive()
    }
}
