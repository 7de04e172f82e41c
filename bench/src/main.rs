//! What dlock costs, against what it may cost.
//!
//! ```text
//! cargo xtask bench                 # all of it
//! cargo xtask bench sqlite          # the benches with this in their name
//! cargo xtask bench -- --quick      # shorter, for a first look
//! ```
//!
//! Two ways of doing one thing are measured in turns, so that both see the same machine; what counts is the median of
//! the rounds' ratios. What is done in memory is measured in processor time, what is done in a file by the wall clock. Figures of different runs or machines do not compare. A missed target is shown, and is not
//! a failure of the run: a loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod held;
mod measure;
mod memory;
mod sqlite;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use crate::measure::Settings;
use dlock_bench_report::Row;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs")]
struct Cli {
    /// Only the benches whose name contains this
    filter: Option<String>,
    /// Fewer calls a round and shorter holds
    #[arg(long)]
    quick: bool,
}

type Bench = fn(&Settings) -> Result<Vec<Row>>;

const BENCHES: &[(&str, Bench)] = &[
    // These first: memory that others have used and given back would hide how much they take.
    ("sqlite: 10,000 held", held::in_sqlite),
    ("memory: 10,000 held", held::in_memory),
    ("memory: attribute", memory::attribute),
    ("memory: acquire and release", memory::pair),
    ("memory: re-entrant", memory::reentrant),
    ("memory: keeper wakes", memory::wakes),
    ("sqlite: acquire and release", sqlite::pair),
];

fn main() -> ExitCode {
    match measure_all(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_all(cli: &Cli) -> Result<()> {
    let chosen = dlock_bench_report::choose(BENCHES, cli.filter.as_deref())?;
    let settings = if cli.quick { Settings::quick() } else { Settings::full() };
    let mut rows = Vec::new();
    for (name, bench) in chosen {
        eprintln!("{name} ...");
        rows.extend(bench(&settings)?);
    }
    println!("{}", dlock_bench_report::table(&rows));
    Ok(())
}
