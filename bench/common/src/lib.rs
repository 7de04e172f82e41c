//! What the benches of servers share: rounds, medians, loops of many tasks, and the table.

#![forbid(unsafe_code)]

pub mod measure;
pub mod report;
