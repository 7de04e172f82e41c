//! What failures of all databases have in common.

use dlock_core::{ErrorKind, Failure};

/// The same failure for one more of those who share a request.
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

/// The failure of a step that changes nothing, however it fails.
pub(crate) fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        ErrorKind::Unknown => Failure::new(ErrorKind::Unavailable, copy(&failure).message().to_owned()),
        _ => failure,
    }
}

/// The failure of a count that has come to the end of its numbers, far in the future of any clock.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn fences_used_up(table: &crate::table::TableName) -> Failure {
    Failure::invalid_config(format!(
        "a fence of table {table} has come to the end of its numbers (was the clock or a row set by hand?), and none is given \
         twice; stop all users of the key and what checks its fences, and set `fence` of its row, or of the row of the empty key, \
         to the time in microseconds"
    ))
}

pub(crate) fn closed() -> Failure {
    Failure::new(ErrorKind::Closed, "this backend was closed")
}

/// Whether TLS did not come about, for example since the server did not prove who it is.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}
