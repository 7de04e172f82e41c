//! The parts that failures of all databases have in common.

use dlock_core::{ErrorKind, Failure};

/// Copies a failure for one more of the claims that share a request.
pub(crate) fn copy(failure: &Failure) -> Failure {
    let message = failure.message();
    Failure::new(
        failure.kind(),
        match std::error::Error::source(failure) {
            Some(source) => format!("{message}: {source}"),
            None => message.to_owned(),
        },
    )
}

/// The meaning of an error of a statement.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Debug)]
pub struct Fault {
    pub(crate) failure: Failure,
    /// Set if nothing was changed, and the statement may succeed at once when it is repeated.
    pub(crate) again: bool,
    /// Set if the connection is of no use any more.
    pub(crate) broken: bool,
}

/// The text about a connection that can only be read.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const READ_ONLY: &str =
    "the server can only be read (a standby or replica, or a setting?); connect to the primary";

/// The text about a connection that ended, or did not come about.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) const BROKEN: &str = "the connection broke before the answer came";

/// Makes the fault of a table, or of a setting, with which no lock can be kept. `why` has a place for the table's name.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn unfit(why: &str, table: &crate::table::TableName) -> Fault {
    let failure = Failure::invalid_config(why.replace("{table}", &table.to_string()));
    Fault { failure, again: false, broken: false }
}

/// Makes the failure of a step that changes nothing, however it fails.
pub(crate) fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        ErrorKind::Unknown => Failure::new(ErrorKind::Unavailable, copy(&failure).message().to_owned()),
        _ => failure,
    }
}

/// Makes the failure of a count that has come to the end of its numbers, far in the future of any clock.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn fences_used_up(table: &crate::table::TableName) -> Failure {
    Failure::invalid_config(format!(
        "a fence of table {table} has come to the end of its numbers (was the clock or a row set by hand?), and none is given \
         twice; stop all users of the key and what checks its fences, and set `fence` of its row, or of the row of the empty key, \
         to the time in microseconds"
    ))
}

/// Makes the failure of a request that needs a server that could not be looked at yet.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn not_reached(limit: std::time::Duration) -> Failure {
    Failure::unavailable(format!("no server could be connected to within {limit:?}"))
}

/// Makes the error of an answer that belongs to another question. It is not known which locks the connection has.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn misplaced() -> sqlx::Error {
    sqlx::Error::Protocol(
        "the answer to another question; what is between here and the server repeats some".into(),
    )
}

pub(crate) fn closed() -> Failure {
    Failure::new(ErrorKind::Closed, "this backend was closed")
}

/// Makes the fault of one statement, or of connecting. `of_server` returns the meaning of an error of the server. `tls`
/// is the parameter of the URL that says which TLS it requires.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn fault(
    error: sqlx::Error,
    tls: &str,
    of_server: impl FnOnce(&dyn sqlx::error::DatabaseError) -> Fault,
) -> Fault {
    let fault = match &error {
        sqlx::Error::Database(error) => of_server(&**error),
        sqlx::Error::Configuration(why) if why.to_string() == READ_ONLY => {
            return Fault { failure: Failure::unavailable(READ_ONLY), again: false, broken: true };
        }
        other => {
            let (failure, broken) = of_driver(other, tls);
            Fault { failure, again: false, broken }
        }
    };
    Fault { failure: fault.failure.with_source(error), ..fault }
}

/// Returns the meaning of an error that is not the server's, and whether the connection is of no use any more.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn of_driver(error: &sqlx::Error, tls: &str) -> (Failure, bool) {
    use sqlx::Error;
    let kept = |failure| (failure, false);
    match error {
        Error::Configuration(_) => kept(Failure::invalid_config("the URL or the settings cannot be used")),
        // A certificate that is not trusted comes as an error of the stream.
        _ if is_tls(error) => kept(Failure::invalid_config(format!(
            "the TLS that the URL requires ({tls}) cannot be established; check the certificates, and that the feature \
             `tls` is on"
        ))),
        Error::PoolTimedOut => {
            kept(Failure::unavailable("the pool had no free connection; allow more of them"))
        }
        Error::PoolClosed => kept(closed()),
        Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            (Failure::unavailable("no server listens there; start it, or correct the address"), true)
        }
        // The request was not sent: a value could not be encoded.
        Error::Encode(_) => kept(Failure::invalid_config("a value cannot be sent")),
        _ => (Failure::unknown(BROKEN), true),
    }
}

/// Returns `true` if TLS did not come about, for example since the server did not prove its identity.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}
