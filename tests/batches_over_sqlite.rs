//! Batches in one statement of SQLite, and among processes.
#![cfg(feature = "sqlite")]

#[path = "../dlock-core/tests/batch/rounds.rs"]
mod rounds;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dlock::sql::Sqlite;
use dlock::{Batch, ErrorKind, Locks, Wait};

use rounds::rounds;

async fn locks(directory: &Path) -> Locks {
    locks_in(directory, "locks.db").await
}

async fn locks_in(directory: &Path, file: &str) -> Locks {
    let url = format!("sqlite://{}", directory.join(file).display());
    let builder = Locks::builder(Sqlite::connect(&url).await.unwrap());
    builder.with_wait(Duration::from_secs(60)).build().unwrap()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("k{n}")).collect()
}

#[tokio::test]
async fn all_rows_are_taken_or_none() {
    let directory = tempfile::tempdir().unwrap();
    let (ours, theirs) = (locks(directory.path()).await, locks(directory.path()).await);
    let other = theirs.lock("k4").acquire().await.unwrap();
    let batch = ours.lock_all(keys(10));
    let error = batch.clone().with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("k4")));
    assert_eq!(error.holder().and_then(|holder| holder.pid), Some(std::process::id()));
    for key in keys(10) {
        assert_eq!(theirs.inspect(&key).await.unwrap().is_some(), key == "k4");
    }
    let before = other.fence();
    other.release().await.unwrap();
    let guard = batch.acquire().await.unwrap();
    assert!(guard.fence_of("k4") > before);
    assert_eq!(theirs.inspect("k7").await.unwrap().unwrap().fence, guard.fence_of("k7"));
    assert!(theirs.lock_all(["k9", "x"]).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    theirs.lock_all(keys(10)).try_acquire().await.unwrap().expect("all are free").release().await.unwrap();
}

#[tokio::test]
async fn keys_of_any_text_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let locks = locks(directory.path()).await;
    let odd = ["'", "\"", "\\", "]", "é", "e\u{301}", "a\n", "null", "🔒", "A", "a"];
    let guard = locks.lock_all(odd).acquire().await.unwrap();
    assert_eq!(guard.fences().filter_map(|(_, fence)| fence).count(), odd.len());
    for key in odd {
        assert!(locks.lock(key).try_acquire().await.unwrap().is_none(), "{key:?}");
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_batch_is_renewed_and_outlives_its_first_lease() {
    let directory = tempfile::tempdir().unwrap();
    let locks = locks(directory.path()).await;
    let guard = locks.lock_all(keys(5)).with_lease(Duration::from_millis(300)).acquire().await.unwrap();
    while locks.stats().renewals < 4 * 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Four processes with eight tasks each, 32 rounds a task: 1,024 batches of two to eight keys in orders of chance, half
/// of them in one database and half in another. Every other process opens the second one first.
#[test]
fn processes_in_opposite_orders_never_deadlock() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("inside")).unwrap();
    let workers: Vec<_> = (0..4)
        .map(|process| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "one_process_of_them", "--nocapture"])
                .env("DLOCK_TEST_BATCH_PROCESS", format!("{process}:{}", directory.path().display()))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut worker in workers {
        assert!(worker.wait().unwrap().success(), "its error is above");
    }
    let left: Vec<_> = std::fs::read_dir(directory.path().join("inside")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What each of the four processes runs; nothing in a run of the tests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_of_them() {
    let Ok(part) = std::env::var("DLOCK_TEST_BATCH_PROCESS") else { return };
    let (process, directory) = part.split_once(':').unwrap();
    let (process, directory): (u64, &Path) = (process.parse().unwrap(), directory.as_ref());
    let mut files = ["even.db", "odd.db"];
    if process % 2 == 1 {
        files.reverse();
    }
    let mut both = [locks_in(directory, files[0]).await, locks_in(directory, files[1]).await];
    if process % 2 == 1 {
        both.reverse();
    }
    let inside = directory.join("inside");
    let tasks: Vec<_> =
        (0..8).map(|task| tokio::spawn(contend(both.clone(), process * 8 + task, inside.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    for locks in both {
        assert_eq!(locks.stats().lost, 0);
        locks.shutdown(Duration::from_secs(20)).await.unwrap();
    }
}

/// Whoever is inside makes a file for each key.
async fn contend(locks: [Locks; 2], task: u64, inside: PathBuf) {
    for keys in rounds(task, 32) {
        let batch = Batch::of(keys.iter().map(|key| locks[usize::from(key.as_bytes()[1] % 2)].lock(key)));
        let guard = batch.acquire().await.unwrap_or_else(|error| panic!("task {task}: {error}"));
        for key in &keys {
            let made = std::fs::File::create_new(inside.join(key));
            assert!(made.is_ok(), "{key} is held twice: {made:?}");
        }
        tokio::task::yield_now().await;
        for key in &keys {
            std::fs::remove_file(inside.join(key)).unwrap();
        }
        guard.release().await.unwrap();
    }
}
