//! What dlock costs, against what it may cost.
//!
//! ```text
//! cargo xtask bench                 # all of it
//! cargo xtask bench sqlite          # the benches with this in their name
//! cargo xtask bench -- --quick      # shorter, for a first look
//! ```
//!
//! Two ways of doing one thing are measured in turns, so that both see the same machine; what counts is the median of
//! the rounds' ratios. What is done in memory is measured in processor time, what is done in a file by the wall clock.
//! Figures of different runs or machines do not compare. A missed target is shown, and is not a failure of the run: a
//! loaded machine is no reason to stop.

#![forbid(unsafe_code)]

mod held;
mod measure;
mod memory;
mod scale;
mod sqlite;

use anyhow::Result;
use clap::Parser;

use crate::measure::Settings;
use dlock_bench::Bench;

#[derive(Debug, Parser)]
#[command(about = "Measures what dlock costs")]
struct Cli {
    /// Only the benches whose name contains this
    filter: Option<String>,
    /// Fewer calls a round and shorter holds
    #[arg(long)]
    quick: bool,
}

const BENCHES: &[Bench<Settings>] = &[
    // These first: memory that others have used and released would hide how much they take.
    ("sqlite: 10,000 held", held::in_sqlite),
    ("memory: 10,000 held", held::in_memory),
    ("memory: attribute", memory::attribute),
    ("memory: acquire and release", memory::pair),
    ("memory: under a session", memory::under_a_session),
    ("memory: re-entrant", memory::reentrant),
    ("memory: keeper wakes", memory::wakes),
    ("memory: a million keys", scale::keys),
    ("memory: among many others", scale::others),
    ("memory: a short lease among many others", scale::short_lease),
    ("memory: many waiters cancelled", scale::cancelled),
    ("memory: many renewals", scale::renewals),
    ("sqlite: acquire and release", sqlite::pair),
    ("sqlite: handoff", sqlite::handoff),
];

fn main() -> Result<()> {
    let cli = Cli::parse();
    dlock_bench::run(BENCHES, cli.filter.as_deref(), || {
        Ok(if cli.quick { Settings::quick() } else { Settings::full() })
    })
}
