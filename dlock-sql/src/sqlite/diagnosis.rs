//! The dangers of the files to the locks in them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dlock_core::Failure;
use dlock_core::backend::Finding;
use sqlx::Row;

use super::connections::Until;
use super::database::{Database, OPENING};
use super::failure::{classify, of_file};

/// The size beyond which a log was not written back for long.
const LONG_LOG: u64 = 64 << 20;
/// The free space that the log is to have to grow.
const ROOM: u64 = 16 << 20;

const FOR_EVERYBODY: u32 = 0o002;
const STICKY: u32 = 0o1000;

pub(super) async fn diagnose(database: &Database) -> Result<Vec<Finding>, Failure> {
    let connections = &database.connections;
    let path = connections.path();
    let until = Until::after(OPENING);
    let journal = connections.reader(until).await?.run(until, |_| sqlx::query("PRAGMA journal_mode")).await;
    let journal = journal.map_err(|error| classify(error, path))?;
    let journal: String = match journal.rows.first() {
        Some(row) => row.try_get(0).map_err(|error| classify(error, path))?,
        None => String::new(),
    };
    let mut findings = vec![journal_mode(&journal)];
    let file = path.metadata().map_err(|error| of_file(error, "looking at", path))?;
    findings.push(match file.mode() & FOR_EVERYBODY {
        0 => Finding::fine("file", format!("mode {:o}", file.mode() & 0o777)),
        _ => Finding::danger(
            "file",
            format!("mode {:o}: everybody on this host can take and end the locks", file.mode() & 0o777),
            "take the right from others (chmod o-w), and share the file by a group",
        ),
    });
    #[cfg(target_os = "linux")]
    findings.push(marks(database.has_marks()));
    let directory = connections.files().real().parent().unwrap_or_else(|| Path::new("/"));
    if let Ok(found) = directory.metadata() {
        findings.push(of_directory(&found));
    }
    if let Ok(log) = connections.files().log().metadata() {
        findings.push(match log.len() {
            LONG_LOG.. => Finding::warning(
                "log",
                format!("{} MiB are not written back", log.len() >> 20),
                "end whatever reads in the database for long (a transaction that is open, a backup): it keeps the log from \
                 being written back",
            ),
            len => Finding::fine("log", format!("{} KiB", len >> 10)),
        });
    }
    findings.extend(room(directory));
    Ok(findings)
}

fn journal_mode(journal: &str) -> Finding {
    match journal {
        "wal" => Finding::fine("journal_mode", journal),
        _ => Finding::warning(
            "journal_mode",
            journal,
            "let dlock set it to WAL: close all that use the file, and connect again; readers and writers wait for each \
             other otherwise",
        ),
    }
}

#[cfg(target_os = "linux")]
fn marks(are_there: bool) -> Finding {
    match are_there {
        true => Finding::fine("marks", "processes see each other"),
        false => Finding::warning(
            "marks",
            "processes do not see who has the database open: one that is replaced is noticed at the next renewal only",
            "give the user of this process the right to read and write the file .NAME.dlock beside the database, as the              database's own",
        ),
    }
}

fn of_directory(found: &Metadata) -> Finding {
    let mode = found.mode() & 0o7777;
    match (mode & FOR_EVERYBODY, mode & STICKY) {
        (0, _) => Finding::fine("directory", format!("mode {mode:o}")),
        (_, 0) => Finding::danger(
            "directory",
            format!(
                "mode {mode:o}: everybody on this host can put another file in the place of the database"
            ),
            "take the right from others (chmod o-w)",
        ),
        _ => Finding::warning(
            "directory",
            format!("mode {mode:o}: everybody on this host can put files beside the database"),
            "use a directory that only those who lock can write to",
        ),
    }
}

#[cfg(target_os = "linux")]
fn room(directory: &Path) -> Option<Finding> {
    let system = nix::sys::statvfs::statvfs(directory).ok()?;
    // The numbers have other types on each target.
    #[allow(clippy::unnecessary_cast)]
    let free = (system.blocks_available() as u64).saturating_mul(system.fragment_size() as u64);
    let found = format!("{} MiB are free", free >> 20);
    Some(match free < ROOM {
        false => Finding::fine("disk", found),
        true => Finding::warning(
            "disk",
            found,
            "make room: on a full disk nothing is granted and nothing renewed",
        ),
    })
}

#[cfg(not(target_os = "linux"))]
fn room(_: &Path) -> Option<Finding> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::Severity;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_that_cannot_leave_a_mark_is_a_warning() {
        assert_eq!(
            [true, false].map(|are_there| marks(are_there).severity),
            [Severity::Fine, Severity::Warning]
        );
    }

    #[test]
    fn a_journal_that_is_no_write_ahead_log_is_a_warning() {
        assert_eq!(journal_mode("wal").severity, Severity::Fine);
        assert_eq!(journal_mode("delete").severity, Severity::Warning);
    }
}
