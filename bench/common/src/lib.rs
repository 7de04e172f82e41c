//! What the benches of servers share: rounds, medians, loops of many tasks, and the table.

#![forbid(unsafe_code)]

pub mod measure;

pub use dlock_bench_report as report;
