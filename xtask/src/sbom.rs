//! What a build of the published crates consists of, as a CycloneDX document.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::package::PUBLISHED;
use crate::run::{cargo, root};

/// Writes `target/dlock.cdx.json`: all crates that the published ones need at run time or to be built, on every
/// platform and with every feature, with version, licence and checksum. Downloads those of other platforms.
pub(crate) fn write() -> Result<()> {
    let metadata = cargo(["metadata", "--format-version", "1", "--locked", "--all-features"]).read()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("Cargo.lock")?;
    let document = document(&metadata, &checksums(&lock))?;
    let count = document["components"].as_array().map_or(0, Vec::len);
    let path = root().join("target/dlock.cdx.json");
    fs::write(&path, serde_json::to_string_pretty(&document)?)?;
    println!("{count} crates in {}", path.display());
    Ok(())
}

/// By name and version.
fn checksums(lock: &str) -> HashMap<(String, String), String> {
    let mut all = HashMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) = (field("name"), field("version"), field("checksum")) {
            all.insert((name, version), sum);
        }
    }
    all
}

fn list<'v>(value: &'v Value, name: &str) -> impl Iterator<Item = &'v Value> {
    value[name].as_array().into_iter().flatten()
}

fn text<'v>(value: &'v Value, name: &str) -> &'v str {
    value[name].as_str().unwrap_or_default()
}

fn document(metadata: &Value, checksums: &HashMap<(String, String), String>) -> Result<Value> {
    let packages: HashMap<&str, &Value> = list(metadata, "packages").map(|it| (text(it, "id"), it)).collect();
    let nodes: HashMap<&str, &Value> =
        list(&metadata["resolve"], "nodes").map(|it| (text(it, "id"), it)).collect();
    let name_of = |id: &str| packages.get(id).map_or("", |package| text(package, "name"));
    let mut open: Vec<&str> = list(metadata, "workspace_members").filter_map(Value::as_str).collect();
    open.retain(|id| PUBLISHED.contains(&name_of(id)));
    let mut found: BTreeMap<String, (&str, Vec<&str>)> = BTreeMap::new();
    while let Some(id) = open.pop() {
        let package = packages.get(id).with_context(|| format!("no package {id}"))?;
        if found.contains_key(&url(package)) {
            continue;
        }
        let is_needed =
            |dependency: &&Value| list(dependency, "dep_kinds").any(|kind| text(kind, "kind") != "dev");
        let node = nodes.get(id).with_context(|| format!("{id} was not resolved"))?;
        let needs: Vec<&str> = list(node, "deps").filter(is_needed).map(|it| text(it, "pkg")).collect();
        open.extend(&needs);
        found.insert(url(package), (id, needs));
    }
    let component = |id: &str| {
        let package = packages[id];
        let (name, version) = (text(package, "name"), text(package, "version"));
        let mut component = json!({
            "type": "library", "bom-ref": url(package), "name": name, "version": version, "purl": url(package),
        });
        if let Some(licence) = package["license"].as_str() {
            component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
        }
        if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    };
    let components: Vec<Value> = found.values().map(|(id, _)| component(id)).collect();
    let dependencies: Vec<Value> = found
        .iter()
        .map(|(of, (_, needs))| {
            let mut on: Vec<String> = needs.iter().map(|id| url(packages[id])).collect();
            on.sort();
            on.dedup();
            json!({ "ref": of, "dependsOn": on })
        })
        .collect();
    Ok(json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "components": components, "dependencies": dependencies,
    }))
}

fn url(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_has_what_a_build_needs_and_nothing_of_the_tests() {
        let package =
            |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT/Apache-2.0" });
        let needs = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package("dlock-core"), package("used"), package("builds"), package("tests")],
            "workspace_members": ["dlock-core"],
            "resolve": { "nodes": [
                { "id": "dlock-core", "deps": [
                    needs("used", Value::Null), needs("builds", json!("build")), needs("tests", json!("dev")),
                ] },
                { "id": "used", "deps": [] }, { "id": "builds", "deps": [] }, { "id": "tests", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"used\"\nversion = \"1.0.0\"\nchecksum = \"ab12\"\n";
        let document = document(&metadata, &checksums(lock)).unwrap();
        let names: Vec<&str> = list(&document, "components").map(|it| text(it, "name")).collect();
        assert_eq!(names, ["builds", "dlock-core", "used"]);
        assert_eq!(document["components"][2]["hashes"][0]["content"], "ab12");
        assert_eq!(document["components"][2]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(document["dependencies"][1]["dependsOn"].as_array().unwrap().len(), 2);
    }
}
