//! The engine over a scripted backend and over memory: outcomes, renewal, loss, release, owners, spans.

mod auditing;
mod crowds_of_jobs;
mod handoff;
mod jobs;
mod keeping;
mod lifecycle;
mod limits;
mod many;
mod memory;
#[cfg(feature = "otel")]
mod metrics;
mod nesting;
mod observing;
mod owners;
mod refusals;
mod script;
mod sections;
mod spans;
mod unknown_outcome;
mod unpolled;
mod waiting;
