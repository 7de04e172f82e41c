//! Optimistic locks: write only if no other client has written since the row was read.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use dlock_core::backend::{Backoff, sleep};
use dlock_core::{Error, Failure, Operation};
use sqlx::{Encode, Pool, QueryBuilder, Type};

use crate::dialect::{Dialect, Meaning, NAMES, failure_of, meaning_of, quoted, refused};

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The name under which the number that is compared is read.
const SEEN: &str = "dlock_seen";
/// The name under which the column is read that the number is made of.
const TIME: &str = "dlock_time";
/// The name of the condition that the column keeps the values that it is set to.
const FITS: &str = "dlock_fits";

/// Reads a row, and writes it only if no other client has written it since: no lock is held in between.
///
/// The table has a number or a time that changes with every write. [`on_version`](Self::on_version) takes a column for
/// that alone and counts it up; [`on_timestamp`](Self::on_timestamp) takes the time of the last change, as many tables
/// have it; [`on_value`](Self::on_value) takes the value itself, the stock for example. Every write to the row must go
/// through it, or change what is compared.
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
/// Under many writers of one row a lock is better: of n writers at one time one wins and the others try again.
pub struct Optimistic<D> {
    table: String,
    key: String,
    compared: Compared,
    tries: u32,
    pause: Duration,
    database: PhantomData<fn() -> D>,
}

/// The compared value: a column, and statements about it.
#[derive(Clone)]
struct Compared {
    column: String,
    /// The value as a whole number.
    seen: String,
    /// The expression that has to be equal to that number when the row is written.
    is: String,
    /// The value that it is set to, unless the caller sets it.
    next: Option<String>,
    /// The condition that a column of a time keeps it exactly.
    fits: Option<String>,
}

/// The reasons why an optimistic write was not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum OptimisticError {
    /// Others wrote the row between reading and writing, each time. Nothing was written.
    Conflict {
        /// The table.
        table: String,
        /// The number of tries.
        tries: u32,
    },
    /// There is no row with this key, or what is compared is null (or infinite).
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
        Self::new(table, key, version, |column| {
            let next = format!("{column} + 1");
            Compared { next: Some(next), ..Compared::number::<D>(column) }
        })
    }

    /// Writes by an integer column whose own value is compared, and which the caller assigns: `UPDATE stock SET count =
    /// 6 WHERE id = 42 AND count = 7`. A value that changed and changed back counts as unchanged, which is right for a
    /// stock, and wrong where the other columns matter.
    ///
    /// # Errors
    ///
    /// As [`on_version`](Self::on_version).
    pub fn on_value(table: &str, key: &str, value: &str) -> dlock_core::Result<Self> {
        Self::new(table, key, value, Compared::number::<D>)
    }

    /// Writes by a column with the time of the row's last change, which each write sets by the database's clock.
    ///
    /// It grows with every write, at least by a microsecond: also where two writes come within one, or where the clock
    /// was set back. It is compared exactly, and in UTC: the time zones of the sessions do not matter.
    ///
    /// | database | column | what it is set to |
    /// |---|---|---|
    /// | PostgreSQL | `timestamptz`, `timestamp` | the time; in a `timestamp` that of UTC |
    /// | MariaDB, MySQL | `DATETIME(6)` | the time of UTC |
    /// | SQLite | an integer | microseconds since 1970; its clock counts in milliseconds |
    ///
    /// A row in a column that keeps less than microseconds or is of another type, such as `DATETIME`, `TIMESTAMP(6)` of
    /// MariaDB and MySQL, which depends on the session's time zone, or text in SQLite, is refused with
    /// [`ErrorKind::InvalidConfig`](dlock_core::ErrorKind::InvalidConfig) before anything is written. Other programs
    /// that write the row have to set the column to a later time, too: `ON UPDATE CURRENT_TIMESTAMP(6)` alone misses
    /// the second of two changes within one microsecond.
    ///
    /// # Errors
    ///
    /// As [`on_version`](Self::on_version).
    pub fn on_timestamp(table: &str, key: &str, changed: &str) -> dlock_core::Result<Self> {
        let (quoted_table, name) = (quoted::<D>(table), changed.rsplit('.').next().unwrap_or(changed));
        let quoted_table = quoted_table.map_err(|failure| refused::<D>(Operation::Configure, failure))?;
        Self::new(table, key, changed, |column| {
            let fill = |form: &str| {
                form.replace("{table}", &quoted_table).replace("{name}", name).replace("{column}", &column)
            };
            let (seen, next, fits) = (fill(D::TIMES.seen), fill(D::TIMES.next), fill(D::TIMES.fits));
            Compared { is: seen.clone(), seen, next: Some(next), fits: Some(fits), column }
        })
    }

    fn new(
        table: &str,
        key: &str,
        compared: &str,
        how: impl FnOnce(String) -> Compared,
    ) -> dlock_core::Result<Self> {
        let quote = |name| quoted::<D>(name).map_err(|failure| refused::<D>(Operation::Configure, failure));
        let (table, key, compared) = (quote(table)?, quote(key)?, how(quote(compared)?));
        let pause = Duration::from_millis(5);
        Ok(Self { table, key, compared, tries: 10, pause, database: PhantomData })
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
    /// the row has not been written since; otherwise it does all of that again.
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
    /// If dropped, the last write may have been made.
    pub async fn modify<K, T, F>(&self, pool: &Pool<D>, key: K, mut change: F) -> Result<T, OptimisticError>
    where
        K: for<'q> Encode<'q, D> + Type<D> + Clone + Send + Sync,
        T: Send,
        F: FnMut(&D::Row, &mut QueryBuilder<D>) -> Result<T, Cause> + Send,
    {
        let mut backoff = Backoff::new(self.pause, Duration::from_secs(1));
        for tried in 1..=self.tries {
            let mut connection = pool.acquire().await.map_err(|error| self.failed(error))?;
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

    /// Tries once, also within a transaction of the caller: `None` when another client has written in between. It is
    /// not repeated here since a transaction may go on seeing the old row.
    ///
    /// # Errors
    ///
    /// See [`OptimisticError`].
    ///
    /// # Cancel safety
    ///
    /// If dropped, the write may have been made; in a transaction, roll back.
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
        let mut query = QueryBuilder::<D>::new(format!("SELECT {table}.*, {} AS {SEEN}", compared.seen));
        if let Some(fits) = &compared.fits {
            query.push(format!(", {} AS {TIME}, {fits} AS {FITS}", compared.column));
        }
        query.push(format!(" FROM {table} WHERE {key_column} = "));
        query.push_bind(key.clone());
        let rows = D::fetch(&mut *on, &mut query).await?;
        let row = rows.first().ok_or(Round::Missing)?;
        compared.check::<D>(row)?;
        let seen = D::number(row, SEEN)?.ok_or(Round::Missing)?;
        let mut query = QueryBuilder::<D>::new(format!("UPDATE {table} SET "));
        let set = query.sql().as_str().len();
        let done = change(row, &mut query).map_err(Round::Refused)?;
        if query.sql().as_str().len() == set {
            return Ok(Some(done));
        }
        if let Some(next) = &compared.next {
            query.push(format!(", {} = {next}", compared.column));
        }
        query.push(format!(" WHERE {key_column} = ")).push_bind(key);
        query.push(format!(" AND {} = ", compared.is));
        D::bind_number(&mut query, seen);
        Ok((D::execute(on, &mut query).await? > 0).then_some(done))
    }

    fn failed(&self, error: sqlx::Error) -> OptimisticError {
        let Compared { column, fits, .. } = &self.compared;
        let wanted = if fits.is_some() { D::TIMES.wanted } else { "an integer" };
        let remedy = format!("{NAMES}, of which that of the column {column} has to be {wanted}");
        let failure = failure_of::<D>(error, &format!("table {}", self.table), &remedy);
        OptimisticError::Database(refused::<D>(Operation::Hold, failure))
    }

    fn error_of(&self, error: Round) -> OptimisticError {
        match error {
            Round::Missing => OptimisticError::Missing { table: self.table.clone() },
            Round::Refused(cause) => OptimisticError::Refused(cause),
            Round::Unfit => {
                let (column, table, wanted) = (&self.compared.column, &self.table, D::TIMES.wanted);
                OptimisticError::Database(refused::<D>(
                    Operation::Hold,
                    Failure::invalid_config(format!(
                        "the column {column} of {table} does not keep every microsecond; make it {wanted}"
                    )),
                ))
            }
            Round::Database(error) => self.failed(error),
        }
    }
}

impl Compared {
    fn number<D: Dialect>(column: String) -> Self {
        let seen = format!("CAST({column} AS {})", D::INTEGER);
        Self { is: column.clone(), column, seen, next: None, fits: None }
    }

    /// Refuses the row where its column does not keep the values that it is set to.
    fn check<D: Dialect>(&self, row: &D::Row) -> Result<(), Round> {
        let types = D::TIMES.types;
        // The condition may be null where the time is.
        let fits = || Ok::<_, Round>(D::number(row, FITS)? != Some(0) && D::is_one_of(types, row, TIME)?);
        if self.fits.is_none() || fits()? { Ok(()) } else { Err(Round::Unfit) }
    }
}

/// The reasons for which a try failed.
enum Round {
    Missing,
    /// The column does not keep times exactly.
    Unfit,
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
        let Self { tries, pause, .. } = *self;
        let (table, key, compared) = (self.table.clone(), self.key.clone(), self.compared.clone());
        Self { table, key, compared, tries, pause, database: PhantomData }
    }
}

impl<D> fmt::Debug for Optimistic<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optimistic")
            .field("table", &self.table)
            .field("compared", &self.compared.column)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}
