//! The name of dlock in the package that uses the attribute.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the package, which a manifest may rename.
const PACKAGE: &str = "dlock-sdk";
/// The name of its library, which applies where nothing is renamed.
const LIBRARY: &str = "dlock";

/// Returns the name of the crate, which is not `dlock` where the manifest says `name = { package = "dlock-sdk", … }`.
/// If the manifest cannot be read, the name is `dlock`: the compiler then says that there is none, and `crate = ::name`
/// helps.
pub(crate) fn name() -> String {
    let directory = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut manifests = directory.iter().flat_map(|directory| directory.ancestors()).filter_map(manifest);
    let own = manifests.next().unwrap_or_default();
    renamed(&own, manifests).unwrap_or_else(|| LIBRARY.to_owned())
}

fn manifest(directory: &Path) -> Option<String> {
    fs::read_to_string(directory.join("Cargo.toml")).ok()
}

/// Returns the new name, which `manifest` gives, or the manifest of the workspace for `name.workspace = true`.
fn renamed(manifest: &str, around: impl Iterator<Item = String>) -> Option<String> {
    let is_used = |wanted: &str| keys(manifest).any(|(key, _)| key == wanted);
    let own = names(manifest);
    if is_used(PACKAGE) || own.iter().any(|name| name == LIBRARY) {
        return None;
    }
    let inherited = around.flat_map(|manifest| names(&manifest)).filter(|name| is_used(name));
    let name = own.into_iter().chain(inherited).next()?;
    (name != LIBRARY).then(|| name.replace('-', "_"))
}

/// Returns the names under which a manifest has the package.
fn names(manifest: &str) -> Vec<String> {
    let is_ours = |value: &str| {
        let value: String = value.chars().filter(|c| !c.is_whitespace()).collect();
        value.contains(&format!("package=\"{PACKAGE}\""))
    };
    keys(manifest).filter(|(_, value)| is_ours(value)).map(|(key, _)| key.to_owned()).collect()
}

/// Returns the dependencies, each with the rest of its line. A dependency with a table of its own comes with each line
/// of the table.
fn keys(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut table = None;
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            table = header.split_once("dependencies.").map(|(_, name)| name.trim_matches('"'));
            return table.map(|name| (name, ""));
        }
        let (key, _) = line.split_once('=')?;
        let key = key.split('.').next().unwrap_or(key).trim().trim_matches('"');
        Some((table.unwrap_or(key), line))
    })
}

#[cfg(test)]
mod tests {
    use super::renamed;

    fn name(manifest: &str) -> Option<String> {
        renamed(manifest, std::iter::empty())
    }

    #[test]
    fn a_renamed_dependency_is_found_however_the_manifest_writes_it() {
        for manifest in [
            "[dependencies]\nour-locks = { package = \"dlock-sdk\", version = \"0.1\" }",
            "[dependencies]\nour-locks = {version=\"0.1\",package=\"dlock-sdk\"}",
            "[dependencies.our-locks]\nversion = \"0.1\"\npackage = \"dlock-sdk\"",
            "[target.'cfg(unix)'.dependencies.our-locks]\npackage = \"dlock-sdk\"",
        ] {
            assert_eq!(name(manifest).as_deref(), Some("our_locks"), "{manifest}");
        }
    }

    #[test]
    fn a_dependency_that_keeps_its_name_is_not_renamed() {
        for manifest in [
            "",
            "[dependencies]\ndlock-sdk = \"0.1\"",
            "[dependencies.dlock-sdk]\nversion = \"0.1\"",
            "[dependencies]\ndlock = { package = \"dlock-sdk\", version = \"0.1\" }",
            "[dependencies]\ndlock-sdk = \"0.1\"\nnext = { package = \"dlock-sdk\", git = \"…\" }",
            "[dependencies]\nother = { package = \"other-sdk\" }",
        ] {
            assert_eq!(name(manifest), None, "{manifest}");
        }
    }

    #[test]
    fn the_workspace_renames_what_a_member_inherits_and_nothing_else() {
        let workspace = || {
            let text = "[workspace.dependencies]\nlocks = { package = \"dlock-sdk\", path = \".\" }";
            std::iter::once(text.to_owned())
        };
        for member in
            ["[dependencies]\nlocks.workspace = true", "[dependencies]\nlocks = { workspace = true }"]
        {
            assert_eq!(renamed(member, workspace()).as_deref(), Some("locks"), "{member}");
        }
        assert_eq!(renamed("[dependencies]\nother.workspace = true", workspace()), None);
    }
}
