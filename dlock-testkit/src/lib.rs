//! What it takes to trust a backend of dlock: a conformance suite, faults, judges, and workers that can be killed.
//!
//! For authors of backends, and for dlock's own tests.
//!
//! * [`conformance`]: what every backend has to do, as test cases over any [`Backend`](dlock_core::Backend). Start here.
//! * [`BatchOfOne`]: the same suite over a backend that takes several locks in one step.
//! * [`wire`]: puts faults between the engine and any backend: cut, hang, lose a reply, deliver a request too late.
//! * [`cancel`]: drops a future at every one of its await points.
//! * [`history`] and [`judges`]: records what processes did and decides whether exclusion and fencing held.
//! * [`proxy`]: a TCP proxy that holds, drops, delays and cuts, in front of a real server.
//! * [`register`]: a resource that checks fences, to be written to under a lock.
//! * [`servers`]: real servers on free ports, gone when dropped, that can be killed, frozen and thawed.
//! * [`worker`]: a process of its own, to be killed, frozen and thawed.
//! * [`mutants`]: deliberately broken backends, which show that the suite and the judges catch what they are for.

#![forbid(unsafe_code)]

mod batch_of_one;
pub mod cancel;
pub mod conformance;
pub mod history;
pub mod judges;
pub mod mutants;
pub mod proxy;
pub mod register;
pub mod servers;
mod time;
pub mod wire;
pub mod worker;

pub use batch_of_one::BatchOfOne;
pub use time::now_ns;
