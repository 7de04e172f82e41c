//! The meaning of an error of PostgreSQL for a lock: whether something was changed, and how the user can mend it.

use dlock_core::Failure;
use sqlx::Error;
use sqlx::postgres::PgDatabaseError;

use crate::failure::{Fault, READ_ONLY, fault, unfit};
use crate::table::TableName;

/// The error of a server, or of a user, that may have no connection more.
const NO_ROOM: &str = "53300";

/// The errors of a prepared statement that is not there, and of one whose table was altered.
pub(super) const UNPREPARED: &str = "26000";
pub(super) const OUTDATED: &str = "0A000";

/// The error of a name that a prepared statement has already.
pub(super) const NAME_TAKEN: &str = "42P05";

/// The refusal of a table in which a key may have several rows. The table's name is put in, as into the texts that
/// follow.
pub(super) const UNKEYED: &str = "the column \"key\" of table {table} has no index that gives each key one row, so that a lock could be granted \
                                  twice; choose another table name, or stop all users of the table, and ALTER TABLE {table} ADD \
                                  PRIMARY KEY (key)";

/// The refusal of a name that is no table of this database.
pub(super) const VIEW: &str = "{table} is a view, or its rows are kept elsewhere, so that they cannot be locked; name the table itself, or \
                               choose another table name";

/// The refusal of a table whose columns have other types.
pub(super) const MISTYPED: &str = "the columns of table {table} have other types than those of a lock table of this version; choose another \
                                   table name, or drop it while nothing is held, and call migrate()";

/// Makes the fault of one statement, or of connecting.
pub(super) fn classify(error: Error, table: &TableName) -> Fault {
    if let Error::Configuration(why) = &error
        && [UNKEYED, MISTYPED, VIEW].contains(&&*why.to_string())
    {
        return unfit(&why.to_string(), table);
    }
    fault(error, "sslmode", |error| {
        let fatal = error
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| !matches!(error.severity(), sqlx::postgres::PgSeverity::Error));
        let code = error.code().unwrap_or_default();
        let again = matches!(&*code, "40001" | "40P01" | "55P03");
        // 25006: perhaps another server is the primary now.
        let broken = fatal || code.starts_with("08") || code == "25006";
        // A session that does not begin has looked at no table yet.
        let failure = match &*code {
            "22023" | "42601" | "42704" if fatal => Failure::invalid_config(
                "the server refuses a setting of the connection; correct `options` in the URL, or what is set for the \
                 role or the database",
            ),
            // A refusal that ends the connection is one to log in.
            "42501" if fatal => no_connection(),
            code => of_code(code, table),
        };
        Fault { failure, again, broken }
    })
}

pub(super) fn no_table(table: &TableName) -> Failure {
    Failure::invalid_config(format!(
        "there is no table {table} in the database; run `dlock migrate` or call migrate() once, or add migrate=true to \
         the URL"
    ))
}

fn no_connection() -> Failure {
    Failure::denied("the user may not connect to the database; GRANT CONNECT ON DATABASE it TO the user")
}

fn of_code(code: &str, table: &TableName) -> Failure {
    match code {
        "42P01" => no_table(table),
        "42501" => Failure::denied(format!(
            "the user has too few rights; GRANT SELECT, INSERT, UPDATE ON {table} (and DELETE for readers and permits, \
             and for waiters in line; USAGE on its schema, CREATE on one of the search path to migrate; EXECUTE on a \
             function that is named; to end another role's session by force, make the user a member of pg_signal_backend)"
        )),
        "42703" | "42804" | "42883" => Failure::invalid_config(format!(
            "table {table} is not a lock table of this version; choose another table name"
        )),
        "3D000" => Failure::invalid_config("the database does not exist; create it, or correct the URL"),
        "3F000" => Failure::invalid_config("the schema does not exist; correct the search path"),
        "25006" => Failure::unavailable(READ_ONLY),
        "22003" => crate::failure::fences_used_up(table),
        "40001" | "40P01" | "55P03" => {
            Failure::unavailable("another transaction was in the way; it is tried again")
        }
        "57014" => Failure::unavailable("the statement was cancelled, perhaps by a statement_timeout"),
        NO_ROOM => Failure::unavailable("the server is short of connections; allow more of them"),
        "57P03" => Failure::unavailable("the server is starting up or shutting down"),
        // A proxy that pools transactions has lent a server connection that does not know the statement.
        "26000" | "42P05" => Failure::unavailable(
            "a connection pooler does not support prepared statements (PgBouncer does from 1.21 on, with \
             max_prepared_statements)",
        ),
        _ => match code.get(..2) {
            Some("28") => Failure::denied("the server refused the user or the password"),
            Some("53") => Failure::unavailable("the server is short of memory or disk space"),
            Some("42" | "22" | "23") => {
                Failure::invalid_config(format!("table {table} does not do what a lock table does"))
            }
            // The end of a session, a broken connection, a crash: what was sent may have been carried out.
            _ => Failure::unknown("the server ended the request"),
        },
    }
}

/// Returns `true` if two processes made the table at the same time, and it is there now.
pub(super) fn is_made_twice(error: &Error) -> bool {
    matches!(error, Error::Database(error) if matches!(error.code().as_deref(), Some("23505" | "42P07" | "42710")))
}

/// Returns `true` if the server opens no connection more.
pub(super) fn has_no_room(error: &Error) -> bool {
    matches!(error, Error::Database(error) if error.code().as_deref() == Some(NO_ROOM))
}

/// Returns `true` if the table is missing.
pub(super) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Database(error) if error.code().as_deref() == Some("42P01"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_memory_or_disk_space_is_not_taken_for_one_without_connections() {
        let said = |code: &str| of_code(code, &TableName::default()).message().to_owned();
        assert!(said(NO_ROOM).contains("short of connections"));
        for code in ["53100", "53200"] {
            assert!(!said(code).contains("connections"), "{code}");
        }
    }
}
