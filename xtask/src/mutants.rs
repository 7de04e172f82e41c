//! Whether the tests notice a defect: the code is broken in one place at a time, and the tests have to fail.
//!
//! [cargo-mutants](https://mutants.rs) breaks the Rust code; the scripts that run on Redis are broken [here](scripts).

mod scripts;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::needs;
use crate::run::{cargo, program, root};

/// How many of a hundred mutants the tests have to notice.
const GOAL: usize = 95;

/// Scenarios of the schedules, which the engine includes for those alone.
const LEFT_OUT: [&str; 2] = ["--exclude", "**/tests/schedules/**"];

/// Whose tests are asked, one judge after the other: the second one only for what the first did not notice, since most
/// mutants are noticed by the tests of the engine itself, which are compiled in half of the time.
const JUDGES: [&[&str]; 2] = [&["dlock-core", "dlock-quorum"], &["dlock-sdk", "dlock-sim"]];

/// What is broken: the engine, and the backend that is made of others.
const BROKEN: [&str; 4] = ["--package", "dlock-core", "--package", "dlock-quorum"];

/// How long the tests may take with a mutant, in seconds: one for which something waits for ever is noticed.
const TIMEOUT: &str = "600";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// What is broken
    #[arg(long = "crate", value_enum, default_value = "dlock-core")]
    code: Code,
    /// How many mutants are tried; 30 take about an hour
    #[arg(long, default_value_t = 30)]
    sample: usize,
    /// The day that picks the sample, as 2026-12-31 [default: today]
    #[arg(long)]
    day: Option<String>,
    /// Try every mutant; takes days
    #[arg(long)]
    all: bool,
}

impl Options {
    /// Ten of today's mutants of the engine, in twenty minutes.
    pub(crate) fn ten_of_today() -> Self {
        Self { code: Code::Core, sample: 10, day: None, all: false }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Code {
    /// The engine and quorums, by their tests, the conformance suite and a short simulation
    #[value(name = "dlock-core")]
    Core,
    /// The scripts of dlock-redis, by its tests
    Scripts,
}

/// What became of the mutants that compile.
#[derive(Debug, Default)]
struct Verdict {
    noticed: usize,
    /// Those that no test noticed.
    lived: Vec<String>,
}

pub(crate) fn try_out(options: &Options) -> Result<()> {
    let day = match &options.day {
        Some(day) => day.clone(),
        None => program("date").args(["--utc", "+%F"]).read()?.trim().to_owned(),
    };
    let most = if options.all { usize::MAX } else { options.sample };
    let verdict = match options.code {
        Code::Core => core(&day, most)?,
        Code::Scripts => scripts::try_out(&day, most)?,
    };
    verdict.judge(&day)
}

impl Verdict {
    fn judge(self, day: &str) -> Result<()> {
        let of = self.noticed + self.lived.len();
        println!("\n{} of {of} mutants of {day} were noticed", self.noticed);
        for name in &self.lived {
            println!("  not noticed: {name}");
        }
        if of == 0 || self.noticed * 100 < of * GOAL {
            bail!("the tests have to notice {GOAL} % of them");
        }
        Ok(())
    }
}

/// Returns `most` of them, picked by the day.
fn pick<T: Hash>(mut mutants: Vec<T>, day: &str, most: usize) -> Vec<T> {
    mutants.sort_by_cached_key(|mutant| {
        let mut hasher = DefaultHasher::new();
        (day, mutant).hash(&mut hasher);
        hasher.finish()
    });
    mutants.truncate(most);
    mutants
}

fn core(day: &str, most: usize) -> Result<Verdict> {
    needs::install(needs::MUTANTS)?;
    let listed = cargo(["mutants", "--list"]).args(BROKEN).args(LEFT_OUT).read()?;
    let mut open: Vec<String> = pick(listed.lines().map(str::to_owned).collect(), day, most);
    println!("{} of {} mutants", open.len(), listed.lines().count());
    let mut noticed = 0;
    for packages in JUDGES {
        let verdict = judged_by(packages, &open)?;
        noticed += verdict.noticed;
        open = verdict.lived;
    }
    Ok(Verdict { noticed, lived: open })
}

/// Runs the tests of these packages with each of the mutants. Those that do not compile are in neither list.
fn judged_by(packages: &[&str], mutants: &[String]) -> Result<Verdict> {
    if mutants.is_empty() {
        return Ok(Verdict::default());
    }
    let area = root().join("target/mutants");
    fs::create_dir_all(&area)?;
    let build = area.join("build").display().to_string();
    let mut tests = vec!["--lib".to_owned()];
    for name in test_targets(packages)? {
        tests.extend(["--test".to_owned(), name]);
    }
    let features: &[&str] = if packages.contains(&"dlock-core") {
        &["--features", "dlock-core/otel"]
    } else {
        &["--features", "dlock-sdk/sqlite"]
    };
    // Without a mutant they have to pass. This compiles the dependencies, once.
    cargo(["test", "--quiet"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .args(features)
        .args(&tests)
        .env("CARGO_TARGET_DIR", &build)
        .run()?;
    // What the tests notice is a failure of cargo-mutants unless it is all.
    let ended = cargo(["mutants", "--baseline", "skip", "--timeout", TIMEOUT])
        .args(BROKEN)
        .args(LEFT_OUT)
        .args(["--caught", "--unviable", "--output", &*area.display().to_string()])
        .args(features)
        .args(packages.iter().flat_map(|package| ["--test-package", package]))
        .args(mutants.iter().flat_map(|name| ["--re".to_owned(), format!("^{}$", escaped(name))]))
        // Fields that are left to their defaults are tried whatever was picked: at least in no other file.
        .args(mutants.iter().filter_map(|name| name.split_once(':')).flat_map(|(file, _)| ["--file", file]))
        .args(["--"])
        .args(&tests)
        .env("CARGO_TARGET_DIR", &build)
        .run();
    let found = |file: &str| -> Vec<String> {
        let text = fs::read_to_string(area.join("mutants.out").join(file)).unwrap_or_default();
        text.lines().filter(|name| mutants.iter().any(|picked| picked == name)).map(str::to_owned).collect()
    };
    let (noticed, lived) = (found("caught.txt").len() + found("timeout.txt").len(), found("missed.txt"));
    if noticed + lived.len() + found("unviable.txt").len() < mutants.len() {
        ended?;
        bail!("cargo-mutants did not try all of them");
    }
    Ok(Verdict { noticed, lived })
}

/// Returns the names of the tests of these packages that judge the engine.
fn test_targets(packages: &[&str]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for package in packages {
        match *package {
            "dlock-sdk" => names.push("conformance".to_owned()),
            "dlock-sim" => names.push("runs".to_owned()),
            package => {
                for entry in fs::read_dir(root().join(package).join("tests"))? {
                    let path = entry?.path();
                    names
                        .extend(Path::new(&path).file_stem().map(|stem| stem.to_string_lossy().into_owned()));
                }
            }
        }
    }
    names.sort();
    Ok(names)
}

/// A text as a regular expression that is that text.
fn escaped(text: &str) -> String {
    let special = |c: char| r"\.+*?()|[]{}^$#&-~".contains(c);
    text.chars().flat_map(|c| special(c).then_some('\\').into_iter().chain([c])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_picks_the_same_sample_each_time_and_another_day_another_one() {
        let mutants: Vec<u32> = (0..1000).collect();
        let picked = pick(mutants.clone(), "2026-01-01", 30);
        assert_eq!(picked.len(), 30);
        assert_eq!(picked, pick(mutants.clone(), "2026-01-01", 30));
        assert_ne!(picked, pick(mutants, "2026-01-02", 30));
    }

    #[test]
    fn less_than_the_goal_is_an_error_and_so_is_nothing() {
        let lived = |n: usize| vec!["a line".to_owned(); n];
        assert!(Verdict { noticed: 95, lived: lived(5) }.judge("today").is_ok());
        assert!(Verdict { noticed: 94, lived: lived(6) }.judge("today").is_err());
        assert!(Verdict::default().judge("today").is_err());
    }

    #[test]
    fn a_name_is_matched_as_it_is() {
        assert_eq!(escaped("a.rs:1:2: replace f -> T<'_> with +"), r"a\.rs:1:2: replace f \-> T<'_> with \+");
    }
}
