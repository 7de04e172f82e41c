//! Measures what a record costs the thread that takes and releases a lock: a pair on memory without a sink, with one
//! that does nothing, and with a file.
//!
//! ```sh
//! cargo run --release -p dlock-audit --example cost
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use dlock_audit::FileSink;
use dlock_core::audit::{AuditSink, AuditedHold};
use dlock_core::{Locks, LocksBuilder, Memory};

/// Pairs of one measurement: fewer than there is room for in the queue until the writer looks.
const PAIRS: u32 = 20_000;

/// Measurements of each kind.
const ROUNDS: usize = 101;

struct Nothing;

impl AuditSink for Nothing {
    fn hold_ended(&self, _: &AuditedHold<'_>) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let sink = FileSink::in_directory(directory.path()).start()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let build = |change: &dyn Fn(LocksBuilder) -> LocksBuilder| change(Locks::builder(Memory::new())).build();
    let kinds = [
        ("without a sink", build(&|locks| locks)?),
        ("with one that does nothing", build(&|locks| locks.with_audit(Nothing))?),
        ("with a file", build(&|locks| locks.with_audit(Arc::new(sink.clone())))?),
    ];
    let mut took: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS {
        // In another order each time, so that none profits from its place.
        for kind in (0..kinds.len()).map(|at| (at + round) % kinds.len()) {
            let lock = kinds[kind].1.lock("room_7");
            let begun = Instant::now();
            runtime.block_on(async {
                for _ in 0..PAIRS {
                    lock.acquire().await?.release().await?;
                }
                Ok::<(), dlock_core::Error>(())
            })?;
            took[kind].push(begun.elapsed().as_nanos() as f64 / f64::from(PAIRS));
            // The writer has its turn, on a machine of one core too.
            if kind == 2 {
                sink.close();
            }
        }
    }
    for ((what, _), took) in kinds.iter().zip(&mut took) {
        took.sort_by(f64::total_cmp);
        let (least, median) = (took[0], took[took.len() / 2]);
        println!("{what:<28} {least:>7.0} ns at the least, {median:>7.0} ns as the median");
    }
    let totals = sink.close();
    println!("{} records were written, {} lost", totals.written, totals.lost);
    for (_, locks) in &kinds {
        runtime.block_on(locks.shutdown(Duration::from_secs(5)))?;
    }
    Ok(())
}
