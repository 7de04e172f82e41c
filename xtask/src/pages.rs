//! The pages: every link to a file of the repository leads somewhere, and every snippet is compiled or executed.

use anyhow::{Result, bail};

use crate::run::root;
use crate::sources::SourceFile;

/// Every link of a page resolves, and every block of Rust or SQL is part of a test.
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let mut found = Vec::new();
    for page in sources.iter().filter(|source| source.path.ends_with(".md")) {
        links(page, sources, &mut found);
        snippets(page, sources, &mut found);
        if page.path == "CHANGELOG.md" {
            changes(page, &mut found);
        }
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

/// Finds links to files that are not there, and to headings that no page has. What rustdoc resolves it checks itself.
fn links(page: &SourceFile, sources: &[SourceFile], found: &mut Vec<String>) {
    for (at, path, heading) in targets(page) {
        let to = sources.iter().find(|source| source.path == path);
        if to.is_none() && !root().join(&path).exists() {
            found.push(format!("{}:{at}: there is no {path}", page.path));
        } else if let Some(to) = to.filter(|to| !heading.is_empty() && to.path.ends_with(".md"))
            && !headings(&to.text).any(|of_page| of_page == heading)
        {
            found.push(format!("{}:{at}: {path} has no heading #{heading}", page.path));
        }
    }
}

/// The lines, files and headings of the links of a page to the repository.
pub(crate) fn targets(page: &SourceFile) -> impl Iterator<Item = (usize, String, String)> {
    prose(&page.text).flat_map(move |(at, line)| {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let targets = links.filter_map(|link| {
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let path = if file.is_empty() { page.path.clone() } else { resolved(&page.path, file) };
            (!file.contains(':')).then(|| (at, path, heading.to_owned()))
        });
        targets.collect::<Vec<_>>()
    })
}

/// The path from the root of the repository that a link of a page leads to.
fn resolved(page: &str, link: &str) -> String {
    let (mut to, mut rest) = (page.rsplit_once('/').map_or("", |(directory, _)| directory), link);
    while let Some(above) = rest.strip_prefix("../") {
        (to, rest) = (to.rsplit_once('/').map_or("", |(above, _)| above), above);
    }
    format!("{to}{}{rest}", if to.is_empty() { "" } else { "/" })
}

/// The names by which a link reaches the headings of a page.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter_map(|(_, line)| {
        let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        Some(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect())
    })
}

/// Finds what merges of the changelog leave behind: a second heading of one kind in a release, and half a sentence.
fn changes(page: &SourceFile, found: &mut Vec<String>) {
    let (mut kinds, mut ended) = (Vec::new(), false);
    for (at, line) in prose(&page.text) {
        // A sentence may begin with code, which is not in the line.
        let goes_on = line.strip_prefix("  ").is_some_and(|text| text.starts_with(char::is_lowercase));
        if goes_on && ended {
            found.push(format!("{}:{at}: a sentence without its beginning", page.path));
        }
        ended = line.ends_with('.');
        if line.starts_with("## ") {
            kinds.clear();
        } else if line.starts_with("### ") {
            if kinds.contains(&line) {
                found.push(format!("{}:{at}: the release has {line} already", page.path));
            }
            kinds.push(line);
        }
    }
}

/// Finds pages whose Rust or SQL is in no test: a Rust file that includes the page compiles it as documentation, or
/// executes it.
fn snippets(page: &SourceFile, sources: &[SourceFile], found: &mut Vec<String>) {
    let includes_it = |source: &&SourceFile| {
        let links = source.text.split("include_str!(\"").skip(1);
        links.filter_map(|rest| rest.split('"').next()).any(|link| resolved(&source.path, link) == page.path)
    };
    let mut includes = sources.iter().filter(|source| source.path.ends_with(".rs")).filter(includes_it);
    let is_executed = includes.clone().any(|source| source.path.contains("tests/"));
    let is_compiled =
        includes.any(|source| !source.path.contains("tests/") || source.path.ends_with("/src/lib.rs"));
    for (at, line) in (1..).zip(page.text.lines()) {
        let Some(language) = line.trim_start().strip_prefix("```") else { continue };
        let what = match language.split_once(',') {
            Some(("rust", how)) if how.contains("ignore") => "that is not compiled",
            Some(("rust", _)) if !is_compiled => "that no documentation test includes",
            None if language == "rust" && !is_compiled => "that no documentation test includes",
            None if language == "sql" && !is_executed => "that no test executes",
            _ => continue,
        };
        found.push(format!("{}:{at}: a snippet {what}", page.path));
    }
}

/// The lines outside blocks of code, without what is in backticks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        let outside: String =
            if line.starts_with('#') { line.to_owned() } else { line.split('`').step_by(2).collect() };
        (!is_code).then_some((at, outside))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| SourceFile { path: (*path).into(), text: (*text).into() };
        match check(&files.iter().map(file).collect::<Vec<_>>()) {
            Ok(()) => Vec::new(),
            Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_link_to_a_file_or_heading_that_is_not_there_is_found() {
        let other = ("docs/other.md", "# Other things\n## What `a_b` does, and not");
        let page = |text: &'static str| found(&[("docs/x.md", text), other]);
        assert_eq!(page("[a](other.md) [b](../LICENSE-MIT) [c](https://example.org/x)"), [""; 0]);
        assert_eq!(page("[a](other.md#other-things) [b](other.md#what-a_b-does-and-not)"), [""; 0]);
        assert_eq!(page("# Here\n[a](#here)\n```text\n[b](nowhere.md)\n```\n`[c](nowhere)`"), [""; 0]);
        assert_eq!(page("[a](nowhere.md)"), ["docs/x.md:1: there is no docs/nowhere.md"]);
        assert_eq!(
            page("![a](pictures/nowhere.svg)"),
            ["docs/x.md:1: there is no docs/pictures/nowhere.svg"]
        );
        assert_eq!(page("[a](other.md#else)"), ["docs/x.md:1: docs/other.md has no heading #else"]);
        assert_eq!(page("[a](#else)"), ["docs/x.md:1: docs/x.md has no heading #else"]);
    }

    #[test]
    fn what_a_merge_of_the_changelog_leaves_behind_is_found() {
        let text = "## 2\n### Fixed\n- a: it\n  goes on.\n## 1\n### Fixed\n";
        assert_eq!(found(&[("CHANGELOG.md", text)]), [""; 0]);
        let text = "## 2\n### Fixed\n- a: it.\n  goes on.\n### Fixed\n";
        let places = ["4: a sentence without its beginning", "5: the release has ### Fixed already"];
        assert_eq!(found(&[("CHANGELOG.md", text)]), places.map(|place| format!("CHANGELOG.md:{place}")));
    }

    #[test]
    fn a_snippet_that_nothing_compiles_or_executes_is_found() {
        let rust = ("docs/x.md", "```rust,no_run\nlet x = 1;\n```");
        let sql = ("docs/y.md", "```sql\nSELECT 1;\n```");
        let doctest = ("src/lib.rs", "#[cfg(doctest)]\n#[doc = include_str!(\"../docs/x.md\")]\nstruct X;");
        let test = ("tests/y.rs", "const PAGE: &str = include_str!(\"../docs/y.md\");");
        assert_eq!(found(&[rust]), ["docs/x.md:1: a snippet that no documentation test includes"]);
        assert_eq!(found(&[rust, doctest]), [""; 0]);
        let elsewhere = "#[doc = include_str!(\"../../../docs/x.md\")]";
        assert_eq!(found(&[rust, ("tests/z/src/lib.rs", elsewhere)]), [""; 0]);
        assert_eq!(found(&[sql, doctest]), ["docs/y.md:1: a snippet that no test executes"]);
        assert_eq!(found(&[sql, test]), [""; 0]);
        assert_eq!(
            found(&[("README.md", "```rust,ignore\n```")]),
            ["README.md:1: a snippet that is not compiled"]
        );
    }
}
