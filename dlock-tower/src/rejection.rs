//! The responses to requests that did not get their lock, or lost it.

use std::time::Duration;

use dlock_core::{Error, ErrorKind};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

/// The time after which to retry locks whose server cannot be reached, or that are shut down.
const OUTAGE: Duration = Duration::from_secs(1);
/// The most that `Retry-After` says, whatever is left of a lease that is hours long.
const LONGEST: Duration = Duration::from_secs(3600);

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The responses to requests that did not get their lock, or lost it.
///
/// `Retry-After` is in whole seconds: what is left of the holder's lease where that is known, else one second. A holder
/// that renews its lease, or releases early, has the lock for a longer or shorter time than that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejections {
    busy: StatusCode,
}

impl Default for Rejections {
    fn default() -> Self {
        Self { busy: StatusCode::LOCKED }
    }
}

impl Rejections {
    /// Answers with `status` when the lock is busy: 409 Conflict for clients that do not know 423, or 429. The default
    /// is 423 Locked.
    #[must_use]
    pub const fn with_busy_status(mut self, status: StatusCode) -> Self {
        self.busy = status;
        self
    }

    /// Makes the response to a request that failed with `error`, with an empty body.
    pub fn response<B: Default>(&self, error: &Error, grpc: bool) -> Response<B> {
        let answer = Answer::to(error);
        let pause = answer.pause(error);
        let mut response = Response::new(B::default());
        if grpc {
            let headers = response.headers_mut();
            answer.grpc(headers);
            if let Some(pause) = pause {
                let millis = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
                headers.insert(GRPC_PUSHBACK, HeaderValue::from(millis.max(1)));
            }
            return response;
        }
        *response.status_mut() = answer.status(self);
        if let Some(pause) = pause {
            // Rounded up: a client that comes earlier finds the lease running.
            let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

/// Returns the content type of a request of gRPC or gRPC-Web; `None` for other requests.
pub(crate) fn grpc_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(CONTENT_TYPE)?;
    let rest = value.as_bytes().strip_prefix(b"application/grpc")?;
    let rest = rest.strip_prefix(b"-web-text").or_else(|| rest.strip_prefix(b"-web")).unwrap_or(rest);
    matches!(rest.first(), None | Some(b'+' | b';' | b' ')).then(|| value.clone())
}

/// The meaning of an error to the client that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Busy,
    Outage,
    BadKey,
    Refused,
}

impl Answer {
    const fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Busy | ErrorKind::TimedOut => Self::Busy,
            ErrorKind::Lost
            | ErrorKind::Suspect
            | ErrorKind::NotHeld
            | ErrorKind::Unknown
            | ErrorKind::Unavailable
            | ErrorKind::QuorumNotReached
            | ErrorKind::Closed => Self::Outage,
            ErrorKind::InvalidKey => Self::BadKey,
            _ => Self::Refused,
        }
    }

    fn to(error: &Error) -> Self {
        // An error that may pass is worth another try, of whatever kind it is.
        match Self::of(error.kind()) {
            Self::Refused if error.is_retryable() => Self::Outage,
            answer => answer,
        }
    }

    const fn status(self, rejections: &Rejections) -> StatusCode {
        match self {
            Self::Busy => rejections.busy,
            Self::Outage => StatusCode::SERVICE_UNAVAILABLE,
            Self::BadKey => StatusCode::BAD_REQUEST,
            Self::Refused => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Sets the headers of a response without messages, which hold its trailers.
    fn grpc(self, headers: &mut HeaderMap) {
        let (code, message) = match self {
            Self::Busy => ("10", "the lock is busy"),
            Self::Outage => ("14", "the lock was lost or cannot be taken now"),
            Self::BadKey => ("3", "the request has no valid key of a lock"),
            Self::Refused => ("13", "the lock cannot be taken"),
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(GRPC_STATUS, HeaderValue::from_static(code));
        headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    }

    fn pause(self, error: &Error) -> Option<Duration> {
        match self {
            Self::Busy => {
                let left = error.holder().and_then(|holder| holder.expires_in);
                Some(left.unwrap_or(OUTAGE).min(LONGEST))
            }
            Self::Outage => Some(OUTAGE),
            Self::BadKey | Self::Refused => None,
        }
    }
}
