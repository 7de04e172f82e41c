//! Programs that the checks need, and how to get them.
//!
//! A missing one is installed; where that cannot be done the run fails and names the command. Nothing is skipped.

use anyhow::{Error, Result, anyhow};

use crate::run::program;

/// A program from outside of the workspace.
pub(crate) struct Need {
    /// What proves that it is there: a command that succeeds.
    probe: &'static [&'static str],
    source: Source,
}

/// Where a program comes from.
enum Source {
    /// A component of the Rust toolchain.
    Rustup(&'static str),
    /// A toolchain of Rust.
    Toolchain(&'static str),
    /// The standard library of another platform.
    Target(&'static str),
    /// A package of Debian.
    Apt(&'static str),
    /// A program that cargo compiles.
    Cargo(&'static str),
}

/// For `lint`.
pub(crate) const LINT: &[Need] = &[
    Need { probe: &["cargo", "fmt", "--version"], source: Source::Rustup("rustfmt") },
    Need { probe: &["cargo", "clippy", "--version"], source: Source::Rustup("clippy") },
    C_COMPILER,
    PROTOC,
    PROTOBUF,
];

/// For the check of other platforms, on which people develop.
pub(crate) const PLATFORMS: &[Need] = &[
    Need {
        probe: &["sh", "-c", "ls \"$(rustc --print sysroot)/lib/rustlib/x86_64-pc-windows-gnu/lib\""],
        source: Source::Target("x86_64-pc-windows-gnu"),
    },
    Need {
        probe: &["sh", "-c", "ls \"$(rustc --print sysroot)/lib/rustlib/x86_64-apple-darwin/lib\""],
        source: Source::Target("x86_64-apple-darwin"),
    },
];

/// For `test`. A server that tests start is one more line here.
pub(crate) const TEST: &[Need] = &[
    C_COMPILER,
    PROTOC,
    PROTOBUF,
    REDIS,
    JAVA,
    ZOOKEEPER,
    POSTGRES,
    PSQL,
    PGBOUNCER,
    MARIADB,
    MARIADB_CLIENT,
    ETCD,
    ETCDCTL,
];

const JAVA: Need = Need { probe: &["java", "-version"], source: Source::Apt("default-jre-headless") };
const ZOOKEEPER: Need =
    Need { probe: &["test", "-f", "/usr/share/java/zookeeper.jar"], source: Source::Apt("zookeeper") };
const ETCD: Need = Need { probe: &["etcd", "--version"], source: Source::Apt("etcd-server") };
const ETCDCTL: Need = Need { probe: &["etcdctl", "version"], source: Source::Apt("etcd-client") };
const REDIS: Need = Need { probe: &["redis-server", "--version"], source: Source::Apt("redis-server") };

// Debian keeps the server itself out of `PATH`.
const POSTGRES: Need = Need {
    probe: &["sh", "-c", "command -v postgres || ls /usr/lib/postgresql/*/bin/postgres"],
    source: Source::Apt("postgresql"),
};
const PSQL: Need = Need { probe: &["psql", "--version"], source: Source::Apt("postgresql-client") };
const PGBOUNCER: Need = Need {
    probe: &["sh", "-c", "PATH=$PATH:/usr/sbin; command -v pgbouncer"],
    source: Source::Apt("pgbouncer"),
};
const MARIADB: Need = Need {
    probe: &["sh", "-c", "PATH=$PATH:/usr/sbin; command -v mariadbd"],
    source: Source::Apt("mariadb-server"),
};
const MARIADB_CLIENT: Need = Need { probe: &["mariadb", "--version"], source: Source::Apt("mariadb-client") };

/// For the benches of the database servers.
pub(crate) const SQL: &[Need] = &[C_COMPILER, POSTGRES, PSQL, MARIADB, MARIADB_CLIENT];

/// For `mysql8`.
pub(crate) const MYSQL8: &[Need] = &[
    C_COMPILER,
    MARIADB_CLIENT,
    Need { probe: &["mvn", "--version"], source: Source::Apt("maven") },
    Need { probe: &["unzip", "-v"], source: Source::Apt("unzip") },
];

/// For `zookeeper`.
pub(crate) const OTHER_ZOOKEEPER: &[Need] =
    &[C_COMPILER, JAVA, Need { probe: &["mvn", "--version"], source: Source::Apt("maven") }];

/// For `interop` and the benches that compare with Java libraries.
pub(crate) const INTEROP: &[Need] = &[
    PROTOC,
    PROTOBUF,
    REDIS,
    ZOOKEEPER,
    POSTGRES,
    PSQL,
    ETCD,
    ETCDCTL,
    Need { probe: &["javac", "-version"], source: Source::Apt("default-jdk-headless") },
    Need { probe: &["mvn", "--version"], source: Source::Apt("maven") },
    GO,
    Need { probe: &["python3", "-c", "import venv, ensurepip"], source: Source::Apt("python3-venv") },
];

/// For the bench on etcd.
pub(crate) const ETCD_AND_GO: &[Need] = &[C_COMPILER, PROTOC, PROTOBUF, ETCD, ETCDCTL, GO];

const GO: Need = Need { probe: &["go", "version"], source: Source::Apt("golang-go") };

/// For `reliability`.
pub(crate) const RELIABILITY: &[Need] = &[
    C_COMPILER,
    PROTOC,
    PROTOBUF,
    REDIS,
    JAVA,
    ZOOKEEPER,
    POSTGRES,
    PSQL,
    MARIADB,
    MARIADB_CLIENT,
    ETCD,
    ETCDCTL,
    // Gives processes a wall clock of their own.
    Need { probe: &["faketime", "--version"], source: Source::Apt("faketime") },
];

/// For `before-publishing`.
pub(crate) const PUBLISH: &[Need] = &[
    C_COMPILER,
    PROTOC,
    PROTOBUF,
    Need { probe: &["cargo", "deny", "--version"], source: Source::Cargo("cargo-deny") },
    Need { probe: &["cargo", "hack", "--version"], source: Source::Cargo("cargo-hack") },
];

/// For the spelling.
pub(crate) const SPELLING: &[Need] =
    &[Need { probe: &["typos", "--version"], source: Source::Cargo("typos-cli") }];

/// For `sbom`.
pub(crate) const SBOM: &[Need] =
    &[Need { probe: &["cargo", "cyclonedx", "--version"], source: Source::Cargo("cargo-cyclonedx") }];

/// For `mutants`.
pub(crate) const MUTANTS: &[Need] =
    &[C_COMPILER, Need { probe: &["cargo", "mutants", "--version"], source: Source::Cargo("cargo-mutants") }];

/// For `fuzz`, whose compiler is nightly.
pub(crate) const FUZZ: &[Need] = &[
    C_COMPILER,
    Need { probe: &["rustup", "run", "nightly", "rustc", "--version"], source: Source::Toolchain("nightly") },
    Need { probe: &["cargo", "fuzz", "--version"], source: Source::Cargo("cargo-fuzz") },
];

/// For the comparison with the last release, which needs one.
pub(crate) const SEMVER: &[Need] =
    &[Need { probe: &["cargo", "semver-checks", "--version"], source: Source::Cargo("cargo-semver-checks") }];

/// For `pictures`.
pub(crate) const PICTURES: &[Need] = &[
    REDIS,
    Need { probe: &["prometheus", "--version"], source: Source::Apt("prometheus") },
    Need { probe: &["go", "version"], source: Source::Apt("golang") },
];

/// SQLite is compiled from its C source.
const C_COMPILER: Need = Need { probe: &["cc", "--version"], source: Source::Apt("build-essential") };

/// What is sent to etcd is compiled from its description, by whatever is built with the backend for it.
const PROTOC: Need = Need { probe: &["protoc", "--version"], source: Source::Apt("protobuf-compiler") };

/// The descriptions that protoc brings along, which Debian has in a package of their own.
const PROTOBUF: Need = Need {
    probe: &[
        "sh",
        "-c",
        "echo 'syntax = \"proto3\"; import \"google/protobuf/descriptor.proto\";' \
         | protoc -I /dev --descriptor_set_out=/dev/null /dev/stdin",
    ],
    source: Source::Apt("libprotobuf-dev"),
};

/// Installs what is missing.
pub(crate) fn install(needs: &[Need]) -> Result<()> {
    let (there, missing): (Vec<&Need>, Vec<&Need>) = needs.iter().partition(|need| need.is_there());
    there.iter().for_each(|need| println!("{}: there", need.probe.join(" ")));
    let packages: Vec<&str> = missing.iter().filter_map(|need| need.source.package()).collect();
    // Debian's packages all at once: each call reads the lists anew.
    let mut why = if packages.is_empty() { None } else { install_packages(&packages).err() };
    for need in missing {
        if need.source.package().is_none() {
            why = need.source.install().err();
        }
        if !need.is_there() {
            return Err(need.missing(why));
        }
    }
    Ok(())
}

fn install_packages(packages: &[&str]) -> Result<()> {
    as_root(&["apt-get", "update"])?;
    as_root(&[&["apt-get", "install", "--yes", "--no-install-recommends"], packages].concat())
}

/// Returns the platforms that these are for.
pub(crate) fn targets(needs: &[Need]) -> impl Iterator<Item = &'static str> {
    needs.iter().filter_map(|need| need.source.target())
}

impl Need {
    fn is_there(&self) -> bool {
        program(self.probe[0]).args(self.probe[1..].iter().copied()).succeeds()
    }

    fn missing(&self, why: Option<Error>) -> Error {
        let why = why.map_or_else(String::new, |why| format!(" ({why:#})"));
        anyhow!("`{}` does not run{why}; install it with: {}", self.probe.join(" "), self.source.command())
    }
}

impl Source {
    /// Returns the platform that it is for, if that is another one.
    const fn target(&self) -> Option<&'static str> {
        match self {
            Self::Target(target) => Some(target),
            Self::Rustup(_) | Self::Toolchain(_) | Self::Apt(_) | Self::Cargo(_) => None,
        }
    }

    /// Returns the package of Debian that it is.
    const fn package(&self) -> Option<&'static str> {
        match self {
            Self::Apt(package) => Some(package),
            Self::Rustup(_) | Self::Toolchain(_) | Self::Target(_) | Self::Cargo(_) => None,
        }
    }

    /// What a person would type.
    fn command(&self) -> String {
        match self {
            Self::Rustup(component) => format!("rustup component add {component}"),
            Self::Toolchain(name) => format!("rustup toolchain install {name}"),
            Self::Target(target) => format!("rustup target add {target}"),
            Self::Cargo(package) => format!("cargo install --locked {package}"),
            Self::Apt(package) => format!("sudo apt-get update && sudo apt-get install --yes {package}"),
        }
    }

    fn install(&self) -> Result<()> {
        match self {
            Self::Rustup(component) => program("rustup").args(["component", "add", *component]).run(),
            Self::Toolchain(name) => {
                program("rustup").args(["toolchain", "install", *name, "--profile", "minimal"]).run()
            }
            Self::Target(target) => program("rustup").args(["target", "add", *target]).run(),
            Self::Cargo(package) => program("cargo").args(["install", "--locked", package]).run(),
            Self::Apt(package) => install_packages(&[*package]),
        }
    }
}

fn as_root(words: &[&str]) -> Result<()> {
    let sudo = !program("id").args(["-u"]).read().is_ok_and(|id| id.trim() == "0");
    let words: Vec<&str> =
        if sudo { ["sudo", "-n"].iter().chain(words).copied().collect() } else { words.to_vec() };
    program(words[0]).args(words[1..].iter().copied()).env("DEBIAN_FRONTEND", "noninteractive").run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_command_that_installs_it() {
        for (source, command) in [
            (Source::Apt("no-such-package"), "apt-get install --yes no-such-package"),
            (Source::Target("no-such-platform"), "rustup target add no-such-platform"),
        ] {
            let need = Need { probe: &["no-such-program-of-dlock"], source };
            assert!(!need.is_there());
            let error = need.missing(Some(anyhow!("no network"))).to_string();
            for part in ["no-such-program-of-dlock", "no network", command] {
                assert!(error.contains(part), "{part} is missing in: {error}");
            }
        }
    }
}
