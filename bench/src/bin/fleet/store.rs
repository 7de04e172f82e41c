//! The servers, and what a fleet costs them.

use anyhow::Result;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

/// The kernel counts processor time in hundredths of a second.
const TICKS: f64 = 100.0;

pub(crate) enum Store {
    Redis(RedisServer),
    Cluster(RedisCluster),
    Postgres(PostgresServer),
}

impl Store {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Redis(_) => "Redis",
            Self::Cluster(_) => "Redis, three nodes",
            Self::Postgres(_) => "PostgreSQL",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Postgres(server) => format!("{}&migrate=true", server.url()),
        }
    }

    fn nodes(&self) -> Vec<&RedisServer> {
        match self {
            Self::Redis(server) => vec![server],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Postgres(_) => Vec::new(),
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
            _ => self.figure("used_cpu_user") + self.figure("used_cpu_sys"),
        }
    }

    /// How many calls there were: of a database its transactions, which it counts within a second.
    pub(crate) fn calls(&self) -> Option<f64> {
        if let Self::Postgres(server) = self {
            let commits = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
            return server.query(commits).parse().ok();
        }
        let nodes = self.nodes();
        let calls = nodes.iter().filter_map(|node| node.command_calls().get("evalsha").copied());
        Some(calls.sum::<u64>() as f64)
    }

    /// Stops it, or one of its nodes, and starts it again with what it had.
    pub(crate) fn restart(&mut self) -> Result<()> {
        match self {
            Self::Redis(server) => server.restart()?,
            Self::Cluster(cluster) => cluster.node_mut(0).restart()?,
            Self::Postgres(server) => server.restart()?,
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
