//! The tables that locks may be kept in, and whether one is fit for it.

use sqlx::{AssertSqlSafe, PgConnection, Row};

use super::failure::{MISTYPED, UNKEYED, VIEW};
use super::statements::{IS_TRUSTED, named};
use crate::protocol::{Schemas, SqlResult};
use crate::table::TableName;

/// Returns all schemas with a table of this name.
pub(super) async fn schemas_of(on: &mut PgConnection, table: &TableName) -> SqlResult<Schemas> {
    let named = named(table);
    let schemas = format!(
        "SELECT nspname::text, {IS_TRUSTED}, pg_get_userbyid(relowner)::text {named} ORDER BY nspname"
    );
    let mut schemas_of = Schemas::default();
    for row in &sqlx::raw_sql(AssertSqlSafe(schemas)).fetch_all(on).await? {
        match row.try_get(1)? {
            true => schemas_of.trusted.push(row.try_get(0)?),
            false => schemas_of.strange.push((row.try_get(0)?, row.try_get(2)?)),
        }
    }
    Ok(schemas_of)
}

/// Refuses a lock table that is a view or lies elsewhere, has columns of other types, or whose keys may have several
/// rows. Only a table here has `xmax`, by which it is found out which transaction has locked a row.
pub(super) async fn check_table(on: &mut PgConnection, table: &TableName) -> SqlResult<()> {
    // A constraint that is deferred is of no use, and `ON CONFLICT` fails beside one.
    let shape = format!(
        "SELECT coalesce((
            SELECT bool_and(indimmediate) FROM pg_index WHERE indrelid = pg_class.oid AND indisunique AND indisvalid
                AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = (
                    SELECT attnum FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'key')
        ), false), (
            SELECT count(*) FROM pg_attribute WHERE attrelid = pg_class.oid AND (attname, atttypid) IN (
                ('key', 'bytea'::regtype), ('token', 'bytea'::regtype), ('fence', 'bigint'::regtype),
                ('expires', 'timestamptz'::regtype))
        ) = 4, relkind IN ('r', 'p')
        FROM pg_class WHERE oid = '{}'::regclass",
        table.quoted('"').replace('\'', "''")
    );
    let row = sqlx::raw_sql(AssertSqlSafe(shape)).fetch_one(on).await?;
    let refused = |why: &'static str| Err(sqlx::Error::Configuration(why.into()));
    match (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?) {
        (true, true, true) => Ok(()),
        (_, _, false) => refused(VIEW),
        (_, false, true) => refused(MISTYPED),
        (false, true, true) => refused(UNKEYED),
    }
}
