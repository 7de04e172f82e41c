//! Optimistic locks: write only if nobody has written since one read.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use dlock_core::backend::{Backoff, sleep};
use dlock_core::{Error, Operation};
use sqlx::{Encode, Pool, QueryBuilder, Type};

use crate::dialect::{Dialect, Meaning, failure_of, meaning_of, quoted, refused};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The name under which the number that is compared is read.
const SEEN: &str = "dlock_seen";

/// Read a row, think, and write it only if nobody else has written it since: no lock is held in between.
///
/// The table has a number that changes with every write. [`on_version`](Self::on_version) takes a column for that alone
/// and counts it up; [`on_value`](Self::on_value) takes the value itself, the stock for example. Every write to the row
/// must go through it, or change the number.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_sql::Optimistic;
/// use sqlx::Row;
///
/// let articles = Optimistic::<sqlx::Postgres>::on_version("article", "id", "version")?;
/// let clicks = articles
///     .modify(&pool, 42_i64, |row, set| {
///         let clicks: i64 = row.try_get("clicks")?;
///         set.push("clicks = ").push_bind(clicks + 1);
///         Ok(clicks + 1)
///     })
///     .await?;
/// # Ok(()) }
/// ```
///
/// Who meets many others does better with a lock: of n writers at the same time one wins and the others try again.
pub struct Optimistic<D> {
    table: String,
    key: String,
    compared: String,
    counts: bool,
    tries: u32,
    pause: Duration,
    database: PhantomData<fn() -> D>,
}

/// Why an optimistic write was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum OptimisticError {
    /// Others wrote the row between reading and writing, each time. Nothing was written.
    Conflict {
        /// The table.
        table: String,
        /// How many times it was tried.
        tries: u32,
    },
    /// There is no row with this key, or the number that is compared is null.
    Missing {
        /// The table.
        table: String,
    },
    /// The caller's closure returned this error. Nothing was written.
    Refused(Cause),
    /// The database could not serve. Nothing was written, unless its kind is
    /// [`ErrorKind::Unknown`](dlock_core::ErrorKind::Unknown).
    Database(Error),
}

impl<D: Dialect> Optimistic<D> {
    /// Rows of `table`, found by the column `key`, with a column `version` that each write counts up. `table` may be
    /// written `schema.table`; names have 1 to 63 ASCII letters, digits and underscores and are taken as they are
    /// written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) when a name is not allowed.
    pub fn on_version(table: &str, key: &str, version: &str) -> dlock_core::Result<Self> {
        Self::new(table, key, version, true)
    }

    /// Writes by an integer column whose own value is compared, and which the caller assigns: `UPDATE stock SET count =
    /// 6 WHERE id = 42 AND count = 7`. A value that changed and changed back counts as unchanged, which is right for a
    /// stock, and wrong where the other columns matter.
    ///
    /// # Errors
    ///
    /// As [`on_version`](Self::on_version).
    pub fn on_value(table: &str, key: &str, value: &str) -> dlock_core::Result<Self> {
        Self::new(table, key, value, false)
    }

    fn new(table: &str, key: &str, compared: &str, counts: bool) -> dlock_core::Result<Self> {
        let quote = |name| quoted::<D>(name).map_err(|failure| refused::<D>(Operation::Configure, failure));
        let (table, key, compared) = (quote(table)?, quote(key)?, quote(compared)?);
        let pause = Duration::from_millis(5);
        Ok(Self { table, key, compared, counts, tries: 10, pause, database: PhantomData })
    }

    /// Sets how many times [`modify`](Self::modify) tries before it gives up. Default 10; at least 1.
    #[must_use]
    pub fn with_tries(mut self, tries: u32) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// Sets the longest pause before the second try. It doubles with each try, up to 1 s; its length is random (full
    /// jitter). Default 5 ms.
    #[must_use]
    pub const fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Reads the row, has `change` push assignments for it (`column = value`, divided by commas), and writes them if
    /// nobody has written since; else all of that again.
    ///
    /// `change` sees all columns of the row. If it pushes no assignment, nothing is written. It may be called several
    /// times, and returns an error to leave the row alone. Each try takes a connection of the pool for two statements,
    /// each a transaction by itself. A deadlock or serialization failure counts as a try.
    ///
    /// # Errors
    ///
    /// See [`OptimisticError`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the last write may have been made.
    pub async fn modify<K, T, F>(&self, pool: &Pool<D>, key: K, mut change: F) -> Result<T, OptimisticError>
    where
        K: for<'q> Encode<'q, D> + Type<D> + Clone + Send + Sync,
        T: Send,
        F: FnMut(&D::Row, &mut QueryBuilder<D>) -> Result<T, Cause> + Send,
    {
        let mut backoff = Backoff::new(self.pause, Duration::from_secs(1));
        for tried in 1..=self.tries {
            let mut connection = pool.acquire().await.map_err(Self::failed)?;
            match self.round(&mut connection, key.clone(), &mut change).await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(Round::Database(error)) if meaning_of::<D>(&error) == Meaning::Conflict => {}
                Err(error) => return Err(self.error_of(error)),
            }
            drop(connection);
            if tried < self.tries {
                sleep(backoff.next_pause()).await;
            }
        }
        Err(OptimisticError::Conflict { table: self.table.clone(), tries: self.tries })
    }

    /// Tries once, also within a transaction of the caller: `None` when somebody else has written in between. It is not
    /// repeated here since a transaction may go on seeing the old row.
    ///
    /// # Errors
    ///
    /// See [`OptimisticError`].
    ///
    /// # Cancel safety
    ///
    /// When dropped, the write may have been made; in a transaction, roll back.
    pub async fn attempt<K, T, F>(
        &self,
        on: &mut D::Connection,
        key: K,
        change: F,
    ) -> Result<Option<T>, OptimisticError>
    where
        K: for<'q> Encode<'q, D> + Type<D> + Clone + Send + Sync,
        T: Send,
        F: FnOnce(&D::Row, &mut QueryBuilder<D>) -> Result<T, Cause> + Send,
    {
        self.round(on, key, change).await.map_err(|error| self.error_of(error))
    }

    async fn round<K, T, F>(&self, on: &mut D::Connection, key: K, change: F) -> Result<Option<T>, Round>
    where
        K: for<'q> Encode<'q, D> + Type<D> + Clone + Send + Sync,
        T: Send,
        F: FnOnce(&D::Row, &mut QueryBuilder<D>) -> Result<T, Cause> + Send,
    {
        let Self { table, key: key_column, compared, .. } = self;
        let mut query = QueryBuilder::<D>::new(format!(
            "SELECT {table}.*, CAST({compared} AS {}) AS {SEEN} FROM {table} WHERE {key_column} = ",
            D::INTEGER
        ));
        query.push_bind(key.clone());
        let rows = D::fetch(&mut *on, &mut query).await?;
        let row = rows.first().ok_or(Round::Missing)?;
        let seen = D::number(row, SEEN).map_err(|error| match error {
            sqlx::Error::ColumnDecode { .. } => Round::Missing,
            other => Round::Database(other),
        })?;
        let mut query = QueryBuilder::<D>::new(format!("UPDATE {table} SET "));
        let set = query.sql().as_str().len();
        let done = change(row, &mut query).map_err(Round::Refused)?;
        if query.sql().as_str().len() == set {
            return Ok(Some(done));
        }
        if self.counts {
            query.push(format!(", {compared} = {compared} + 1"));
        }
        query.push(format!(" WHERE {key_column} = ")).push_bind(key);
        query.push(format!(" AND {compared} = "));
        D::bind_number(&mut query, seen);
        Ok((D::execute(on, &mut query).await? > 0).then_some(done))
    }

    fn failed(error: sqlx::Error) -> OptimisticError {
        OptimisticError::Database(refused::<D>(Operation::Hold, failure_of::<D>(error)))
    }

    fn error_of(&self, error: Round) -> OptimisticError {
        match error {
            Round::Missing => OptimisticError::Missing { table: self.table.clone() },
            Round::Refused(cause) => OptimisticError::Refused(cause),
            Round::Database(error) => Self::failed(error),
        }
    }
}

/// How a try failed.
enum Round {
    Missing,
    Refused(Cause),
    Database(sqlx::Error),
}

impl From<sqlx::Error> for Round {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl fmt::Display for OptimisticError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict { table, tries } => write!(
                f,
                "conflict on {table}: others wrote the row first, {tries} times; nothing was written; try again later, or \
                 take a lock"
            ),
            Self::Missing { table } => {
                write!(f, "table {table} has no row with this key, or its version is null")
            }
            Self::Refused(cause) => write!(f, "the row was left alone: {cause}"),
            Self::Database(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for OptimisticError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(cause) => Some(&**cause),
            Self::Database(error) => Some(error),
            Self::Conflict { .. } | Self::Missing { .. } => None,
        }
    }
}

impl<D> Clone for Optimistic<D> {
    fn clone(&self) -> Self {
        let Self { tries, pause, counts, .. } = *self;
        let (table, key, compared) = (self.table.clone(), self.key.clone(), self.compared.clone());
        Self { table, key, compared, counts, tries, pause, database: PhantomData }
    }
}

impl<D> fmt::Debug for Optimistic<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optimistic")
            .field("table", &self.table)
            .field("compared", &self.compared)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
