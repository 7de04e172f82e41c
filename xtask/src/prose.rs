//! The English of documentation: plain words, summaries that begin with a verb, lines of a length that can be read.

use anyhow::{Result, bail};

use crate::sources::SourceFile;

/// A longer line of prose is two lines.
const MAX_COLUMNS: usize = 120;

/// What plain technical English says in other words: inside, release, is cancelled, is notified, is rejected.
const BANNED: [&str; 15] = [
    "inside of ",
    "give back",
    "gives back",
    "given back",
    "giving back",
    "gave back",
    "goes away",
    "went away",
    "gone away",
    "is told",
    "are told",
    "was told",
    "were told",
    "turned away",
    "turns away",
];

/// What an error says in other words: malformed, requires, is notified.
const BANNED_IN_MESSAGES: [&str; 5] = ["makes no sense", "tells of", "told of", "wants a", "in line"];

/// Words in -s that are no verbs, with which a summary could begin.
const NO_VERBS: [&str; 9] = ["This", "As", "Its", "His", "Was", "Those", "Others", "Whatever", "Always"];

/// The crates that users and authors of backends read the documentation of.
const PUBLISHED: [&str; 11] = [
    "src/",
    "dlock-audit/src/",
    "dlock-core/src/",
    "dlock-etcd/src/",
    "dlock-macros/src/",
    "dlock-quorum/src/",
    "dlock-redis/src/",
    "dlock-sql/src/",
    "dlock-testkit/src/",
    "dlock-tower/src/",
    "dlock-zk/src/",
];

/// Documentation is plain English in lines of a readable length, and each public function is summarised by a verb.
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let mut found = Vec::new();
    for source in sources {
        if source.path.ends_with(".rs") {
            comments(source, &mut found);
            if PUBLISHED.iter().any(|of| source.path.starts_with(of)) {
                summaries(source, &mut found);
                messages(source, &mut found);
            }
        } else if source.path != "CHANGELOG.md" {
            prose(source, &mut found);
        }
    }
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

fn comments(source: &SourceFile, found: &mut Vec<String>) {
    for (at, line) in numbered(&source.text) {
        let comment = line.trim_start();
        if comment.starts_with("///") || comment.starts_with("//!") {
            found.extend(banned(comment).map(|word| format!("{}:{at}: `{word}`", source.path)));
        }
        // A row of a table is one line.
        let is_whole = comment.trim_start_matches(['/', '!', ' ']).starts_with('|');
        if comment.starts_with("//") && line.chars().count() > MAX_COLUMNS && !is_whole {
            found.push(too_long(source, at));
        }
    }
}

/// What is in quotes is for users, too: most of it is the text of errors.
fn messages(source: &SourceFile, found: &mut Vec<String>) {
    let shown = source.text.split("#[cfg(test)]").next().unwrap_or_default();
    for (at, line) in numbered(shown).filter(|(_, line)| !line.trim_start().starts_with("//")) {
        for text in line.split('"').skip(1).step_by(2) {
            let words = banned(text).chain(BANNED_IN_MESSAGES.into_iter().filter(|word| text.contains(word)));
            found.extend(words.map(|word| format!("{}:{at}: `{word}`", source.path)));
        }
    }
}

fn prose(source: &SourceFile, found: &mut Vec<String>) {
    let mut is_code = false;
    for (at, line) in numbered(&source.text) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code {
            continue;
        }
        found.extend(banned(line).map(|word| format!("{}:{at}: `{word}`", source.path)));
        // A row of a table, and a link, is one line.
        let is_whole = line.starts_with('|') || line.starts_with('[') || line.starts_with('!');
        if line.chars().count() > MAX_COLUMNS && !is_whole {
            found.push(too_long(source, at));
        }
    }
}

fn summaries(source: &SourceFile, found: &mut Vec<String>) {
    let mut documentation: Vec<&str> = Vec::new();
    for (at, line) in numbered(&source.text) {
        let line = line.trim();
        if line == "#[cfg(test)]" {
            break;
        } else if let Some(text) = line.strip_prefix("///") {
            documentation.push(text.trim());
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            if let (Some(name), Some(summary)) = (public_function(line), documentation.first()) {
                let say = |what: &str| format!("{}:{at}: the documentation of `{name}` {what}", source.path);
                if !begins_with_a_verb(summary) {
                    found.push(say("does not begin with a verb in -s"));
                }
                let is_async = line.contains("async fn") || line.contains("impl Future");
                if is_async && !documentation.contains(&"# Cancel safety") {
                    found.push(say("has no `# Cancel safety`"));
                }
            }
            documentation.clear();
        }
    }
}

/// Returns the name of the public function that a line declares.
fn public_function(line: &str) -> Option<&str> {
    let mut rest = line.strip_prefix("pub ")?;
    for word in ["const ", "async "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

fn begins_with_a_verb(summary: &str) -> bool {
    let word = summary.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
    word.ends_with('s') && word.starts_with(char::is_uppercase) && !NO_VERBS.contains(&word)
}

fn banned(text: &str) -> impl Iterator<Item = &'static str> {
    let text = text.to_lowercase();
    BANNED.into_iter().filter(move |word| text.contains(word))
}

fn too_long(source: &SourceFile, at: usize) -> String {
    format!("{}:{at}: more than {MAX_COLUMNS} columns", source.path)
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let source = SourceFile { path: path.into(), text: text.into() };
        match check(&[source]) {
            Ok(()) => Vec::new(),
            Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_summary_that_is_no_sentence_with_a_verb_is_found() {
        let text = "/// Returns it.\npub fn a() {}\n/// The key.\n#[must_use]\npub const fn b() {}\n/// The key.\nfn c() {}";
        assert_eq!(
            found("src/x.rs", text),
            ["src/x.rs:5: the documentation of `b` does not begin with a verb in -s"]
        );
        assert!(found("bench/src/x.rs", text).is_empty());
    }

    #[test]
    fn an_async_function_without_a_word_on_cancelling_it_is_found() {
        let text = "/// Waits.\npub async fn a() {}\n/// Waits.\n///\n/// # Cancel safety\n///\n/// Yes.\npub async fn b() {}";
        assert_eq!(
            found("src/x.rs", text),
            ["src/x.rs:2: the documentation of `a` has no `# Cancel safety`"]
        );
    }

    #[test]
    fn words_that_are_not_plain_and_long_lines_are_found_in_prose_and_not_in_code_and_tables() {
        let long = "a ".repeat(61);
        assert_eq!(found("docs/x.md", "The lock is given back."), ["docs/x.md:1: `given back`"]);
        assert_eq!(found("docs/x.md", &long), ["docs/x.md:1: more than 120 columns"]);
        assert!(found("docs/x.md", &format!("|{long}\n```\n{long}\n```")).is_empty());
        assert_eq!(found("src/x.rs", "//! Who is told."), ["src/x.rs:1: `is told`"]);
        assert!(found("xtask/src/x.rs", "let x = \"is told\";").is_empty());
        assert_eq!(
            found("src/x.rs", "let x = \"the reply makes no sense\";"),
            ["src/x.rs:1: `makes no sense`"]
        );
        assert!(found("src/x.rs", "#[cfg(test)]\nlet x = \"is told\";").is_empty());
    }
}
