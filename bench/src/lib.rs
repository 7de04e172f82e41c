//! What all benches share: the table, and the choice of benches by name; for those of servers also their options, and
//! loops of many tasks.
//!
//! A bench is a function from a context, such as a server that runs, to rows of the table.

#![forbid(unsafe_code)]

#[cfg(feature = "servers")]
pub mod contest;
#[cfg(feature = "servers")]
pub mod crowd;
#[cfg(feature = "servers")]
pub mod distance;
#[cfg(feature = "servers")]
pub mod measure;
#[cfg(any(feature = "etcd", feature = "zk"))]
pub mod peers;
pub mod report;

use std::time::Duration;

use anyhow::{Result, ensure};
use report::Row;
use rustix::time::{ClockId, clock_gettime};

/// A bench, and what it is called.
pub type Bench<C> = (&'static str, fn(&C) -> Result<Vec<Row>>);

/// Runs the benches with `filter` in their names, all without one, and prints the table: after one that fails, with
/// what was measured, and with what the others measure.
///
/// # Errors
///
/// When there is none of that name, in a debug build, when there is no context, and when a bench has failed.
pub fn run<C>(benches: &[Bench<C>], filter: Option<&str>, context: impl FnOnce() -> Result<C>) -> Result<()> {
    let chosen = report::choose(benches, filter)?;
    let context = context()?;
    let mut rows = Vec::new();
    for (name, bench) in chosen {
        eprintln!("{name} ...");
        rows.extend(bench(&context).unwrap_or_else(|error| vec![Row::failed(*name, &error)]));
    }
    finish(&rows)
}

/// Prints the table.
///
/// # Errors
///
/// When a row says of a bench that it has failed.
pub fn finish(rows: &[Row]) -> Result<()> {
    println!("{}", report::table(rows));
    let failed: Vec<&str> = rows.iter().filter_map(Row::failure).collect();
    ensure!(failed.is_empty(), "failed: {}", failed.join("; "));
    Ok(())
}

/// Returns the processor time that this thread has used.
#[must_use]
pub fn thread_time() -> Duration {
    used(ClockId::ThreadCPUTime)
}

/// Returns the processor time that all threads of this process have used.
#[must_use]
pub fn process_time() -> Duration {
    used(ClockId::ProcessCPUTime)
}

fn used(clock: ClockId) -> Duration {
    let used = clock_gettime(clock);
    Duration::from_secs(used.tv_sec.unsigned_abs()) + Duration::from_nanos(used.tv_nsec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_kept_when_a_bench_fails() {
        let rows = [Row::new("fine", 1.0, "ms"), Row::failed("broken", &anyhow::anyhow!("no server"))];
        assert!(report::table(&rows).contains("fine"));
        let error = finish(&rows).unwrap_err().to_string();
        assert!(
            error.contains("broken") && error.contains("no server") && !error.contains("fine"),
            "{error}"
        );
        finish(&rows[..1]).unwrap();
    }
}
