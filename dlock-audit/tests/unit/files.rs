//! What a process writes, and what is read of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dlock_audit::{Audit, DoubtKind, FileSink, FileSinkOptions, Outcome, Report, Totals, Trail, Wrong};
use dlock_core::{Locks, Memory};
use tempfile::TempDir;

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn only_file(directory: &Path) -> PathBuf {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

/// Takes `k` so often, and closes the file.
async fn wrote(options: FileSinkOptions, times: u32) -> Totals {
    let sink = options.start().unwrap();
    let locks = Locks::builder(Memory::new()).with_audit(sink.clone()).build().unwrap();
    for _ in 0..times {
        locks.lock("k").run(async {}).await.unwrap();
    }
    locks.shutdown(Duration::from_secs(20)).await.unwrap();
    sink.close()
}

fn check(paths: impl AsRef<Path>) -> Report {
    Audit::new().check(&Trail::read([paths]).unwrap())
}

fn kinds(report: &Report) -> Vec<DoubtKind> {
    report.doubts.iter().map(|doubt| doubt.kind).collect()
}

#[tokio::test]
async fn what_is_written_is_read_back_and_held() {
    let directory = directory();
    let totals = wrote(FileSink::in_directory(directory.path()), 100).await;
    assert_eq!(totals, Totals { written: 100, lost: 0, held: 0 });
    let report = check(directory.path());
    assert_eq!(report.outcome(), Outcome::Held, "{report:?}");
    let summary = &report.summary;
    assert_eq!((summary.holds, summary.keys, summary.processes, summary.hosts), (100, 1, 1, 1));
    assert_eq!(summary.resolution, Duration::ZERO);
    let text = fs::read_to_string(only_file(directory.path())).unwrap();
    assert!(!text.contains("\"k\"") && text.contains("\"#8254c329a92850f6\""), "{text}");
}

#[tokio::test]
async fn a_key_is_found_by_its_hash_and_in_clear() {
    for plain in [false, true] {
        let directory = directory();
        wrote(FileSink::in_directory(directory.path()).with_plain_keys(plain), 3).await;
        let trail = Trail::read([directory.path()]).unwrap();
        assert_eq!(Audit::new().with_key("k").check(&trail).summary.holds, 3);
        let other = Audit::new().with_key("other").check(&trail);
        assert_eq!((other.outcome(), kinds(&other)), (Outcome::Unknown, vec![DoubtKind::Nothing]));
    }
}

#[tokio::test]
async fn a_record_that_found_no_room_is_counted_and_the_outcome_is_unknown() {
    let directory = directory();
    // So few that they come faster than the writer looks.
    let totals = wrote(FileSink::in_directory(directory.path()).with_capacity(2), 20_000).await;
    assert!(totals.lost > 0 && totals.written + totals.lost == 20_000, "{totals:?}");
    let report = check(directory.path());
    assert_eq!(report.outcome(), Outcome::Unknown);
    assert!(kinds(&report).contains(&DoubtKind::Lost), "{report:?}");
}

#[tokio::test]
async fn half_a_last_line_is_what_a_killed_process_leaves_and_the_outcome_is_unknown() {
    let directory = directory();
    wrote(FileSink::in_directory(directory.path()), 10).await;
    let file = only_file(directory.path());
    let text = fs::read_to_string(&file).unwrap();
    for cut in [text.len() - 1, text.len() - 40, text.len() / 2] {
        fs::write(&file, &text[..cut]).unwrap();
        let report = check(directory.path());
        assert_eq!((report.outcome(), kinds(&report)), (Outcome::Unknown, vec![DoubtKind::Unfinished]));
    }
}

#[tokio::test]
async fn a_line_that_is_missing_or_cannot_be_read_makes_the_outcome_unknown() {
    let directory = directory();
    wrote(FileSink::in_directory(directory.path()), 10).await;
    let file = only_file(directory.path());
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let missing: Vec<&str> = lines.iter().copied().filter(|line| !line.contains("\"n\":5,")).collect();
    fs::write(&file, missing.join("\n") + "\n").unwrap();
    assert_eq!(kinds(&check(&file)), [DoubtKind::Missing]);
    let mut foreign = lines.clone();
    foreign.insert(4, "{\"t\":\"other\"}");
    fs::write(&file, foreign.join("\n") + "\n").unwrap();
    let report = check(&file);
    assert_eq!(kinds(&report), [DoubtKind::Unread]);
    assert!(report.doubts[0].what.starts_with("line 5 of "), "{report:?}");
    // The last records and the count of them: nothing but the last line says that they were there.
    let (end, all) = lines.split_last().unwrap();
    let cut: Vec<&str> = all[..all.len() - 3].iter().copied().chain([*end]).collect();
    fs::write(&file, cut.join("\n") + "\n").unwrap();
    assert_eq!(kinds(&check(&file)), [DoubtKind::Missing]);
}

#[tokio::test]
async fn a_process_that_ends_while_it_holds_a_lock_makes_the_outcome_unknown() {
    let directory = directory();
    let sink = FileSink::in_directory(directory.path()).start().unwrap();
    let locks = Locks::builder(Memory::new()).with_audit(sink.clone()).build().unwrap();
    locks.lock("k").run(async {}).await.unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    assert_eq!(sink.close().held, 1);
    assert_eq!(kinds(&check(directory.path())), [DoubtKind::StillHeld]);
    // What comes after the last line is written too.
    guard.release().await.unwrap();
    assert_eq!(sink.close(), Totals { written: 2, lost: 0, held: 0 });
    let report = check(directory.path());
    assert_eq!((report.outcome(), report.summary.holds), (Outcome::Held, 2), "{report:?}");
}

#[tokio::test]
async fn a_run_goes_on_in_further_files_and_the_oldest_are_removed() {
    let (whole, removed) = (directory(), directory());
    let options = |directory: &TempDir| FileSink::in_directory(directory.path()).with_part_size(4_096);
    for (directory, parts) in [(&whole, 1_000), (&removed, 2)] {
        let sink = options(directory).with_parts(parts).start().unwrap();
        let locks = Locks::builder(Memory::new()).with_audit(sink.clone()).build().unwrap();
        for _ in 0..20 {
            for _ in 0..20 {
                locks.lock("k").run(async {}).await.unwrap();
            }
            sink.close();
        }
    }
    let report = check(whole.path());
    assert_eq!((report.outcome(), report.summary.holds), (Outcome::Held, 400), "{report:?}");
    assert!(fs::read_dir(whole.path()).unwrap().count() > 4);
    assert_eq!(fs::read_dir(removed.path()).unwrap().count(), 2);
    let report = check(removed.path());
    assert_eq!(kinds(&report), [DoubtKind::Removed]);
    // A file in the middle that is gone is no file that was removed to make room.
    let mut files: Vec<_> = fs::read_dir(whole.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    fs::remove_file(&files[2]).unwrap();
    assert_eq!(kinds(&check(whole.path())), [DoubtKind::Missing]);
}

#[tokio::test]
async fn files_that_are_none_of_an_audit_are_errors_with_their_line() {
    let directory = directory();
    let file = directory.path().join("dlock-audit-other.jsonl");
    fs::write(&file, "{\"a\":1}\n").unwrap();
    let error = Trail::read([directory.path()]).unwrap_err();
    assert!(matches!((error.line, &error.wrong), (1, Wrong::NoAudit)), "{error}");
    fs::write(&file, "{\"t\":\"run\",\"v\":9,\"new\":true}\n").unwrap();
    let error = Trail::read([&file]).unwrap_err();
    assert!(matches!((error.line, &error.wrong), (1, Wrong::Version(9))), "{error}");
    assert!(error.to_string().contains("line 1: the format has version 9"), "{error}");
    fs::remove_file(&file).unwrap();
    assert!(matches!(Trail::read([directory.path()]).unwrap_err().wrong, Wrong::Empty));
    assert!(matches!(Trail::read([&file]).unwrap_err().wrong, Wrong::Io(_)));
}

#[tokio::test]
async fn what_is_over_before_the_time_that_is_asked_for_is_left_out() {
    let directory = directory();
    wrote(FileSink::in_directory(directory.path()), 5).await;
    let trail = Trail::read([directory.path()]).unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(3_600);
    let report = Audit::new().with_since(later).check(&trail);
    assert_eq!((report.summary.holds, report.summary.left_out), (0, 1));
    assert_eq!(kinds(&report), [DoubtKind::Nothing]);
}

/// Its disk may have failed, and it may run still.
#[tokio::test]
async fn a_run_without_a_last_line_is_not_left_out_however_long_ago_it_wrote() {
    let directory = directory();
    wrote(FileSink::in_directory(directory.path()), 5).await;
    let file = only_file(directory.path());
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains("\"t\":\"end\"")).collect();
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    let later = std::time::SystemTime::now() + Duration::from_secs(3_600);
    let report = Audit::new().with_since(later).check(&Trail::read([directory.path()]).unwrap());
    assert_eq!((report.outcome(), report.summary.left_out), (Outcome::Unknown, 0));
    assert!(kinds(&report).contains(&DoubtKind::Unfinished), "{report:?}");
}
