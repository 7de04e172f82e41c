//! What it takes to trust a backend of dlock: a conformance suite, faults, judges, and workers that can be killed.

#![forbid(unsafe_code)]

pub mod proxy;
pub mod servers;
