//! Lease rows on real database servers.

mod faults;
mod opening;
mod pools;
mod rows;
mod support;
mod waiting;
