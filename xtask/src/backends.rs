//! The cargo features of `dlock`, and what each backend may bring along.

use anyhow::{Context, Result, bail};

use crate::run::cargo;

/// The package whose library is `dlock`.
pub(crate) const FACADE: &str = "dlock-sdk";

/// Every backend that `dlock` has or may get, and the crates that only a build with its feature may contain.
const DRIVERS: &[(&str, &[&str])] = &[
    ("redis", &["dlock-redis", "redis"]),
    ("etcd", &["dlock-etcd", "etcd-client"]),
    ("zk", &["dlock-zk", "zookeeper-client"]),
    ("sqlite", &["sqlx-sqlite", "libsqlite3-sys"]),
    ("postgres", &["sqlx-postgres"]),
    ("mysql", &["sqlx-mysql"]),
];

/// Crates that no build without a backend may contain.
const SHARED_DRIVERS: &[&str] = &["dlock-sql", "sqlx", "sqlx-core"];

/// Crates of features that are no backend, which no build without these features may contain.
const ON_REQUEST: &[&str] = &["dlock-audit", "dlock-quorum", "opentelemetry", "tracing-opentelemetry"];

/// Features that are no backend.
const OTHER_FEATURES: &[&str] = &[
    "audit",
    "etcd-tls",
    "macros",
    "mysql-tls",
    "otel",
    "postgres-tls",
    "quorum",
    "redis-credentials",
    "redis-tls",
    "serde",
    "sql-tx",
    "zk-sasl",
    "zk-tls",
];

/// The features that `dlock` has, but for that of those which are on by default.
pub(crate) fn all_features() -> Result<Vec<String>> {
    let text = cargo(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .read()
        .or_else(|_| cargo(["metadata", "--format-version=1", "--no-deps"]).read())?;
    let metadata: serde_json::Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let dlock =
        packages.iter().find(|package| package["name"] == FACADE).context("there is no package dlock-sdk")?;
    let features = dlock["features"].as_object().context("dlock has no features")?;
    Ok(features.keys().filter(|name| *name != "default").cloned().collect())
}

/// The backends that `dlock` has now.
pub(crate) fn features() -> Result<Vec<String>> {
    let mut backends = all_features()?;
    backends.retain(|name| !OTHER_FEATURES.contains(&name.as_str()));
    for backend in &backends {
        if !DRIVERS.iter().any(|(name, _)| name == backend) {
            bail!("the feature `{backend}` of dlock is new; list it in xtask/src/backends.rs");
        }
    }
    Ok(backends)
}

/// A build with one backend compiles the driver of no other, and one without a backend compiles none.
pub(crate) fn are_separate() -> Result<()> {
    let backends = features()?;
    let bare = crates(&[])?;
    let drivers = DRIVERS.iter().flat_map(|(_, crates)| *crates).chain(SHARED_DRIVERS).chain(ON_REQUEST);
    if let Some(driver) = drivers.into_iter().find(|driver| bare.iter().any(|name| name == *driver)) {
        bail!("a build of dlock with its default features contains {driver}");
    }
    println!("default features: {} crates, no driver", bare.len());
    for backend in &backends {
        let found = crates(&["--features", backend])?;
        for (other, crates) in DRIVERS {
            let of_it = crates.iter().filter(|driver| found.iter().any(|name| name == *driver)).count();
            if other == backend && of_it == 0 {
                bail!("the feature `{backend}` brings none of {crates:?}; correct xtask/src/backends.rs");
            }
            if other != backend && of_it > 0 {
                bail!(
                    "a build with only the feature `{backend}` contains a driver of `{other}` ({crates:?})"
                );
            }
        }
        if let Some(optional) = ON_REQUEST.iter().find(|name| found.iter().any(|of| of == *name)) {
            bail!("a build with only the feature `{backend}` contains {optional}");
        }
        println!("{backend}: {} crates, no driver of another backend", found.len());
    }
    Ok(())
}

/// The names of the crates that a user's build of `dlock` contains.
fn crates(features: &[&str]) -> Result<Vec<String>> {
    let tree = cargo(["tree", "--package", FACADE, "--edges", "normal,build", "--prefix", "none"]);
    let text = tree.args(["--no-dedupe", "--format", "{p}"]).args(features.iter().copied()).read()?;
    let mut names: Vec<String> =
        text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
