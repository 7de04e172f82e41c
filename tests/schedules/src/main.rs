//! Runs the engine's threads in orders that a scheduler picks.
//!
//! ```text
//! cargo run --release -p dlock-schedules -- --schedules 100000
//! cargo run --release -p dlock-schedules -- --schedules 100000 hold     # the scenarios with this in their name
//! ```
//!
//! Who goes on is decided at each lock and each atomic of the engine, half of the time at random and half by
//! probabilistic concurrency testing (PCT, Burckhardt and others, ASPLOS 2010), which finds a defect of `d` steps in
//! their wrong order with a known probability. Orders of memory weaker than sequential consistency are not tried.

#![forbid(unsafe_code)]

use std::io;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use dlock_schedules::scenarios::{ALL, Scenario};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};
use tokio::runtime::EnterGuard;

/// How many steps in their wrong order PCT looks for.
const DEPTH: usize = 3;

#[derive(Debug, Parser)]
#[command(about = "Runs the engine's threads in orders that a scheduler picks")]
struct Cli {
    /// How many for each scenario
    #[arg(long, default_value_t = 1_000)]
    schedules: usize,
    /// Only the scenarios with this in their name
    filter: Option<String>,
}

fn config() -> Config {
    let mut config = Config::new();
    // The default is less than an acquire needs without optimizations.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    config
}

/// A context for timers, which never fire: nothing of a scenario may need them.
fn timers() -> io::Result<EnterGuard<'static>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    // Never dropped: it would wake who was waiting in a scenario that failed.
    Ok(Box::leak(Box::new(runtime)).enter())
}

/// Panics when the scenario fails in one of so many schedules, and prints how to repeat it.
fn explore(scenario: fn(), schedules: usize) {
    Runner::new(RandomScheduler::new(schedules - schedules / 2), config()).run(scenario);
    Runner::new(PctScheduler::new(DEPTH, schedules / 2), config()).run(scenario);
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let _context = match timers() {
        Ok(context) => context,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let wanted = |(name, _): &&Scenario| cli.filter.as_ref().is_none_or(|filter| name.contains(&**filter));
    let mut failed = 0;
    for (name, scenario) in ALL.iter().filter(wanted) {
        let start = Instant::now();
        let ok = catch_unwind(|| explore(*scenario, cli.schedules)).is_ok();
        failed += usize::from(!ok);
        let verdict = if ok { "ok" } else { "FAILED" };
        println!("{verdict:6} {:>6.1} s  {name}", start.elapsed().as_secs_f64());
    }
    println!("{} schedules each, {failed} scenarios failed", cli.schedules);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_holds_in_a_thousand_schedules() {
        let _context = timers().unwrap();
        for (name, scenario) in ALL {
            println!("{name}");
            explore(*scenario, 1_000);
        }
    }
}
