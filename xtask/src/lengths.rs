//! The lengths of files, in lines of code: what explains code does not count.

use anyhow::{Result, bail};

use crate::run::root;
use crate::sources::SourceFile;

/// A file with more lines of code is two files.
const MOST: usize = 450;

/// The files that have more, with how many lines they may have. No number grows, and a file that has come down to
/// [`MOST`] is listed no more.
const LONGER: &[(&str, usize)] = &[
    ("dlock-cli/tests/cli.rs", 544),
    ("dlock-macros/src/args.rs", 536),
    ("dlock-sim/src/judge.rs", 455),
    ("dlock-sql/tests/modes/documented.rs", 465),
    ("dlock-testkit/src/conformance/cases/fairness.rs", 518),
    ("dlock-testkit/src/conformance/cases/permits.rs", 506),
    ("dlock-testkit/src/conformance/cases/sharing.rs", 535),
    ("tests/attribute/behaviour.rs", 487),
];

/// No Rust file of the repository has more than [`MOST`] lines of code, its tests included, but for [`LONGER`].
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let files = sources.iter().filter(|source| source.path.ends_with(".rs"));
    let lengths: Vec<_> = files.map(|file| (&*file.path, lines_of_code(&file.text))).collect();
    let Some((longest, lines)) = lengths.iter().max_by_key(|(_, lines)| *lines) else {
        bail!("no Rust file was found below {}", root().display());
    };
    let wrong = wrong_in(&lengths, LONGER);
    if !wrong.is_empty() {
        bail!("{}. Comments do not count", wrong.join(", "));
    }
    println!("{} Rust files, the longest is {longest} with {lines} lines of code", lengths.len());
    Ok(())
}

fn wrong_in(lengths: &[(&str, usize)], longer: &[(&str, usize)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, lines) in lengths {
        let most = longer.iter().find(|(of, _)| of == path).map_or(MOST, |(_, most)| *most);
        if *lines > most {
            wrong.push(format!("{path} has {lines} lines of code, of {most}: make two files of it"));
        }
    }
    for (path, _) in longer {
        if !lengths.iter().any(|(of, lines)| of == path && *lines > MOST) {
            wrong.push(format!(
                "{path} has no more than {MOST} lines of code: remove it from the list in lengths.rs"
            ));
        }
    }
    wrong
}

/// Returns how many lines of a file are neither empty nor a comment.
fn lines_of_code(text: &str) -> usize {
    text.lines().map(str::trim_start).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_empty_lines_are_no_code() {
        assert_eq!(lines_of_code("//! What it is.\n\n/// A function.\nfn f() {\n    // Why.\n}\n"), 2);
    }

    #[test]
    fn a_listed_file_grows_no_more_and_is_listed_while_it_is_long() {
        let longer = [("a.rs", 500)];
        assert!(wrong_in(&[("a.rs", 500), ("b.rs", MOST)], &longer).is_empty());
        for lengths in [&[("a.rs", 501)][..], &[("a.rs", MOST)], &[], &[("a.rs", 500), ("b.rs", MOST + 1)]] {
            assert_eq!(wrong_in(lengths, &longer).len(), 1, "{lengths:?}");
        }
    }
}
