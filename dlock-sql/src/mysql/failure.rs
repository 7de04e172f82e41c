//! The meaning of an error of MariaDB or MySQL for a lock: whether something was changed, and how the user can mend it.

use dlock_core::Failure;
use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;

use crate::failure::{Fault, READ_ONLY, fault, unfit};
use crate::table::TableName;

/// The refusal of a connection on which nothing would be committed.
pub(super) const UNCOMMITTED: &str = "`autocommit` is off on a connection of the pool, so that no lock would ever be committed; \
                                      switch it on in its `after_connect` or on the server, or connect without the pool";

/// The refusal of a table whose rows are not locked by anything, and which may be gone when the server starts again.
/// The table's name is put in, as into the texts that follow.
pub(crate) const UNTRANSACTED: &str = "table {table} is not kept by InnoDB, so that its rows cannot be locked, and may be lost; choose another \
                                       table name, or ALTER TABLE {table} ENGINE = InnoDB";

/// The refusal of a table in which a key may have several rows.
pub(super) const UNKEYED: &str = "the column `key` of table {table} has no primary key, so that a lock could be granted twice, or not be found; \
                                  choose another table name, or stop all users of the table, and ALTER TABLE {table} ADD PRIMARY KEY (`key`)";

/// The refusal of a name that is no table.
pub(super) const VIEW: &str = "{table} is a view, whose rows are not found by a primary key; name the table itself, or choose another table \
                               name";

/// The refusal of a table whose keys or tokens are no bytes.
pub(super) const MISTYPED: &str = "the columns `key` and `token` of table {table} hold text, which the server compares by its collation, and no \
                                   bytes; choose another table name, or drop the table while nothing is held, and call migrate()";

/// The refusal of a server that ends transactions whatever their sessions set.
pub(super) const ENDS_IDLE: &str = "the server ends transactions that are idle for less than a minute (`kill_idle_transaction`), and with \
                                    them locks on rows, before their holders count them as lost; set it to 0, or to 60 and \
                                    more, or use sessions or lease rows";

/// The errors of a server, or of a user, that may have no connection more.
const NO_ROOM: [u16; 3] = [1040, 1203, 1226];

/// The errors of a user who lacks a right on the database, the table, a column, the server or a routine.
pub(super) const TOO_FEW_RIGHTS: [u16; 5] = [1044, 1142, 1143, 1227, 1370];

/// Returns `true` if the server opens no connection more.
pub(super) fn has_no_room(error: &Error) -> bool {
    number(error).is_some_and(|number| NO_ROOM.contains(&number))
}

/// The error of an isolation in which a server that logs statements, and not rows, locks none.
pub(super) const UNLOGGED: u16 = 1665;

/// The error of a setting for the next transaction while one is open.
pub(super) const IN_TRANSACTION: u16 = 1568;

/// The errors of a row that is locked: of MariaDB, and of MySQL.
pub(super) const LOCKED: [Option<u16>; 2] = [Some(1205), NO_WAIT];

/// The error of MySQL alone, of a row that was not to be waited for.
pub(super) const NO_WAIT: Option<u16> = Some(3572);

pub(super) fn number(error: &Error) -> Option<u16> {
    let Error::Database(error) = error else { return None };
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

pub(super) fn no_database() -> Failure {
    Failure::invalid_config("the URL names no database; write mysql://user:password@host:port/database")
}

/// Makes the fault of one statement, or of connecting.
pub(super) fn classify(error: Error, table: &TableName) -> Fault {
    if let Error::Configuration(why) = &error
        && [UNCOMMITTED, UNTRANSACTED, UNKEYED, MISTYPED, VIEW, ENDS_IDLE].contains(&&*why.to_string())
    {
        return unfit(&why.to_string(), table);
    }
    let number = number(&error).unwrap_or_default();
    fault(error, "ssl-mode", |error| {
        let number = match number {
            // An option of the server forbids it: to write, or to make this kind of table.
            1290 if !error.message().contains("read") => 1286,
            number => number,
        };
        let again = matches!(number, 1205 | 1213 | 1020 | 1062 | 3572);
        // The session has ended, or is about to; 1290, 1792, 1836: perhaps another server is the primary now.
        let broken =
            matches!(number, 1053 | 1077..=1080 | 1152..=1161 | 1290 | 1792 | 1836 | 1927 | 3169 | 4031);
        Fault { failure: of_number(number, table), again, broken }
    })
}

fn of_number(number: u16, table: &TableName) -> Failure {
    match number {
        1146 => Failure::invalid_config(format!(
            "there is no table {table}; run `dlock migrate` or call migrate() once, or add migrate=true to the URL"
        )),
        number if TOO_FEW_RIGHTS.contains(&number) => Failure::denied(format!(
            "the user has too few rights; GRANT SELECT, INSERT, UPDATE ON {table} (and DELETE for readers and permits, and \
             for waiters in line; CREATE to migrate)"
        )),
        1095 => Failure::denied(
            "a session of another user cannot be ended by this one; do it as that user, or as one with the right CONNECTION ADMIN",
        ),
        // 4150: too many log-ins failed.
        1045 | 1130 | 1251 | 1698 | 1820 | 1862 | 3118 | 4150 | 4151 => {
            Failure::denied("the server refused the user or the password")
        }
        1046 => no_database(),
        UNLOGGED => Failure::invalid_config(
            "the server logs statements (binlog_format = STATEMENT), and locks and changes nothing in the isolation of this \
             connection; set the pool's to REPEATABLE READ in its `after_connect`, or binlog_format to MIXED or ROW",
        ),
        1286 => Failure::invalid_config(
            "the server does not make tables of InnoDB, whose rows can be locked; allow it to",
        ),
        1049 | 1102 => Failure::invalid_config("the database does not exist; create it, or correct the URL"),
        167 | 1264 | 1690 => crate::failure::fences_used_up(table),
        1054 | 1136 | 1364 | 1366 | 1406 | 1064 => Failure::invalid_config(format!(
            "table {table} is not a lock table of this version; choose another table name"
        )),
        1290 | 1792 | 1836 => Failure::unavailable(READ_ONLY),
        1205 | 1213 | 1020 | 1062 | 3572 => {
            Failure::unavailable("another transaction was in the way; it is tried again")
        }
        1317 | 3024 | 1969 => Failure::unavailable("the statement was cancelled, perhaps by a time limit"),
        1461 => Failure::unavailable(
            "the server keeps no more prepared statements; raise max_prepared_stmt_count",
        ),
        number if NO_ROOM.contains(&number) => {
            Failure::unavailable("the server is short of connections; allow more of them")
        }
        1021 | 1028 | 1037 | 1038 | 1041 | 1114 | 1135 => {
            Failure::unavailable("the server is short of memory or disk space")
        }
        // The end of a session, a failed commit: what was sent may have been carried out.
        _ => Failure::unknown("the server ended the request"),
    }
}
