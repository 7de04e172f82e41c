//! The thread that writes.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::Token;
use dlock_core::audit::AuditedLocks;

use super::FileSinkOptions;
use super::queue::{Queue, Waiting, Work};
use crate::clocks::{Pair, host_name, name_of_clock, nanos};
use crate::line::{HASHED, HoldLine, Line, LocksLine, ModeField, Run, State, VERSION};

/// The time after which both clocks are read again while records come.
const WITH_RECORDS: Duration = Duration::from_secs(2);

/// The same while none come.
const WITHOUT: Duration = Duration::from_secs(60);

pub(super) struct Writer {
    queue: Arc<Queue>,
    options: FileSinkOptions,
    run: Run<'static>,
    file: File,
    bytes: u64,
    /// The locks that this file has a line of.
    known: HashSet<u64>,
    /// The number of the last record.
    number: u64,
    /// The last line with both clocks.
    told: State,
    /// How many holds had begun when the last line was written; `None` while it is not there.
    closed_at: Option<u64>,
    /// The last write failed, and may have left half a line.
    is_torn: bool,
    buffer: Vec<u8>,
}

impl Writer {
    pub(super) fn open(options: &FileSinkOptions, queue: Arc<Queue>) -> io::Result<Self> {
        std::fs::create_dir_all(&options.directory)?;
        let name = Token::random().map_err(|failure| io::Error::other(failure.to_string()))?.to_hex();
        let Pair { mono, wall } = Pair::read();
        let run = Run {
            v: VERSION,
            host: host_name().into(),
            pid: std::process::id(),
            clock: name_of_clock(&name).into(),
            run: name.into(),
            part: 1,
            first: 1,
            mono,
            wall,
        };
        let (file, bytes) = begin(options, &run)?;
        let told = State { n: 0, lost: 0, held: 0, mono, wall, goes_on: false };
        Ok(Self {
            queue,
            options: options.clone(),
            run,
            file,
            bytes,
            known: HashSet::new(),
            number: 0,
            told,
            closed_at: None,
            is_torn: false,
            buffer: Vec::new(),
        })
    }

    pub(super) fn run(mut self) {
        // Also when this panics: nobody is to wait for the last line.
        let _over = Over(Arc::clone(&self.queue));
        let mut spare = Vec::new();
        loop {
            let Work { mut records, closes, quits } = self.queue.next(spare);
            if !records.is_empty() {
                self.write(&records);
                records.clear();
                self.go_on_in_next_part();
            }
            spare = records;
            if closes.is_some() || quits {
                self.tell(true);
            } else if self.is_due() {
                self.tell(false);
            }
            if let Some(asked) = closes {
                self.queue.answer(asked);
            }
            if quits {
                return;
            }
        }
    }

    /// Writes the records with one write, or counts them as lost.
    fn write(&mut self, records: &[Waiting]) {
        // The clocks are far from the last pair after a pause.
        if Pair::read().mono.saturating_sub(self.told.mono) > nanos(WITH_RECORDS) {
            self.tell(false);
        }
        for record in records {
            if self.known.insert(record.locks.number()) {
                put(&mut self.buffer, &Line::Locks(line_of(&record.locks)));
            }
            self.number += 1;
            let key = match self.options.plain_keys {
                true => Cow::Borrowed(record.key.as_str()),
                false => Cow::Owned(format!("{HASHED}{}", record.key.hash_shown())),
            };
            let line = HoldLine {
                n: self.number,
                locks: record.locks.number(),
                key,
                fence: record.fence,
                mode: ModeField::of(record.mode),
                from: record.believed.0,
                until: record.believed.1,
                alone_until: record.alone_until,
                passed_on: record.passed_on,
                end: record.end.as_str().into(),
            };
            put(&mut self.buffer, &Line::Hold(line));
        }
        self.closed_at = None;
        let count = records.len() as u64;
        match self.flush() {
            true => self.queue.wrote(count),
            false => {
                // The lines of locks are written again: they may be among what is missing.
                self.known.clear();
                self.queue.failed(count);
            }
        }
    }

    /// Writes what is in the buffer. Returns whether all of it is in the file.
    fn flush(&mut self) -> bool {
        if self.is_torn {
            self.buffer.insert(0, b'\n');
        }
        let written = self.file.write_all(&self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.buffer.clear();
        if let Err(error) = &written
            && !self.is_torn
        {
            let what = "records of holds cannot be written, and are counted as lost";
            tracing::warn!(target: "dlock", { dlock.failure = %error }, "{what}");
        }
        self.is_torn = written.is_err();
        written.is_ok()
    }

    /// Is `true` if a line with both clocks is due, or there are counts that are not in the file.
    fn is_due(&self) -> bool {
        let state = self.state();
        let since = state.mono.saturating_sub(self.told.mono);
        match self.closed_at {
            // After the last line the file stays as it is, unless another hold begins.
            Some(begun) => begun != self.queue.begun(),
            None if (state.n, state.lost, state.held) != (self.told.n, self.told.lost, self.told.held) => {
                since > nanos(WITH_RECORDS)
            }
            None => since > nanos(WITHOUT),
        }
    }

    /// Writes the counts and both clocks.
    fn tell(&mut self, is_last: bool) {
        // Before the counts: a hold that begins meanwhile has another line written.
        let begun = self.queue.begun();
        if is_last && self.closed_at == Some(begun) {
            return;
        }
        let state = self.state();
        put(&mut self.buffer, &if is_last { Line::End(state) } else { Line::Clock(state) });
        if self.flush() {
            self.told = state;
            self.closed_at = is_last.then_some(begun);
        }
    }

    fn state(&self) -> State {
        // Without those that wait to be written: a process that ends now leaves no record of these either.
        let held = self.queue.begun().saturating_sub(self.number + self.queue.dropped());
        let (lost, pair) = (self.queue.totals().lost, Pair::read());
        State { n: self.number, lost, held, mono: pair.mono, wall: pair.wall, goes_on: false }
    }

    /// Goes on in the next file if this one is full. Where that cannot be made, this one goes on.
    fn go_on_in_next_part(&mut self) {
        if self.bytes < self.options.part_size {
            return;
        }
        let state = self.state();
        let next = Run {
            part: self.run.part + 1,
            first: self.number + 1,
            mono: state.mono,
            wall: state.wall,
            ..self.run.clone()
        };
        let Ok((file, bytes)) = begin(&self.options, &next) else { return };
        put(&mut self.buffer, &Line::End(State { goes_on: true, ..state }));
        self.flush();
        (self.file, self.bytes, self.run, self.told) = (file, bytes, next, state);
        self.is_torn = false;
        self.known.clear();
        if let Some(oldest) = self.run.part.checked_sub(self.options.parts) {
            // Where it cannot be removed there is one more.
            let _ = std::fs::remove_file(path(&self.options, &self.run, oldest));
        }
    }
}

struct Over(Arc<Queue>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over();
    }
}

fn line_of(locks: &AuditedLocks) -> LocksLine<'_> {
    LocksLine {
        locks: locks.number(),
        backend: locks.backend().into(),
        store: locks.store().into(),
        in_process: locks.is_in_process(),
        label: locks.label().map(Into::into),
    }
}

/// Makes the file of a part, with its first line. No other process has it: a file that exists is an error.
fn begin(options: &FileSinkOptions, run: &Run<'_>) -> io::Result<(File, u64)> {
    let path = path(options, run, run.part);
    let mut file = File::options().append(true).create_new(true).open(&path)?;
    let mut line = Vec::new();
    put(&mut line, &Line::Run(run.clone()));
    match file.write_all(&line) {
        Ok(()) => Ok((file, line.len() as u64)),
        Err(error) => {
            let _ = std::fs::remove_file(path);
            Err(error)
        }
    }
}

fn path(options: &FileSinkOptions, run: &Run<'_>, part: u32) -> PathBuf {
    let in_a_name = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let host: String = run.host.chars().map(in_a_name).take(64).collect();
    let random = run.run.get(..8).unwrap_or_default();
    options.directory.join(format!("{}{host}-{}-{random}-{part:04}.jsonl", crate::trail::PREFIX, run.pid))
}

fn put(buffer: &mut Vec<u8>, line: &Line<'_>) {
    // Nothing in a line fails to become JSON, and a vector takes all that is written.
    if serde_json::to_writer(&mut *buffer, line).is_ok() {
        buffer.push(b'\n');
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use dlock_core::audit::{AuditSink, AuditedHold};
    use dlock_core::{Locks, Memory};

    use super::*;
    use crate::{Audit, DoubtKind, FileSink, Trail};

    struct Pushes(Arc<Queue>);

    impl AuditSink for Pushes {
        fn hold_began(&self, _: &Arc<AuditedLocks>) {
            self.0.began();
        }

        fn hold_ended(&self, hold: &AuditedHold<'_>) {
            self.0.push(hold);
        }
    }

    #[tokio::test]
    async fn records_that_a_full_disk_does_not_take_are_counted_and_those_after_them_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let options = FileSink::in_directory(directory.path());
        let queue = Arc::new(Queue::new(100));
        let mut writer = Writer::open(&options, Arc::clone(&queue)).unwrap();
        let locks = Locks::builder(Memory::new()).with_audit(Pushes(Arc::clone(&queue))).build().unwrap();
        let mut disk = File::options().append(true).open("/dev/full").unwrap();
        for is_full in [false, true, false] {
            if is_full || writer.number > 1 {
                std::mem::swap(&mut writer.file, &mut disk);
            }
            locks.lock("k").run(async {}).await.unwrap();
            writer.write(&queue.next(Vec::new()).records);
        }
        writer.tell(true);
        let totals = queue.totals();
        assert_eq!((totals.written, totals.lost, totals.held), (2, 1, 0));
        let report = Audit::new().check(&Trail::read([directory.path()]).unwrap());
        let kinds: Vec<_> = report.doubts.iter().map(|doubt| doubt.kind).collect();
        assert_eq!(
            (report.summary.holds, kinds),
            (2, vec![DoubtKind::Lost, DoubtKind::Missing]),
            "{report:?}"
        );
    }
}
