//! The benches.

use anyhow::Result;

use crate::needs;
use crate::run::{Step, cargo};

/// The programs of benches.
const PROGRAMS: &[&str] = &["engine", "redis", "zk", "etcd", "sql", "hot", "fleet", "otel", "attribute"];

/// Measures with what `arguments` say: the program first, unless it is the one of the engine.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    match arguments.split_first() {
        // One of those on Redis.
        Some((which, _)) if which == "modes" => measure("redis", arguments),
        Some((which, rest)) if PROGRAMS[1..].contains(&&**which) => measure(which, rest),
        _ => measure("engine", arguments),
    }
}

/// A short run of each: that it measures, not what.
pub(crate) fn short() -> Vec<Step> {
    let step = |which: &'static str| {
        Step::new(format!("a short run of the bench {which}"), move || {
            measure(which, &["--quick".to_owned()])
        })
    };
    PROGRAMS.iter().copied().map(step).collect()
}

fn measure(which: &str, arguments: &[String]) -> Result<()> {
    match which {
        "redis" | "zk" => needs::install(needs::INTEROP)?,
        "etcd" => needs::install(needs::ETCD_AND_GO)?,
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
