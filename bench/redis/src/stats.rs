//! What the server says of its work.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

/// Commands that only scripts call; all others come over the wire.
const INSIDE: &[&str] = &[
    "del", "exists", "get", "hdel", "hexists", "hget", "hincrby", "hlen", "hmget", "hset", "hsetnx", "incr",
    "incrby", "pexpire", "psetex", "pttl", "publish", "set", "spublish", "time", "unlink",
];

/// How often each command was carried out so far, also by scripts.
#[derive(Clone, Debug)]
pub(crate) struct Calls(BTreeMap<String, u64>);

impl Calls {
    pub(crate) async fn now(connection: &mut MultiplexedConnection) -> Result<Self> {
        let all: String = redis::cmd("INFO").arg("commandstats").query_async(connection).await?;
        let calls = |line: &str| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            Some((name.to_owned(), figures.split(',').next()?.parse().ok()?))
        };
        Ok(Self(all.lines().filter_map(calls).collect()))
    }

    /// The commands that came over the wire since `before`.
    pub(crate) fn sent_since(&self, before: &Self) -> Self {
        let since = |(name, calls): (&String, &u64)| {
            let calls = calls - before.0.get(name).unwrap_or(&0);
            // The measurement itself asks by INFO.
            let counts = calls > 0 && name != "info" && !INSIDE.contains(&name.as_str());
            counts.then(|| (name.clone(), calls))
        };
        Self(self.0.iter().filter_map(since).collect())
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    pub(crate) fn listed(&self) -> String {
        let each: Vec<_> = self.0.iter().map(|(name, calls)| format!("{name} {calls}")).collect();
        each.join(", ")
    }
}

/// The seconds of processor time that the server has used so far.
pub(crate) async fn cpu(connection: &mut MultiplexedConnection) -> Result<f64> {
    let all: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let field = |name: &str| -> Result<f64> {
        let text = all.lines().find_map(|line| line.strip_prefix(name)).context("a field of INFO cpu")?;
        Ok(text.parse()?)
    };
    Ok(field("used_cpu_user:")? + field("used_cpu_sys:")?)
}
