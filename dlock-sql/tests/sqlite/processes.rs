//! Several processes on one database.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_sql::SqliteOptions;
use sqlx::Connection;

use crate::mixing::{self, boot_time};
use crate::support::{Other, Site, raw};

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
        "count" => {
            let counter = path.with_file_name("counter");
            let (until, mut mine) = (Instant::now() + Duration::from_secs(3), 0);
            while Instant::now() < until {
                let guard = locks.lock("k").with_wait(Wait::Forever).acquire().await.unwrap();
                let count: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                guard.check().unwrap();
                std::fs::write(&counter, (count + 1).to_string()).unwrap();
                mine += 1;
                guard.release().await.unwrap();
            }
            eprintln!("counted {mine}");
        }
        "mix" => mixing::mix(&locks, path.parent().unwrap()).await,
        "own" => {
            let (until, mut mine) = (Instant::now() + Duration::from_secs(2), 0);
            while Instant::now() < until {
                let lock =
                    locks.lock(format!("{argument}_{}", mine % 10)).with_lease(Duration::from_secs(30));
                let guard = lock.acquire().await.unwrap();
                guard.release().await.unwrap();
                mine += 1;
            }
            assert_eq!(locks.stats().rechecks, 0);
            eprintln!("counted {mine}");
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
async fn a_killed_holder_is_followed_when_its_lease_has_ended() {
    let site = Site::new();
    let mut other = Other::start("pause", &site.path);
    let fence: u64 = other.says("held").parse().unwrap();
    let locks = site.locks().await;
    let error = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.holder().unwrap().pid, Some(other.id()));
    other.kill();
    let guard = locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    assert!(guard.fence().unwrap().get() > fence);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_stopped_holder_learns_at_its_first_check_that_its_lock_is_lost() {
    let site = Site::new();
    let mut other = Other::start("pause", &site.path);
    other.says("held");
    let locks = site.locks().await;
    other.signal("-STOP");
    let guard = locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    other.signal("-CONT");
    assert_eq!(other.says("checked"), "Lost");
    assert_eq!(other.says("released"), "NotHeld");
    assert!(other.wait().success());
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn eight_processes_on_one_key_count_without_losing_one() {
    let site = Site::new();
    let counter = site.path.with_file_name("counter");
    std::fs::write(&counter, "0").unwrap();
    let others: Vec<_> = (0..8).map(|_| Other::start("count", &site.path)).collect();
    let mut sum = 0;
    for mut other in others {
        sum += other.says("counted").parse::<u64>().unwrap();
        assert!(other.wait().success());
    }
    assert!(sum > 8, "nobody got anywhere");
    assert_eq!(std::fs::read_to_string(&counter).unwrap().parse::<u64>().unwrap(), sum);
    assert_eq!(site.held().await, 0);
}

#[tokio::test]
async fn eight_processes_on_keys_of_their_own_meet_no_error() {
    let site = Site::new();
    let others: Vec<_> = (0..8).map(|n| Other::start(&format!("own {n}"), &site.path)).collect();
    for mut other in others {
        assert!(other.says("counted").parse::<u64>().unwrap() > 0);
        assert!(other.wait().success());
    }
    assert_eq!(site.held().await, 0);
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
