//! The database file is deleted, replaced, or comes apart while it is in use.

use std::path::PathBuf;
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_sql::{Sqlite, SqliteOptions};

use crate::mixing::boot_time;
use crate::support::{Other, Site, until};

fn delete(site: &Site, names: &[&str]) {
    for name in names {
        std::fs::remove_file(site.directory.path().join(name)).unwrap();
    }
}

const ALL: [&str; 3] = ["locks.db", "locks.db-wal", "locks.db-shm"];

fn two_seconds(backend: Sqlite) -> Locks {
    Locks::builder(backend).with_lease(Duration::from_secs(2)).build().unwrap()
}

#[tokio::test]
async fn a_deleted_database_is_noticed_and_its_locks_are_lost() {
    let site = Site::new();
    let locks = site.locks().await;
    let guard = locks.lock("k").acquire().await.unwrap();
    delete(&site, &ALL);
    guard.lost().await;
    assert!(guard.check().unwrap_err().to_string().contains("deleted"));
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::NotHeld);
    let error = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("connect again"), "{error}");
    assert!(!site.path.exists(), "it is not made again behind anybody's back");
    // Somebody connects and makes a new one: the old handle goes over to it.
    let new = site.locks().await;
    let theirs = new.lock("k").acquire().await.unwrap();
    assert_eq!(locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err().kind(), ErrorKind::Busy);
    theirs.release().await.unwrap();
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_handle_that_was_shut_down_and_is_kept_keeps_nobody_out_of_a_database_that_is_opened_again() {
    let site = Site::new();
    let locks = site.locks().await;
    locks.lock("k").acquire().await.unwrap().release().await.unwrap();
    locks.shutdown(Duration::from_secs(30)).await.unwrap();
    assert!(!site.directory.path().join(ALL[1]).exists(), "the last connection takes the log with it");
    // They take the numbers of the files that are gone, so that those of the log and the lock area are new ones.
    let others = [0; 8].map(|_| tempfile::NamedTempFile::new_in(site.directory.path()).unwrap());
    let again = site.locks().await;
    again.lock("k").with_wait(Wait::No).acquire().await.unwrap().release().await.unwrap();
    drop((locks, others));
}

#[tokio::test]
async fn an_attempt_on_a_replaced_database_tells_every_holder_at_once() {
    let site = Site::new();
    let locks = site.locks().await;
    let guards = [
        locks.lock("a").with_lease(Duration::from_secs(60)).acquire().await.unwrap(),
        locks.lock("b").with_lease(Duration::from_secs(60)).acquire().await.unwrap(),
    ];
    delete(&site, &ALL);
    until("the deletion is noticed", async || {
        locks
            .lock("c")
            .with_wait(Wait::No)
            .acquire()
            .await
            .is_err_and(|error| error.kind() == ErrorKind::Unavailable)
    })
    .await;
    for guard in &guards {
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    }
}

/// Replaces the database in some way while a lock is held, and takes the same lock in the new one.
async fn never_two_holders(site: Site, replace: impl AsyncFnOnce(&Site)) {
    let paths = [site.path.clone(), site.path.clone()];
    never_two_holders_by(paths, async || replace(&site).await).await;
}

/// The same where those of the old database and those of the new one open it by different paths.
async fn never_two_holders_by([first, second]: [PathBuf; 2], replace: impl AsyncFnOnce()) {
    let old = two_seconds(SqliteOptions::new(first).connect().await.unwrap());
    let guard = old.lock("k").acquire().await.unwrap();
    replace().await;
    guard.check().unwrap();
    let new = two_seconds(SqliteOptions::new(second).connect().await.unwrap());
    match new.lock("k").with_wait(Wait::No).acquire().await {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("still have open"), "{error}");
        }
        // On a busy machine the lease may have ended by now.
        Ok(theirs) => {
            assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
            theirs.release().await.unwrap();
        }
    }
    let theirs = new.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    theirs.check().unwrap();
    assert!(theirs.fence() > guard.fence());
    drop(guard);
    theirs.check().unwrap();
    theirs.release().await.unwrap();
    // All is well from here on, in both.
    old.lock("k").acquire().await.unwrap().release().await.unwrap();
    new.lock("k").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_database_that_was_deleted_and_made_again_has_no_second_holder() {
    never_two_holders(Site::new(), async |site| delete(site, &ALL)).await;
}

#[tokio::test]
async fn a_database_that_a_copy_was_moved_over_has_no_second_holder() {
    never_two_holders(Site::new(), async |site| {
        let other = Site::new();
        let backend = other.backend().await;
        dlock_core::Backend::close(&backend).await;
        let copy = site.directory.path().join("copy");
        std::fs::copy(&other.path, &copy).unwrap();
        delete(site, &ALL[1..]);
        std::fs::rename(copy, &site.path).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_database_whose_log_was_deleted_has_no_second_holder() {
    let site = Site::new();
    let mut other = Other::start("pause", &site.path);
    other.says("held");
    delete(&site, &ALL[1..]);
    let locks = site.locks().await;
    let guard = locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    let taken_at = boot_time();
    assert_eq!(other.says("checked"), "Lost");
    let last_held: i64 = other.says("held at last at").parse().unwrap();
    assert!(last_held < taken_at, "{last_held} {taken_at}");
    assert_eq!(other.says("released"), "NotHeld");
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_database_that_was_renamed_has_no_second_holder() {
    never_two_holders(Site::new(), async |site| {
        for name in ALL {
            let from = site.directory.path().join(name);
            std::fs::rename(&from, from.with_file_name(format!("old-{name}"))).unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_stopped_holder_in_a_deleted_database_has_lost_its_lock_before_the_next_one_gets_it() {
    let site = Site::new();
    let mut other = Other::start("pause", &site.path);
    other.says("held");
    other.signal("-STOP");
    delete(&site, &ALL);
    let locks = site.locks().await;
    let guard = locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap();
    other.signal("-CONT");
    assert_eq!(other.says("checked"), "Lost");
    assert_eq!(other.says("released"), "NotHeld");
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_that_died_with_its_database_keeps_nobody_waiting() {
    let site = Site::new();
    let mut other = Other::start("pause", &site.path);
    other.says("held");
    other.kill();
    delete(&site, &ALL);
    drop(site.locks().await.lock("k").with_wait(Wait::No).acquire().await.unwrap());
}

#[tokio::test]
async fn databases_side_by_side_do_not_wait_for_each_other() {
    let site = Site::new();
    let locks = site.locks().await;
    let _guard = locks.lock("k").acquire().await.unwrap();
    for n in 0..20 {
        let beside =
            SqliteOptions::new(site.directory.path().join(format!("{n}.db"))).connect().await.unwrap();
        drop(Locks::new(beside).lock("k").with_wait(Wait::No).acquire().await.unwrap());
    }
}

#[tokio::test]
async fn a_database_that_is_replaced_behind_a_symbolic_link_has_no_second_holder() {
    for real_first in [true, false] {
        let (site, beside) = (Site::new(), Site::new());
        SqliteOptions::new(&site.path).migrate().await.unwrap();
        let link = beside.path.with_file_name("link.db");
        std::os::unix::fs::symlink(&site.path, &link).unwrap();
        let mut paths = [site.path.clone(), link];
        if !real_first {
            paths.reverse();
        }
        never_two_holders_by(paths, async || {
            delete(&site, &ALL);
            SqliteOptions::new(&site.path).migrate().await.unwrap();
        })
        .await;
        let names = beside.directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        let names: std::collections::BTreeSet<_> = names.collect();
        assert_eq!(names, [".link.db.dlock", "link.db"].map(Into::into).into());
    }
}

#[tokio::test]
async fn a_symbolic_link_that_is_turned_elsewhere_counts_as_replaced() {
    let site = Site::new();
    let link = site.directory.path().join("link.db");
    let beside = site.directory.path().join("beside.db");
    SqliteOptions::new(&site.path).migrate().await.unwrap();
    SqliteOptions::new(&beside).migrate().await.unwrap();
    std::os::unix::fs::symlink(&site.path, &link).unwrap();
    let locks = two_seconds(Sqlite::open(&link).await.unwrap());
    let guard = locks.lock("k").acquire().await.unwrap();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&beside, &link).unwrap();
    guard.lost().await;
    locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_symbolic_link_that_is_turned_to_another_database_has_no_second_holder() {
    let (site, beside) = (Site::new(), Site::new());
    for path in [&site.path, &beside.path] {
        SqliteOptions::new(path).migrate().await.unwrap();
    }
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("link.db");
    std::os::unix::fs::symlink(&site.path, &link).unwrap();
    never_two_holders_by([link.clone(), link.clone()], async || {
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&beside.path, &link).unwrap();
    })
    .await;
}

/// Whoever opens the file by its other name has a log of its own, and sees nothing of what is held by the first.
#[tokio::test]
async fn a_database_that_gets_another_name_has_no_second_holder() {
    let site = Site::new();
    let locks = site.locks().await;
    let guard = locks.lock("k").acquire().await.unwrap();
    let other = Site::new();
    std::fs::hard_link(&site.path, &other.path).unwrap();
    let refused = Other::start("open", &other.path).says("failed");
    assert!(refused.starts_with("Error(InvalidConfig") && refused.contains("hard links"), "{refused}");
    until("the other name is noticed", async || {
        let error = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err();
        error.kind() == ErrorKind::InvalidConfig && error.to_string().contains("hard links")
    })
    .await;
    guard.check().unwrap();
    guard.lost().await;
    std::fs::remove_file(&other.path).unwrap();
    locks.lock("k").with_wait(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_second_name_that_goes_again_within_the_lease_costs_no_lock() {
    let site = Site::new();
    let locks = site.locks().await;
    let guard = locks.lock("k").acquire().await.unwrap();
    let other = site.path.with_file_name("backup.db");
    std::fs::hard_link(&site.path, &other).unwrap();
    until("the other name is noticed", async || {
        locks.lock("k").with_wait(Wait::No).acquire().await.unwrap_err().kind() == ErrorKind::InvalidConfig
    })
    .await;
    std::fs::remove_file(&other).unwrap();
    let expires = async || site.number("SELECT expires FROM dlock WHERE key > x''").await;
    let before = expires().await;
    until("the lease is renewed", async || expires().await > before).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}
