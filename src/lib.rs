//! Async distributed locks that tell you when they are lost.
//!
//! See [`distributed_lock`] for the attribute, [`Locks`] for locks by hand, and [`connect`] for a backend from a URL.

#![forbid(unsafe_code)]

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod connect;
mod registry;

pub use connect::{connect, from_url};
pub use dlock_core::{
    Backend, Capabilities, Claim, Clock, Error, ErrorKind, Failure, Faults, Fence, Guard, Held, Holder, Key,
    Lock, Locks, LocksBuilder, MAX_LEASE, MAX_WAIT, MIN_LEASE, Memory, MovableClock, OnLost, Operation,
    Result, Stats, Timestamp, Wait, backend, current_hold,
};
#[cfg(feature = "macros")]
#[doc = include_str!("macro.md")]
pub use dlock_macros::distributed_lock;
#[cfg(feature = "sqlite")]
pub use dlock_sql as sql;
pub use registry::{in_current_scope, register, registered, set_default, with_backend};
