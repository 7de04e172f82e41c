//! The servers, and what a fleet costs them.

use std::time::Duration;

use anyhow::Result;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

/// The kernel counts processor time in hundredths of a second.
const TICKS: f64 = 100.0;

pub(crate) enum Store {
    Redis(RedisServer),
    Cluster(RedisCluster),
    Postgres(PostgresServer),
    Mariadb(MysqlServer),
    Sqlite(tempfile::TempDir),
}

/// A million locks take a while to be read again.
const READY: Duration = Duration::from_secs(300);

impl Store {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "Redis",
            Self::Cluster(_) => "Redis, three nodes",
            Self::Postgres(_) => "PostgreSQL",
            Self::Mariadb(_) => "MariaDB",
            Self::Sqlite(_) => "SQLite",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Postgres(server) => format!("{}&migrate=true", server.url()),
            Self::Mariadb(server) => format!("{}?migrate=true", server.url()),
            Self::Sqlite(folder) => format!("sqlite://{}", folder.path().join("locks.db").display()),
        }
    }

    fn nodes(&self) -> Vec<&RedisServer> {
        match self {
            Self::Redis(server) => vec![server],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Postgres(_) | Self::Mariadb(_) | Self::Sqlite(_) => Vec::new(),
        }
    }

    fn figure(&self, field: &str) -> f64 {
        self.nodes().iter().map(|node| node.info(field).trim().parse::<f64>().unwrap_or(f64::NAN)).sum()
    }

    /// Bytes: of a database those of the table and its index, on disk and in its cache.
    pub(crate) fn memory(&self) -> f64 {
        match self {
            Self::Postgres(server) => {
                server.query("SELECT pg_total_relation_size('dlock')").parse().unwrap_or(f64::NAN)
            }
            Self::Mariadb(server) => {
                let sizes = "SELECT file_size FROM information_schema.innodb_sys_tablespaces \
                             WHERE name LIKE '%/dlock'";
                server.query(sizes).trim().parse().unwrap_or(f64::NAN)
            }
            Self::Sqlite(folder) => {
                let files = std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
                let sizes = files.filter_map(|file| Some(file.metadata().ok()?.len() as f64));
                sizes.sum()
            }
            _ => self.figure("used_memory_dataset"),
        }
    }

    /// Seconds of processor time that the server used since it was started.
    pub(crate) fn processor_time(&self) -> f64 {
        match self {
            Self::Postgres(server) => {
                let first = "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)";
                let Ok(parent) = server.query(first).parse::<u32>() else { return f64::NAN };
                let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
                let all = all.filter_map(|entry| Process::of(entry.file_name().to_str()?.parse().ok()?));
                // What has ended since is counted with the first one.
                let own = Process::of(parent).map_or(0.0, |first| first.used + first.of_ended);
                own + all.filter(|process| process.parent == parent).map(|process| process.used).sum::<f64>()
            }
            Self::Mariadb(server) => Process::of(server.pid()).map_or(f64::NAN, |process| process.used),
            // It runs in the clients.
            Self::Sqlite(_) => 0.0,
            _ => self.figure("used_cpu_user") + self.figure("used_cpu_sys"),
        }
    }

    /// How many calls there were: of a database its transactions, which it counts within a second.
    pub(crate) fn calls(&self) -> Option<f64> {
        if let Self::Postgres(server) = self {
            let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
            return server.query(commits).parse().ok();
        }
        if let Self::Mariadb(server) = self {
            let questions = server.query("SHOW GLOBAL STATUS LIKE 'Questions'");
            return questions.split_whitespace().last()?.parse().ok();
        }
        let nodes = self.nodes();
        if nodes.is_empty() {
            return None;
        }
        let calls = nodes.iter().filter_map(|node| node.command_calls().get("evalsha").copied());
        Some(calls.sum::<u64>() as f64)
    }

    /// Whether there is a server that can be started again.
    pub(crate) const fn restarts(&self) -> bool {
        !matches!(self, Self::Sqlite(_))
    }

    /// Stops it, or one of its nodes, and starts it again with what it had.
    pub(crate) fn restart(&mut self) -> Result<()> {
        match self {
            Self::Redis(server) => {
                server.restart_at_once()?;
                server.wait_until_ready(READY)?;
            }
            Self::Cluster(cluster) => {
                cluster.node_mut(0).restart_at_once()?;
                cluster.node_mut(0).wait_until_ready(READY)?;
            }
            Self::Postgres(server) => server.restart()?,
            Self::Mariadb(server) => server.restart()?,
            Self::Sqlite(_) => {}
        }
        Ok(())
    }
}

/// What the kernel says of a process.
struct Process {
    parent: u32,
    used: f64,
    of_ended: f64,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let figure = |at: usize| fields.get(at)?.parse::<f64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            used: (figure(11)? + figure(12)?) / TICKS,
            of_ended: (figure(13)? + figure(14)?) / TICKS,
        })
    }
}
