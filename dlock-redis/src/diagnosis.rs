//! Settings of a server that endanger locks.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Finding, within};
use redis::Value;

use crate::client::Client;
use crate::servers::Node;

/// How long one answer of a server may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `INFO` of each master says, and `CONFIG` where the user may ask for it.
pub(crate) async fn diagnose(client: &Client) -> Result<Vec<Finding>, Failure> {
    let mut findings = match client.introduce().await {
        Ok(()) => vec![Finding::fine("rights", "the user has what locks need")],
        Err(failure) if failure.kind() == dlock_core::ErrorKind::Denied => {
            let advice = "grant the rights that docs/backends/redis.md lists";
            vec![Finding::danger("rights", failure.message(), advice)]
        }
        Err(failure) => return Err(failure),
    };
    for node in client.servers.masters().await? {
        findings.extend(of_server(client, &node).await);
    }
    Ok(findings)
}

async fn of_server(client: &Client, node: &Node) -> Vec<Finding> {
    let (mut findings, mut info) = (Vec::new(), HashMap::new());
    for section in ["server", "memory", "persistence", "replication"] {
        let text = command(client, node, &["INFO", section]).await;
        match text.and_then(|value| redis::from_redis_value::<String>(value).ok()) {
            Some(text) => info.extend(
                text.lines()
                    .filter_map(|line| line.trim().split_once(':'))
                    .map(|(name, value)| (name.to_owned(), value.to_owned())),
            ),
            None => {
                let advice = "grant +info to the user of `dlock doctor`, or look at the settings yourself";
                return vec![Finding::warning("INFO", "this user may not ask for it", advice)];
            }
        }
    }
    findings.extend(judge(&info));
    for (name, judge) in SETTINGS {
        let value = command(client, node, &["CONFIG", "GET", name]).await;
        let pair = value.and_then(|value| redis::from_redis_value::<HashMap<String, String>>(value).ok());
        match pair.and_then(|mut pair| pair.remove(name)) {
            Some(value) => findings.push(judge(&value, &info)),
            None => findings.push(Finding::fine(name, "this user may not see it (+config|get)")),
        }
    }
    findings
}

/// The answer, if there is one and it is no refusal.
async fn command(client: &Client, node: &Node, words: &[&str]) -> Option<Value> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    within(PATIENCE, client.servers.plain(node, PATIENCE, &command)).await?.ok()
}

type Judge = fn(&str, &HashMap<String, String>) -> Finding;

const SETTINGS: [(&str, Judge); 2] = [("appendfsync", appendfsync), ("min-replicas-to-write", min_replicas)];

fn is(info: &HashMap<String, String>, name: &str, value: &str) -> bool {
    info.get(name).is_some_and(|found| found == value)
}

fn judge(info: &HashMap<String, String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(version) = info.get("redis_version") {
        let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
        findings.push(match major {
            6.. => Finding::fine("version", version),
            _ => Finding::danger("version", version, "dlock needs Redis 6 or later"),
        });
    }
    if let Some(policy) = info.get("maxmemory_policy") {
        let unbounded = is(info, "maxmemory", "0");
        findings.push(match policy.as_str() {
            "noeviction" => Finding::fine("maxmemory-policy", policy),
            policy if unbounded => Finding::warning(
                "maxmemory-policy",
                format!("{policy}, and memory is not bounded now"),
                "set it to noeviction: as soon as maxmemory is set, held locks and counters of fences may be evicted",
            ),
            policy => Finding::danger(
                "maxmemory-policy",
                policy,
                "set it to noeviction, or give locks a server of their own: held locks and counters of fences may be \
                 evicted",
            ),
        });
    }
    if is(info, "role", "slave") {
        let advice = "use the master, or a redis+sentinel:// URL that finds it";
        findings.push(Finding::danger("role", "a replica", advice));
    }
    findings
}

fn appendfsync(value: &str, info: &HashMap<String, String>) -> Finding {
    let advice = "a restart may forget locks that are held: set appendonly yes and appendfsync always, or have a \
                  restart take longer than the longest lease";
    match (is(info, "aof_enabled", "1"), value) {
        (true, "always") => Finding::fine("appendfsync", "always"),
        (true, value) => Finding::warning("appendfsync", value, advice),
        (false, _) => Finding::warning("appendfsync", "there is no append-only file", advice),
    }
}

fn min_replicas(value: &str, info: &HashMap<String, String>) -> Finding {
    let replicas = info.get("connected_slaves").map_or("0", String::as_str);
    let found = format!("{value}, and {replicas} replicas are connected");
    match value {
        "0" if replicas != "0" => Finding::warning(
            "min-replicas-to-write",
            found,
            "a failover may forget locks: set it, and min_replicas in the URL, or use a quorum of masters",
        ),
        _ => Finding::fine("min-replicas-to-write", found),
    }
}
