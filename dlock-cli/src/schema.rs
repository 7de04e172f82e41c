//! The tables of databases: their statements, and making them.

use std::io::{Write, stdout};

use clap::{Args, ValueEnum};
use dlock::sql::{MysqlOptions, PostgresOptions, SqliteOptions};
use serde_json::json;

use crate::report::changed;
use crate::store;
use crate::trouble::{Trouble, USAGE};

#[derive(Debug, Args)]
pub(crate) struct Schema {
    /// The database
    #[arg(value_enum)]
    database: Database,
    /// The name of the table; it may be SCHEMA.TABLE on PostgreSQL, DATABASE.TABLE on MariaDB and MySQL
    #[arg(long, default_value = "dlock")]
    table: String,
    /// Print the functions (PostgreSQL) or procedures (MariaDB, MySQL) instead
    ///
    /// Only programs that do not use dlock need them, to take the locks of this table.
    #[arg(long)]
    functions: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Database {
    Postgres,
    Mysql,
    Mariadb,
    Sqlite,
}

/// Prints the statements that make the table.
pub(crate) fn schema(schema: &Schema) -> Result<u8, Trouble> {
    let Schema { database, table, functions } = schema;
    // The options only make the statements: no server is asked.
    let text = match database {
        Database::Postgres => {
            let options = PostgresOptions::from_url("postgres://localhost")?.with_table(table)?;
            if *functions { options.functions() } else { options.schema() }
        }
        Database::Mysql | Database::Mariadb => {
            let options = MysqlOptions::from_url("mysql://localhost")?.with_table(table)?;
            if *functions { for_the_client(&options.procedures()) } else { options.schema() }
        }
        Database::Sqlite if *functions => {
            return Err(Trouble::usage("SQLite has no functions for other programs; leave out --functions"));
        }
        Database::Sqlite => SqliteOptions::new("unused").with_table(table)?.schema(),
    };
    stdout().write_all(text.as_bytes())?;
    Ok(0)
}

/// Formats procedures for the command line clients of MariaDB and MySQL.
fn for_the_client(procedures: &[String]) -> String {
    let all: String = procedures.iter().map(|procedure| format!("{procedure} //\n")).collect();
    format!("DELIMITER //\n{all}DELIMITER ;\n")
}

/// Makes the table if it is missing, and prints whether it was.
pub(crate) async fn migrate(url: &str, json: bool) -> Result<u8, Trouble> {
    let scheme = url.split(':').next().unwrap_or_default();
    if scheme == "quorum" {
        return Err(Trouble::usage("give the URL of each node by itself: a quorum has no table of its own"));
    }
    let has_table = matches!(scheme, "postgres" | "postgresql" | "mysql" | "mariadb" | "sqlite");
    let url = if has_table && scheme != "sqlite" { migrating(url, false) } else { url.to_owned() };
    let found = async {
        let locks = store::look_into(&url).await?;
        locks.ping().await?;
        Ok::<_, Trouble>(locks)
    };
    let (locks, made) = match found.await {
        Ok(locks) => (locks, false),
        Err(trouble) if !has_table || trouble.code() != USAGE => return Err(trouble),
        Err(_) if scheme == "sqlite" => (store::open(&url).await?, true),
        Err(_) => (store::look_into(&migrating(&url, true)).await?, true),
    };
    if made {
        locks.ping().await?;
    }
    let backend = locks.backend();
    let document = json!({ "backend": backend, "has_table": has_table, "made": made });
    let text = match (has_table, made) {
        (true, true) => format!("the lock table was made on {backend}"),
        (true, false) => format!("the lock table exists on {backend}; nothing was changed"),
        (false, _) => format!("{backend} needs no table; nothing was changed"),
    };
    Ok(changed(json, &document, &text))
}

/// Returns the URL of a database with or without `migrate=true`. An old one is removed, since a parameter that is there
/// twice is refused.
fn migrating(url: &str, makes: bool) -> String {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let others =
        query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("migrate"));
    let all: Vec<_> = others.chain(makes.then_some("migrate=true")).collect();
    if all.is_empty() { place.to_owned() } else { format!("{place}?{}", all.join("&")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_asks_for_the_table_once_or_not_at_all() {
        for (url, without, with) in [
            ("mysql://h/d", "mysql://h/d", "mysql://h/d?migrate=true"),
            ("mysql://h/d?migrate=true", "mysql://h/d", "mysql://h/d?migrate=true"),
            ("mysql://h/d?migrate=1&table=t", "mysql://h/d?table=t", "mysql://h/d?table=t&migrate=true"),
        ] {
            assert_eq!((migrating(url, false), migrating(url, true)), (without.to_owned(), with.to_owned()));
        }
    }
}
