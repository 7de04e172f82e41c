//! Statements with values: prepared, or written out where the server keeps no more prepared statements.

use sqlx::mysql::{MySqlArguments, MySqlQueryResult, MySqlRow};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, MySql, MySqlConnection, RawSql, SqlStr};

use super::failure::number;
use crate::protocol::SqlResult;
use crate::text::hex;

/// The error of a statement that could not be prepared: all programs on the server share one limit,
/// `max_prepared_stmt_count`, and no lock is lost because others have used it up.
pub(super) const TOO_MANY_PREPARED: u16 = 1461;

/// A value of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Bytes(&'a [u8]),
    Number(i64),
}

fn bound<'q>(statement: &SqlStr, values: &[Value<'q>]) -> Query<'q, MySql, MySqlArguments> {
    values.iter().fold(sqlx::query(statement.clone()), |query, value| match *value {
        Value::Bytes(bytes) => query.bind(bytes),
        Value::Number(number) => query.bind(number),
    })
}

/// Returns bytes as they are written into a statement.
pub(super) fn literal(bytes: &[u8]) -> String {
    format!("X'{}'", hex(bytes))
}

/// Returns the statement with its values in the places of `?`. Nothing of a value itself is in it but digits.
fn written_into(statement: &str, values: &[Value<'_>]) -> String {
    let mut parts = statement.split('?');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for (part, value) in parts.zip(values) {
        text += &match value {
            Value::Bytes(bytes) => literal(bytes),
            Value::Number(number) => number.to_string(),
        };
        text += part;
    }
    text
}

fn unprepared(statement: &SqlStr, values: &[Value<'_>]) -> RawSql {
    sqlx::raw_sql(AssertSqlSafe(written_into(statement.as_str(), values)))
}

/// Returns the rows that a statement answers.
pub(super) async fn rows(
    on: &mut MySqlConnection,
    statement: &SqlStr,
    values: &[Value<'_>],
) -> SqlResult<Vec<MySqlRow>> {
    match bound(statement, values).fetch_all(&mut *on).await {
        Err(error) if number(&error) == Some(TOO_MANY_PREPARED) => {
            unprepared(statement, values).fetch_all(on).await
        }
        answer => answer,
    }
}

/// Carries out a statement that changes rows.
pub(super) async fn execute(
    on: &mut MySqlConnection,
    statement: &SqlStr,
    values: &[Value<'_>],
) -> SqlResult<MySqlQueryResult> {
    match bound(statement, values).execute(&mut *on).await {
        Err(error) if number(&error) == Some(TOO_MANY_PREPARED) => {
            unprepared(statement, values).execute(on).await
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_their_order() {
        let values = [Value::Bytes(b"'; --"), Value::Number(-7), Value::Bytes(b"")];
        assert_eq!(written_into("SELECT ?, ? + 1, ?", &values), "SELECT X'273b202d2d', -7 + 1, X''");
        assert_eq!(written_into("SELECT 1", &[]), "SELECT 1");
    }
}
