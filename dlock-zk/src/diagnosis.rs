//! Settings of the servers that endanger locks.

use std::collections::HashMap;
use std::time::Duration;

use dlock_core::backend::{Finding, within};
use dlock_core::{ErrorKind, Failure, keeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;

/// The time that one server may take for one answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The number of bytes that are read of an answer, which is more than any has.
const ANSWER: u64 = 64 << 10;

/// The answer of a server to a four-letter word: lines of a name and a value.
type Facts = HashMap<String, String>;

/// Returns what was found. `granted` is the session timeout that the servers granted, and `written` the outcome of a
/// session's proof of life, without which no lock is granted.
pub(crate) async fn diagnose(
    config: &Config,
    granted: Duration,
    written: Result<(), Failure>,
) -> Result<Vec<Finding>, Failure> {
    let mut findings = vec![session_timeout(granted, config.session_timeout), rights(config.has_user())];
    match written {
        Err(failure) if failure.kind() == ErrorKind::Denied => findings.push(Finding::danger(
            "rights",
            failure.message(),
            "change the ACLs of these nodes (setAcl), or log in as the user who made them: without its node no lock is \
             granted to this session",
        )),
        // The servers are asked all the same: one of them may say why.
        Err(failure) => findings.push(Finding::danger(
            "session",
            format!("its proof of life was not confirmed: {}", failure.message()),
            "without it no lock is granted; look at what the servers say below, and ask again",
        )),
        Ok(()) => {}
    }
    let servers: Vec<&str> = config.servers.split(',').collect();
    findings.push(ensemble(servers.len()));
    if config.tls.is_some() {
        findings
            .push(Finding::fine("servers", "not asked for their settings, which they only tell without TLS"));
        return Ok(findings);
    }
    for server in servers {
        let named = |mut finding: Finding| {
            finding.found = format!("{server}: {}", finding.found);
            finding
        };
        let status = ask(server, "srvr").await;
        findings.extend(of_status(&status).map(named));
        if matches!(status, Reply::Facts(_)) {
            findings
                .extend(of_settings(&ask(server, "conf").await, granted, config.tick).into_iter().map(named));
        }
    }
    Ok(findings)
}

enum Reply {
    Facts(Facts),
    /// The word is not on the server's list of commands.
    Refused,
    Silent(std::io::Error),
}

async fn ask(server: &str, word: &str) -> Reply {
    let asking = async {
        // The runtime of the caller may have no I/O.
        #[expect(clippy::disallowed_methods, reason = "by way of `keeper::open`")]
        let opened = keeper::open(|| TcpStream::connect(server.to_owned())).await;
        let mut connection = opened.map_err(std::io::Error::other)??;
        connection.write_all(word.as_bytes()).await?;
        let mut text = Vec::new();
        connection.take(ANSWER).read_to_end(&mut text).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&text).into_owned())
    };
    match within(PATIENCE, asking).await {
        Some(Ok(text)) if text.contains("not in the whitelist") || text.is_empty() => Reply::Refused,
        Some(Ok(text)) => Reply::Facts(facts(&text)),
        Some(Err(error)) => Reply::Silent(error),
        None => Reply::Silent(std::io::ErrorKind::TimedOut.into()),
    }
}

fn facts(text: &str) -> Facts {
    let pairs = text.lines().filter_map(|line| line.split_once(['=', ':']));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

fn session_timeout(granted: Duration, asked: Duration) -> Finding {
    if granted == asked {
        return Finding::fine("session timeout", format!("{granted:?}"));
    }
    Finding::warning(
        "session timeout",
        format!("{granted:?} is granted, {asked:?} was asked for"),
        "a lock stays blocked for that long after its holder died: ask for what the servers grant (session_timeout), or change \
         their minSessionTimeout and maxSessionTimeout",
    )
}

fn rights(has_user: bool) -> Finding {
    match has_user {
        true => Finding::fine("rights", "nodes belong to the user of the URL"),
        false => Finding::warning(
            "rights",
            "no user: everybody who reaches the servers can take and end these locks",
            "give the URL a user and a password, in all processes at once",
        ),
    }
}

fn ensemble(servers: usize) -> Finding {
    match servers {
        1 => Finding::warning(
            "servers",
            "the URL names one",
            "name all of the ensemble, or make one of three: no lock is granted while this server is away",
        ),
        count => Finding::fine("servers", format!("the URL names {count}")),
    }
}

fn of_status(status: &Reply) -> Option<Finding> {
    Some(match status {
        Reply::Silent(error) => Finding::warning(
            "server",
            format!("it does not answer ({error})"),
            "bring it back, or take it out of the URL",
        ),
        Reply::Refused => Finding::fine("server", "it answers no `srvr` (4lw.commands.whitelist)"),
        Reply::Facts(facts) => {
            let mode = facts.get("Mode").map_or("unknown", String::as_str);
            let version = facts.get("Zookeeper version").map_or("unknown", String::as_str);
            let version = version.split(['-', ',']).next().unwrap_or(version);
            let found = format!("version {version}, {mode}");
            let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
            let is_old = (numbers.next(), numbers.next()) < (Some(3), Some(5));
            match mode {
                _ if version != "unknown" && is_old => {
                    Finding::danger("server", found, "dlock needs ZooKeeper 3.5 or later")
                }
                "read-only" => {
                    Finding::warning("server", found, "it has lost its ensemble: bring the others back")
                }
                _ => Finding::fine("server", found),
            }
        }
    })
}

fn of_settings(settings: &Reply, granted: Duration, tick: Duration) -> Vec<Finding> {
    let Reply::Facts(facts) = settings else {
        let found =
            "it answers no `conf` (4lw.commands.whitelist): tickTime and maxClientCnxns are not known";
        return vec![Finding::fine("settings", found)];
    };
    let number = |name: &str| facts.get(name).and_then(|value| value.parse::<u64>().ok());
    let mut findings = Vec::new();
    if let Some(ticks) = number("tickTime").map(Duration::from_millis) {
        let found = format!("{ticks:?}, and {tick:?} by the settings of dlock");
        findings.push(if granted < ticks * 2 {
            Finding::danger(
                "tickTime",
                found,
                "a session timeout below two ticks lets a leader give a lock away that its holder still believes in: ask \
                 for a longer one, and give dlock the servers' tickTime (tick_time in the URL)",
            )
        } else if ticks > tick {
            Finding::warning("tickTime", found, "give dlock the servers' tickTime (tick_time in the URL)")
        } else {
            Finding::fine("tickTime", found)
        });
    }
    if let Some(most) = number("maxClientCnxns") {
        let found = if most == 0 { "not bounded".to_owned() } else { most.to_string() };
        findings.push(match most {
            1..10 => Finding::warning(
                "maxClientCnxns",
                found,
                "allow 60 or more for each address: each process has one connection, and opens another while the old one \
                 is not known to be gone",
            ),
            _ => Finding::fine("maxClientCnxns", found),
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::Severity;

    #[test]
    fn a_tick_that_is_too_long_for_the_session_is_a_danger_and_one_that_dlock_does_not_know_a_warning() {
        let settings = Reply::Facts(facts("clientPort=2181\ntickTime=3000\nmaxClientCnxns=2\n"));
        let severities = |granted, tick| {
            let seconds = Duration::from_secs;
            let found = of_settings(&settings, seconds(granted), seconds(tick));
            found.into_iter().map(|finding| finding.severity).collect::<Vec<_>>()
        };
        assert_eq!(severities(5, 2), [Severity::Danger, Severity::Warning]);
        assert_eq!(severities(10, 2), [Severity::Warning, Severity::Warning]);
        assert_eq!(severities(10, 3), [Severity::Fine, Severity::Warning]);
    }

    #[test]
    fn a_server_says_its_version_and_its_part() {
        let status = |text: &str| of_status(&Reply::Facts(facts(text))).unwrap();
        let well = status(
            "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on 2022\nMode: follower",
        );
        assert_eq!((well.severity, well.found.as_str()), (Severity::Fine, "version 3.8.0, follower"));
        assert_eq!(status("Zookeeper version: 3.4.14-x\nMode: leader").severity, Severity::Danger);
        assert_eq!(status("Zookeeper version: 3.9.1\nMode: read-only").severity, Severity::Warning);
    }
}
