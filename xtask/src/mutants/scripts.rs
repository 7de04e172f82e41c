//! Mutants of the scripts that dlock-redis runs on its servers: one line is broken at a time.

use std::fs;

use anyhow::{Context, Result, bail};

use super::{Verdict, pick};
use crate::needs;
use crate::package::copy_tracked_files;
use crate::run::{cargo, root};

const SCRIPTS: &str = "dlock-redis/src/format";

/// What is put in the place of what: the first of each pair, wherever it stands in a line.
const SWAPS: &[(&str, &str)] = &[
    (" == ", " ~= "),
    (" ~= ", " == "),
    (" < ", " >= "),
    (" > ", " <= "),
    (" + ", " - "),
    (" - ", " + "),
    (" and ", " or "),
    (" or ", " and "),
    ("not ", ""),
];

/// One line, and what it is replaced by.
#[derive(Hash)]
struct Mutant {
    file: String,
    /// From 1.
    line: usize,
    from: String,
    to: String,
}

pub(super) fn try_out(day: &str, most: usize) -> Result<Verdict> {
    needs::install(needs::TEST)?;
    let all = list()?;
    let count = all.len();
    let picked = pick(all, day, most);
    println!("{} of {count} mutants", picked.len());
    // In a copy, so that nothing is left broken in the repository.
    let area = root().join("target/mutants");
    let source = area.join("source");
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    copy_tracked_files(&source)?;
    let manifest = source.join("Cargo.toml").display().to_string();
    let tests_pass = || {
        let test =
            ["test", "--quiet", "--package", "dlock-redis", "--all-features", "--manifest-path", &manifest];
        cargo(test).env("CARGO_TARGET_DIR", &area.join("build").display().to_string()).succeeds()
    };
    if !tests_pass() {
        bail!("the tests fail without a mutant: `cargo test --package dlock-redis --all-features` shows how");
    }
    let mut verdict = Verdict::default();
    for mutant in &picked {
        let path = source.join(SCRIPTS).join(&mutant.file);
        let sound = fs::read_to_string(&path)?;
        fs::write(&path, mutant.apply(&sound))?;
        let lived = tests_pass();
        fs::write(&path, sound)?;
        println!("{:<12} {}", if lived { "NOT NOTICED" } else { "noticed" }, mutant.name());
        if lived {
            verdict.lived.push(mutant.name());
        } else {
            verdict.noticed += 1;
        }
    }
    Ok(verdict)
}

fn list() -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for entry in fs::read_dir(root().join(SCRIPTS))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "lua") {
            continue;
        }
        let file = path.file_name().context("a file has a name")?.to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        for (at, line) in text.lines().enumerate() {
            for to in broken(line) {
                mutants.push(Mutant { file: file.clone(), line: at + 1, from: line.to_owned(), to });
            }
        }
    }
    Ok(mutants)
}

/// Returns what a line can be broken to.
fn broken(line: &str) -> Vec<String> {
    let code = line.trim_start();
    if code.is_empty() || code.starts_with("--") {
        return Vec::new();
    }
    let mut ways = Vec::new();
    for (from, to) in SWAPS {
        ways.extend(
            line.match_indices(from)
                .map(|(at, _)| format!("{}{to}{}", &line[..at], &line[at + from.len()..])),
        );
    }
    // A command that is not carried out.
    if ["call(", "try(", "redis."].iter().any(|call| code.starts_with(call)) && code.ends_with(')') {
        ways.push(String::new());
    }
    // A value that is not set.
    let goes_on = code.ends_with(['{', '(', ',']);
    if code.contains(" = ") && !goes_on && !code.starts_with("local ") && !code.starts_with("for ") {
        ways.push(String::new());
    }
    for (number, other) in [("0", "1"), ("1", "2"), ("2", "1")] {
        if code == format!("return {number}") {
            ways.push(line.replace(number, other));
        }
    }
    ways
}

impl Mutant {
    fn name(&self) -> String {
        let to = if self.to.is_empty() { "nothing" } else { self.to.trim() };
        format!("{SCRIPTS}/{}:{}: {} -> {to}", self.file, self.line, self.from.trim())
    }

    fn apply(&self, text: &str) -> String {
        let lines = text.lines().enumerate();
        lines.map(|(at, line)| format!("{}\n", if at + 1 == self.line { &self.to } else { line })).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_comparison_call_and_assignment_is_broken_once_and_no_comment() {
        assert_eq!(
            broken("  if a == 1 and b < 2 then"),
            ["  if a ~= 1 and b < 2 then", "  if a == 1 and b >= 2 then", "  if a == 1 or b < 2 then",]
        );
        assert_eq!(broken("redis.call('DEL', KEYS[1])"), [""]);
        assert_eq!(broken("  reply = 0"), [""]);
        assert_eq!(broken("  return 0"), ["  return 1"]);
        assert_eq!(broken("local a = 1"), Vec::<String>::new());
        assert_eq!(broken("-- a == b"), Vec::<String>::new());
    }

    #[test]
    fn only_the_line_of_a_mutant_is_changed() {
        let mutant = Mutant { file: "x.lua".into(), line: 2, from: "b".into(), to: "c".into() };
        assert_eq!(mutant.apply("a\nb\nb\n"), "a\nc\nb\n");
    }
}
