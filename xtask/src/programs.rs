//! The programs of tests that cargo builds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::run::cargo;

/// A program with the tests of one target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// The name of the target; `unit` for the tests inside a library.
    pub(crate) target: String,
    pub(crate) path: PathBuf,
    /// The directory of the package, in which cargo runs the program.
    pub(crate) directory: PathBuf,
}

/// Builds the tests of `packages`, with every feature, and lists their programs by name; of the targets that are only
/// for tests, those that are `wanted` by package and name, and others of such a name.
pub(crate) fn build(packages: &BTreeSet<&str>, wanted: impl Fn(&str, &str) -> bool) -> Result<Vec<Program>> {
    let mut targets = BTreeSet::new();
    for (package, target) in targets_of_workspace()? {
        if packages.contains(&*package) && target["kind"][0] == "test" {
            targets.extend(target["name"].as_str().filter(|name| wanted(&package, name)).map(str::to_owned));
        }
    }
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    // The test of the examples runs them. `cargo test --examples` would build the tests inside them and not their
    // programs; the packages are all of them, or dependencies would be built again with fewer features.
    if targets.contains("examples_run") {
        cargo(["build", "--all-features", "--examples"]).args(packages.clone()).run()?;
    }
    let targets = targets.iter().flat_map(|target| ["--test", target]);
    list(&packages.chain(["--lib", "--bins"]).chain(targets).collect::<Vec<_>>())
}

/// Builds all tests of the workspace, with every feature, and lists their programs by name.
pub(crate) fn build_all() -> Result<Vec<Program>> {
    list(&["--workspace"])
}

/// Lists the packages of the workspace whose documentation has examples to run, as their manifests say: `cargo test
/// --doc` with the name of a package overrules its manifest.
pub(crate) fn documented() -> Result<BTreeSet<String>> {
    let libraries = targets_of_workspace()?.into_iter().filter(|(_, target)| has_documentation(target));
    Ok(libraries.map(|(package, _)| package).collect())
}

fn has_documentation(target: &Value) -> bool {
    (target["kind"][0] == "lib" || target["kind"][0] == "proc-macro") && target["doctest"] == true
}

/// Reads the targets of all packages of the workspace, each with the name of its package.
fn targets_of_workspace() -> Result<Vec<(String, Value)>> {
    let metadata = cargo(["metadata", "--no-deps", "--format-version", "1"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let of = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = of(&metadata["packages"]).into_iter().filter_map(|package| {
        let name = package["name"].as_str()?.to_owned();
        Some(of(&package["targets"]).into_iter().map(move |target| (name.clone(), target)))
    });
    Ok(packages.flatten().collect())
}

fn list(selection: &[&str]) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    cargo(["test", "--no-run", "--all-features", "--message-format=json-render-diagnostics"])
        .args(selection.iter().copied())
        .run_and_take(|line| programs.extend(program(line)))?;
    programs.sort();
    println!("{} programs of tests", programs.len());
    Ok(programs)
}

/// Reads one message of cargo; `None` unless it announces a program of tests that the manifest does not leave out:
/// `cargo test --lib` builds the tests of a library with `test = false` as well.
fn program(message: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact"
        || message["profile"]["test"] != true
        || message["target"]["test"] == false
    {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = package(message["package_id"].as_str()?)?;
    let (kind, name) = (message["target"]["kind"][0].as_str()?, message["target"]["name"].as_str()?);
    let target = match kind {
        "test" => name.to_owned(),
        "bin" => format!("bin {name}"),
        _ => "unit".to_owned(),
    };
    Some(Program { package, target, path, directory })
}

/// The name in a package's ID, such as `path+file:///home/dlock/tests/rig#dlock-rig@0.1.0`. The ID leaves the name
/// out where it is that of the directory.
fn package(id: &str) -> Option<String> {
    let (place, rest) = id.rsplit_once('#')?;
    let name = rest.split_once('@').map_or_else(|| place.rsplit('/').next(), |(name, _)| Some(name));
    name.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_cargo_about_a_program_of_tests_is_read_and_others_are_not() {
        let message = |kind: &str, test: bool, id: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","manifest_path":"/d/tests/rig/Cargo.toml",
                "target":{{"kind":["{kind}"],"name":"proxy"}},"profile":{{"test":{test}}},"executable":"/d/t/proxy-1"}}"#
            )
        };
        let found = program(&message("test", true, "path+file:///d/tests/rig#dlock-rig@0.1.0")).unwrap();
        assert_eq!((&*found.package, &*found.target), ("dlock-rig", "proxy"));
        assert_eq!(found.directory, Path::new("/d/tests/rig"));
        let found = program(&message("lib", true, "path+file:///d/dlock-core#0.1.0")).unwrap();
        assert_eq!((&*found.package, &*found.target), ("dlock-core", "unit"));
        assert_eq!(program(&message("bin", false, "path+file:///d/dlock-cli#0.1.0")), None);
        let left_out = message("lib", true, "path+file:///d/tests/schedules#dlock-schedules@0.1.0")
            .replace(r#""name":"proxy""#, r#""name":"proxy","test":false"#);
        assert_eq!(program(&left_out), None);
        assert_eq!(program("not a message"), None);
    }

    #[test]
    fn the_documentation_of_each_library_is_tested_but_for_the_engine_under_another_name() {
        let documented = documented().unwrap();
        assert!(documented.contains("dlock-core") && documented.contains("dlock-macros"), "{documented:?}");
        assert!(!documented.contains("dlock-schedules"), "{documented:?}");
    }
}
