//! The making of the lock table, and the check that a table is one.

use std::path::Path;

use dlock_core::Failure;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Row};

use super::failure::{classify, is_busy};
use super::statements::{COLUMNS, MARK, SqliteStatements, schema};
use crate::table::TableName;

/// The reason why a table cannot be used, or could not be asked for.
pub(super) enum Wrong {
    Sql(sqlx::Error),
    Table(Failure),
    /// Something that may be over in a moment.
    Passing(Failure),
}

impl Wrong {
    pub(super) fn into_failure(self, path: &Path) -> Failure {
        match self {
            Self::Sql(error) => classify(error, path),
            Self::Table(failure) | Self::Passing(failure) => failure,
        }
    }

    pub(super) fn is_passing(&self) -> bool {
        match self {
            Self::Sql(error) => is_busy(error),
            Self::Table(_) => false,
            Self::Passing(_) => true,
        }
    }
}

impl From<sqlx::Error> for Wrong {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

/// Makes the table where it is missing, in a database with a write-ahead log. Does nothing to a table that is there.
pub(super) async fn migrate(
    connection: &mut SqliteConnection,
    table: &TableName,
    path: &Path,
) -> Result<(), Wrong> {
    // Readers and writers do not block each other with a write-ahead log. The database keeps the setting, but a copy of
    // its contents, or another program, may not.
    let mode = journal_mode(connection, "PRAGMA journal_mode = WAL").await?;
    if mode != WAL {
        return Err(Wrong::Table(Failure::invalid_config(format!(
            "{} cannot have a write-ahead log (its journal mode is {mode}); use a local disk",
            path.display()
        ))));
    }
    if !columns(connection, table).await?.is_empty() {
        return Ok(());
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for statement in schema(table) {
        sqlx::query(statement).execute(&mut *transaction).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Checks that `table` is a lock table of this version.
pub(super) async fn verify(
    connection: &mut SqliteConnection,
    table: &TableName,
    statements: &SqliteStatements,
    path: &Path,
) -> Result<(), Wrong> {
    let found = columns(connection, table).await?;
    let path = path.display();
    let refuse = |what: String| Err(Wrong::Table(Failure::invalid_config(what)));
    if found.is_empty() {
        return refuse(format!(
            "{path} has no table {table}; run `dlock migrate`, or connect, which makes it"
        ));
    }
    let is_ours = found.len() == COLUMNS.len()
        && COLUMNS.iter().zip(&found).all(|(ours, (name, kind, required))| *ours == (name, kind, *required));
    if !is_ours {
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        return refuse(format!(
            "table {table} in {path} is not a lock table (it has the columns {}); choose another table name",
            names.join(", ")
        ));
    }
    let mode = journal_mode(connection, "PRAGMA journal_mode").await?;
    if mode != WAL {
        return refuse(format!(
            "{path} has lost its write-ahead log (its journal mode is {mode}), so that whoever reads it for long would end locks; migrate \
             it again"
        ));
    }
    let triggers: i64 =
        sqlx::query("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND name IN (?1, ?2)")
            .bind(format!("{table}_keeps_fences"))
            .bind(format!("{table}_keeps_mark"))
            .fetch_one(&mut *connection)
            .await?
            .try_get(0)?;
    let mark = sqlx::query(statements.mark.clone()).fetch_optional(&mut *connection).await?;
    let mark: Option<String> = mark.map(|row| row.try_get(0)).transpose()?;
    match mark {
        Some(mark) if mark == MARK && triggers == 2 => Ok(()),
        Some(mark) if mark == MARK => refuse(format!(
            "table {table} in {path} has lost its triggers; drop the table and migrate again while nothing is held"
        )),
        Some(mark) => refuse(format!(
            "table {table} in {path} is of another version of dlock ({mark:?}); use that version or another table name"
        )),
        None => refuse(format!("table {table} in {path} has no mark row; drop the table and migrate again")),
    }
}

const WAL: &str = "wal";

async fn journal_mode(connection: &mut SqliteConnection, ask: &'static str) -> Result<String, sqlx::Error> {
    let mode: String = sqlx::query(ask).fetch_one(connection).await?.try_get(0)?;
    Ok(mode.to_ascii_lowercase())
}

async fn columns(
    connection: &mut SqliteConnection,
    table: &TableName,
) -> Result<Vec<(String, String, bool)>, sqlx::Error> {
    sqlx::query(r#"SELECT name, type, "notnull" FROM pragma_table_info(?1) ORDER BY cid"#)
        .bind(table.to_string())
        .fetch_all(connection)
        .await?
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
        .collect()
}
