//! A [`tower`](https://docs.rs/tower) layer that takes a distributed lock for each request.
//!
//! [`LockLayer`] asks a function of yours which lock a request needs, takes it, runs the service behind it, and
//! releases the lock before the response goes out. It works with axum, tonic, hyper, and whatever else is a
//! [`Service`](tower_service::Service) of HTTP requests.
//!
//! ```
//! use axum::{Router, extract::Request, routing::post};
//! use dlock_core::{Locks, Memory, Wait};
//! use dlock_tower::LockLayer;
//!
//! let locks = Locks::new(Memory::new());
//! let one_at_a_time = LockLayer::new(move |request: &Request| {
//!     let tenant = request.headers().get("tenant")?.to_str().ok()?;
//!     Some(locks.lock(format!("imports_{tenant}")).with_wait(Wait::No))
//! });
//! let app: Router = Router::new().route("/imports", post(async || "imported")).layer(one_at_a_time);
//! # drop(app);
//! ```
//!
//! A path is percent-encoded: decode the part that becomes a key, or two spellings of it are two locks.
//!
//! # What a request is answered
//!
//! | what happened | HTTP | gRPC |
//! |---|---|---|
//! | the lock was busy for as long as its options wait | 423 Locked with `Retry-After`, see [`Rejections`] | `ABORTED` |
//! | the lock was lost while the request was worked on, which ends it | 503 Service Unavailable | `UNAVAILABLE` |
//! | the lock's server cannot be reached, the locks are shut down, or another failure that may pass | 503 Service Unavailable | `UNAVAILABLE` |
//! | the key that the function made is not one | 400 Bad Request | `INVALID_ARGUMENT` |
//! | the lock is refused for another reason, such as a missing right | 500 Internal Server Error | `INTERNAL` |
//!
//! A request is taken for one of gRPC, or gRPC-Web, by its `Content-Type`. The bodies of these responses are empty.
//!
//! Every method takes the lock that the function returns. Return `None` for methods that change nothing, such as
//! `OPTIONS`, or a browser's preflight waits behind the work of others.
//!
//! # What the lock covers
//!
//! The service's work until it has a response, which is the whole handler in axum and a whole unary call in tonic. A
//! body that is streamed is sent after that, without the lock. A request's body that its handler reads is read under
//! the lock, at the client's pace: give such a route a time limit. A request whose client disconnects is dropped by the
//! server, and the lock is then released in the background. A panic of the handler releases it likewise; the server
//! decides what the client gets for it, and for a panic of the function that names the lock.
//!
//! A lock that is lost ends the request at its next await, unless the lock's options say to
//! [continue](dlock_core::OnLost::Continue). What the request writes elsewhere is protected by the fence: it is in the
//! request's extensions, as [`Held`](dlock_core::Held), and for axum there is an extractor, `Locked` (feature `axum`).

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
mod extract;
mod layer;
mod rejection;
mod request_lock;

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use extract::{Locked, NotLocked};
pub use layer::{LockLayer, LockService};
pub use rejection::Rejections;
pub use request_lock::RequestLock;
