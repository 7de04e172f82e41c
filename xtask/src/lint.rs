//! Everything that is checked without running a test.

use anyhow::Result;

use crate::run::{Step, cargo};
use crate::sources::sources;
use crate::{backends, lengths, modules, needs, package, pages, prose, reachable};

/// What compiles nothing, and is done in seconds, with what it needs.
pub(crate) fn fast_steps() -> Vec<Step> {
    let mut steps = vec![Step::new("what the checks need", || needs::install(needs::LINT))];
    steps.extend(checks());
    steps
}

/// What compiles nothing, and is done in seconds.
pub(crate) fn checks() -> Vec<Step> {
    vec![
        Step::new("format", || cargo(["fmt", "--all", "--check"]).run()),
        Step::new("file lengths", || lengths::check(&sources()?)),
        Step::new("circles of modules", || modules::check(&sources()?)),
        Step::new("prose", || prose::check(&sources()?)),
        Step::new("links and snippets", || pages::check(&sources()?)),
        Step::new("front pages", || reachable::check(&sources()?, &backends::all_features()?)),
        Step::new("backends are separate", backends::are_separate),
    ]
}

pub(crate) fn steps() -> Result<Vec<Step>> {
    let mut steps = fast_steps();
    // The widest set first: the others then find most of their dependencies checked.
    steps.push(Step::new("clippy, all features, whole workspace", || {
        clippy(&["--workspace", "--all-targets", "--all-features"])
    }));
    for backend in backends::features()? {
        steps.push(Step::new(format!("clippy, only the backend {backend}"), move || {
            clippy(&["--package", backends::FACADE, "--all-targets", "--features", &backend])
        }));
    }
    steps.push(Step::new("clippy, no backend", || clippy(&["--package", backends::FACADE, "--all-targets"])));
    steps.push(Step::new("clippy, no feature at all", || {
        clippy(&["--package", backends::FACADE, "--no-default-features", "--lib"])
    }));
    steps.push(Step::new("what other platforms need", || needs::install(needs::PLATFORMS)));
    for target in needs::targets(needs::PLATFORMS) {
        // What needs no C compiler of that platform.
        steps.push(Step::new(format!("compiles for {target}"), move || {
            cargo(["check", "--quiet", "--package", backends::FACADE, "--no-default-features"])
                .args(["--features", "macros,otel,quorum,redis,zk", "--target", target])
                .run()
        }));
    }
    steps.push(Step::new("packages", package::packages_are_whole));
    steps.push(Step::new("documentation", || {
        cargo(["doc", "--workspace", "--all-features", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").run()
    }));
    Ok(steps)
}

/// The published packages with every feature, in one pass.
pub(crate) fn clippy_of_published() -> Result<()> {
    clippy_of(&["--lib", "--bins"])
}

/// As [`clippy_of_published`], with their tests.
fn clippy_of_published_and_tests() -> Result<()> {
    clippy_of(&["--all-targets"])
}

fn clippy_of(targets: &[&str]) -> Result<()> {
    let packages = package::PUBLISHED.iter().flat_map(|name| ["--package", name]);
    clippy(&packages.chain(targets.iter().copied()).chain(["--all-features"]).collect::<Vec<_>>())
}

/// The documentation of the published packages.
fn documentation_of_published() -> Result<()> {
    cargo(["doc", "--all-features", "--no-deps"])
        .args(package::PUBLISHED.iter().flat_map(|name| ["--package", name]))
        .env("RUSTDOCFLAGS", "-D warnings")
        .run()
}

/// What each commit should have passed before it is made: two minutes, where most of it is built.
pub(crate) fn ready() -> Vec<Step> {
    let mut steps = fast_steps();
    steps.push(Step::new("clippy", clippy_of_published_and_tests));
    steps.push(Step::new("documentation", documentation_of_published));
    steps
}

fn clippy(selection: &[&str]) -> Result<()> {
    cargo(["clippy", "--quiet"]).args(selection.iter().copied()).args(["--", "-D", "warnings"]).run()
}
