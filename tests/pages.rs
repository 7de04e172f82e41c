//! The pages name everything that there is, and what is there.

use dlock::{Backend, Memory};

const TROUBLESHOOTING: &str = include_str!("../docs/troubleshooting.md");
const ATTRIBUTE: &str = include_str!("../src/macro.md");
const COMING_FROM: &str = include_str!("../docs/coming-from.md");
const README: &str = include_str!("../README.md");
const KINDS: &str = include_str!("../dlock-core/src/failure.rs");
const OPTIONS: &str = include_str!("../dlock-macros/src/args.rs");
const VERSIONS: &str = include_str!("../docs/versions.md");
const NIGHTLY: &str = include_str!("../.github/workflows/nightly.yml");

/// What begins the rows of the page's tables.
fn rows(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

#[test]
fn every_kind_of_error_has_a_row_in_troubleshooting_md() {
    let (_, kinds) = KINDS.split_once("pub enum ErrorKind {\n").expect("the kinds are there");
    let (kinds, _) = kinds.split_once("\n}").expect("they end");
    let mut kinds: Vec<&str> = kinds
        .lines()
        .filter_map(|line| line.trim().strip_suffix(',').filter(|name| name.chars().all(char::is_alphabetic)))
        .collect();
    let mut rows = rows(TROUBLESHOOTING);
    assert!(kinds.len() > 10, "{kinds:?}");
    kinds.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, kinds);
}

#[test]
fn every_option_of_the_attribute_has_a_row_in_its_reference() {
    let (_, options) = OPTIONS.split_once("const OPTIONS: ").expect("the options are there");
    let (options, _) = options.split_once("];").expect("they end");
    let mut options: Vec<&str> =
        options.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect();
    let mut rows = rows(ATTRIBUTE);
    assert!(options.len() > 10, "{options:?}");
    options.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, options);
}

#[test]
fn no_ability_of_dlock_is_said_to_be_missing_to_those_who_come_from_another_library() {
    let has = Memory::new().capabilities();
    let abilities = [
        ("readwrite", has.shared),
        ("readerwriter", has.shared),
        ("semaphore", has.permits),
        ("fair", has.fair || has.fair_on_request),
        ("leader", true),
        ("election", true),
        ("multilock", true),
    ];
    let missing: Vec<&str> = COMING_FROM
        .lines()
        .filter(|line| line.starts_with('|') && (line.contains("| not there") || line.contains("| no ")))
        .filter(|line| {
            let call = line.split('|').nth(1).unwrap_or_default().to_lowercase();
            abilities.iter().any(|(name, there)| *there && call.contains(name))
        })
        .collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn the_oldest_rust_of_each_backend_is_that_of_its_manifest() {
    for (feature, manifest) in [
        ("redis", include_str!("../dlock-redis/Cargo.toml")),
        ("zk", include_str!("../dlock-zk/Cargo.toml")),
        // It has that of the workspace.
        ("sqlite", include_str!("../Cargo.toml")),
        ("postgres", include_str!("../Cargo.toml")),
        ("mysql", include_str!("../Cargo.toml")),
    ] {
        let oldest =
            manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.split('"').next());
        let oldest = format!("| {} |", oldest.expect("the manifest names it"));
        let row = README.lines().find(|line| line.contains(&format!("| `{feature}`")));
        let row = row.expect("README.md has a row for the feature");
        assert!(row.contains(&oldest), "{row} has not {oldest}");
    }
}

/// The row of versions.md that begins with `begin`.
fn row_of(begin: &str) -> &'static str {
    VERSIONS.lines().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("a row {begin}"))
}

#[test]
fn the_servers_that_are_tested_each_night_are_in_versions_md() {
    let lists = NIGHTLY.lines().filter_map(|line| line.trim().split_once(": [\""));
    let mut tested = 0;
    for (kind, list) in lists {
        for name in list.trim_end_matches("\"]").split("\", \"") {
            let (server, version) = name.rsplit_once(':').unwrap_or(("zookeeper", name));
            let row = match server {
                "redis" => row_of("| [Redis]"),
                "valkey/valkey" => row_of("| [Valkey]"),
                "zookeeper" => row_of("| [ZooKeeper]"),
                other => panic!("no row for {other}"),
            };
            assert!(matches!(kind, "image" | "version"), "{kind}");
            assert!(row.contains(version), "{name}: {row}");
            tested += 1;
        }
    }
    assert!(tested >= 6, "{tested}");
}

#[test]
fn the_oldest_rust_of_each_crate_is_in_versions_md() {
    const ROOT: &str = include_str!("../Cargo.toml");
    let version = |manifest: &'static str| {
        let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version"));
        line.expect("a version of Rust").trim_start_matches(" = ")
    };
    let (of_the_workspace, package) = ROOT.split_once("[package]").expect("a package");
    for (begin, manifests) in [
        ("| the facade without", &[package, include_str!("../dlock-tower/Cargo.toml")][..]),
        ("| with `zk`", &[include_str!("../dlock-zk/Cargo.toml")]),
        (
            "| with `sqlite`",
            &[include_str!("../dlock-sql/Cargo.toml"), include_str!("../dlock-cli/Cargo.toml")],
        ),
    ] {
        for manifest in manifests {
            let oldest = match version(manifest) {
                ".workspace = true" => version(of_the_workspace),
                own => own,
            };
            assert!(row_of(begin).contains(oldest.trim_matches('"')), "{begin}: {oldest}");
        }
    }
}
