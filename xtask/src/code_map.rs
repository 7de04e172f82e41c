//! The code map of ARCHITECTURE.md: what it names is there, and what is in dlock-core is named.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::lint::SourceFile;

const PAGE: &str = "ARCHITECTURE.md";

/// Of which every file is named.
const COMPLETE: &str = "dlock-core/src/";

/// Every file that the map names exists, and every file of dlock-core is named.
pub(crate) fn check(sources: &[SourceFile]) -> Result<()> {
    let page = sources.iter().find(|source| source.path == PAGE).context("there is no ARCHITECTURE.md")?;
    let map = page.text.split("\n## ").find_map(|part| part.strip_prefix("Code map\n"));
    let map = map.context("ARCHITECTURE.md has no code map")?;
    let files: BTreeSet<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let (named, missing) = read(map, &files);
    if !missing.is_empty() {
        bail!("the code map of {PAGE} names what does not exist: {}", missing.join(", "));
    }
    let is_named = |file: &str| named.iter().any(|path| file == path || is_folder_of(path, file));
    let unnamed: Vec<_> =
        files.iter().filter(|file| file.starts_with(COMPLETE) && !is_named(file)).copied().collect();
    if !unnamed.is_empty() {
        bail!("the code map of {PAGE} does not say what is in {}", unnamed.join(", "));
    }
    println!("{} files and folders in the code map", named.len());
    Ok(())
}

fn is_folder_of(path: &str, file: &str) -> bool {
    path.ends_with('/') && file.starts_with(path)
}

/// The files and folders that the map names and that exist, and the others as they are written there.
fn read(map: &str, files: &BTreeSet<&str>) -> (BTreeSet<String>, Vec<String>) {
    let (mut named, mut missing, mut folders) = (BTreeSet::new(), Vec::new(), Vec::new());
    for line in map.lines() {
        let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
        if line.starts_with("### ") {
            folders = quoted;
            continue;
        }
        for path in quoted.into_iter().filter(|text| is_path(text)) {
            let exists = |full: &String| files.iter().any(|file| file == full || is_folder_of(full, file));
            match places(&folders, path).find(exists) {
                Some(full) => _ = named.insert(full),
                None => missing.push(path.to_owned()),
            }
        }
    }
    (named, missing)
}

/// Whether what is quoted is a file of Rust or a folder.
fn is_path(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    text.bytes().all(is_name) && (text.ends_with(".rs") || text.ends_with('/'))
}

/// Where a path may be: below what the heading names, or a folder around that, or at the root.
fn places(folders: &[&str], path: &str) -> impl Iterator<Item = String> {
    let around = folders.iter().flat_map(|folder| {
        let ends = folder.match_indices('/').map(|(end, _)| end).chain([folder.len()]);
        ends.map(|end| &folder[..end]).collect::<Vec<_>>().into_iter().rev()
    });
    around.map(move |folder| format!("{folder}/{path}")).chain([path.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lint(map: &str, files: &[&str]) -> Result<()> {
        let file = |path: &str, text: &str| SourceFile { path: path.into(), text: text.into() };
        let page = file(PAGE, &format!("# Architecture\n\n## Code map\n\n{map}\n## Other\n`gone.rs`\n"));
        let files: Vec<_> = files.iter().map(|path| file(path, "")).chain([page]).collect();
        check(&files)
    }

    #[test]
    fn a_file_that_is_named_has_to_exist_and_one_of_dlock_core_has_to_be_named() {
        let map = "### `dlock-core/src/engine`\n| it | `mod.rs`, `../x`, over `key.rs`, `keep/` |\n`src/lib.rs` `a b.rs`\n";
        let files = [
            "dlock-core/src/engine/mod.rs",
            "dlock-core/src/key.rs",
            "dlock-core/src/engine/keep/a.rs",
            "src/lib.rs",
        ];
        lint(map, &files).unwrap();
        for missing in 0..files.len() {
            let mut left = files.to_vec();
            left.remove(missing);
            assert!(
                lint(map, &left).unwrap_err().to_string().contains("does not exist"),
                "{}",
                files[missing]
            );
        }
        let more = [files.as_slice(), &["dlock-core/src/engine/new.rs"]].concat();
        assert!(lint(map, &more).unwrap_err().to_string().ends_with("engine/new.rs"));
    }
}
