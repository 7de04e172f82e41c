//! Running programs of tests, some at a time, and those tests again that failed.
//!
//! What a program prints goes to a file below `target/tests`; its end is one line here. A failure is shown with what
//! the program printed about it. A test that failed counts as failed if it fails twice more, alone.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::programs::Program;
use crate::run::{Tests, root, without_ours};

/// How many tests may fail for them to be run again; more are no accident.
const FEW: usize = 3;

/// How often the programs that are still running are named.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// How much of what a failing program printed is shown.
const SHOWN: usize = 200;

/// A program to run, with arguments.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    path: PathBuf,
    directory: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    /// Whether one of its tests can be run alone, by name.
    alone: bool,
}

impl Part {
    /// Runs `program`.
    pub(crate) fn new(program: &Program) -> Self {
        let name = format!("{} {}", program.package, program.target);
        let directory = program.directory.clone();
        let variables = vec![
            ("CARGO_MANIFEST_DIR".to_owned(), directory.display().to_string()),
            ("CARGO_PKG_NAME".to_owned(), program.package.clone()),
        ];
        let arguments = Vec::new();
        Self { name, path: program.path.clone(), directory, arguments, variables, alone: true }
    }

    /// Adds arguments.
    pub(crate) fn and(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|&it| it.to_owned()));
        self
    }

    /// Runs cargo, for tests that are no program of their own, such as those of documentation.
    pub(crate) fn of_cargo(name: &str, arguments: &[&str]) -> Self {
        let path = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()).into();
        let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
        Self { name: name.into(), path, directory: root(), arguments, variables: Vec::new(), alone: false }
    }

    pub(crate) fn variable(mut self, name: &str, value: String) -> Self {
        self.variables.push((name.into(), value));
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        without_ours(&mut command);
        command.current_dir(&self.directory).args(&self.arguments).envs(self.variables.iter().cloned());
        command
    }

    /// Runs it to its end, and reads what it printed.
    fn run(&self) -> Result<Ended> {
        let directory = root().join("target/tests");
        fs::create_dir_all(&directory)?;
        let log = directory.join(format!("{}.log", self.name.replace([' ', '/'], "-")));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let began = Instant::now();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let status = command.status().with_context(|| format!("cannot start {}", self.path.display()))?;
        let printed = fs::read(&log)?;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let mut output = Output::default();
        printed.lines().for_each(|line| output.add(line));
        Ok(Ended { succeeded: status.success(), output, printed, took: began.elapsed() })
    }
}

/// A program that ended.
struct Ended {
    succeeded: bool,
    output: Output,
    printed: String,
    took: Duration,
}

impl Ended {
    /// Whether nothing went wrong but tests, each of which is known by name.
    fn can_be_repeated(&self) -> bool {
        self.output.names_all_failures()
    }

    fn line(&self, name: &str) -> String {
        let (verdict, tests) = (if self.succeeded { "ok" } else { "FAILED" }, self.output.tests);
        let failed = if tests.failed == 0 { String::new() } else { format!(", {} failed", tests.failed) };
        format!("{verdict:<6} {:>6.1} s  {name}: {} passed{failed}", self.took.as_secs_f64(), tests.passed)
    }

    /// What the program printed about its failures, or its last lines.
    fn about_failures(&self) -> String {
        let lines: Vec<&str> = self.printed.lines().collect();
        let from = lines.iter().position(|line| *line == "failures:");
        let from = from.unwrap_or_else(|| lines.len().saturating_sub(SHOWN));
        lines[from..].iter().take(SHOWN).copied().collect::<Vec<_>>().join("\n")
    }
}

/// Runs all `parts`, `at_once` of them at a time, to their ends; then tests that failed, each alone.
///
/// # Errors
///
/// Names what failed: tests that failed alone too, more than [`FEW`] tests, or a program that died.
pub(crate) fn run(parts: Vec<Part>, at_once: usize) -> Result<Tests> {
    let ended = run_all(parts, at_once)?;
    let mut tests = Tests::default();
    for (_, it) in &ended {
        tests.passed += it.output.tests.passed;
        tests.failed += it.output.tests.failed;
    }
    let failed: Vec<_> = ended.iter().filter(|(_, it)| !it.succeeded).collect();
    if tests.passed == 0 && failed.is_empty() {
        bail!("no test ran");
    }
    if let Some((part, _)) = failed.iter().find(|(part, it)| !part.alone || !it.can_be_repeated()) {
        bail!("{} failed; {} passed, {} failed", part.name, tests.passed, tests.failed);
    }
    let names = failed.iter().flat_map(|(part, it)| it.output.failed.iter().map(move |name| (part, name)));
    let names: Vec<_> = names.collect();
    if names.len() > FEW {
        bail!("{} tests failed, too many to be run again", names.len());
    }
    for (part, test) in &names {
        alone(part, test)?;
        println!("flaky: {}::{test}", part.name);
    }
    tests.flaky = tests.failed;
    tests.passed += tests.failed;
    tests.failed = 0;
    println!("{} passed, {} failed", tests.passed, tests.failed);
    println!("flaky: {}", tests.flaky);
    Ok(tests)
}

/// Runs one test by its whole name with nothing beside it, twice at most.
fn alone(part: &Part, test: &str) -> Result<()> {
    let part = Part {
        name: format!("{} {}", part.name, test.replace("::", "-")),
        arguments: vec!["--exact".to_owned(), test.to_owned()],
        ..part.clone()
    };
    for _ in 0..2 {
        let ended = part.run()?;
        println!("{} (again, alone)", ended.line(&part.name));
        if ended.succeeded && ended.output.tests.passed == 1 {
            return Ok(());
        }
        println!("{}", ended.about_failures());
    }
    bail!("{test} failed beside others, and twice alone")
}

fn run_all(parts: Vec<Part>, at_once: usize) -> Result<Vec<(Part, Ended)>> {
    let count = parts.len();
    let left = Mutex::new(VecDeque::from(parts));
    let running = Mutex::new(Vec::new());
    let (tell, told) = channel();
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            let (left, running, tell) = (&left, &running, tell.clone());
            scope.spawn(move || {
                let next = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                while let Some(part) = next() {
                    running.lock().unwrap_or_else(PoisonError::into_inner).push(part.name.clone());
                    let ended = part.run();
                    running.lock().unwrap_or_else(PoisonError::into_inner).retain(|name| *name != part.name);
                    if tell.send((part, ended)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(tell);
        loop {
            match told.recv_timeout(HEARTBEAT) {
                Ok((part, ended)) => {
                    let ended = ended?;
                    println!("{}", ended.line(&part.name));
                    if !ended.succeeded {
                        println!("{}", ended.about_failures());
                    }
                    all.push((part, ended));
                }
                Err(RecvTimeoutError::Timeout) => {
                    let running = running.lock().unwrap_or_else(PoisonError::into_inner);
                    println!("... {} of {count} ended, running: {}", all.len(), running.join(", "));
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    })
    .map(|()| all)
}

/// What a program of tests printed.
#[derive(Debug, Default)]
struct Output {
    tests: Tests,
    /// The names of those that failed.
    failed: Vec<String>,
    /// Programs that began to run tests and did not say how they ended.
    open: u64,
    /// The lines that follow name what failed.
    listing: bool,
}

impl Output {
    /// Reads a line such as `test a_test ... FAILED` or `test result: ok. 12 passed; 0 failed; ...`.
    fn add(&mut self, line: &str) {
        if line.starts_with("running ") && line.ends_with(['t', 's']) {
            self.open += 1;
        }
        // The list at the end: what else is printed may get into the lines of tests that end one after the other.
        if line == "failures:" {
            self.listing = true;
        } else if self.listing {
            let name = line.strip_prefix("    ");
            self.listing = name.is_some();
            self.failed.extend(name.map(str::to_owned));
        }
        let Some((_, counts)) = line.split_once("test result: ").and_then(|(_, rest)| rest.split_once(". "))
        else {
            return;
        };
        self.open = self.open.saturating_sub(1);
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.tests.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.tests.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }

    /// Whether tests failed, each of them by name: nothing did not compile, and no program died.
    fn names_all_failures(&self) -> bool {
        self.open == 0 && self.tests.failed > 0 && self.failed.len() as u64 == self.tests.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Output {
        let mut output = Output::default();
        lines.iter().for_each(|line| output.add(line));
        output
    }

    #[test]
    fn closing_lines_of_cargo_test_are_added_up_and_failures_have_names() {
        let output = read(&[
            "running 3 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "running 4 tests",
            "test a_test ... ok",
            "test module::another - should panic ... thread 'of another test' panicked",
            "FAILED",
            "test memory::a_case       ... ok",
            "failures:",
            "",
            "---- module::another stdout ----",
            "    at some line",
            "",
            "failures:",
            "    module::another",
            "",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ]);
        assert_eq!((output.tests.passed, output.tests.failed), (5, 1));
        assert_eq!(output.failed, ["module::another"]);
        assert!(output.names_all_failures());
    }

    #[test]
    fn a_program_that_died_or_a_failure_without_a_name_is_not_run_again() {
        let died = ["running 1 test", "failures:", "    a", "", "running 2 tests"];
        let nameless = [
            "running 2 tests",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ];
        for lines in [&died[..], &nameless, &[]] {
            assert!(!read(lines).names_all_failures(), "{lines:?}");
        }
    }
}
