//! Whoever reads README.md, or the front page of the documentation, finds each guide, attribute and feature.

use anyhow::{Context, Result, bail};

use crate::pages::targets;
use crate::sources::SourceFile;

const README: &str = "README.md";
/// The front page of the documentation, and its list of guides.
const FRONT: [&str; 2] = ["src/lib.rs", "src/guides.md"];
/// The page in the registry, which leads to the list of all guides.
const REGISTRY: &str = "src/registry.md";
const GUIDES: &str = "https://docs.rs/dlock-sdk/latest/dlock/guides/";

/// Both front pages link each page below docs, and name each attribute and each of these features.
pub(crate) fn check(sources: &[SourceFile], features: &[String]) -> Result<()> {
    let readme = file(sources, README)?;
    let front = FRONT.map(|path| file(sources, path).map(documentation));
    let front = front.into_iter().collect::<Result<Vec<_>>>()?.concat();
    let linked: Vec<String> = targets(readme).map(|(_, path, _)| path).collect();
    let (mut found, mut guides) = (Vec::new(), vec!["index.html".to_owned()]);

    let is_guide = |source: &&SourceFile| source.path.starts_with("docs/") && source.path.ends_with(".md");
    for SourceFile { path, .. } in sources.iter().filter(is_guide) {
        let name = path.rsplit('/').next().unwrap_or_default().trim_end_matches(".md").replace('-', "_");
        if !linked.contains(path) {
            found.push(format!("{README} has no link to {path}"));
        }
        if !front.contains(&format!("](guides::{name})")) {
            found.push(format!("{} has no link to {path}, which is `guides::{name}`", FRONT[1]));
        }
        guides.push(name);
    }
    for name in attributes(&file(sources, "dlock-macros/src/lib.rs")?.text) {
        if !readme.text.contains(&format!("#[{name}")) {
            found.push(format!("{README} does not name `#[{name}]`"));
        }
        if !front.contains(&format!("](macro@{name})")) {
            found.push(format!("{} has no link to `macro@{name}`", FRONT[0]));
        }
    }
    for name in features.iter().map(|feature| format!("`{feature}`")) {
        if !readme.text.contains(&name) {
            found.push(format!("{README} does not name the feature {name}"));
        }
        if !front.contains(&name) {
            found.push(format!("{} does not name the feature {name}", FRONT[0]));
        }
    }
    let registry = file(sources, REGISTRY)?.text.split(GUIDES).skip(1);
    let shown: Vec<&str> = registry.filter_map(|rest| rest.split(['/', '\n']).next()).collect();
    if !shown.contains(&"index.html") {
        found.push(format!("{REGISTRY} has no link to {GUIDES}index.html"));
    }
    let gone = shown.iter().filter(|name| !guides.iter().any(|guide| guide == *name));
    found.extend(gone.map(|name| format!("{REGISTRY}: there is no guide {name}")));
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

fn file<'a>(sources: &'a [SourceFile], path: &str) -> Result<&'a SourceFile> {
    sources.iter().find(|source| source.path == path).with_context(|| format!("there is no {path}"))
}

/// What a file says on a page of the documentation: a page all of it, a module what is about itself.
fn documentation(source: &SourceFile) -> String {
    let is_page = source.path.ends_with(".md");
    let is_said = |line: &&str| is_page || line.starts_with("//!") || line.contains("doc = \"");
    source.text.lines().filter(is_said).collect::<Vec<_>>().join("\n")
}

/// The names of the attributes that a crate of macros has.
fn attributes(text: &str) -> impl Iterator<Item = &str> {
    let functions = text.split("#[proc_macro_attribute]\npub fn ").skip(1);
    functions.filter_map(|rest| rest.split('(').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACROS: &str =
        "#[proc_macro_attribute]\npub fn lead(a: T) -> T {}\n#[proc_macro]\npub fn guides() {}";

    /// What is found where the pages say this.
    fn found(readme: &str, front: &str, registry: &str) -> Vec<String> {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let sources = [
            file("README.md", readme),
            file("src/lib.rs", &format!("//! {front}\nmod guides;")),
            file("src/guides.md", ""),
            file("src/registry.md", registry),
            file("dlock-macros/src/lib.rs", MACROS),
            file("docs/backends/sql-schema.md", ""),
        ];
        match check(&sources, &["zk".to_owned()]) {
            Ok(()) => Vec::new(),
            Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_page_an_attribute_and_a_feature_that_a_front_page_does_not_lead_to_are_found() {
        let readme = "[schema](docs/backends/sql-schema.md#tables), `#[lead(key = \"x\")]`, `zk`";
        let front = "[schema](guides::sql_schema), [`lead`](macro@lead), `zk`";
        let registry = format!("{GUIDES}index.html\n{GUIDES}sql_schema/index.html");
        assert_eq!(found(readme, front, &registry), [""; 0]);
        assert_eq!(
            found("docs/backends/sql-schema.md, lead, zk-tls", front, &registry),
            [
                "README.md has no link to docs/backends/sql-schema.md",
                "README.md does not name `#[lead]`",
                "README.md does not name the feature `zk`",
            ]
        );
        assert_eq!(
            found(readme, "[other](guides::sql), `lead`, zk", &registry),
            [
                "src/guides.md has no link to docs/backends/sql-schema.md, which is `guides::sql_schema`",
                "src/lib.rs has no link to `macro@lead`",
                "src/lib.rs does not name the feature `zk`",
            ]
        );
        assert_eq!(
            found(readme, front, &format!("{GUIDES}sql/index.html")),
            [
                format!("src/registry.md has no link to {GUIDES}index.html"),
                "src/registry.md: there is no guide sql".to_owned(),
            ]
        );
    }
}
