//! Which packages a change touches.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;

use crate::run::{program, root};

/// Names the commit since which changes count, where that is known better than here: a workflow knows it.
const SINCE: &str = "DLOCK_SINCE";

/// The file with the last commit that passed the gate in this directory.
pub(crate) fn passed() -> PathBuf {
    root().join("target/gate-passed")
}

fn git(arguments: &[&str]) -> Result<String> {
    Ok(program("git").args(arguments.iter().copied()).read()?.trim().to_owned())
}

/// The commit that is checked, and whether all files are as it has them.
pub(crate) fn head() -> Result<(String, bool)> {
    Ok((git(&["rev-parse", "HEAD"])?, git(&["status", "--porcelain"])?.is_empty()))
}

/// The commit before the change: what [`SINCE`] names, else where the branch left `origin/main`, else the commit before
/// the last. What passed here before does not matter: every clone of a commit runs the same tests.
fn base(head: &str) -> Option<String> {
    let is_ancestor = |commit: &String| {
        !commit.is_empty() && commit != head && git(&["merge-base", "--is-ancestor", commit, head]).is_ok()
    };
    let said = std::env::var(SINCE).ok().filter(is_ancestor);
    let left = || git(&["merge-base", "HEAD", "origin/main"]).ok().filter(is_ancestor);
    said.or_else(left).or_else(|| git(&["rev-parse", "HEAD~1"]).ok())
}

/// Lists the files that differ from the commit before the change, those that are not committed included.
pub(crate) fn files() -> Result<BTreeSet<String>> {
    let Some(base) = base(&head()?.0) else { return Ok(BTreeSet::new()) };
    println!("changes since {}", base.get(..12).unwrap_or(&base));
    let differing = git(&["diff", "--name-only", &base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(differing.lines().chain(new.lines()).map(str::to_owned).collect())
}
