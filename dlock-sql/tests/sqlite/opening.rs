//! Making and opening the database, and what is refused.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use dlock_core::{Backend, Error, ErrorKind, Key, Locks};
use dlock_sql::{Sqlite, SqliteOptions};

use crate::support::{Other, Site};

async fn works(backend: Sqlite) {
    Locks::new(backend).lock("k").acquire().await.unwrap().release().await.unwrap();
}

fn is(error: &Error, kind: ErrorKind, word: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(word), "{word:?} is missing in: {error}");
    assert_eq!(error.backend(), Some("sqlite"));
}

#[tokio::test]
async fn connecting_makes_private_files_and_a_table() {
    let site = Site::new();
    let backend = Sqlite::connect(&format!("sqlite://{}", site.path.display())).await.unwrap();
    works(backend.clone()).await;
    for name in ["locks.db", "locks.db-wal", "locks.db-shm"] {
        let mode = site.directory.path().join(name).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    works(Sqlite::open(&site.path).await.unwrap()).await;
}

#[tokio::test]
async fn urls_may_be_relative_and_escaped_and_name_a_table() {
    let site = Site::new();
    let up = "../".repeat(std::env::current_dir().unwrap().components().count() - 1);
    let directory = site.directory.path();
    std::fs::create_dir(directory.join("a b?%")).unwrap();
    let url = format!(
        "sqlite://{up}{}/a%20b%3F%25/l%C3%B6cks.db?table=Shop_1",
        &directory.display().to_string()[1..]
    );
    works(Sqlite::connect(&url).await.unwrap()).await;
    let path = directory.join("a b?%/löcks.db");
    assert!(path.is_file());
    works(SqliteOptions::new(&path).with_table("Shop_1").unwrap().open().await.unwrap()).await;
    is(&Sqlite::open(&path).await.unwrap_err(), ErrorKind::InvalidConfig, "no table dlock");
}

#[tokio::test]
async fn opening_makes_nothing_and_says_what_is_missing() {
    let site = Site::new();
    let options = SqliteOptions::new(&site.path);
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "there is no database");
    assert!(!site.path.exists());
    SqliteOptions::new(&site.path).with_table("other").unwrap().migrate().await.unwrap();
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "no table dlock");
    options.migrate().await.unwrap();
    options.migrate().await.unwrap();
    works(options.open().await.unwrap()).await;
}

/// As after a dump that was read into a new file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_has_lost_its_write_ahead_log_gets_it_again_by_migrating() {
    let site = Site::new();
    let options = SqliteOptions::new(&site.path);
    options.migrate().await.unwrap();
    let mode = async |ask: &'static str| -> String {
        let how = sqlx::sqlite::SqliteConnectOptions::new().filename(&site.path);
        let mut connection = sqlx::ConnectOptions::connect(&how).await.unwrap();
        let mode = sqlx::query_scalar(ask).fetch_one(&mut connection).await.unwrap();
        sqlx::Connection::close(connection).await.unwrap();
        mode
    };
    assert_eq!(mode("PRAGMA journal_mode = DELETE").await, "delete");
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "write-ahead log");
    options.migrate().await.unwrap();
    assert_eq!(mode("PRAGMA journal_mode").await, "wal");
    works(options.open().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_make_the_same_database_at_the_same_time() {
    for _ in 0..5 {
        let site = Site::new();
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let options = SqliteOptions::new(&site.path);
                tokio::spawn(async move { works(options.connect().await.unwrap()).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn tables_that_are_not_ours_are_left_alone() {
    let site = Site::new();
    let options = SqliteOptions::new(&site.path);
    SqliteOptions::new(&site.path).with_table("x").unwrap().migrate().await.unwrap();
    site.execute(
        "CREATE TABLE dlock (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO dlock VALUES (1, 'mine')",
    )
    .await;
    is(&options.clone().connect().await.unwrap_err(), ErrorKind::InvalidConfig, "id, name");
    assert_eq!(site.number("SELECT count(*) FROM dlock").await, 1);
    site.execute("DROP TABLE dlock").await;
    options.migrate().await.unwrap();
    site.execute("UPDATE dlock SET holder = 'dlock table, version 9' WHERE key = x''").await;
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "version 9");
    site.execute("DROP TRIGGER dlock_keeps_mark; DELETE FROM dlock").await;
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "mark row");
    site.execute("DROP TABLE dlock").await;
    options.migrate().await.unwrap();
    site.execute("DROP TRIGGER dlock_keeps_fences").await;
    is(&options.clone().open().await.unwrap_err(), ErrorKind::InvalidConfig, "triggers");
}

#[tokio::test]
async fn wrong_paths_are_refused_with_the_reason() {
    let site = Site::new();
    let directory = site.directory.path();
    let connect = async |path: &Path| SqliteOptions::new(path).connect().await.unwrap_err();
    is(&connect(directory).await, ErrorKind::InvalidConfig, "is a directory");
    is(&connect(&directory.join("no/such.db")).await, ErrorKind::InvalidConfig, "make its directory");
    is(&connect(Path::new("/dev/null")).await, ErrorKind::InvalidConfig, "not a regular file");
    std::fs::write(&site.path, "this is a letter and not a database, however long it may be".repeat(100))
        .unwrap();
    is(&connect(&site.path).await, ErrorKind::InvalidConfig, "not a SQLite database");
    is(&connect(&site.path.join("below.db")).await, ErrorKind::InvalidConfig, "path of a file");
    let link = directory.join("link.db");
    std::os::unix::fs::symlink(directory.join("target"), &link).unwrap();
    is(&connect(&link).await, ErrorKind::InvalidConfig, "symbolic link");
    assert!(!directory.join("target").exists());
}

#[tokio::test]
async fn a_directory_in_the_place_of_the_log_leaves_nothing_unknown() {
    let site = Site::new();
    let log = site.directory.path().join("locks.db-wal");
    std::fs::create_dir(&log).unwrap();
    let error = SqliteOptions::new(&site.path).connect().await.unwrap_err();
    is(&error, ErrorKind::Unavailable, "disk");
    std::fs::remove_dir(&log).unwrap();
    works(site.backend().await).await;
}

#[tokio::test]
async fn a_database_with_two_names_is_opened_by_neither() {
    let site = Site::new();
    SqliteOptions::new(&site.path).migrate().await.unwrap();
    let other = Site::new();
    std::fs::hard_link(&site.path, &other.path).unwrap();
    for path in [&site.path, &other.path] {
        is(&SqliteOptions::new(path).connect().await.unwrap_err(), ErrorKind::InvalidConfig, "hard links");
        is(&Sqlite::open(path).await.unwrap_err(), ErrorKind::InvalidConfig, "-samefile");
    }
    std::fs::remove_file(&other.path).unwrap();
    works(site.backend().await).await;
}

#[tokio::test]
async fn a_damaged_database_is_called_that() {
    let site = Site::new();
    let backend = site.backend().await;
    works(backend.clone()).await;
    Backend::close(&backend).await;
    drop(backend);
    let mut bytes = std::fs::read(&site.path).unwrap();
    let page = bytes.len() / 2;
    bytes[page..].fill(0xA5);
    std::fs::write(&site.path, bytes).unwrap();
    is(&Sqlite::open(&site.path).await.unwrap_err(), ErrorKind::InvalidConfig, "damaged");
}

/// This test binary, by a user who is not root, to whom rights would mean nothing. Root's own directories may be closed
/// to that user, so that it is `copied` out of them.
fn as_nobody(copied: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    if !is_root() {
        return Command::new(own);
    }
    if !copied.exists() {
        std::fs::copy(own, copied).unwrap();
    }
    let mut command = Command::new(copied);
    command.uid(65_534).gid(65_534);
    command
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[tokio::test]
async fn files_and_directories_without_the_right_to_write_are_denied() {
    let site = Site::new();
    let set =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let directory = site.directory.path();
    let program = Site::new();
    set(program.directory.path(), 0o755);
    let copied = program.directory.path().join("test");
    let try_it = || Other::start_by(as_nobody(&copied), "open", &site.path).says("failed");
    // No file, and no right to make one.
    set(directory, 0o555);
    assert!(try_it().starts_with("Error(Denied"), "{}", try_it());
    set(directory, 0o755);
    let backend = site.backend().await;
    Backend::close(&backend).await;
    drop(backend);
    // A file that can only be read.
    set(&site.path, 0o444);
    set(directory, 0o777);
    assert!(try_it().starts_with("Error(Denied"), "{}", try_it());
    // A file that could be written, in a directory that cannot.
    set(&site.path, 0o666);
    set(directory, 0o555);
    assert!(try_it().starts_with("Error(Denied"), "{}", try_it());
    // The same user with all rights, so that it was them.
    let site = Site::new();
    set(site.directory.path(), 0o777);
    Other::start_by(as_nobody(&copied), "open", &site.path).says("opened");
}

#[tokio::test]
async fn a_disk_that_takes_no_more_fails_the_acquire_and_grants_nothing() {
    let site = Site::new();
    SqliteOptions::new(&site.path).migrate().await.unwrap();
    // The limit of a process on the size of its files, which fails a write just as a full disk does.
    let mut command = Command::new("sh");
    let exe = std::env::current_exe().unwrap();
    command.args(["-c", r#"trap "" XFSZ; ulimit -f 400; exec "$0" "$@""#]).arg(exe);
    let mut other = Other::start_by(command, "fill", &site.path);
    let failed = other.says("failed");
    assert!(failed.starts_with("Error(Un") && failed.contains("disk"), "{failed}");
    let granted: i64 = other.says("granted").parse().unwrap();
    assert!(granted > 0 && other.wait().success());
    assert_eq!(site.held().await, granted);
    assert_eq!(
        site.number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'").await,
        0
    );
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn locks_of_those_who_may_only_read_the_directory_stop_nobody() {
    use nix::fcntl::{FcntlArg, fcntl};
    use std::os::unix::fs::MetadataExt;

    let site = Site::new();
    let directory = std::fs::File::open(site.directory.path()).unwrap();
    let everything = nix::libc::flock { l_type: 0, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&directory, FcntlArg::F_OFD_SETLK(&everything)).unwrap();
    let locks = site.locks().await;
    locks.lock("k").with_wait(dlock_core::Wait::No).acquire().await.unwrap().release().await.unwrap();
    let marks = site.directory.path().join(".locks.db.dlock").metadata().unwrap();
    assert_eq!(marks.mode() & 0o777, 0o600, "who cannot write the database cannot open it");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_file_of_the_marks_has_the_rights_of_those_who_write_the_database() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let site = Site::new();
    std::fs::write(&site.path, "").unwrap();
    std::fs::set_permissions(&site.path, std::fs::Permissions::from_mode(0o664)).unwrap();
    drop(site.backend().await);
    let marks = site.directory.path().join(".locks.db.dlock").metadata().unwrap();
    assert_eq!(marks.mode() & 0o777, 0o660);
}

/// An administrator who looks at the locks of a service may be the first to need the file.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_file_of_the_marks_belongs_to_the_owner_of_the_database_whoever_makes_it() {
    use std::os::unix::fs::{MetadataExt, chown};

    let site = Site::new();
    SqliteOptions::new(&site.path).migrate().await.unwrap();
    let marks = site.directory.path().join(".locks.db.dlock");
    let _ = std::fs::remove_file(&marks);
    // Only the administrator can give files away.
    let owner = if is_root() { 65_534 } else { site.path.metadata().unwrap().uid() };
    chown(&site.path, Some(owner), Some(owner)).unwrap_or_else(|error| assert!(!is_root(), "{error}"));
    let backend = SqliteOptions::new(&site.path).open().await.unwrap();
    assert_eq!(marks.metadata().unwrap().uid(), owner);
    let findings = backend.diagnose().await.unwrap();
    let finding = findings.iter().find(|finding| finding.subject == "marks").unwrap();
    assert_eq!(finding.severity, dlock_core::backend::Severity::Fine, "{finding:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_of_another_user_that_everybody_can_write_is_refused() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

    let site = Site::new();
    std::fs::write(&site.path, "").unwrap();
    std::fs::set_permissions(&site.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    // Only the administrator can give files away.
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        drop(site.backend().await);
        return;
    }
    chown(&site.path, Some(65_534), None).unwrap();
    let error = SqliteOptions::new(&site.path).connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
    assert!(error.to_string().contains("another user"), "{error}");
}

#[tokio::test]
async fn a_lock_has_one_id_however_its_file_is_written_and_that_of_another_file_or_table_differs() {
    let site = Site::new();
    let directory = site.directory.path();
    let (real, link) = (directory.join("real"), directory.join("link"));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let open = async |path: std::path::PathBuf, table: &str| {
        let options = SqliteOptions::new(path).with_table(table).unwrap();
        options.connect().await.unwrap().lock_id(&Key::new("k").unwrap())
    };
    let id = open(real.join("a.db"), "t").await;
    let of_the_file = directory.join("other.db");
    std::os::unix::fs::symlink(link.join("a.db"), &of_the_file).unwrap();
    for same in [link.join("a.db"), real.join("../link/./a.db"), of_the_file] {
        assert_eq!(open(same.clone(), "t").await, id, "{}", same.display());
    }
    assert_ne!(open(real.join("b.db"), "t").await, id);
    assert_ne!(open(real.join("a.db"), "other").await, id);
}
