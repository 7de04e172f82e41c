//! Processes that take turns.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use dlock_bench::report::{Row, Spread};

use crate::Observed;

/// Nanoseconds that an acquire and release may take longer with the feature, and nobody who listens.
const SILENT: f64 = 100.0;
/// With the SDK.
const SDK: f64 = 2_000.0;

struct Side {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Side {
    fn start(program: &Path, observed: Observed) -> Result<Self> {
        let name = observed.to_possible_value().context("no name")?.get_name().to_owned();
        let mut child = Command::new(program)
            .args(["--round", &name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Self { child, stdin, stdout })
    }

    /// Nanoseconds a call.
    fn round(&mut self, calls: u32) -> Result<f64> {
        writeln!(self.stdin, "{calls}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("it said {line:?}"))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This program without its feature.
fn plain() -> Result<PathBuf> {
    let this = std::env::current_exe()?;
    let target = this.parent().and_then(Path::parent).context("not in a target directory")?.join("plain");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--release", "--package", "dlock-bench-otel", "--no-default-features"])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()?;
    ensure!(built.success(), "the program could not be built without its feature");
    Ok(target.join("release").join("dlock-bench-otel"))
}

pub(crate) fn compare(quick: bool) -> Result<Vec<Row>> {
    let (rounds, calls) = if quick { (11, 10_000) } else { (41, 50_000) };
    let (plain, this) = (plain()?, std::env::current_exe()?);
    let mut sides = [
        Side::start(&plain, Observed::No)?,
        Side::start(&this, Observed::Silent)?,
        Side::start(&this, Observed::Metrics)?,
        Side::start(&this, Observed::Spans)?,
    ];
    for side in &mut sides {
        // Not counted: caches warm up.
        side.round(calls)?;
    }
    let mut times = [const { Vec::new() }; 4];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            times[at].push(sides[at].round(calls)?);
        }
    }
    let [none, silent, metrics, spans] = times;
    let more = |observed: &[f64]| Spread::of(observed.iter().zip(&none).map(|(a, b)| a - b).collect());
    let ratio = |observed: &[f64]| Spread::of(observed.iter().zip(&none).map(|(a, b)| a / b).collect());
    let mut rows = vec![Row::spread("acquire and release, feature off", Spread::of(none.clone()), "ns")];
    for (what, observed, limit) in [
        ("feature on, no SDK", &silent, Some(SILENT)),
        ("with the SDK's metrics", &metrics, Some(SDK)),
        ("with metrics and sampled spans", &spans, None),
    ] {
        let cost = more(observed);
        let row = Row::spread(format!("{what}: more"), cost, "ns");
        rows.push(match limit {
            Some(limit) => row.at_most(cost.median, limit, "ns"),
            None => row,
        });
        rows.push(Row::spread(format!("{what}: ratio"), ratio(observed), "x"));
    }
    Ok(rows)
}
