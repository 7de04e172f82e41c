//! The stores on which locks go round, and who works on them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use dlock_interop::other_clients::OtherClients;
use dlock_redis::{client_scripts, fenced_script};
use dlock_rig::proxy::{Pgwire, Proxy, Resp};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_sql::PostgresOptions;
use dlock_sql::sqlx::{self, AssertSqlSafe};
use tempfile::TempDir;
use tokio::process::Command;

use super::worker::sqlite;
use super::{KEYS, LEASE, key};

/// In what a worker is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Language {
    Rust,
    Python,
    Go,
}

/// Who works, and over a wire that loses answers where that is true.
type Hands = &'static [(Language, bool)];

const ALL: Hands = &[
    (Language::Rust, false),
    (Language::Rust, true),
    (Language::Rust, true),
    (Language::Python, false),
    (Language::Python, false),
    (Language::Go, false),
    (Language::Go, false),
];
const IN_RUST: Hands = &[(Language::Rust, false); 5];

enum Server {
    Redis(RedisServer),
    Postgres(PostgresServer),
    Sqlite,
}

/// A store with all that workers need. It ends with this value.
pub(super) struct Store {
    pub(super) name: &'static str,
    server: Server,
    url: String,
    values: String,
    directory: TempDir,
    others: Option<OtherClients>,
    /// Which promise the workers in Python break, or `-`.
    broken: &'static str,
}

impl Store {
    pub(super) async fn start(name: &str, broken: &'static str) -> Result<Self> {
        let directory = TempDir::new()?;
        let file = |name: &str| format!("sqlite://{}", directory.path().join(name).display());
        let (name, server, url, values) = match name {
            "redis" => {
                let server = RedisServer::start()?;
                let url = server.url();
                ("redis", Server::Redis(server), url.clone(), url)
            }
            "postgres" => {
                let server = PostgresServer::start()?;
                let options = PostgresOptions::from_url(&server.url())?;
                options.migrate().await?;
                server.query(&options.functions());
                server.query(&table());
                let url = server.url();
                ("postgres", Server::Postgres(server), url.clone(), url)
            }
            "sqlite" => {
                let values = file("values.db");
                sqlx::raw_sql(AssertSqlSafe(table())).execute(&mut sqlite(&values).await?).await?;
                ("sqlite", Server::Sqlite, file("locks.db"), values)
            }
            other => bail!("locks go round on redis, postgres and sqlite, and not on {other}"),
        };
        let others = if name == "sqlite" { None } else { Some(OtherClients::of_rings().await?) };
        let scripts = client_scripts();
        std::fs::create_dir(directory.path().join("scripts"))?;
        let write = fenced_script("return redis.call('SET', KEYS[1], ARGV[1])");
        for (name, text) in [
            ("lock", scripts.lock),
            ("hand_over", scripts.hand_over),
            ("take_over", scripts.take_over),
            ("write", &write),
        ] {
            std::fs::write(directory.path().join("scripts").join(name).with_extension("lua"), text)?;
        }
        Ok(Self { name, server, url, values, directory, others, broken })
    }

    pub(super) fn hands(&self) -> Hands {
        if self.others.is_some() { ALL } else { IN_RUST }
    }

    /// A proxy before the server, and what requests of a hand-over are called there.
    pub(super) fn proxy(&self) -> Result<Option<(Proxy, &'static str)>> {
        Ok(match &self.server {
            Server::Redis(server) => Some((Proxy::speaking(Resp, server.address())?, "EVAL")),
            Server::Postgres(server) => {
                Some((Proxy::speaking(Pgwire::default(), server.address())?, "EXECUTE"))
            }
            Server::Sqlite => None,
        })
    }

    /// What starts a worker that writes the journal of this number.
    pub(super) fn command(
        &self,
        language: Language,
        through: Option<SocketAddr>,
        journal: usize,
    ) -> Result<Command> {
        let url = match (&self.server, through) {
            (Server::Redis(server), Some(proxy)) => server.url_through(proxy),
            (Server::Postgres(server), Some(proxy)) => server.url_through(proxy),
            _ => self.url.clone(),
        };
        let mut command = match (language, &self.others) {
            (Language::Python, Some(others)) => {
                let mut command = Command::new(&others.python);
                command.arg(&others.script);
                command
            }
            (Language::Go, Some(others)) => Command::new(&others.go),
            _ => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("ring-worker");
                command
            }
        };
        command.args([url, LEASE.as_millis().to_string()]).arg(self.journal(journal));
        match language {
            Language::Rust => command.arg(&self.values),
            Language::Python | Language::Go => {
                command.arg(self.directory.path().join("scripts")).arg(self.broken)
            }
        };
        Ok(command)
    }

    pub(super) fn journal(&self, number: usize) -> PathBuf {
        Path::new(self.directory.path()).join(format!("journal-{number}"))
    }
}

/// The statements that make the values.
fn table() -> String {
    let rows: Vec<String> = (0..KEYS).map(|number| format!("('{}', '', 0)", key(number))).collect();
    format!(
        "CREATE TABLE ring (key text PRIMARY KEY, writer text, fence bigint); INSERT INTO ring VALUES {}",
        rows.join(", ")
    )
}
