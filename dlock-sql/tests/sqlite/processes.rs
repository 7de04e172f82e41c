//! Several processes on one database.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_sql::SqliteOptions;
use sqlx::Connection;

use crate::support::{Other, Site, boot_time, raw};

/// Plays the role that the environment asks for, and does nothing when none is.
#[test]
fn a_child_process_plays_its_role() {
    let (Some(role), Some(path)) = (std::env::var_os("DLOCK_TEST_ROLE"), std::env::var_os("DLOCK_TEST_PATH"))
    else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = runtime.block_on(play(role.to_str().unwrap(), &PathBuf::from(path)));
    assert_eq!(code, ExitCode::SUCCESS);
}

async fn play(role: &str, path: &Path) -> ExitCode {
    let backend = match SqliteOptions::new(path).connect().await {
        Ok(backend) => backend,
        Err(error) => {
            eprintln!("failed {error:?}");
            return ExitCode::SUCCESS;
        }
    };
    let locks = Locks::builder(backend).with_lease(Duration::from_secs(1)).build().unwrap();
    let (role, argument) = role.split_once(' ').unwrap_or((role, ""));
    match role {
        "open" => eprintln!("opened"),
        "pause" => {
            let guard = locks.lock("k").acquire().await.unwrap();
            eprintln!("held {}", guard.fence().unwrap());
            let mut last_held = boot_time();
            let error = loop {
                let now = boot_time();
                match guard.check() {
                    Ok(()) => last_held = now,
                    Err(error) => break error,
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            eprintln!("checked {:?}", error.kind());
            eprintln!("held at last at {last_held}");
            eprintln!("released {:?}", guard.release().await.unwrap_err().kind());
        }
        "churn" => {
            eprintln!("churning");
            for n in 0_u64.. {
                let guard = locks.lock(format!("{argument}{}", n % 50)).acquire().await.unwrap();
                if n % 3 > 0 {
                    guard.release().await.unwrap();
                }
            }
        }
        "transaction" => {
            let mut raw = raw(path).await;
            let mut transaction = raw.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let update = sqlx::query("UPDATE dlock SET fence = 0, token = NULL");
            update.execute(&mut *transaction).await.unwrap();
            eprintln!("inside");
            std::thread::sleep(Duration::from_secs(60));
        }
        "fill" => {
            let mut granted = 0;
            let error = loop {
                match locks.lock(format!("k{granted}")).with_wait(Wait::No).acquire().await {
                    Ok(guard) => std::mem::forget(guard),
                    Err(error) => break error,
                }
                granted += 1;
            };
            eprintln!("failed {error:?}");
            eprintln!("granted {granted}");
            // The end of the process, without releasing anything.
            std::process::exit(0);
        }
        _ => panic!("the role {role:?} is not known"),
    }
    ExitCode::SUCCESS
}

#[tokio::test]
async fn processes_killed_in_the_middle_of_writing_leave_a_whole_database() {
    let site = Site::new();
    let locks = site.locks().await;
    let keeps = locks.lock("kept").acquire().await.unwrap();
    for round in 0..8_u64 {
        let mut others: Vec<_> =
            (0..4).map(|n| Other::start(&format!("churn {}", n % 2), &site.path)).collect();
        for other in &mut others {
            other.says("churning");
        }
        tokio::time::sleep(Duration::from_millis(3 + round * 7)).await;
        others.into_iter().for_each(Other::kill);
        keeps.check().unwrap();
    }
    assert_eq!(
        site.number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'").await,
        0
    );
    for n in 0..50 {
        for side in [0, 1] {
            let lock = locks.lock(format!("{side}{n}")).with_wait(Duration::from_secs(5));
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }
    keeps.release().await.unwrap();
}

#[tokio::test]
async fn a_process_killed_inside_of_a_transaction_changes_nothing_and_blocks_nobody() {
    let site = Site::new();
    let locks = site.locks().await;
    let before = locks.lock("k").acquire().await.unwrap();
    let fence = before.fence();
    before.release().await.unwrap();
    let mut other = Other::start("transaction", &site.path);
    other.says("inside");
    let waiting = {
        let lock = locks.lock("k").with_wait(Duration::from_secs(20));
        tokio::spawn(async move { lock.acquire().await })
    };
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!waiting.is_finished());
    other.kill();
    let guard = waiting.await.unwrap().unwrap();
    assert!(guard.fence() > fence);
    assert_ne!(guard.fence().unwrap().get(), 1);
    guard.check().unwrap();
    let error = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
}
