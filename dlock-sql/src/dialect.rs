//! The differences between databases for the helpers for the user's own tables and transactions.

use dlock_core::{Error, ErrorKind, Failure, Operation};
use sqlx::{Database, QueryBuilder};

use crate::table::TableName;

mod sealed {
    /// Only this crate knows the databases.
    pub trait Sealed {}
}

/// A database of which this crate knows how it quotes names, compares and answers: sqlx's `Postgres`, `MySql` (also for
/// MariaDB) and `Sqlite`, as far as their features are on.
pub trait Dialect: Database + sealed::Sealed {
    #[doc(hidden)]
    const BACKEND: &'static str;
    #[doc(hidden)]
    const QUOTE: char;
    #[doc(hidden)]
    const INTEGER: &'static str;
    #[doc(hidden)]
    const TIMES: Times;
    /// The columns of a table that has a name of up to 512 bytes as its key, and a number.
    #[doc(hidden)]
    const NAMED_NUMBERS: &'static str;

    #[doc(hidden)]
    fn bind_number(query: &mut QueryBuilder<Self>, number: i64);
    #[doc(hidden)]
    fn bind_bytes(query: &mut QueryBuilder<Self>, bytes: Vec<u8>);
    /// Runs a statement to its end, and returns how many rows it changed.
    #[doc(hidden)]
    fn execute(
        on: &mut Self::Connection,
        query: &mut QueryBuilder<Self>,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    #[doc(hidden)]
    fn fetch(
        on: &mut Self::Connection,
        query: &mut QueryBuilder<Self>,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
    /// Returns the columns that a table has now.
    #[doc(hidden)]
    fn columns(
        on: &mut Self::Connection,
        table: &str,
    ) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;
    /// Returns the number in the column of this name, unless it is null.
    #[doc(hidden)]
    fn number(row: &Self::Row, column: &str) -> Result<Option<i64>, sqlx::Error>;
    /// Returns `true` if the column of this name has one of these types, as the driver calls them, or there are none.
    #[doc(hidden)]
    fn is_one_of(types: &[&str], row: &Self::Row, column: &str) -> Result<bool, sqlx::Error>;
    /// Returns the meaning of an error of the server; other errors are alike for all.
    #[doc(hidden)]
    fn meaning(error: &dyn sqlx::error::DatabaseError) -> Meaning;
}

/// The ways in which a database reads and writes points in time exactly, whatever the time zone of the session:
/// expressions with `{column}`, and the names of table and column as texts in `{table}` and `{name}`.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Times {
    /// The time as a whole number, different for different times.
    pub seen: &'static str,
    /// 1 where the column keeps microseconds.
    pub fits: &'static str,
    /// The types of columns as the driver calls them; any, where there is none.
    pub types: &'static [&'static str],
    /// The clock's time, later than the column's at least by a microsecond.
    pub next: &'static str,
    /// The kind of column that is needed.
    pub wanted: &'static str,
}

/// The meaning of an error of a server for a statement on the user's own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Meaning {
    /// Another transaction has the row locked, for as long as the statement was allowed to wait.
    Locked,
    /// A deadlock, or a conflict with a transaction at the same time: nothing was changed.
    Conflict,
    /// A right is missing.
    Denied,
    /// The statement does not fit the tables.
    Wrong,
    /// The server cannot be written now.
    Unavailable,
    /// It is not known what was carried out.
    Unknown,
}

pub(crate) fn meaning_of<D: Dialect>(error: &sqlx::Error) -> Meaning {
    match error {
        sqlx::Error::Database(error) => D::meaning(&**error),
        sqlx::Error::Configuration(_)
        | sqlx::Error::Encode(_)
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::ColumnDecode { .. } => Meaning::Wrong,
        sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Meaning::Unavailable,
        _ => Meaning::Unknown,
    }
}

/// Makes the failure of a statement on `table` within the caller's transaction; `remedy` says how to mend it where the
/// table is another one than was expected.
pub(crate) fn failure_of<D: Dialect>(error: sqlx::Error, table: &str, remedy: &str) -> Failure {
    let failure = match meaning_of::<D>(&error) {
        Meaning::Locked => Failure::new(ErrorKind::Busy, "another transaction has it locked"),
        Meaning::Conflict => Failure::unavailable(
            "another transaction was in the way; roll this one back and run it again from its start",
        ),
        Meaning::Denied => Failure::denied(format!("the user has too few rights on {table}; grant them")),
        Meaning::Wrong => Failure::invalid_config(format!(
            "the statement does not fit {table} or the transaction; {remedy}, and check that no statement of this \
             transaction has failed before"
        )),
        Meaning::Unavailable => Failure::unavailable("the database cannot be written now"),
        Meaning::Unknown => Failure::unknown("the request broke off; roll the transaction back"),
    };
    failure.with_source(error)
}

/// The remedy where a table is the user's own.
pub(crate) const NAMES: &str = "check the names and types";

pub(crate) fn refused<D: Dialect>(operation: Operation, failure: Failure) -> Error {
    Error::new(operation, failure).on(D::BACKEND)
}

/// Returns a name, or two with a dot between them, quoted for a statement.
pub(crate) fn quoted<D: Dialect>(name: &str) -> Result<String, Failure> {
    let quote = D::QUOTE;
    let parts: Vec<_> = name.split('.').collect();
    if parts.len() > 2 {
        return Err(Failure::invalid_config(format!("the name {name:?} has more than one dot")));
    }
    let parts = parts
        .into_iter()
        .map(|part| TableName::new(part).map(|part| format!("{quote}{part}{quote}")))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(parts.join("."))
}

macro_rules! dialect {
    ($database:ty, $connection:ty, $backend:literal, $quote:literal, $integer:literal, $table:literal, $times:path, $meaning:path) => {
        impl sealed::Sealed for $database {}

        impl Dialect for $database {
            const BACKEND: &'static str = $backend;
            const QUOTE: char = $quote;
            const INTEGER: &'static str = $integer;
            const TIMES: Times = $times;
            const NAMED_NUMBERS: &'static str = $table;

            fn bind_number(query: &mut QueryBuilder<Self>, number: i64) {
                query.push_bind(number);
            }

            fn bind_bytes(query: &mut QueryBuilder<Self>, bytes: Vec<u8>) {
                query.push_bind(bytes);
            }

            async fn execute(
                on: &mut $connection,
                query: &mut QueryBuilder<Self>,
            ) -> Result<u64, sqlx::Error> {
                Ok(query.build().execute(on).await?.rows_affected())
            }

            async fn fetch(
                on: &mut $connection,
                query: &mut QueryBuilder<Self>,
            ) -> Result<Vec<Self::Row>, sqlx::Error> {
                query.build().fetch_all(on).await
            }

            async fn columns(on: &mut $connection, table: &str) -> Result<Vec<String>, sqlx::Error> {
                // One row of nulls, whatever the table has. A statement that is prepared for good has the columns of
                // then.
                let nulls = "SELECT cell.* FROM (SELECT 1 AS one) AS one LEFT JOIN";
                let mut query = QueryBuilder::<Self>::new(format!("{nulls} {table} AS cell ON 1 = 0"));
                let row = query.build().persistent(false).fetch_one(on).await?;
                Ok(sqlx::Row::columns(&row)
                    .iter()
                    .map(|column| sqlx::Column::name(column).to_owned())
                    .collect())
            }

            fn number(row: &Self::Row, column: &str) -> Result<Option<i64>, sqlx::Error> {
                sqlx::Row::try_get(row, column)
            }

            fn is_one_of(types: &[&str], row: &Self::Row, column: &str) -> Result<bool, sqlx::Error> {
                let kind = sqlx::Column::type_info(sqlx::Row::try_column(row, column)?);
                Ok(types.is_empty() || types.contains(&sqlx::TypeInfo::name(kind)))
            }

            fn meaning(error: &dyn sqlx::error::DatabaseError) -> Meaning {
                $meaning(error)
            }
        }
    };
}

#[cfg(feature = "postgres")]
dialect!(
    sqlx::Postgres,
    sqlx::PgConnection,
    "postgres",
    '"',
    "bigint",
    "(name bytea NOT NULL PRIMARY KEY, number bigint NOT NULL)",
    POSTGRES_TIMES,
    postgres
);
#[cfg(feature = "mysql")]
dialect!(
    sqlx::MySql,
    sqlx::MySqlConnection,
    "mysql",
    '`',
    "signed",
    "(name VARBINARY(512) NOT NULL PRIMARY KEY, number BIGINT NOT NULL) ENGINE = InnoDB",
    MYSQL_TIMES,
    mysql
);
#[cfg(feature = "sqlite")]
dialect!(
    sqlx::Sqlite,
    sqlx::SqliteConnection,
    "sqlite",
    '"',
    "integer",
    "(name BLOB NOT NULL PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
    SQLITE_TIMES,
    sqlite
);

/// The times of PostgreSQL: the results of `extract` from both types are alike in all sessions, and so is a sum with an
/// interval of no whole days.
#[cfg(feature = "postgres")]
const POSTGRES_TIMES: Times = Times {
    seen: "CASE WHEN isfinite({column}) THEN CAST(EXTRACT(epoch FROM {column}) * 1000000 AS bigint) END",
    fits: "(SELECT CAST(count(*) AS bigint) FROM pg_attribute WHERE attrelid = CAST('{table}' AS regclass) \
           AND attname = '{name}' AND atttypid IN (1114, 1184) AND atttypmod IN (-1, 6))",
    types: &[],
    next: "{column} + GREATEST(1, CAST(EXTRACT(epoch FROM clock_timestamp()) * 1000000 AS bigint) \
           - CAST(EXTRACT(epoch FROM {column}) * 1000000 AS bigint)) * interval '1 microsecond'",
    wanted: "a timestamp or timestamptz of microseconds, its default",
};

/// The times of MariaDB and MySQL: a `TIMESTAMP` is converted to the time zone of the session, in which an hour may
/// come twice.
#[cfg(feature = "mysql")]
const MYSQL_TIMES: Times = Times {
    seen: "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column})",
    fits: "CAST(CHAR_LENGTH(CAST({column} AS char)) = 26 AS signed)",
    types: &["DATETIME"],
    next: "GREATEST(UTC_TIMESTAMP(6), {column} + INTERVAL 1 MICROSECOND)",
    wanted: "DATETIME(6)",
};

/// The times of SQLite: its own functions for times count milliseconds, and text has many forms.
#[cfg(feature = "sqlite")]
const SQLITE_TIMES: Times = Times {
    seen: "{column}",
    fits: "typeof({column}) IN ('integer', 'null')",
    types: &[],
    next: "max(CAST(round(unixepoch('subsec') * 1000) AS integer) * 1000, {column} + 1)",
    wanted: "an integer, of microseconds since 1970",
};

#[cfg(feature = "postgres")]
fn postgres(error: &dyn sqlx::error::DatabaseError) -> Meaning {
    match error.code().as_deref().unwrap_or_default() {
        "55P03" => Meaning::Locked,
        "40001" | "40P01" => Meaning::Conflict,
        "42501" => Meaning::Denied,
        "25006" => Meaning::Unavailable,
        code if matches!(code.get(..2), Some("22" | "23" | "25" | "42" | "3F")) => Meaning::Wrong,
        _ => Meaning::Unknown,
    }
}

#[cfg(feature = "mysql")]
fn mysql(error: &dyn sqlx::error::DatabaseError) -> Meaning {
    match error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map_or(0, |error| error.number()) {
        1205 | 3572 => Meaning::Locked,
        1213 | 1020 => Meaning::Conflict,
        1044 | 1142 | 1143 | 1227 => Meaning::Denied,
        1290 | 1792 | 1836 => Meaning::Unavailable,
        1046 | 1048 | 1049 | 1054 | 1062 | 1064 | 1136 | 1146 | 1264 | 1364 | 1366 | 1406 | 1452 | 1665
        | 4025 => Meaning::Wrong,
        _ => Meaning::Unknown,
    }
}

#[cfg(feature = "sqlite")]
fn sqlite(error: &dyn sqlx::error::DatabaseError) -> Meaning {
    match error.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or_default() & 0xff {
        5 | 6 => Meaning::Conflict,
        3 | 8 | 23 => Meaning::Denied,
        1 | 19 | 20 => Meaning::Wrong,
        13 => Meaning::Unavailable,
        _ => Meaning::Unknown,
    }
}
