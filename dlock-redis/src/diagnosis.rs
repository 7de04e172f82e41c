//! The settings of a server that endanger locks.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::{Finding, within};
use redis::Value;

use crate::client::Client;
use crate::servers::Node;

const ADVICE: &str = "grant the rights that docs/backends/redis.md lists, on each server of a cluster";
/// The longest wait for one answer of a server.
const PATIENCE: Duration = Duration::from_secs(3);

/// Returns the findings about rights, about `INFO` of each master, and about `CONFIG` if the user may read it.
pub(crate) async fn diagnose(client: &Client) -> Result<Vec<Finding>, Failure> {
    let mut findings = match client.introduce().await {
        Ok(()) => vec![Finding::fine("rights", "the user has what locks need")],
        Err(failure) if failure.kind() == dlock_core::ErrorKind::Denied => {
            vec![Finding::danger("rights", failure.message(), ADVICE)]
        }
        Err(failure) => return Err(failure),
    };
    for node in client.servers.masters().await? {
        if let Err(failure) = client.rights_at(&node, PATIENCE).await
            && failure.kind() == dlock_core::ErrorKind::Denied
            && findings.iter().all(|finding| finding.found != failure.message())
        {
            findings.push(Finding::danger("rights", failure.message(), ADVICE));
        }
        findings.extend(of_server(client, &node).await);
    }
    Ok(findings)
}

/// Returns the findings about one server.
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

/// Returns the answer to a command, if it was not refused and came in time.
async fn command(client: &Client, node: &Node, words: &[&str]) -> Option<Value> {
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]);
    within(PATIENCE, client.servers.plain(node, PATIENCE, &command)).await?.ok()
}

type Judge = fn(&str, &HashMap<String, String>) -> Finding;

const SETTINGS: [(&str, Judge); 3] = [
    ("appendfsync", appendfsync),
    ("min-replicas-to-write", min_replicas),
    ("stop-writes-on-bgsave-error", stop_writes),
];

fn is(info: &HashMap<String, String>, name: &str, value: &str) -> bool {
    info.get(name).is_some_and(|found| found == value)
}

/// Returns the findings about the fields of `INFO`.
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
    findings.extend(memory(info));
    if is(info, "aof_last_write_status", "err") {
        let found = "the append-only file could not be written";
        let advice =
            "make room on the disk of the server: it refuses grants, renewals and releases until then";
        findings.push(Finding::danger("writes", found, advice));
    }
    findings
}

/// Returns the finding about memory: whether grants can be stored if nothing is evicted for them.
fn memory(info: &HashMap<String, String>) -> Option<Finding> {
    let number = |name: &str| info.get(name)?.parse::<u64>().ok();
    let (used, most) = (number("used_memory")?, number("maxmemory").filter(|most| *most > 0)?);
    let found = format!("{used} of {most} bytes are used");
    let advice = "raise maxmemory, or remove data: a server that is full grants no lock";
    Some(match policy_of(info) {
        "noeviction" if used >= most => Finding::danger("maxmemory", found, advice),
        "noeviction" if used >= most - most / 10 => Finding::warning("maxmemory", found, advice),
        _ => Finding::fine("maxmemory", found),
    })
}

fn policy_of(info: &HashMap<String, String>) -> &str {
    info.get("maxmemory_policy").map_or("", String::as_str)
}

fn stop_writes(value: &str, info: &HashMap<String, String>) -> Finding {
    let subject = "stop-writes-on-bgsave-error";
    match is(info, "rdb_last_bgsave_status", "err") {
        true if value == "yes" => Finding::danger(
            subject,
            "yes, and the last snapshot could not be saved",
            "make room on the disk of the server, or memory for its child process: where it saves snapshots (save), it \
             refuses grants, renewals and releases until one was saved",
        ),
        _ => Finding::fine(subject, value),
    }
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
    let good = info.get("min_slaves_good_slaves").and_then(|good| good.parse::<u64>().ok());
    match value {
        "0" if replicas != "0" => Finding::warning(
            "min-replicas-to-write",
            found,
            "a failover may forget locks: set it, and min_replicas in the URL, or use a quorum of masters",
        ),
        value if good.is_some_and(|good| value.parse().is_ok_and(|wanted: u64| good < wanted)) => {
            Finding::danger(
                "min-replicas-to-write",
                found,
                "start its replicas, or look why they fall behind: it refuses grants, renewals and releases until then",
            )
        }
        _ => Finding::fine("min-replicas-to-write", found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::Severity::{self, Danger, Fine, Warning};

    fn info(lines: &[(&str, &str)]) -> HashMap<String, String> {
        lines.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn severity(subject: &str, lines: &[(&str, &str)]) -> Option<Severity> {
        judge(&info(lines)).iter().find(|finding| finding.subject == subject).map(|finding| finding.severity)
    }

    #[test]
    fn a_server_that_cannot_write_its_files_refuses_grants() {
        assert_eq!(severity("writes", &[("aof_last_write_status", "err")]), Some(Danger));
        assert_eq!(severity("writes", &[("aof_last_write_status", "ok")]), None);
        let failed = info(&[("rdb_last_bgsave_status", "err")]);
        assert_eq!(stop_writes("yes", &failed).severity, Danger);
        assert_eq!(stop_writes("no", &failed).severity, Fine);
        assert_eq!(stop_writes("yes", &info(&[("rdb_last_bgsave_status", "ok")])).severity, Fine);
    }

    #[test]
    fn a_server_that_evicts_nothing_grants_until_its_memory_is_used_up() {
        let of = |used: &str, most: &str, policy: &str| {
            severity("maxmemory", &[("used_memory", used), ("maxmemory", most), ("maxmemory_policy", policy)])
        };
        assert_eq!(of("500", "1000", "noeviction"), Some(Fine));
        assert_eq!(of("950", "1000", "noeviction"), Some(Warning));
        assert_eq!(of("1000", "1000", "noeviction"), Some(Danger));
        assert_eq!(of("1000", "1000", "allkeys-lru"), Some(Fine));
        assert_eq!(of("1000", "0", "noeviction"), None);
    }

    #[test]
    fn a_master_without_the_replicas_it_wants_refuses_grants() {
        let of = |wanted: &str, good: &str| {
            let found = info(&[("connected_slaves", "2"), ("min_slaves_good_slaves", good)]);
            min_replicas(wanted, &found).severity
        };
        assert_eq!([of("1", "1"), of("2", "1"), of("2", "2")], [Fine, Danger, Fine]);
        assert_eq!(min_replicas("2", &info(&[("connected_slaves", "2")])).severity, Fine);
    }
}
