//! The commands of dlock's developers: `cargo xtask <command>`.

#![forbid(unsafe_code)]

mod backends;
mod code_map;
mod lint;
mod modules;
mod mutants;
mod needs;
mod package;
mod pages;
mod prose;
mod run;
mod sbom;
mod test;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use crate::run::{Step, cargo, program};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "The commands of dlock's developers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what the tests need and run every test of the workspace, doctests included
    Test {
        /// Passed on to cargo test, such as a filter
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the tests of MariaDB on a real MySQL 8 server, which is in a package of Maven Central. Installs Maven
    Mysql8,
    /// Check format, lints, documentation, dependencies and file lengths; runs no test
    Lint {
        /// Only what compiles nothing
        #[arg(long)]
        fast: bool,
    },
    /// Lock the same names from Rust, Java, Python and Go, and judge what happened; export to the real OpenTelemetry
    /// collector where the Go toolchain is new enough. Installs a JDK, Maven, Go and Python's venv
    Interop {
        /// The queue of all ZooKeeper clients for a minute, and not for 15 s
        #[arg(long)]
        full: bool,
    },
    /// Everything that a change has to pass: lint, test and interop
    Ci,
    /// Measure, in release mode: a filter picks benches by name, --quick shortens them; `bench redis`, `bench zk` and
    /// `bench sql` compare with the bare client and other libraries, and install what these need; `bench hot` shares
    /// one key between tasks and processes, `bench modes` compares readers, permits and fair locks with Redisson's,
    /// `bench fleet` holds many locks; `bench otel` measures what metrics and spans cost, `bench attribute` what the
    /// attribute costs to compile
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
        Command::Test { arguments } => one_after_the_other(test::steps(arguments)),
        Command::Mysql8 => one_after_the_other(test::mysql8()),
        Command::BeforePublishing => one_after_the_other(package::before_publishing()),
        Command::Lint { fast: true } => one_after_the_other(lint::fast_steps()),
        Command::Lint { fast: false } => one_after_the_other(lint::steps()?),
        Command::Ci => {
            let mut steps = lint::steps()?;
            steps.extend(test::steps(Vec::new()));
            steps.extend(test::interop(false));
            one_after_the_other(steps)
        }
        Command::Sbom => sbom::write(),
        Command::Mutants(options) => mutants::try_out(&options),
        Command::Interop { full } => one_after_the_other(test::interop(full)),
        Command::Bench { arguments } => {
            let (which, arguments) = match arguments.split_first() {
                // One of those on Redis.
                Some((which, _)) if which == "modes" => ("redis", &*arguments),
                Some((which, rest))
                    if matches!(
                        &**which,
                        "redis" | "zk" | "sql" | "hot" | "fleet" | "otel" | "attribute"
                    ) =>
                {
                    (&**which, rest)
                }
                _ => ("engine", &*arguments),
            };
            match which {
                "redis" | "zk" => needs::install(needs::INTEROP)?,
                "sql" | "hot" | "fleet" => needs::install(needs::SQL)?,
                _ => {}
            }
            let bench = cargo(["run", "--release", "--package"]);
            let bench = if which == "otel" {
                bench.args(["dlock-bench-otel"])
            } else {
                let program = format!("bench-{which}");
                bench.args(["dlock-bench", "--no-default-features", "--features", which, "--bin", &program])
            };
            bench.args(["--"]).args(arguments).run()
        }
        Command::Fuzz { seconds } => {
            needs::install(needs::FUZZ)?;
            let limit = format!("-max_total_time={seconds}");
            ["holder", "redis", "sql", "zk"].into_iter().try_for_each(|target| {
                let fuzz = ["run", "nightly", "cargo", "fuzz", "run", target, "--", &*limit];
                program("rustup").args(fuzz).run()
            })
        }
        Command::Pictures => {
            needs::install(needs::PICTURES)?;
            cargo(["run", "--release", "--package", "dlock-pictures"]).run()
        }
        Command::Compare { arguments } => {
            needs::install(needs::INTEROP)?;
            cargo(["run", "--release", "--package", "dlock-compare", "--"]).args(arguments).run()
        }
        Command::Reliability { arguments } => {
            needs::install(needs::RELIABILITY)?;
            cargo(["run", "--release", "--package", "dlock-reliability", "--"]).args(arguments).run()
        }
    }
}

/// Carries out every step, also after one that failed, and ends with one line for each.
fn one_after_the_other(steps: Vec<Step>) -> Result<()> {
    let done: Vec<_> = steps.into_iter().map(Step::carry_out).collect();
    println!();
    for step in &done {
        println!("{step}");
    }
    if let Some(tests) = done.iter().find_map(|step| step.tests) {
        println!("tests: {} passed, {} failed, flaky: {}", tests.passed, tests.failed, tests.flaky);
    }
    let failed: Vec<_> =
        done.iter().filter(|step| step.error.is_some()).map(|step| step.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
