//! What it takes to trust a backend of dlock: a conformance suite, faults, and checkers of what processes recorded.
//!
//! For authors of backends, and for dlock's own tests.
//!
//! * [`conformance`]: what every backend has to do, as test cases over any [`Backend`](dlock_core::Backend). Start
//!   here.
//! * [`BatchOfOne`]: the same suite over a backend that takes several locks in one step.
//! * [`wire`]: puts faults between the engine and any backend: cut, hang, lose a reply, deliver a request too late.
//! * [`cancel`]: drops a future at every one of its await points.
//! * [`history`] and [`checkers`]: records what processes did and decides whether exclusion and fencing held.
//! * [`register`]: a resource that checks fences, to be written to under a lock.
//! * [`generated_keys`]: texts that may be keys, to see that a backend's names for them differ.
//! * [`claim_request`]: what the engine asks of a backend, to carry out the steps of a claim one by one.
//! * [`mutants`]: deliberately broken backends, which show that the suite and the checkers catch what they are for.

#![forbid(unsafe_code)]

mod batch_of_one;
pub mod cancel;
pub mod checkers;
pub mod conformance;
pub mod history;
pub mod hostile;
mod keys;
pub mod mutants;
pub mod register;
mod request;
mod time;
pub mod wire;

pub use batch_of_one::BatchOfOne;
pub use keys::generated_keys;
pub use request::claim_request;
pub use time::now_ns;
