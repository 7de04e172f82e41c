use std::path::PathBuf;
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tempfile::TempDir;

use super::*;
use crate::SqliteOptions;

/// A file of the kernel that no container has of its own, in place of its boot id.
const OF_THE_KERNEL: &str = "/proc/sys/kernel/ostype";
const START: i64 = 1_764_000_000_000;

fn kernel(id: &str, start: i64) -> Boot {
    Boot { id: Some(id.into()), start }
}

const fn container(start: i64) -> Boot {
    Boot { id: None, start }
}

/// Returns the name to use where `stored` is noted, and whether it is noted that this is in doubt.
fn named(boot: &Boot, stored: &str, is_used: bool) -> (String, bool) {
    let name = boot.name(stored.as_bytes(), |_| is_used).unwrap();
    assert_eq!(BootName::parse(&name.to_bytes()), name);
    (String::from_utf8(name.name).unwrap(), name.doubted.is_some())
}

#[test]
fn the_kernels_boot_id_alone_tells_boots_apart_where_all_see_it() {
    for (stored, is_used) in [("", false), ("b;1", true), ("b;1;2", false), ("a", false), ("a;1", true)] {
        assert_eq!(named(&kernel("b", START), stored, is_used), ("b".into(), stored == "b;1;2"), "{stored}");
    }
}

#[test]
fn a_container_keeps_the_name_that_a_living_process_uses_or_that_is_of_the_same_start() {
    for stored in ["a", "~a;1", "a;1763999999000;5"] {
        assert_eq!(named(&container(START), stored, true).0, stored.split(';').next().unwrap());
    }
    for start in [START - 4_000, START, START + 4_000] {
        assert_eq!(named(&container(start), &format!("a;{START}"), false), ("a".into(), false));
        assert_eq!(named(&kernel("b", start), &format!("~a;{START}"), false), ("~a".into(), false));
    }
    // The start that is noted follows the clock while a process that knows better is alive.
    let moved = container(START).name(b"~a;1;2", |_| true).unwrap();
    assert_eq!(moved, BootName { name: b"~a".into(), start: Some(START), doubted: Some(2) });
}

#[test]
fn a_container_invents_a_name_which_is_in_doubt_where_only_the_clock_speaks_for_another_boot() {
    let (one, another) = (named(&container(START), "", false), named(&container(START), "", false));
    assert!(one.0.starts_with('~') && !one.1 && one != another);
    for stored in ["a", "a;1", "~a;1"] {
        let (name, doubted) = named(&container(START), stored, false);
        assert!(name.starts_with('~') && name != "~a" && doubted, "{stored}: {name}");
    }
    assert_eq!(named(&kernel("b", START), "~a;1", false), ("b".into(), true));
}

#[test]
fn a_file_that_is_not_the_kernels_is_no_boot_id() {
    assert_eq!(Boot::read(Path::new(OF_THE_KERNEL)).unwrap().id.unwrap(), b"Linux");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "8c38ed7c-c451-447f-9d74-6c0fc71f50d6\n").unwrap();
    assert!(Boot::read(file.path()).unwrap().id.is_none());
    // A mount of its own, without the right to mount anything.
    assert!(Boot::read(Path::new("/proc")).unwrap().id.is_none());
    let error = Boot::read(Path::new("/proc/no/such/file")).unwrap_err();
    assert!(error.message().contains("mount /proc"), "{error}");
}

/// A database, and boot ids that containers have mounted over the kernel's.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().unwrap());
        for (container, id) in
            [("a", "8c38ed7c-c451-447f-9d74-6c0fc71f50d6"), ("b", "0a0d5bb2-94d8-4f5d-a4d8-4d5fca3f1a08")]
        {
            std::fs::write(site.path(container), format!("{id}\n")).unwrap();
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Connects as in a container, or as outside of all.
    async fn locks(&self, container: Option<&str>) -> Locks {
        let mut options = SqliteOptions::new(self.path("locks.db"));
        options.boot_id = container.map_or_else(|| OF_THE_KERNEL.into(), |container| self.path(container));
        let backend = options.connect().await.unwrap();
        Locks::builder(backend).with_lease(Duration::from_secs(2)).build().unwrap()
    }

    async fn raw(&self) -> SqliteConnection {
        SqliteConnectOptions::new().filename(self.path("locks.db")).connect().await.unwrap()
    }

    async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut self.raw().await).await.unwrap();
    }

    /// Notes an earlier start of the machine, as it is after a restart of it, and after a step of the clock.
    async fn restart(&self) {
        let earlier = "UPDATE dlock SET boot = CAST(substr(boot, 1, instr(boot, x'3B')) || '1000000' AS BLOB) WHERE key = x''";
        self.execute(earlier).await;
    }
}

async fn is_refused(locks: &Locks) -> dlock_core::Error {
    locks.lock("k").with_wait(Wait::No).acquire().await.expect_err("two holders")
}

#[tokio::test]
async fn containers_with_boot_ids_of_their_own_and_the_host_see_each_others_locks() {
    for (holder, other) in
        [(None, Some("a")), (Some("a"), None), (Some("a"), Some("b")), (Some("a"), Some("a"))]
    {
        let site = Site::new();
        let holds = site.locks(holder).await;
        let guard = holds.lock("k").acquire().await.unwrap();
        let asks = site.locks(other).await;
        assert_eq!(is_refused(&asks).await.kind(), ErrorKind::Busy, "{holder:?} {other:?}");
        guard.check().unwrap();
        guard.release().await.unwrap();
        let guard = asks.lock("k").with_wait(Wait::No).acquire().await.unwrap();
        assert_eq!(is_refused(&holds).await.kind(), ErrorKind::Busy, "{other:?} {holder:?}");
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_that_open_a_new_database_at_the_same_time_agree() {
    let site = std::sync::Arc::new(Site::new());
    let tasks: Vec<_> = (0..8)
        .map(|n| {
            let site = std::sync::Arc::clone(&site);
            tokio::spawn(async move { site.locks(Some(["a", "b"][n % 2])).await })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await.unwrap());
    }
    let guard = all[0].lock("k").acquire().await.unwrap();
    for locks in &all {
        assert_eq!(is_refused(locks).await.kind(), ErrorKind::Busy);
    }
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_lease_that_has_outlived_its_container_runs_on_in_another_one() {
    let site = Site::new();
    let first = site.locks(Some("a")).await;
    let kept = Duration::from_secs(3_600);
    let guard = first.lock("k").with_hold_at_least(kept).acquire().await.unwrap();
    guard.release().await.unwrap();
    first.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(first);
    for container in [Some("a"), Some("b"), None] {
        assert_eq!(is_refused(&site.locks(container).await).await.kind(), ErrorKind::Busy, "{container:?}");
    }
}

#[tokio::test]
async fn where_the_clock_alone_says_that_the_machine_has_restarted_earlier_leases_are_waited_for() {
    let site = Site::new();
    let first = site.locks(Some("a")).await;
    let guard = first.lock("k").with_hold_at_least(Duration::from_secs(3_600)).acquire().await.unwrap();
    guard.release().await.unwrap();
    first.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(first);
    site.restart().await;
    for container in [Some("b"), Some("a"), None] {
        let error = is_refused(&site.locks(container).await).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{container:?}: {error}");
        assert!(error.to_string().contains("restarted"), "{error}");
    }
    let next = site.locks(Some("b")).await;
    let guard = next.lock("k").with_wait(Duration::from_secs(10)).acquire().await.unwrap();
    guard.release().await.unwrap();
    drop(site.locks(None).await.lock("k").with_wait(Wait::No).acquire().await.unwrap());
}

#[tokio::test]
async fn where_no_lease_can_run_nothing_is_waited_for_after_a_restart() {
    let site = Site::new();
    for container in [Some("a"), Some("b"), None] {
        let locks = site.locks(container).await;
        let guard = locks.lock("k").with_wait(Wait::No).acquire().await.unwrap();
        guard.release().await.unwrap();
        locks.shutdown(Duration::from_secs(5)).await.unwrap();
        drop(locks);
        site.restart().await;
    }
}

#[tokio::test]
async fn a_restart_that_the_kernels_boot_id_shows_ends_all_leases_at_once() {
    let site = Site::new();
    let locks = site.locks(None).await;
    let guard = locks.lock("k").with_hold_at_least(Duration::from_secs(3_600)).acquire().await.unwrap();
    guard.release().await.unwrap();
    locks.shutdown(Duration::from_secs(5)).await.unwrap();
    drop(locks);
    site.execute("UPDATE dlock SET boot = CAST(replace(boot, 'Linux', 'earlier') AS BLOB)").await;
    drop(site.locks(None).await.lock("k").with_wait(Wait::No).acquire().await.unwrap());
}

#[tokio::test]
async fn a_container_that_can_leave_no_mark_does_not_open_the_database() {
    let site = Site::new();
    std::fs::create_dir(site.path(".locks.db.dlock")).unwrap();
    let mut options = SqliteOptions::new(site.path("locks.db"));
    drop(options.clone().connect().await.unwrap());
    options.boot_id = site.path("a");
    let error = options.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains(".dlock"), "{error}");
}
