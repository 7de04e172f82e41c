//! What the interoperability checks and the benchmark share: the programs of other languages, worker processes that are
//! driven line by line, and what follows from their histories; and the OpenTelemetry collector.

#![forbid(unsafe_code)]

pub mod collector;
mod handoff;
pub mod java;
pub mod other_clients;
pub mod peer;
pub mod service;
pub mod worker;

pub use handoff::{handoffs, percentile, read_all};
