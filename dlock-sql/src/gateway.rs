//! The connections of one backend, and what is done on them.
//!
//! They are opened when they are needed, and belong to the runtime that asks or to dlock's own thread. An attempt or a
//! question is driven by the caller for as long as he waits, and then by that thread; so is a release that can be
//! written to the wire at once. Other releases, and renewals, are driven by that thread alone, since they must not wait
//! for a runtime that is blocked. So all are carried out to their end, and their outcome noted, whatever becomes of the
//! caller. With a pool of the user, attempts go over its connections, and what must not wait for one (renewals,
//! releases) over our own.

mod announcing;
mod connections;
mod driven;
mod lane;
mod progress;
mod request;
mod route;
pub(crate) mod steps;
mod together;
mod waiters;

pub(crate) use connections::{Connections, Holding};
pub(crate) use driven::sleep_on_own_thread;
pub(crate) use lane::Lane;
pub(crate) use progress::Progress;
pub(crate) use route::Kind;
pub(crate) use steps::Step;
pub(crate) use together::{Joint, ask_together};
pub(crate) use waiters::Line;
