//! What dlock exports, as a receiver gets it that shares no code with the exporter but the protocol's messages.

#![forbid(unsafe_code)]

mod failing;
mod metrics;
mod noticing;
mod receiver;
mod secrets;
mod traces;
mod worker;
