//! The extractor by which a handler of axum gets its lock.

use std::fmt;

use axum_core::extract::{FromRequestParts, OptionalFromRequestParts};
use axum_core::response::{IntoResponse, Response};
use dlock_core::Held;
use http::StatusCode;
use http::request::Parts;

/// Extracts the lock of the request: its fence, the rest of its lease, and whether it is lost.
///
/// ```
/// use dlock_tower::Locked;
///
/// async fn import(Locked(held): Locked) -> String {
///     format!("{:?}", held.fence())
/// }
/// # drop(import);
/// ```
///
/// A handler that also serves requests without a lock takes an `Option<Locked>`. Without the layer, or for a request
/// that needs no lock, the extraction is rejected with [`NotLocked`].
#[derive(Clone, Debug)]
pub struct Locked(
    /// The view of the lock that is held.
    pub Held,
);

/// The rejection of [`Locked`]: the request runs without a lock. The response is 500 Internal Server Error, since the
/// route lacks its [`LockLayer`](crate::LockLayer), or that layer's function returned `None` for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotLocked;

impl fmt::Display for NotLocked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "the request has no lock: its route has no `LockLayer`, or the layer named no lock for it",
        )
    }
}

impl std::error::Error for NotLocked {}

impl IntoResponse for NotLocked {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Locked {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, NotLocked> {
        parts.extensions.get().cloned().map(Self).ok_or(NotLocked)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Locked {
    type Rejection = NotLocked;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Option<Self>, NotLocked> {
        Ok(parts.extensions.get().cloned().map(Self))
    }
}
