//! `cargo run --release -p dlock-sim -- --runs 1000000`, and `--seed <16 hex digits> --trace` for one of them.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dlock_sim::{Outcome, Summary, current_seed, run, run_batons, run_jobs, run_modes, run_quorums, seed_of};

const USAGE: &str = "usage: dlock-sim [--runs N] [--series HEX | --fresh] [--threads N] [--keep-going] | --seed HEX [--trace], and --jobs for jobs and leaders, or --modes for readers, permits and waiters in order, or --quorums, or --batons";

struct Arguments {
    runs: u64,
    series: u64,
    threads: usize,
    seed: Option<u64>,
    trace: bool,
    keep_going: bool,
    run: fn(u64, bool) -> Outcome,
}

fn arguments() -> Result<Arguments, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = Arguments {
        runs: 20_000,
        series: 0x646c_6f63_6b00,
        threads,
        seed: None,
        trace: false,
        keep_going: false,
        run,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{name} needs a value"));
        let hex = |text: String| u64::from_str_radix(&text, 16).map_err(|e| format!("{text}: {e}"));
        match name.as_str() {
            "--runs" => all.runs = value()?.parse().map_err(|e| format!("--runs: {e}"))?,
            "--threads" => all.threads = value()?.parse().map_err(|e| format!("--threads: {e}"))?,
            "--series" => all.series = hex(value()?)?,
            "--fresh" => all.series = fresh(),
            "--seed" => all.seed = Some(hex(value()?)?),
            "--trace" => all.trace = true,
            "--jobs" => all.run = run_jobs,
            "--modes" => all.run = run_modes,
            "--batons" => all.run = run_batons,
            "--quorums" => all.run = run_quorums,
            "--keep-going" => all.keep_going = true,
            _ => return Err(USAGE.into()),
        }
    }
    Ok(all)
}

/// A series that nobody has seen, printed at the end.
fn fresh() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    seed_of(u64::from(std::process::id()), u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap_or(0))
}

fn main() -> ExitCode {
    // Panics on purpose do not come here.
    std::panic::set_hook(Box::new(|info| println!("seed {:016x}: {info}", current_seed())));
    let all = match arguments() {
        Ok(all) => all,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    match all.seed {
        Some(seed) => replay(&all, seed),
        None => many(&all),
    }
}

fn replay(all: &Arguments, seed: u64) -> ExitCode {
    let outcome = (all.run)(seed, all.trace);
    print!("{}", outcome.story);
    match outcome.violation {
        None => ExitCode::SUCCESS,
        Some(what) => {
            println!("seed {seed:016x}: {what}");
            ExitCode::FAILURE
        }
    }
}

fn many(all: &Arguments) -> ExitCode {
    let started = Instant::now();
    let (next, done, failed, stop) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Summary::default());
    let work = || {
        let mut sum = Summary::default();
        while !stop.load(Ordering::Relaxed) {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= all.runs {
                break;
            }
            let seed = seed_of(all.series, n);
            let outcome = (all.run)(seed, false);
            sum.add(&outcome.summary);
            done.fetch_add(1, Ordering::Relaxed);
            if let Some(what) = outcome.violation {
                failed.fetch_add(1, Ordering::Relaxed);
                println!("seed {seed:016x} (run {}): {what}", n + 1);
                stop.store(!all.keep_going, Ordering::Relaxed);
            }
        }
        total.lock().unwrap_or_else(PoisonError::into_inner).add(&sum);
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..all.threads).map(|_| scope.spawn(work)).collect();
        let mut told = Instant::now();
        while !workers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(20));
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                progress(done.load(Ordering::Relaxed), all.runs, started);
            }
        }
    });
    progress(done.load(Ordering::Relaxed), all.runs, started);
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("series {:x}: {total:?}", all.series);
    match failed.load(Ordering::Relaxed) {
        0 => ExitCode::SUCCESS,
        failed => {
            println!("{failed} runs broke a rule; replay one with --seed <its seed> --trace");
            ExitCode::FAILURE
        }
    }
}

fn progress(done: u64, of: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = done as f64 / seconds;
    println!("{done} of {of} runs in {seconds:.0} s, {rate:.0} a second");
}
