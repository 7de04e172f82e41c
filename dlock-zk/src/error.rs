//! The meaning of the errors of the server and the client library for a lock.

use dlock_core::{Error as LockError, ErrorKind, Failure, Operation};
use zookeeper::Error;

/// The error by which a server refuses a node that ends with its session, to a session that no other server knows of.
/// The client library has no name for it.
const LOCAL_SESSION: Error = Error::UnexpectedErrorCode(-120);

/// Returns `true` if the server refused the request, so that it certainly changed nothing. Any other error of a request
/// that was sent leaves open whether it was carried out.
pub(crate) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoNode
            | Error::NoAuth
            | Error::BadVersion
            | Error::NoChildrenForEphemerals
            | Error::NodeExists
            | Error::NotEmpty
            | Error::InvalidAcl
            | Error::SessionMoved
            | Error::NotReadOnly
            | Error::QuotaExceeded
            | Error::Throttled
            | Error::MarshallingError
            | Error::Unimplemented
            | Error::BadArguments(_)
    ) || *error == LOCAL_SESSION
}

/// Returns the failure of a request that may have changed something.
pub(crate) fn of_write(error: Error, path: &str) -> Failure {
    if is_refusal(&error) {
        return refusal(&error, path);
    }
    Failure::unknown(no_answer(&error))
}

/// Returns the failure of a request that changes nothing.
pub(crate) fn of_read(error: Error, path: &str) -> Failure {
    if is_refusal(&error) {
        return refusal(&error, path);
    }
    Failure::unavailable(no_answer(&error))
}

fn no_answer(error: &Error) -> String {
    match error {
        Error::UnexpectedErrorCode(_) => format!("the server could not carry it out ({error})"),
        _ => format!("the connection ended before the answer came ({error})"),
    }
}

/// Returns the failure that a refusal by the server means.
pub(crate) fn refusal(error: &Error, path: &str) -> Failure {
    let (kind, advice) = match error {
        Error::NoAuth => (
            ErrorKind::Denied,
            "the ACL of the node or of its parent does not allow this; log in as the one who created it, or change it",
        ),
        Error::InvalidAcl => (
            ErrorKind::InvalidConfig,
            "the server refuses the ACL; one for the creator only needs a user and a password",
        ),
        Error::QuotaExceeded => {
            (ErrorKind::InvalidConfig, "a quota is used up; raise it or use another base path")
        }
        Error::NoChildrenForEphemerals => (
            ErrorKind::InvalidConfig,
            "the path is an ephemeral node of another client; use another base path",
        ),
        Error::BadArguments(_) => (ErrorKind::InvalidConfig, "the client library refuses the request"),
        error if *error == LOCAL_SESSION => (
            ErrorKind::InvalidConfig,
            "the servers have localSessionsEnabled, and need localSessionsUpgradingEnabled for locks",
        ),
        Error::Unimplemented => {
            (ErrorKind::Unsupported, "the server lacks this; ZooKeeper 3.5 or later is needed")
        }
        Error::NotReadOnly => (ErrorKind::Unavailable, "the server has no quorum and is read-only"),
        Error::Throttled => (ErrorKind::Unavailable, "the server is overloaded"),
        Error::SessionMoved => (ErrorKind::Unavailable, "the session moved to another server"),
        Error::NoNode => (ErrorKind::Unavailable, "the lock's path was deleted meanwhile, again and again"),
        _ => (ErrorKind::Unsupported, "the server refused the request"),
    };
    Failure::new(kind, format!("{advice} ({path:?}: {error})"))
}

/// Returns the error of settings, or of an opening that failed.
pub(crate) fn configure(failure: Failure) -> LockError {
    LockError::new(Operation::Configure, failure).on("zk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_refused_changed_nothing_and_a_lost_connection_leaves_it_open() {
        for error in
            [Error::ConnectionLoss, Error::Timeout, Error::UnexpectedError("x".into()), Error::ClientClosed]
        {
            assert_eq!(of_write(error.clone(), "/a").kind(), ErrorKind::Unknown, "{error}");
            assert_eq!(of_read(error.clone(), "/a").kind(), ErrorKind::Unavailable, "{error}");
        }
        for error in
            [Error::NoAuth, Error::Throttled, Error::QuotaExceeded, Error::InvalidAcl, Error::Unimplemented]
        {
            assert_ne!(of_write(error.clone(), "/a").kind(), ErrorKind::Unknown, "{error}");
        }
    }

    #[test]
    fn missing_rights_are_final_and_an_overload_is_not() {
        let denied = of_write(Error::NoAuth, "/dlock/a");
        assert_eq!(denied.kind(), ErrorKind::Denied);
        assert!(denied.message().contains("/dlock/a") && denied.message().contains("ACL"), "{denied}");
        assert!(of_write(Error::Throttled, "/a").is_transient());
        assert!(!of_write(Error::QuotaExceeded, "/a").is_transient());
    }
}
