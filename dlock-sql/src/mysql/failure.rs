//! What an error of MariaDB or MySQL means for a lock: whether something was changed, and what the user can do.

use dlock_core::Failure;
use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;

use crate::failure::{closed, is_tls};
use crate::server::Fault;
use crate::table::TableName;

/// What is said of a connection on which nothing would be committed.
pub(super) const UNCOMMITTED: &str = "`autocommit` is off on a connection of the pool, so that no lock would ever be committed; \
                                      switch it on in its `after_connect` or on the server, or connect without the pool";

pub(super) fn number(error: &Error) -> Option<u16> {
    let Error::Database(error) = error else { return None };
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// The fault of one statement, or of connecting.
pub(super) fn classify(error: Error, table: &TableName) -> Fault {
    let (mut again, mut broken) = (false, false);
    let failure = match &error {
        Error::Database(_) => {
            let number = number(&error).unwrap_or_default();
            again = matches!(number, 1205 | 1213 | 1020 | 1062);
            // The session has ended, or is about to; 1290, 1792, 1836: perhaps another server is the primary now.
            broken =
                matches!(number, 1053 | 1077..=1080 | 1152..=1161 | 1290 | 1792 | 1836 | 1927 | 3169 | 4031);
            of_number(number, table)
        }
        Error::Configuration(why) if why.to_string() == UNCOMMITTED => {
            return Fault { failure: Failure::invalid_config(UNCOMMITTED), again: false, broken: false };
        }
        Error::Configuration(_) => Failure::invalid_config("the URL or the settings cannot be used"),
        // A certificate that is not trusted comes as an error of the stream.
        _ if is_tls(&error) => Failure::invalid_config(
            "the TLS that the URL requires (ssl-mode) cannot be established; check the certificates, and that the feature \
             `tls` is on",
        ),
        Error::PoolTimedOut => Failure::unavailable("the pool had no free connection; allow more of them"),
        Error::PoolClosed => closed(),
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            broken = true;
            Failure::unavailable("no server listens there; start it, or correct the address")
        }
        // The request was not sent: a value could not be encoded.
        Error::Encode(_) => Failure::invalid_config("a value cannot be sent"),
        _ => {
            broken = true;
            Failure::unknown("the connection broke before the answer came")
        }
    };
    Fault { failure: failure.with_source(error), again, broken }
}

fn of_number(number: u16, table: &TableName) -> Failure {
    match number {
        1146 => Failure::invalid_config(format!(
            "there is no table {table}; call migrate() once, or add migrate=true to the URL"
        )),
        1044 | 1142 | 1143 | 1227 | 1370 => Failure::denied(format!(
            "the user has too few rights; GRANT SELECT, INSERT, UPDATE ON {table} (and CREATE to migrate)"
        )),
        1095 => Failure::denied(
            "a session of another user cannot be ended by this one; do it as that user, or as one with the right CONNECTION ADMIN",
        ),
        1045 | 1130 | 1251 | 1698 | 1820 | 1862 | 3118 | 4151 => {
            Failure::denied("the server refused the user or the password")
        }
        1046 => Failure::invalid_config(
            "the URL names no database; write mysql://user:password@host:port/database",
        ),
        1049 => Failure::invalid_config("the database does not exist; create it, or correct the URL"),
        167 | 1264 | 1690 => crate::failure::fences_used_up(table),
        1054 | 1136 | 1364 | 1366 | 1406 | 1064 => Failure::invalid_config(format!(
            "table {table} is not a lock table of this version; choose another table name"
        )),
        1290 | 1792 | 1836 => {
            Failure::unavailable("the server can only be read (a replica?); connect to the primary")
        }
        1205 | 1213 | 1020 | 1062 => {
            Failure::unavailable("another transaction was in the way; it is tried again")
        }
        1317 | 3024 | 1969 => Failure::unavailable("the statement was cancelled, perhaps by a time limit"),
        1461 => Failure::unavailable(
            "the server keeps no more prepared statements; raise max_prepared_stmt_count",
        ),
        1040 | 1203 | 1226 => Failure::unavailable("the server is short of connections; allow more of them"),
        1021 | 1028 | 1037 | 1038 | 1041 | 1114 | 1135 => {
            Failure::unavailable("the server is short of memory or disk space")
        }
        // The end of a session, a failed commit: what was sent may have been carried out.
        _ => Failure::unknown("the server ended the request"),
    }
}
