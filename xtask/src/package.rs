//! What a registry would get: the packages of the crates that are meant for one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::backends::FACADE;
use crate::run::{Step, cargo, program, root};

/// Every crate that is meant for a registry. The others are tests, tools and examples.
pub(crate) const PUBLISHED: &[&str] = &[
    "dlock-audit",
    "dlock-core",
    "dlock-etcd",
    "dlock-macros",
    "dlock-quorum",
    "dlock-redis",
    "dlock-sql",
    "dlock-zk",
    FACADE,
    "dlock-cli",
    "dlock-testkit",
    "dlock-tower",
];

/// What a package may consist of, beside what is in its `src`.
const BESIDE_SRC: &[&str] = &[
    ".cargo_vcs_info.json",
    "Cargo.lock",
    "Cargo.toml",
    "Cargo.toml.orig",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "README.md",
];

/// Packages every published crate, and looks that a package has what it needs and nothing else.
pub(crate) fn packages_are_whole() -> Result<()> {
    package().map(drop)
}

/// Compiles what the packages contain, on nothing but each other.
fn packages_compile() -> Result<()> {
    let packages = package()?;
    let members: Vec<_> = packages.iter().map(|(_, directory)| quoted(directory)).collect();
    let patches: Vec<_> = packages
        .iter()
        .map(|(name, directory)| format!("{name} = {{ path = {} }}\n", quoted(directory)))
        .collect();
    let workspace = area().join("unpacked");
    fs::create_dir_all(&workspace)?;
    let manifest = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n[patch.crates-io]\n{}",
        members.join(", "),
        patches.concat()
    );
    fs::write(area().join("Cargo.toml"), manifest)?;
    fs::copy(root().join("Cargo.lock"), area().join("Cargo.lock"))?;
    let manifest = area().join("Cargo.toml").display().to_string();
    cargo(["check", "--quiet", "--workspace", "--all-features", "--manifest-path", &manifest])
        .args(["--target-dir".into(), root().join("target")])
        .run()
}

/// What takes too long for each change: licences and duplicates of all dependencies, and features in pairs.
pub(crate) fn before_publishing() -> Vec<Step> {
    vec![
        Step::new("what this needs", || crate::needs::install(crate::needs::PUBLISH)),
        Step::new("packages compile", packages_compile),
        Step::new("licences, sources and duplicates", || {
            cargo(["deny", "--all-features", "check", "bans", "licenses", "sources"]).run()
        }),
        Step::new("features in pairs", || {
            cargo(["hack", "check", "--package", FACADE, "--feature-powerset", "--depth", "2"])
                .args(["--exclude-features", "default"])
                .run()
        }),
        Step::new("the oldest Rust", || {
            let packages = PUBLISHED.iter().flat_map(|name| ["--package", name]);
            cargo(["hack", "check", "--rust-version", "--lib", "--bins"]).args(packages).run()
        }),
        Step::new("no break since the last release", nothing_is_broken),
    ]
}

/// Looks for known holes in dependencies, and for those that are withdrawn or no longer maintained. Without the
/// database of these nothing is known, which is printed and no failure.
pub(crate) fn advisories() -> Result<()> {
    let check = || cargo(["deny", "--all-features", "check", "--disable-fetch", "advisories"]);
    let fetched = cargo(["deny", "--all-features", "fetch", "db"]).run();
    match fetched {
        Ok(()) => check().run(),
        Err(error) if has_database() => {
            println!("{error:#}: the database that is here may be old");
            check().run()
        }
        Err(error) => {
            println!("NOT CHECKED: the RustSec database is not here and cannot be fetched ({error:#})");
            Ok(())
        }
    }
}

/// Whether an earlier run has fetched the database of advisories.
fn has_database() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let databases = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    // Each is a checkout; a lock file lies there whether one was fetched or not.
    databases.is_some_and(|mut all| all.any(|one| one.is_ok_and(|one| one.path().join(".git").exists())))
}

/// Compares what each library offers with the last release, by the rules of semantic versioning.
fn nothing_is_broken() -> Result<()> {
    let tags = program("git").args(["tag", "--list", "v*", "--sort=-version:refname"]).read()?;
    let Some(last) = tags.lines().next() else {
        println!("there is no release to compare with: no tag begins with `v`");
        return Ok(());
    };
    crate::needs::install(crate::needs::SEMVER)?;
    let libraries = PUBLISHED.iter().filter(|name| **name != "dlock-cli" && **name != "dlock-macros");
    cargo(["semver-checks", "--all-features", "--baseline-rev", last])
        .args(libraries.flat_map(|name| ["--package", name]))
        .run()
}

/// Where packages are made.
fn area() -> PathBuf {
    root().join("target/publish")
}

/// The names of the packages, and where each lies unpacked.
fn package() -> Result<Vec<(&'static str, PathBuf)>> {
    let source = area().join("source");
    if area().exists() {
        fs::remove_dir_all(area())?;
    }
    copy_tracked_files(&source)?;
    // A workspace that may not be published cannot be packaged as a whole.
    let manifest = source.join("Cargo.toml");
    let text = fs::read_to_string(&manifest)?;
    fs::write(&manifest, text.replacen("publish = false", "publish = true", 1))?;
    let manifest = manifest.display().to_string();
    cargo(["package", "--quiet", "--no-verify", "--allow-dirty", "--manifest-path", &manifest])
        .args(["--target-dir".into(), area()])
        .args(PUBLISHED.iter().flat_map(|name| ["--package", name]))
        .run()?;
    let version = env!("CARGO_PKG_VERSION");
    let packages = PUBLISHED
        .iter()
        .map(|name| {
            let stem = format!("{name}-{version}");
            let archive = area().join(format!("package/{stem}.crate")).display().to_string();
            let unpacked = area().join("unpacked");
            fs::create_dir_all(&unpacked)?;
            program("tar").args(["-xzf", &*archive, "-C", &*unpacked.display().to_string()]).run()?;
            Ok((*name, unpacked.join(stem)))
        })
        .collect::<Result<Vec<_>>>()?;
    for (name, directory) in &packages {
        contains_what_it_needs(name, directory)?;
    }
    println!("{} packages: source, licences and a page each", packages.len());
    Ok(packages)
}

/// Sources and licences, the guides in the facade, a manifest with all addresses; no tests and no pictures.
fn contains_what_it_needs(name: &str, directory: &Path) -> Result<()> {
    let entries = entries(directory)?;
    let is_own = |entry: &str| entry == "src" || (entry == "docs" && name == FACADE);
    let foreign: Vec<_> = entries
        .iter()
        .filter(|entry| !is_own(entry) && !BESIDE_SRC.contains(&entry.as_str()))
        .map(String::as_str)
        .collect();
    if !foreign.is_empty() {
        bail!("the package {name} contains {}", foreign.join(", "));
    }
    for needed in ["src", "LICENSE-APACHE", "LICENSE-MIT"] {
        if !entries.iter().any(|entry| entry == needed) {
            bail!("the package {name} has no {needed}");
        }
    }
    let manifest = fs::read_to_string(directory.join("Cargo.toml"))?;
    for address in ["repository", "homepage", "documentation"] {
        if !manifest.lines().any(|line| line.starts_with(&format!("{address} = \"https://"))) {
            bail!("the manifest of {name} has no {address}");
        }
    }
    Ok(())
}

/// Copies what the repository contains, links as the files that they stand for.
pub(crate) fn copy_tracked_files(to: &Path) -> Result<()> {
    let files =
        program("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]).read()?;
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root().join(file), to.join(file));
        // A file that was deleted is listed until that is committed.
        if !from.is_file() {
            continue;
        }
        fs::create_dir_all(to.parent().context("a file has a directory")?)?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<String>> {
    let listed = fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    listed.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// A path as TOML has it.
fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}
