//! What dlock's own tests run against: real servers that can be killed and frozen, a network that fails, and processes.
//!
//! * [`servers`]: real servers on free ports, gone when dropped, that can be killed, frozen and thawed.
//! * [`proxy`]: a TCP proxy that holds, drops, delays and cuts, in front of a real server.
//! * [`worker`]: a process of its own, to be killed, frozen and thawed.
//! * [`rules`]: random histories of a store, compared with the rules of who may hold a lock.
//! * [`expect`]: what tests wait for, and the errors that have to come.
//! * [`register`]: a register that checks fences, served to such processes.

#![forbid(unsafe_code)]

pub mod expect;
pub mod proxy;
pub mod register;
pub mod rules;
pub mod servers;
pub mod worker;
