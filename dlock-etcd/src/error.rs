//! The meaning of errors of the servers and of the client library.
//!
//! | the error | what it means |
//! |---|---|
//! | the connection could not be made | the request was not sent: unavailable |
//! | the user or the token is refused | denied |
//! | the lease is not there | [`LEASE_GONE`], which no caller outside of this crate gets |
//! | the space of the database is used up, or there is no leader | refused: unavailable |
//! | the request cannot be right | a wrong configuration |
//! | anything else | unknown, since the request may have been carried out |

use dlock_core::{Error as LockError, ErrorKind, Failure, Operation};
use etcd_client::Error;
use tonic::Code;

/// The kind of the failure of a request whose lease is not there any more.
pub(crate) const LEASE_GONE: ErrorKind = ErrorKind::Lost;

pub(crate) fn lease_gone() -> Failure {
    Failure::new(LEASE_GONE, "the lease of the claim has ended")
}

const FULL: &str = "the space of the servers' database is used up, so that no lock can be taken: compact and defragment \
                    it, raise --quota-backend-bytes, then run `etcdctl alarm disarm`";

/// Returns the failure that an error of a request means.
pub(crate) fn failure(error: Error) -> Failure {
    let status = match &error {
        error if is_unsent(error) => {
            return Failure::unavailable(format!("no connection ({})", innermost(error)));
        }
        Error::LeaseKeepAliveError(text) if text == "lease not found" => return lease_gone(),
        Error::InvalidArgs(_) | Error::InvalidUri(_) => return Failure::invalid_config(error.to_string()),
        Error::GRpcStatus(status) => status,
        _ => return Failure::unknown(format!("the connection ended before the answer came ({error})")),
    };
    let text = status.message();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => Failure::denied(text.to_owned()),
        // The servers have no better code for a wrong password, and for none.
        Code::InvalidArgument if text.contains("auth") || text.contains("user name is empty") => {
            Failure::denied(text.to_owned())
        }
        Code::FailedPrecondition if text.contains("authentication is not enabled") => {
            Failure::invalid_config("the URL has a user, and the servers have no authentication enabled")
        }
        Code::InvalidArgument | Code::Unimplemented => Failure::invalid_config(text.to_owned()),
        Code::NotFound if text.contains("lease not found") => lease_gone(),
        Code::ResourceExhausted if text.contains("database space exceeded") => Failure::unavailable(FULL),
        Code::ResourceExhausted => Failure::unavailable(text.to_owned()),
        Code::Unavailable if text == "etcdserver: no leader" => {
            Failure::unavailable("the servers have no leader")
        }
        code => Failure::unknown(format!("{text} ({code:?})")),
    }
}

/// Returns whether a request that failed so has certainly changed nothing. Where space runs out while the servers carry
/// a transaction out, they do, and say that they have no space.
pub(crate) fn is_nothing(failure: &Failure) -> bool {
    failure.kind() != ErrorKind::Unknown && failure.message() != FULL
}

/// Returns whether a token was refused since users or roles were changed after it was made.
pub(crate) fn is_of_old_rights(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message() == "etcdserver: revision of auth store is old")
}

/// Returns whether the request was certainly not sent.
fn is_unsent(error: &Error) -> bool {
    sources(error).any(|source| source.is::<tonic::ConnectError>())
}

fn innermost(error: &Error) -> String {
    sources(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn sources(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let first: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::GRpcStatus(status) => Some(status),
        Error::TransportError(error) => Some(error),
        _ => None,
    };
    std::iter::successors(first, |error| error.source())
}

/// Returns the error of settings, or of an opening that failed.
pub(crate) fn configure(failure: Failure) -> LockError {
    LockError::new(Operation::Configure, failure).on("etcd")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn each_refusal_of_the_servers_has_its_kind_and_all_else_is_unknown() {
        for (code, text, kind) in [
            (Code::PermissionDenied, "etcdserver: permission denied", ErrorKind::Denied),
            (Code::Unauthenticated, "etcdserver: invalid auth token", ErrorKind::Denied),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                ErrorKind::Denied,
            ),
            (Code::InvalidArgument, "etcdserver: user name is empty", ErrorKind::Denied),
            (Code::FailedPrecondition, "etcdserver: authentication is not enabled", ErrorKind::InvalidConfig),
            (Code::NotFound, "etcdserver: requested lease not found", LEASE_GONE),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", ErrorKind::Unavailable),
            (Code::ResourceExhausted, "etcdserver: too many requests", ErrorKind::Unavailable),
            (Code::Unavailable, "etcdserver: no leader", ErrorKind::Unavailable),
            (Code::Unavailable, "etcdserver: leader changed", ErrorKind::Unknown),
            (Code::Unavailable, "etcdserver: request timed out", ErrorKind::Unknown),
            (Code::DeadlineExceeded, "", ErrorKind::Unknown),
            (Code::Cancelled, "", ErrorKind::Unknown),
            (Code::Unknown, "", ErrorKind::Unknown),
        ] {
            let failure = failure(Error::GRpcStatus(Status::new(code, text)));
            assert_eq!(failure.kind(), kind, "{text}");
        }
        let full = failure(Error::GRpcStatus(Status::resource_exhausted("mvcc: database space exceeded")));
        assert!(full.message().contains("etcdctl alarm disarm"), "{full}");
    }

    #[test]
    fn what_was_not_sent_is_unavailable() {
        let refused =
            tonic::ConnectError(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        let status = Status::from_error(Box::new(refused));
        assert_eq!(failure(Error::GRpcStatus(status)).kind(), ErrorKind::Unavailable);
    }
}
