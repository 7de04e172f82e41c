//! The gate: what each commit has to pass, in minutes.
//!
//! It is a function of the commit: the toolchain is pinned, and seeds are fixed or are the commit's hash. Cheap steps
//! come first, and the first failure ends it. Fresh seeds, and whole suites on all topologies, are in `nightly`.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::rc::Rc;

use anyhow::Result;

use crate::changed;
use crate::package::PUBLISHED;
use crate::programs::{self, Program};
use crate::run::{Step, Tests};
use crate::runner::{self, Part};
use crate::{lint, needs};

/// Whose tests the gate has, beside those of the published packages.
const BESIDE: [&str; 1] = ["dlock-sim"];

/// How many programs run at a time: most of them wait for most of the time.
const AT_ONCE: usize = 2;

/// How many seconds the gate has for suites of which it runs more because they, or what they test, changed.
const ROOM: u64 = 100;

/// A suite of tests that takes too long to be in every gate as a whole.
struct Suite {
    package: &'static str,
    /// The targets; all of the package's where there are none.
    targets: &'static [&'static str],
    always: Share,
    changed: Share,
    /// What it tests, its own sources included: the beginnings of paths.
    tests: &'static [&'static str],
    /// How many seconds it takes more where it changed.
    more: u64,
}

/// How much of a suite is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// It is not even built, unless another suite has a target of that name.
    Nothing,
    /// What these arguments pick.
    Part(&'static [&'static str]),
    Whole,
}

const SUITES: &[Suite] = &[
    Suite {
        package: "dlock-sql",
        targets: &["servers"],
        always: Share::Nothing,
        changed: Share::Part(&["handoff::", "line::", "lost_replies::", "named::", "rows::", "shares::"]),
        tests: &["dlock-sql/"],
        more: 60,
    },
    Suite {
        package: "dlock-sql",
        targets: &["modes"],
        always: Share::Nothing,
        changed: Share::Part(&[
            "fenced::",
            "mishaps::",
            "newer::",
            "refused::",
            "timestamps::",
            "transactions::",
        ]),
        tests: &["dlock-sql/"],
        more: 40,
    },
    // One server of each kind. The others repeat the same code, or are the same server behind others.
    Suite {
        package: "dlock-sql",
        targets: &["conformance"],
        always: Share::Part(&["--skip", "pool::", "--skip", "session::", "--skip", "row::"]),
        changed: Share::Whole,
        tests: &["dlock-sql/"],
        more: 90,
    },
    Suite {
        package: "dlock-redis",
        targets: &["conformance"],
        always: Share::Part(&[
            "--skip",
            "cluster",
            "--skip",
            "sentinel::",
            "--skip",
            "quorum::",
            "--skip",
            "batch_of_one::",
        ]),
        changed: Share::Whole,
        tests: &["dlock-redis/"],
        more: 60,
    },
    Suite {
        package: "dlock-zk",
        targets: &["conformance"],
        always: Share::Part(&["--skip", "ensemble::", "--skip", "quorum::"]),
        changed: Share::Whole,
        tests: &["dlock-zk/"],
        more: 50,
    },
    Suite {
        package: "dlock-zk",
        targets: &["scenarios"],
        always: Share::Part(&["administrators::", "cancelling::", "watches::"]),
        changed: Share::Part(&[
            "administrators::",
            "cancelling::",
            "connections::",
            "downgrading::",
            "outcomes::",
            "queue::",
            "sessions::",
            "watches::",
        ]),
        tests: &["dlock-zk/"],
        more: 50,
    },
    Suite {
        package: "dlock-etcd",
        targets: &["conformance"],
        always: Share::Part(&["--skip", "cluster::"]),
        changed: Share::Whole,
        tests: &["dlock-etcd/"],
        more: 130,
    },
    Suite {
        package: "dlock-etcd",
        targets: &["attacks", "proofs", "wakes"],
        always: Share::Nothing,
        changed: Share::Whole,
        tests: &["dlock-etcd/"],
        more: 120,
    },
    Suite {
        package: "dlock-etcd",
        targets: &["scenarios"],
        always: Share::Part(&["foreign::", "outcomes::"]),
        changed: Share::Whole,
        tests: &["dlock-etcd/"],
        more: 60,
    },
    Suite {
        package: "dlock-sdk",
        targets: &["conformance"],
        always: Share::Part(&["--skip", "quorum-of-5::", "--skip", "batch_of_one::", "--skip", "prefix::"]),
        changed: Share::Whole,
        tests: &["dlock-core/src/backends/", "dlock-quorum/", "tests/conformance.rs"],
        more: 15,
    },
    Suite {
        package: "dlock-sdk",
        targets: &["examples_run"],
        always: Share::Nothing,
        changed: Share::Whole,
        tests: &["examples/", "src/", "dlock-macros/"],
        more: 15,
    },
    Suite {
        package: "dlock-testkit",
        targets: &["checkers", "mutants"],
        always: Share::Nothing,
        changed: Share::Whole,
        tests: &["dlock-testkit/"],
        more: 25,
    },
    Suite {
        package: "dlock-cli",
        targets: &["descriptors", "later", "quorum", "servers", "shown", "stalls", "threads"],
        always: Share::Nothing,
        changed: Share::Whole,
        tests: &["dlock-cli/"],
        more: 45,
    },
    Suite {
        package: "dlock-sim",
        targets: &["real_servers"],
        always: Share::Nothing,
        changed: Share::Whole,
        tests: &["dlock-sim/"],
        more: 15,
    },
    Suite::only_if_changed("dlock-audit", &["dlock-audit/"], 30),
    Suite::only_if_changed("dlock-tower", &["dlock-tower/"], 35),
    Suite::only_if_changed("dlock-ui", &["dlock-macros/", "tests/ui/"], 120),
    Suite::only_if_changed(
        "dlock-schedules",
        &["dlock-core/src/engine/", "dlock-core/src/runtime/", "dlock-core/src/sync.rs", "tests/schedules/"],
        40,
    ),
    Suite::only_if_changed("dlock-models", &["models/"], 60),
    Suite::only_if_changed("dlock-rig", &["tests/rig/"], 45),
    Suite::only_if_changed(
        "otel-test",
        &["dlock-core/src/telemetry/", "tests/otel/", "docs/observability.md"],
        40,
    ),
];

impl Suite {
    /// All tests of a package, which is not even built otherwise.
    const fn only_if_changed(package: &'static str, tests: &'static [&'static str], more: u64) -> Self {
        Self { package, targets: &[], always: Share::Nothing, changed: Share::Whole, tests, more }
    }

    fn has(&self, package: &str, target: &str) -> bool {
        self.package == package && (self.targets.is_empty() || self.targets.contains(&target))
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.targets.join(", ")).trim_end().to_owned()
    }
}

/// Suites whose tests wait for most of the time, with more threads than there are cores.
const THREADS: &[(&str, &str, &str)] = &[
    ("dlock-etcd", "scenarios", "3"),
    ("dlock-redis", "scenarios", "6"),
    ("dlock-sql", "sqlite", "4"),
    ("dlock-sql", "servers", "3"),
    ("dlock-sql", "modes", "3"),
    ("dlock-zk", "scenarios", "3"),
];

/// The modules of tests that bound real time from above, which a busy machine fails without a defect.
const IN_TIME: &str = "in_time::";

/// What takes longest in the gate, the longest first.
const LONGEST: &[&str] = &[
    "dlock-redis scenarios",
    "dlock-sql conformance",
    "dlock-sql servers",
    "dlock-zk conformance",
    "dlock-etcd conformance",
    "dlock-zk scenarios",
    "dlock-etcd scenarios",
    "dlock-sql modes",
    "dlock-redis conformance",
    "dlock-sdk conformance",
    "dlock-sim runs",
    "documentation",
];

/// What is run of which suites for one change.
#[derive(Debug, Default, PartialEq, Eq)]
struct Choice {
    /// The suites of which more is run, as places in [`SUITES`].
    more: BTreeSet<usize>,
    /// Those that changed, and that are not run whole.
    left: Vec<String>,
}

impl Choice {
    /// How much is run of a target.
    fn share(&self, package: &str, target: &str) -> Share {
        let place = SUITES.iter().position(|suite| suite.has(package, target));
        place.map_or(Share::Whole, |place| {
            if self.more.contains(&place) { SUITES[place].changed } else { SUITES[place].always }
        })
    }
}

/// Chooses the suites of which more is run: what `changed` touches, in the order of the table while there is room.
fn choose(changed: &BTreeSet<String>) -> Choice {
    let (mut choice, mut room) = (Choice::default(), ROOM);
    for (place, suite) in SUITES.iter().enumerate() {
        if !changed.iter().any(|path| suite.tests.iter().any(|of| path.starts_with(of))) {
            continue;
        }
        let fits = suite.more <= room;
        if fits {
            room -= suite.more;
            choice.more.insert(place);
        }
        if !fits || suite.changed != Share::Whole {
            choice.left.push(suite.name());
        }
    }
    choice
}

/// The packages whose tests are built.
fn packages(choice: &Choice) -> BTreeSet<&'static str> {
    let without = SUITES.iter().enumerate().filter(|(place, suite)| {
        suite.targets.is_empty() && suite.always == Share::Nothing && !choice.more.contains(place)
    });
    let without: BTreeSet<_> = without.map(|(_, suite)| suite.package).collect();
    let chosen = choice.more.iter().map(|place| SUITES[*place].package);
    PUBLISHED
        .iter()
        .copied()
        .chain(BESIDE)
        .filter(|package| !without.contains(package))
        .chain(chosen)
        .collect()
}

pub(crate) fn steps() -> Vec<Step> {
    let mut steps = vec![Step::new("what the gate needs", || {
        needs::install(needs::LINT)?;
        needs::install(needs::TEST)
    })];
    steps.extend(lint::checks());
    steps.push(Step::new("clippy", lint::clippy_of_published));
    steps.extend(tests());
    steps.push(Step::new("the commit that passed", note_the_commit));
    steps
}

/// Builds the tests of the gate and runs them.
pub(crate) fn tests() -> Vec<Step> {
    let built = Rc::new(RefCell::new((Vec::new(), Choice::default())));
    let ours = Rc::clone(&built);
    vec![
        Step::new("tests: build", move || {
            ours.replace(build()?);
            Ok(())
        }),
        Step::counting("tests: run", move || {
            let (programs, choice) = &*built.borrow();
            run(programs, choice)
        }),
    ]
}

fn build() -> Result<(Vec<Program>, Choice)> {
    let choice = choose(&changed::files()?);
    let programs = programs::build(&packages(&choice), |package, target| {
        choice.share(package, target) != Share::Nothing
    })?;
    Ok((programs, choice))
}

fn run(programs: &[Program], choice: &Choice) -> Result<Tests> {
    let series = changed::head()?.0.chars().take(16).collect::<String>();
    let parts = programs.iter().filter_map(|program| part(program, choice));
    let mut parts: Vec<Part> = parts.map(|part| part.variable("DLOCK_SERIES", series.clone())).collect();
    let packages = packages(choice);
    parts.push(documentation(|package| packages.contains(package))?);
    // None of the long ones is alone at the end.
    parts.sort_by_key(|part| LONGEST.iter().position(|name| *name == part.name).unwrap_or(LONGEST.len()));
    let tests = runner::run(parts, AT_ONCE)?;
    for suite in &choice.left {
        println!("changed, and not run whole: {suite}; `cargo xtask test --all` does");
    }
    Ok(tests)
}

/// What the gate runs of `program`.
fn part(program: &Program, choice: &Choice) -> Option<Part> {
    let picked = match choice.share(&program.package, &program.target) {
        Share::Nothing => return None,
        Share::Part(arguments) => arguments,
        Share::Whole => &[],
    };
    Some(whole(program).and(&["--skip", IN_TIME]).and(picked))
}

/// All tests of `program`, with the threads that suit it.
pub(crate) fn whole(program: &Program) -> Part {
    let threads =
        THREADS.iter().find(|(package, target, _)| *package == program.package && *target == program.target);
    let part = Part::new(program);
    threads.map_or(part.clone(), |(_, _, threads)| part.and(&["--test-threads", threads]))
}

/// The examples in the documentation of those packages that are `wanted`: those that were built together, or cargo
/// would build all of their dependencies again, with other features.
pub(crate) fn documentation(wanted: impl Fn(&str) -> bool) -> Result<Part> {
    let packages = programs::documented()?;
    let packages = packages.iter().filter(|name| wanted(name)).flat_map(|name| ["--package", name]);
    let arguments = ["test", "--quiet", "--doc", "--all-features"].into_iter().chain(packages);
    Ok(Part::of_cargo("documentation", &arguments.collect::<Vec<_>>()))
}

/// Writes the commit to `target/gate-passed`, unless files differ from it.
fn note_the_commit() -> Result<()> {
    let (head, is_whole) = changed::head()?;
    if is_whole {
        fs::write(changed::passed(), format!("{head}\n"))?;
        println!("{head} passed the gate");
    } else {
        println!("files differ from {head}: no commit passed the gate");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(paths: &[&str]) -> Choice {
        choose(&paths.iter().map(|&path| path.to_owned()).collect())
    }

    #[test]
    fn a_suite_is_run_whole_where_it_or_what_it_tests_changed() {
        let nothing = choice(&["docs/redis.md"]);
        assert_eq!(nothing, Choice::default());
        assert!(!packages(&nothing).contains("dlock-models"));
        assert_eq!(nothing.share("dlock-models", "lease"), Share::Nothing);
        assert!(matches!(nothing.share("dlock-redis", "conformance"), Share::Part(_)));
        assert_eq!(nothing.share("dlock-redis", "scenarios"), Share::Whole);
        assert_eq!(choice(&["dlock-redis/src/lib.rs"]).share("dlock-redis", "conformance"), Share::Whole);
        let models = choice(&["models/src/lib.rs"]);
        assert_eq!(models.share("dlock-models", "lease"), Share::Whole);
        assert!(packages(&models).contains("dlock-models"));
    }

    #[test]
    fn what_is_not_run_whole_is_named() {
        let all: Vec<&str> = SUITES.iter().flat_map(|suite| suite.tests).copied().collect();
        let choice = choice(&all);
        assert!(choice.left.len() + choice.more.len() >= SUITES.len());
        assert!(choice.left.contains(&"dlock-sql servers".to_owned()), "a part of it is run");
        assert!(choice.more.iter().map(|place| SUITES[*place].more).sum::<u64>() <= ROOM);
    }
}
