//! The examples of the page on observability compile, with the crates that a program which exports has.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../../../docs/observability.md")]
struct ObservabilityPage;
