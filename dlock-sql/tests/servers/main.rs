//! Lease rows on real database servers.

mod clocks;
mod connections;
mod failover;
mod faults;
mod keys;
mod lost_replies;
mod opening;
mod poolers;
mod pools;
mod rows;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod waiting;
