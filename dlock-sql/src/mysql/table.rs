//! The check that locks can be kept in a table.

use sqlx::{AssertSqlSafe, MySqlConnection, Row};

use super::failure::{MISTYPED, UNKEYED, UNTRANSACTED, VIEW};
use crate::protocol::SqlResult;

/// Refuses a table whose rows cannot be locked.
#[cfg(feature = "tx")]
pub(crate) async fn check_engine(on: &mut MySqlConnection, table: &str) -> SqlResult<()> {
    let why = engine(&created(on, table).await?);
    why.map_or(Ok(()), |why| Err(sqlx::Error::Configuration(why.replace("{table}", table).into())))
}

/// Refuses a lock table that is a view, whose rows cannot be locked, or whose keys have not one row each.
pub(super) async fn check_table(on: &mut MySqlConnection, table: &str) -> SqlResult<()> {
    let created = created(on, table).await?;
    refused(engine(&created).or_else(|| shape(&created)))
}

async fn created(on: &mut MySqlConnection, table: &str) -> SqlResult<String> {
    let show = sqlx::raw_sql(AssertSqlSafe(format!("SHOW CREATE TABLE {table}")));
    let created: Vec<u8> = show.fetch_one(on).await?.try_get_unchecked(1)?;
    Ok(String::from_utf8_lossy(&created).into_owned())
}

fn refused(why: Option<&'static str>) -> SqlResult<()> {
    why.map_or(Ok(()), |why| Err(sqlx::Error::Configuration(why.into())))
}

fn engine(created: &str) -> Option<&'static str> {
    // Some modes leave the engine out.
    let is_refused = created.contains(" ENGINE=") && !created.contains(" ENGINE=InnoDB");
    is_refused.then_some(UNTRANSACTED)
}

/// Returns the refusal of keys and tokens that are no bytes, or of an index that does not give each key one row.
fn shape(created: &str) -> Option<&'static str> {
    if !created.starts_with("CREATE TABLE") {
        return Some(VIEW);
    }
    // A mode changes the quotes.
    let created = created.replace(['`', '"'], "");
    let lines = || created.lines().map(str::trim_start);
    let is_text = |column: &str| {
        let of = lines().find_map(|line| line.strip_prefix(column)?.split_whitespace().next());
        of.is_some_and(|of| of.contains("char") || of.contains("text"))
    };
    if is_text("key ") || is_text("token ") {
        return Some(MISTYPED);
    }
    let has_key = lines().any(|line| {
        let index = line.split_once('(').filter(|(_, columns)| columns.starts_with("key)"));
        // Statements that lock rows name the index by which they find them.
        index.is_some_and(|(kind, _)| kind.starts_with("PRIMARY KEY"))
    });
    (!has_key).then_some(UNKEYED)
}

/// Returns the database that a connection is in.
pub(super) async fn current(on: &mut MySqlConnection) -> SqlResult<Option<String>> {
    let row = sqlx::raw_sql("SELECT CAST(DATABASE() AS BINARY)").fetch_one(on).await?;
    let name: Option<Vec<u8>> = row.try_get(0)?;
    Ok(name.map(|name| String::from_utf8_lossy(&name).into_owned()))
}

/// Enters the database that a connection is in once more. The server looks up the rights on a database at that moment;
/// those on all databases when a connection is opened, and those on a table for each statement.
pub(super) async fn enter_again(on: &mut MySqlConnection) -> SqlResult<()> {
    let Some(name) = current(on).await? else { return Ok(()) };
    sqlx::raw_sql(AssertSqlSafe(format!("USE `{}`", name.replace('`', "``")))).execute(on).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the table as the server shows it.
    fn table(key: &str, token: &str, index: &str) -> String {
        format!(
            "CREATE TABLE `dlock` (\n  `key` {key} NOT NULL,\n  `token` {token} DEFAULT NULL,\n  `fence` bigint(20) NOT \
             NULL,\n  `expires` bigint(20) NOT NULL,\n  `holder` varbinary(600) NOT NULL{index}\n) ENGINE=InnoDB"
        )
    }

    #[test]
    fn each_key_has_one_row() {
        let of = |index: &str| shape(&table("varbinary(513)", "binary(16)", index));
        for index in
            [",\n  PRIMARY KEY (`key`)", ",\n  PRIMARY KEY (`key`) USING BTREE,\n  KEY `other` (`fence`)"]
        {
            assert_eq!(of(index), None, "{index}");
        }
        for index in [
            "",
            ",\n  KEY `key` (`key`)",
            ",\n  UNIQUE KEY `one` (`key`)",
            ",\n  PRIMARY KEY (`key`,`fence`)",
            ",\n  PRIMARY KEY (`key`(3))",
            ",\n  PRIMARY KEY (`fence`),\n  KEY `one` (`key`)",
        ] {
            assert_eq!(of(index), Some(UNKEYED), "{index}");
        }
        let quoted = table("varbinary(513)", "binary(16)", ",\n  PRIMARY KEY (`key`)").replace('`', "\"");
        assert_eq!(shape(&quoted), None);
    }

    #[test]
    fn keys_and_tokens_are_bytes() {
        let of = |key: &str, token: &str| shape(&table(key, token, ",\n  PRIMARY KEY (`key`)"));
        assert_eq!(of("varbinary(513)", "varbinary(16)"), None);
        assert_eq!(of("varchar(513)", "binary(16)"), Some(MISTYPED));
        assert_eq!(of("varbinary(513)", "char(16)"), Some(MISTYPED));
        assert_eq!(shape("CREATE ALGORITHM=UNDEFINED VIEW `dlock` AS select 1"), Some(VIEW));
    }
}
