//! The connections of one backend, and the requests on them.
//!
//! Connections are opened when they are needed, and belong to the runtime that asks or to dlock's own thread. An
//! attempt or a question is driven by the caller for as long as it waits, and then by that thread, or by the caller's
//! runtime where its connection is a pool's; so is a release that can be written to the wire at once. Other releases,
//! and renewals, are driven by dlock's thread alone, since they must not wait for a runtime that is blocked. So all are
//! carried out to their end, and their outcome noted, whatever becomes of the caller. With a pool of the user, attempts
//! go over its connections, and what must not wait for one (renewals, releases) over dlock's own.
//!
//! ```text
//!     request            connection of                          right to use it        driven by
//!     attempt, question  pool                                   none of dlock's        caller, then its runtime
//!                        caller's runtime; own thread           permit                 caller, then own thread
//!     release            caller's runtime, if one is ready      permit                 caller, then own thread
//!                        own thread                             permit, else reserve   own thread
//!     renewal            own thread                             that of renewals       own thread
//! ```

mod announcing;
mod connections;
mod driven;
mod progress;
mod request;
mod route;
mod runtime_pool;
pub(crate) mod steps;
mod together;
mod waiters;

pub(crate) use connections::{Connections, Holding};
pub(crate) use driven::sleep_on_own_thread;
pub(crate) use progress::Progress;
pub(crate) use route::Kind;
pub(crate) use runtime_pool::RuntimePool;
pub(crate) use steps::Step;
pub(crate) use together::{Joint, ask_together};
pub(crate) use waiters::PendingBatch;
