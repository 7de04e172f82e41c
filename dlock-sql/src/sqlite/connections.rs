//! The connections to one database, and who uses which.
//!
//! sqlx runs the statements of a connection one after the other on a thread of its own, also those whose caller was
//! cancelled. So a statement that follows another on the same connection certainly comes after it, which a withdrawal
//! relies on.
//!
//! Callers share one writer, since SQLite lets only one write at a time anyway, and standing in line for a connection
//! is cheaper than polling for the file's lock. A caller whose runtime stands still may keep the writer without using
//! it; those who waited long enough then go to a spare one. The keeper renews on a connection of its own, and reads
//! have another: readers do not wait for writers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Backoff, sleep, within};
use futures_util::TryStreamExt;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteRow, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, Either, Executor, SqlStr, Sqlite, Transaction};
use tokio::sync::{Mutex, MutexGuard};

use super::failure::{classify, is_busy};
use super::file::{Files, Found, Identity, linked};
use super::time;
use crate::failure::{closed, unchanged};

/// The first of each kind and the spare ones.
const WRITERS: usize = 4;
const READERS: usize = 2;
/// How long to stand in line for one of them before going to the next, at the most.
const PATIENCE: Duration = Duration::from_millis(250);
/// The pauses before a statement is tried again because another process was in the way.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// A place for a connection, which is opened when it is first needed.
#[derive(Debug, Default)]
struct Lane(Mutex<Option<SqliteConnection>>);

/// A connection that is the caller's for as long as this lives.
pub(super) struct Turn<'a>(MutexGuard<'a, Option<SqliteConnection>>);

/// Which connection to write on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The first that is free.
    Any,
    /// The one that an earlier statement was sent on, which must come first.
    Same(usize),
}

#[derive(Debug)]
pub(super) struct Connections {
    options: SqliteConnectOptions,
    /// As it was given.
    path: PathBuf,
    files: Files,
    identity: Identity,
    writers: [Lane; WRITERS],
    readers: [Lane; READERS],
    renewer: Lane,
    closed: AtomicBool,
}

/// How a connection is opened. Nothing is made.
pub(super) fn connect_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        // It is tried again here instead, where a caller can go away, and not in a thread that sleeps.
        .busy_timeout(Duration::ZERO)
        // With a write-ahead log this keeps the database whole when the power fails; see the documentation of `Sqlite`.
        .synchronous(SqliteSynchronous::Normal)
        .statement_cache_capacity(16)
        .thread_name(|n| format!("dlock-sqlite-{n}"))
        .disable_statement_logging()
}

impl Connections {
    pub(super) fn new(
        path: PathBuf,
        files: Files,
        identity: Identity,
        [writer, reader, renewer]: [SqliteConnection; 3],
    ) -> Self {
        let mut writers: [Lane; WRITERS] = std::array::from_fn(|_| Lane::default());
        writers[0] = Lane::of(writer);
        let mut readers: [Lane; READERS] = std::array::from_fn(|_| Lane::default());
        readers[0] = Lane::of(reader);
        Self {
            options: connect_options(files.real()),
            path,
            files,
            identity,
            writers,
            readers,
            renewer: Lane::of(renewer),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn files(&self) -> &Files {
        &self.files
    }

    /// What stands at the path now, and whether it is what we have open.
    pub(super) fn look(&self) -> std::io::Result<(Found, bool)> {
        let found = self.files.look()?;
        let is_same =
            matches!(found, Found::Database(found) | Found::Linked(found) if found == self.identity);
        Ok((found, is_same))
    }

    /// A writer, and which one it is. Changes nothing when it fails.
    pub(super) async fn writer(&self, which: Writer, until: Until) -> Result<(Turn<'_>, usize), Failure> {
        match which {
            Writer::Any => self.first_free(&self.writers, until).await,
            Writer::Same(n) => Ok((self.first_free(&self.writers[n..=n], until).await?.0, n)),
        }
    }

    pub(super) async fn reader(&self, until: Until) -> Result<Turn<'_>, Failure> {
        Ok(self.first_free(&self.readers, until).await?.0)
    }

    pub(super) async fn renewer(&self, until: Until) -> Result<Turn<'_>, Failure> {
        Ok(self.first_free(std::slice::from_ref(&self.renewer), until).await?.0)
    }

    async fn first_free<'a>(&'a self, lanes: &'a [Lane], until: Until) -> Result<(Turn<'a>, usize), Failure> {
        if let Ok(place) = lanes[0].0.try_lock() {
            return Ok((self.opened(place).await?, 0));
        }
        for (n, lane) in lanes.iter().enumerate() {
            let patience = PATIENCE.min(until.left() / 2);
            if let Some(place) = within(patience, lane.0.lock()).await {
                return Ok((self.opened(place).await?, n));
            }
        }
        Err(Failure::unavailable(
            "this process keeps its connections to the database busy; it is tried again",
        ))
    }

    async fn opened<'a>(
        &self,
        mut place: MutexGuard<'a, Option<SqliteConnection>>,
    ) -> Result<Turn<'a>, Failure> {
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if place.is_none() {
            let mut connection =
                self.options.connect().await.map_err(|error| unchanged(classify(error, &self.path)))?;
            // SQLite opens its other files at the first read.
            let read = sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_all(&mut connection).await;
            read.map_err(|error| unchanged(classify(error, &self.path)))?;
            match self.look() {
                Ok((Found::Linked(_), true)) => return Err(linked(&self.path)),
                Ok((_, true)) => *place = Some(connection),
                _ => return Err(Failure::unavailable(format!("{} was replaced", self.path.display()))),
            }
        }
        Ok(Turn(place))
    }

    /// Closes what is open, and returns whether that is all. Waits a little for statements that are under way.
    pub(super) async fn close(&self) -> bool {
        self.closed.store(true, Ordering::Release);
        let mut all = true;
        for lane in self.writers.iter().chain(&self.readers).chain([&self.renewer]) {
            let Some(mut place) = within(Duration::from_secs(1), lane.0.lock()).await else {
                all = false;
                continue;
            };
            if let Some(connection) = place.take() {
                let _ = connection.close().await;
            }
        }
        all
    }
}

impl Lane {
    fn of(connection: SqliteConnection) -> Self {
        Self(Mutex::new(Some(connection)))
    }
}

/// Until when a step may go on trying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until(i64);

impl Until {
    pub(super) fn after(limit: Duration) -> Self {
        Self(time::now().saturating_add(time::nanos(limit)))
    }

    fn left(self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(time::now()).max(0).unsigned_abs())
    }
}

/// What a statement came to.
#[derive(Default)]
pub(super) struct StatementResult {
    pub(super) rows: Vec<SqliteRow>,
    /// How many rows it changed.
    pub(super) changed: u64,
}

impl Turn<'_> {
    /// Runs one statement, which is given the time, to its end. While other processes are in the way it is tried again;
    /// what failed that way changed nothing.
    ///
    /// The end is waited for although there is one row at the most: SQLite commits when the statement has run to its
    /// end, and who stops at the first row is not told of a commit that fails.
    pub(super) async fn run<'q>(
        &mut self,
        until: Until,
        statement: impl Fn(i64) -> Query<'q, Sqlite, SqliteArguments>,
    ) -> Result<StatementResult, sqlx::Error> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let Some(connection) = self.0.as_mut() else { return Err(sqlx::Error::PoolClosed) };
        loop {
            match run_once(connection, statement(time::now())).await {
                Err(error) if is_busy(&error) && !until.left().is_zero() => {
                    sleep(backoff.next_pause().min(until.left())).await;
                }
                answer => return answer,
            }
        }
    }
}

impl Turn<'_> {
    /// Begins a transaction that sees everything as of one moment. It is rolled back when it is dropped, before
    /// anything else is done on this connection.
    pub(super) async fn begin(&mut self) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
        let Some(connection) = self.0.as_mut() else { return Err(sqlx::Error::PoolClosed) };
        connection.begin().await
    }

    /// Begins one that alone writes to the file, by `lock`, which changes nothing. While other processes are in the way
    /// that is tried again.
    pub(super) async fn begin_writing(
        &mut self,
        lock: &SqlStr,
        until: Until,
    ) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let mut transaction = self.begin().await?;
        loop {
            match sqlx::query(lock.clone()).execute(&mut *transaction).await {
                Err(error) if is_busy(&error) && !until.left().is_zero() => {
                    sleep(backoff.next_pause().min(until.left())).await;
                }
                locked => return locked.map(|_| transaction),
            }
        }
    }
}

async fn run_once(
    connection: &mut SqliteConnection,
    statement: Query<'_, Sqlite, SqliteArguments>,
) -> Result<StatementResult, sqlx::Error> {
    let mut answer = StatementResult::default();
    let mut parts = connection.fetch_many(statement);
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Right(row) => answer.rows.push(row),
            Either::Left(done) => answer.changed = done.rows_affected(),
        }
    }
    Ok(answer)
}
