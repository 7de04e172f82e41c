//! Whether no two holders overlapped, from the files of real processes.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use dlock_audit::FileSink;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Executor};
use support::{Done, Store};

/// What a process of these tests does: it takes `k` so often, or holds it until its input ends.
const TASK: &str = "DLOCK_TEST_OF_THE_AUDIT";

/// Is a process of its own where the variable is set, and does nothing otherwise.
#[test]
fn a_process_of_the_other_tests() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (url, directory) = (std::env::var("TASK_URL").unwrap(), std::env::var("TASK_DIRECTORY").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sink = FileSink::in_directory(directory).start().unwrap();
        let locks = dlock::from_url(&url).await.unwrap().with_audit(sink.clone()).build().unwrap();
        match task.parse::<u32>() {
            Ok(times) => {
                for _ in 0..times {
                    let body = async { tokio::time::sleep(Duration::from_micros(200)).await };
                    locks.lock("k").with_wait(Duration::from_secs(120)).run(body).await.unwrap();
                }
            }
            Err(_) => {
                let guard = locks.lock("k").acquire().await.unwrap();
                println!("\nholds");
                let mut line = String::new();
                std::io::stdin().read_line(&mut line).unwrap();
                guard.check().unwrap();
                // The store may not have it any more.
                let _ = guard.release().await;
            }
        }
        locks.shutdown(Duration::from_secs(20)).await.unwrap();
        assert_eq!(sink.close().lost, 0);
    });
}

fn start(store: &Store, directory: &Path, task: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_of_the_other_tests", "--nocapture"])
        .envs([(TASK, task), ("TASK_URL", store.url())])
        .env("TASK_DIRECTORY", directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Starts a process that holds `k`, and waits until it does.
fn holder(store: &Store, directory: &Path) -> (Child, ChildStdin) {
    let mut child = start(store, directory, "hold");
    let input = child.stdin.take().unwrap();
    // Left open: what the process prints at its end must not fail.
    let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "holds"));
    (child, input)
}

fn audit(store: &Store, arguments: &[&str]) -> Done {
    store.plain(&["audit"].iter().chain(arguments).copied().collect::<Vec<_>>()).done()
}

#[test]
fn processes_that_take_turns_have_held_and_the_outcome_says_over_what() {
    let store = Store::new();
    let directory = store.path("audit");
    let children: Vec<_> = (0..3).map(|_| start(&store, &directory, "40")).collect();
    for mut child in children {
        drop(child.stdin.take());
        assert!(child.wait_with_output().unwrap().status.success());
    }
    let files = directory.display().to_string();
    let done = audit(&store, &[&files]);
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.starts_with("held        no two holders overlapped\n"), "{}", done.out);
    assert!(done.out.contains("120 holds, 1 keys, 1 stores, 3 processes, 1 hosts"), "{}", done.out);
    let done = audit(&store, &["--json", "--key", "k", "--since", "1h", &files]);
    let report = done.json();
    assert_eq!((done.code, &report["outcome"], &report["holds"]), (0, &"held".into(), &120.into()));
    assert_eq!(report["resolution_ns"], 0);
    let done = audit(&store, &["--key", "other", &files]);
    assert!(done.code == 69 && done.out.contains("no hold of this key is recorded"), "{}", done.out);
}

#[test]
fn a_lock_whose_row_is_deleted_has_two_holders_who_are_named() {
    let store = Store::new();
    let directory = store.path("audit");
    let (first, mut input) = holder(&store, &directory);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut database = SqliteConnection::connect(store.url()).await.unwrap();
        let deleted = database.execute("DELETE FROM dlock").await.unwrap();
        assert!(deleted.rows_affected() > 0);
    });
    let (second, other) = holder(&store, &directory);
    let (one, two) = (first.id(), second.id());
    // The first checks its lock once more, and finds it sound.
    writeln!(input).unwrap();
    for (mut child, input) in [(first, input), (second, other)] {
        drop(input);
        assert!(child.wait().unwrap().success());
    }
    let done = audit(&store, &["--json", &directory.display().to_string()]);
    assert_eq!(done.code, 78, "{}{}", done.out, done.err);
    let report = done.json();
    assert_eq!(report["outcome"], "overlapped");
    let overlap = report["violations"].as_array().unwrap().iter().find(|it| it["kind"] == "overlap").unwrap();
    let pids = [&overlap["holds"][0]["pid"], &overlap["holds"][1]["pid"]];
    assert_eq!(pids, [one, two]);
    assert!(overlap["by_ns"].as_u64().unwrap() > 0 && overlap["error_ns"] == 0, "{overlap}");
    let text = audit(&store, &[&directory.display().to_string()]).out;
    assert!(text.starts_with("overlapped") && text.contains("was held by both for"), "{text}");
    assert!(text.contains("probably the store"), "{text}");
}

#[test]
fn a_process_that_was_killed_makes_it_unknown_and_is_named() {
    let store = Store::new();
    let directory = store.path("audit");
    let (mut killed, _input) = holder(&store, &directory);
    killed.kill().unwrap();
    killed.wait().unwrap();
    let done = audit(&store, &[&directory.display().to_string()]);
    assert_eq!(done.code, 69, "{}{}", done.out, done.err);
    assert!(done.out.starts_with("unknown"), "{}", done.out);
    assert!(done.out.contains(&format!("  {}@", killed.id())), "{}", done.out);
    assert!(done.out.contains("its file has no last line"), "{}", done.out);
}

#[test]
fn what_is_no_file_of_an_audit_is_a_wrong_argument() {
    let store = Store::new();
    let (empty, other) = (store.path("empty"), store.path("other"));
    std::fs::create_dir(&empty).unwrap();
    std::fs::write(&other, "{}\n").unwrap();
    for (path, what) in [(&empty, "no file here"), (&other, "line 1: this is no file of an audit")] {
        let done = audit(&store, &[&path.display().to_string()]);
        assert!(done.code == 64 && done.err.contains(what), "{} {}", done.code, done.err);
    }
    assert_eq!(audit(&store, &["--clock-error", "2h", "x"]).code, 64);
    assert_eq!(audit(&store, &[]).code, 64);
}
