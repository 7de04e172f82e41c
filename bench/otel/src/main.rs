//! What the metrics and spans of dlock cost.
//!
//! ```text
//! cargo xtask bench otel            # all of it
//! cargo xtask bench otel --quick    # shorter, for a first look
//! ```
//!
//! An acquire and release in memory is measured by one process for each way of observing it: none at all, for which
//! this program is built once more without the feature; with the feature and no SDK; with the SDK's metrics; and with
//! metrics and spans. They take turns, so that all see the same machine; what counts is the median of the rounds'
//! differences. It is the thread's processor time.

#![forbid(unsafe_code)]

mod rounds;
mod work;

use anyhow::Result;
use clap::{Parser, ValueEnum};

/// How an acquire and release is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Observed {
    /// The feature is off.
    No,
    /// The feature is on, and nobody listens.
    Silent,
    /// By the SDK's metrics.
    Metrics,
    /// By its metrics, and by spans that are sampled.
    Spans,
}

#[derive(Debug, Parser)]
#[command(about = "Measures what the metrics and spans of dlock cost")]
struct Cli {
    /// Fewer calls a round
    #[arg(long)]
    quick: bool,
    /// Measure one way only, a round for each line read: what the program starts itself for
    #[arg(long, hide = true)]
    round: Option<Observed>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    match cli.round {
        Some(observed) => work::rounds(observed),
        None => {
            println!("{}", dlock_bench::report::table(&rounds::compare(cli.quick)?));
            Ok(())
        }
    }
}
