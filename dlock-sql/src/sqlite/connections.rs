//! The connections to one database, and the choice of one.
//!
//! sqlx runs the statements of a connection one after the other on a thread of its own, also those whose caller was
//! cancelled. So a statement that follows another on the same connection certainly comes after it, which a withdrawal
//! relies on.
//!
//! Callers share one writer, since SQLite lets only one write at a time anyway, and standing in line for a connection
//! is cheaper than polling for the file's lock. A caller whose runtime stands still may keep the writer without using
//! it; callers that waited long enough then go to a spare one. The keeper renews on a connection of its own, and reads
//! have another: readers do not wait for writers.
//!
//! ```text
//!               first use, and the path leads here: `opened`              `close`
//!     empty ---------------------------------------------------> open ------------> gone
//!       |                                                         | ^
//!       +-- the path leads elsewhere: refused                     +-+ lent as a `Turn`
//! ```

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
/// The longest wait in line for one of them before going to the next.
const PATIENCE: Duration = Duration::from_millis(250);
/// The pauses before a statement is tried again because another process was in the way.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// A place for a connection, which is opened when it is first needed.
#[derive(Debug, Default)]
struct ConnectionSlot(Mutex<Option<SqliteConnection>>);

/// A connection that is the caller's for as long as this lives.
pub(super) struct Turn<'a>(MutexGuard<'a, Option<SqliteConnection>>);

/// The choice of a connection to write on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writer {
    /// The first that is free.
    Any,
    /// That of an earlier statement, which must come first.
    Same(usize),
}

#[derive(Debug)]
pub(super) struct Connections {
    options: SqliteConnectOptions,
    /// The path as it was given.
    path: PathBuf,
    files: Files,
    identity: Identity,
    writers: [ConnectionSlot; WRITERS],
    readers: [ConnectionSlot; READERS],
    renewer: ConnectionSlot,
    closed: AtomicBool,
}

/// Returns the options by which a connection is opened. Nothing is made.
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
        let mut writers: [ConnectionSlot; WRITERS] = std::array::from_fn(|_| ConnectionSlot::default());
        writers[0] = ConnectionSlot::of(writer);
        let mut readers: [ConnectionSlot; READERS] = std::array::from_fn(|_| ConnectionSlot::default());
        // The first of each kind is open already: opening them has shown that the database can be used.
        readers[0] = ConnectionSlot::of(reader);
        Self {
            options: connect_options(files.real()),
            path,
            files,
            identity,
            writers,
            readers,
            renewer: ConnectionSlot::of(renewer),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) const fn files(&self) -> &Files {
        &self.files
    }

    /// Looks what stands at the path now, and whether it is the database that is open here.
    pub(super) fn look(&self) -> std::io::Result<(Found, bool)> {
        let found = self.files.look()?;
        let is_same =
            matches!(found, Found::Database(found) | Found::Linked(found) if found == self.identity);
        Ok((found, is_same))
    }

    /// Returns a writer, and its number. Changes nothing when it fails.
    pub(super) async fn writer(&self, which: Writer, until: Until) -> Result<(Turn<'_>, usize), Failure> {
        match which {
            Writer::Any => self.first_free(&self.writers, until).await,
            // By its number: what was sent there may still be under way, and another connection would overtake it.
            Writer::Same(n) => Ok((self.first_free(&self.writers[n..=n], until).await?.0, n)),
        }
    }

    pub(super) async fn reader(&self, until: Until) -> Result<Turn<'_>, Failure> {
        Ok(self.first_free(&self.readers, until).await?.0)
    }

    pub(super) async fn renewer(&self, until: Until) -> Result<Turn<'_>, Failure> {
        // Of its own: a renewal is not to stand in line behind attempts.
        Ok(self.first_free(std::slice::from_ref(&self.renewer), until).await?.0)
    }

    async fn first_free<'a>(
        &'a self,
        slots: &'a [ConnectionSlot],
        until: Until,
    ) -> Result<(Turn<'a>, usize), Failure> {
        // The first one, if it is free: the spare ones are opened only when it is kept for long.
        if let Ok(place) = slots[0].0.try_lock() {
            return Ok((self.opened(place).await?, 0));
        }
        for (n, slot) in slots.iter().enumerate() {
            // Half of what is left for each, so that the last one is still waited for.
            let patience = PATIENCE.min(until.left() / 2);
            // Each is waited for in turn. The mutex is fair: the task that has waited for it longest comes first.
            if let Some(place) = within(patience, slot.0.lock()).await {
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
        // With the place locked: `close` sets the flag, and then locks each place to empty it.
        if self.closed.load(Ordering::Acquire) {
            return Err(closed());
        }
        if place.is_none() {
            let mut connection =
                self.options.connect().await.map_err(|error| unchanged(classify(error, &self.path)))?;
            // SQLite opens its other files at the first read.
            let read = sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_all(&mut connection).await;
            read.map_err(|error| unchanged(classify(error, &self.path)))?;
            // After the read, since all files are open then: if the path leads here now, they are those of this
            // database.
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
        // The flag first: a place that is emptied below is not filled again.
        self.closed.store(true, Ordering::Release);
        let mut all = true;
        for slot in self.writers.iter().chain(&self.readers).chain([&self.renewer]) {
            // A caller that is not polled may have the place for long; a shutdown does not wait for that.
            let Some(mut place) = within(Duration::from_secs(1), slot.0.lock()).await else {
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

impl ConnectionSlot {
    fn of(connection: SqliteConnection) -> Self {
        Self(Mutex::new(Some(connection)))
    }
}

/// The moment until which a step may go on trying.
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

/// The result of a statement.
#[derive(Default)]
pub(super) struct StatementResult {
    pub(super) rows: Vec<SqliteRow>,
    /// The number of rows that it changed.
    pub(super) changed: u64,
}

impl Turn<'_> {
    /// Runs one statement, which is given the time, to its end. While other processes are in the way it is tried again;
    /// an attempt that failed in this way changed nothing.
    ///
    /// The end is waited for although there is one row at the most: SQLite commits when the statement has run to its
    /// end, and a caller that stops at the first row learns of no commit that fails.
    pub(super) async fn run<'q>(
        &mut self,
        until: Until,
        statement: impl Fn(i64) -> Query<'q, Sqlite, SqliteArguments>,
    ) -> Result<StatementResult, sqlx::Error> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        // `opened` fills the place before it makes a turn of it, so that there is one.
        let Some(connection) = self.0.as_mut() else { return Err(sqlx::Error::PoolClosed) };
        loop {
            // The time is read anew for each try: a statement that waited must not judge leases by the time before.
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

    /// Begins a transaction that alone writes to the file, by `lock`, which changes nothing. While other processes are
    /// in the way that is tried again.
    pub(super) async fn begin_writing(
        &mut self,
        lock: &SqlStr,
        until: Until,
    ) -> Result<Transaction<'_, Sqlite>, sqlx::Error> {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        // A `BEGIN` that is deferred locks nothing, so that the pauses below keep no other process out.
        let mut transaction = self.begin().await?;
        loop {
            // Locked by its first statement: a transaction that reads first, and then writes, could be refused for
            // good.
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
    // To the end of the statement, which is when it is committed.
    while let Some(part) = parts.try_next().await? {
        match part {
            Either::Right(row) => answer.rows.push(row),
            Either::Left(done) => answer.changed = done.rows_affected(),
        }
    }
    Ok(answer)
}
