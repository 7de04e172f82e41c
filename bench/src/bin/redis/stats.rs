//! What the server says of its work.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

/// Commands that only scripts call; all others come over the wire.
const INSIDE: &[&str] = &[
    "append", "decr", "decrby", "del", "exists", "get", "getrange", "hdel", "hexists", "hget", "hincrby",
    "hlen", "hmget", "hset", "hsetnx", "incr", "incrby", "mget", "pexpire", "psetex", "pttl", "publish",
    "set", "spublish", "time", "unlink",
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

    /// All commands since `before`, those of scripts too.
    pub(crate) fn all_since(&self, before: &Self) -> Self {
        let since = |(name, calls): (&String, &u64)| {
            let calls = calls - before.0.get(name).unwrap_or(&0);
            (calls > 0 && name != "info").then(|| (name.clone(), calls))
        };
        Self(self.0.iter().filter_map(since).collect())
    }

    /// How often each was carried out for one of `count`, where that is worth naming.
    pub(crate) fn listed_of(&self, count: f64) -> String {
        let each = self.0.iter().map(|(name, calls)| (name, *calls as f64 / count));
        let each: Vec<_> =
            each.filter(|(_, each)| *each >= 0.005).map(|(name, each)| format!("{name} {each:.2}")).collect();
        each.join(", ")
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

/// How many bytes went over the wire so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    received: f64,
    sent: f64,
}

impl Traffic {
    pub(crate) async fn now(connection: &mut MultiplexedConnection) -> Result<Self> {
        let all: String = redis::cmd("INFO").arg("stats").query_async(connection).await?;
        let field = |name: &str| -> Result<f64> {
            let text =
                all.lines().find_map(|line| line.strip_prefix(name)).context("a field of INFO stats")?;
            Ok(text.parse()?)
        };
        Ok(Self { received: field("total_net_input_bytes:")?, sent: field("total_net_output_bytes:")? })
    }

    /// What the server received and sent since `before`.
    pub(crate) fn since(&self, before: &Self) -> (f64, f64) {
        (self.received - before.received, self.sent - before.sent)
    }
}
