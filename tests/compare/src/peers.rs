//! The libraries that are compared, how their processes are started, and where each keeps a lock.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock_interop::collector::{of_the_project, said};
use dlock_interop::{java, other_clients};
use tokio::process::Command;

use crate::stage::Store;

/// How a process of a library is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// This program.
    Rust,
    Java,
    Go,
    Python,
}

/// A library on a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// What the command line and the table call it.
    pub(crate) name: &'static str,
    pub(crate) store: Store,
    language: Language,
    /// What its worker calls it.
    library: &'static str,
    /// What is added to the URL.
    parameters: &'static str,
    /// What stands in front of a key on the server.
    pub(crate) place: &'static str,
}

const fn peer(
    name: &'static str,
    store: Store,
    language: Language,
    library: &'static str,
    parameters: &'static str,
    place: &'static str,
) -> Peer {
    Peer { name, store, language, library, parameters, place }
}

/// In the order of the columns; dlock is the first of each store.
pub(crate) const PEERS: [Peer; 11] = [
    peer("dlock", Store::Redis, Language::Rust, "dlock", "", "dlock:"),
    peer("rslock", Store::Redis, Language::Rust, "rslock", "", ""),
    peer("Redisson", Store::Redis, Language::Java, "redisson", "", ""),
    peer("redsync", Store::Redis, Language::Go, "redsync", "", ""),
    peer("dlock", Store::ZooKeeper, Language::Rust, "dlock", "", "/dlock/"),
    peer("Curator", Store::ZooKeeper, Language::Java, "curator", "", "/locks/"),
    peer("go-zookeeper", Store::ZooKeeper, Language::Go, "zookeeper", "", "/locks/"),
    peer("kazoo", Store::ZooKeeper, Language::Python, "kazoo", "", "/locks/"),
    peer("dlock", Store::Postgres, Language::Rust, "dlock", "&migrate=true", ""),
    peer("dlock, sessions", Store::Postgres, Language::Rust, "dlock", "&migrate=true&mode=session", ""),
    peer("PgAdvisoryLock", Store::Postgres, Language::Rust, "advisory", "", ""),
];

impl Peer {
    /// Whether it is dlock, in any mode.
    pub(crate) fn is_dlock(&self) -> bool {
        self.library == "dlock"
    }

    /// Whether its locks end with a session, and not with a lease of their own.
    pub(crate) fn has_sessions(&self) -> bool {
        match self.store {
            Store::Redis => false,
            Store::ZooKeeper => true,
            Store::Postgres => self.name != "dlock",
        }
    }

    /// Whether a lock is renewed while it is held.
    pub(crate) fn renews(&self) -> bool {
        self.library != "redsync"
    }

    /// The command of a process that uses the server at `address`.
    pub(crate) fn command(
        &self,
        programs: &Programs,
        address: SocketAddr,
        lease: Duration,
    ) -> Result<Command> {
        let mut command = match self.language {
            Language::Rust => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("worker");
                command
            }
            Language::Java => {
                let mut command = Command::new("java");
                let jar = programs.java.as_ref().context("the program in Java was not built")?;
                command.arg("-cp").arg(jar).arg("dlock.interop.Contender");
                command
            }
            Language::Go => Command::new(programs.go.as_ref().context("the program in Go was not built")?),
            Language::Python => {
                let (python, script) =
                    programs.python.as_ref().context("the environment of Python was not made")?;
                let mut command = Command::new(python);
                command.arg(script);
                command
            }
        };
        let mut url = self.store.url(address) + self.parameters;
        if self.is_dlock() && self.store == Store::ZooKeeper {
            url += &format!("?session_timeout={}ms", lease.as_millis());
            if lease < crate::QUICK * 2 {
                url += "&tick_time=100ms";
            }
        }
        command.args([self.library, &url, &lease.as_millis().to_string()]);
        Ok(command)
    }
}

/// What the processes in other languages run.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    java: Option<PathBuf>,
    go: Option<PathBuf>,
    python: Option<(PathBuf, PathBuf)>,
}

impl Programs {
    /// Builds what these peers need. What cannot be built is reported, and its cells say so.
    pub(crate) async fn build(peers: &[Peer]) -> Self {
        let needs = |language| peers.iter().any(|peer| peer.language == language);
        let mut programs = Self::default();
        if needs(Language::Java) {
            programs.java = told("Java", java::build().await);
        }
        if needs(Language::Go) {
            programs.go = told("Go", build_go().await);
        }
        if needs(Language::Python) {
            programs.python = told("Python", other_clients::python("contender.py").await);
        }
        programs
    }
}

fn told<T>(language: &str, built: Result<T>) -> Option<T> {
    built.inspect_err(|error| println!("the program in {language} could not be built: {error:#}")).ok()
}

async fn build_go() -> Result<PathBuf> {
    let project = of_the_project("tests/compare/go");
    let program = project.join("target/contender");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(&project).output();
    said(&built.await.context("no go; see https://go.dev/dl")?, "go build")?;
    Ok(program)
}
