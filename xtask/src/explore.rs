//! What looks for defects at random or for long. Each prints the seed, or the file, that repeats a failure.

use anyhow::Result;

use crate::needs;
use crate::run::{Step, cargo, program};

/// The engine in a simulated world, of each kind: the series that is always the same, and a new one.
pub(crate) fn simulations() -> Vec<Step> {
    let mut steps = Vec::new();
    for (of, kind) in [
        ("locks", None),
        ("quorums", Some("--quorums")),
        ("readers, permits and queues", Some("--modes")),
        ("jobs and leaders", Some("--jobs")),
        ("batons", Some("--batons")),
    ] {
        for (which, series) in
            [("the series that is always the same", None), ("a new series", Some("--fresh"))]
        {
            steps.push(Step::new(format!("simulation of {of}, {which}"), move || {
                cargo(["run", "--release", "--package", "dlock-sim", "--bin", "dlock-sim", "--"])
                    .args(["--runs", "20000"].into_iter().chain(kind).chain(series))
                    .run()
            }));
        }
    }
    steps
}

/// The engine's threads in 10,000 orders for each scenario.
pub(crate) fn schedules() -> Result<()> {
    cargo(["run", "--release", "--package", "dlock-schedules", "--", "--schedules", "10000"]).run()
}

/// The stores of several processes against the rules of who may hold a lock, in longer histories than in the tests.
pub(crate) fn histories() -> Result<()> {
    [("dlock-redis", "scenarios"), ("dlock-sql", "servers")].into_iter().try_for_each(|(package, tests)| {
        cargo(["test", "--package", package, "--all-features", "--test", tests, "rules"])
            .env("DLOCK_HISTORIES", "20000")
            .run()
    })
}

/// What stands in stores is made by a fuzzer, and read as each backend does.
pub(crate) fn fuzz(seconds: u32) -> Result<()> {
    needs::install(needs::FUZZ)?;
    let limit = format!("-max_total_time={seconds}");
    ["holder", "redis", "sql", "zk"].into_iter().try_for_each(|target| {
        program("rustup").args(["run", "nightly", "cargo", "fuzz", "run", target, "--", &*limit]).run()
    })
}

/// The long run under faults, with these options.
pub(crate) fn reliability(arguments: Vec<String>) -> Result<()> {
    needs::install(needs::RELIABILITY)?;
    cargo(["run", "--release", "--package", "dlock-reliability", "--"]).args(arguments).run()
}
