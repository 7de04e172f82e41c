//! A database of its own for each test, a look into its rows, claims by hand, and child processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::Duration;

use dlock_core::backend::Grant;
use dlock_core::{Backend, Fence, Locks};
use dlock_sql::{Sqlite, SqliteClaim, SqliteOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use tempfile::TempDir;

use crate::by_hand::request;
pub(crate) use crate::by_hand::{busy, granted};

/// A directory with a database that is about to be made.
pub(crate) struct Site {
    pub(crate) directory: TempDir,
    pub(crate) path: PathBuf,
}

impl Site {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("locks.db");
        Self { directory, path }
    }

    pub(crate) async fn backend(&self) -> Sqlite {
        SqliteOptions::new(&self.path).connect().await.unwrap()
    }

    /// Leases of two seconds unless told otherwise, so that a test can wait for their end.
    pub(crate) async fn locks(&self) -> Locks {
        Locks::builder(self.backend().await).with_lease(Duration::from_secs(2)).build().unwrap()
    }

    pub(crate) async fn raw(&self) -> SqliteConnection {
        raw(&self.path).await
    }

    pub(crate) async fn number(&self, statement: &str) -> i64 {
        let rows = sqlx::query(AssertSqlSafe(statement)).fetch_all(&mut self.raw().await).await.unwrap();
        rows.first().map_or(-1, |row| row.try_get(0).unwrap())
    }

    /// How many rows carry a token.
    pub(crate) async fn held(&self) -> i64 {
        self.number("SELECT count(*) FROM dlock WHERE key > x'' AND token IS NOT NULL").await
    }

    pub(crate) async fn execute(&self, statement: &str) {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut self.raw().await).await.unwrap();
    }
}

pub(crate) async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).disable_statement_logging().connect().await.unwrap()
}

/// How many locks somebody has noted with that it waits for them.
pub(crate) const MARK_OF_WAITERS: &str = "SELECT count(*) FROM dlock WHERE holder LIKE '% awaited'";

/// A claim by hand.
pub(crate) async fn claim(backend: &Sqlite, key: &str, lease: Duration) -> SqliteClaim {
    backend.claim(request(key, lease).await)
}

pub(crate) fn fence(grant: Grant) -> Fence {
    grant.fence.unwrap()
}

/// This test binary again, as another process that plays `role` with the database at `path`.
pub(crate) struct Other {
    child: Child,
    lines: BufReader<ChildStderr>,
}

impl Other {
    pub(crate) fn start(role: &str, path: &Path) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), role, path)
    }

    /// By a command that ends with the arguments of the test binary.
    pub(crate) fn start_by(mut command: Command, role: &str, path: &Path) -> Self {
        let mut child = Self::play(&mut command, role, path).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines }
    }

    /// One that says nothing.
    pub(crate) fn start_mute(role: &str, path: &Path) -> Child {
        Self::play(&mut Command::new(std::env::current_exe().unwrap()), role, path).spawn().unwrap()
    }

    fn play<'a>(command: &'a mut Command, role: &str, path: &Path) -> &'a mut Command {
        command
            .args(["--exact", "processes::a_child_process_plays_its_role", "--nocapture", "--test-threads=1"])
            .env("DLOCK_TEST_ROLE", role)
            .env("DLOCK_TEST_PATH", path)
            .stdout(Stdio::null())
    }

    /// The next line that says `word`, without it.
    pub(crate) fn says(&mut self, word: &str) -> String {
        let mut heard = String::new();
        loop {
            let mut line = String::new();
            assert!(
                self.lines.read_line(&mut line).unwrap() > 0,
                "it ended without {word:?}, after:\n{heard}"
            );
            if let Some(rest) = line.trim_end().strip_prefix(word) {
                return rest.trim().to_owned();
            }
            heard += &line;
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let done = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(done.success());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for `test` to become true, which something else brings about.
pub(crate) async fn until(what: &str, mut test: impl AsyncFnMut() -> bool) {
    for _ in 0..1_000 {
        if test().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} did not come about within 10 s");
}
