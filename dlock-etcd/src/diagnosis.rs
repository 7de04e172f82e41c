//! Settings of the servers that endanger locks.

use dlock_core::Failure;
use dlock_core::backend::{Finding, within};
use etcd_client::{AlarmAction, AlarmType, Error, StatusResponse};

use crate::error::failure;
use crate::servers::{PATIENCE, Servers};

/// The length in seconds of a lease that is shorter than any that servers grant.
const SHORTEST: i64 = 1;

pub(crate) async fn diagnose(servers: &Servers) -> Result<Vec<Finding>, Failure> {
    let members = servers.look(|client| async move { client.cluster_client().member_list().await }).await;
    let members = members.map(|members| members.members().len());
    let is_alone = matches!(members, Ok(1));
    let mut findings = vec![rights(servers.config.has_user), cluster(members)];
    // Without room in the database there is none, which is a finding of its own.
    let lease =
        servers.ask(PATIENCE, |client| async move { client.lease_client().grant(SHORTEST, None).await });
    if let Ok(lease) = lease.await {
        findings.push(Finding::fine("shortest lease", format!("{} s", lease.ttl())));
        servers.revoke(lease.id(), PATIENCE).await?;
    }
    for (host, client) in servers.each().await {
        let asked = async { client?.maintenance_client().status().await };
        let asked = within(PATIENCE, asked).await;
        if let Some(Ok(status)) = &asked
            && !is_alone
            && revokes_what_it_does_not_lead(status.version())
        {
            findings.push(Finding::warning(
                "leases",
                format!("{host} has version {}", status.version()),
                "take 3.4.31, 3.5.13, 3.6 or later: a member of an earlier version that led, and was frozen, ends leases \
                 that the next leader has renewed",
            ));
        }
        findings.push(status(host, asked));
    }
    let alarms = servers.look(|client| async move {
        client.maintenance_client().alarm(AlarmAction::Get, AlarmType::None, None).await
    });
    if let Ok(alarms) = alarms.await {
        findings.extend(alarms.alarms().iter().map(|alarm| of_alarm(alarm.alarm())));
    }
    Ok(findings)
}

/// Returns whether a member of this version revokes leases when it has led and does not know that it leads no more
/// (etcd issue 15247).
fn revokes_what_it_does_not_lead(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(3), Some(4), patch) => patch < Some(31),
        (Some(3), Some(5), patch) => patch < Some(13),
        (major, minor, _) => (major, minor) < (Some(3), Some(4)),
    }
}

fn rights(has_user: bool) -> Finding {
    match has_user {
        true => Finding::fine("rights", "the URL has a user"),
        false => Finding::warning(
            "rights",
            "no user: everybody who reaches the servers can take and end these locks",
            "enable authentication, and give the URL a user that may read and write below the prefix",
        ),
    }
}

fn cluster(members: Result<usize, Failure>) -> Finding {
    match members {
        Ok(count @ 0..3) => Finding::warning(
            "members",
            count.to_string(),
            "make a cluster of three: no lock is granted while a member of a smaller one is away",
        ),
        Ok(count) => Finding::fine("members", count.to_string()),
        Err(failure) => Finding::fine("members", format!("not known ({failure})")),
    }
}

fn status(host: &str, status: Option<Result<StatusResponse, Error>>) -> Finding {
    let status = match status {
        Some(Ok(status)) => status,
        other => {
            let why = other.map_or_else(
                || "no answer in time".to_owned(),
                |error| error.map_or_else(|error| failure(error).to_string(), |_| String::new()),
            );
            let found = format!("{host} does not answer ({why})");
            return Finding::warning("server", found, "bring it back, or take it out of the URL");
        }
    };
    let version = status.version();
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let is_old = (numbers.next(), numbers.next()) < (Some(3), Some(4));
    let found = format!("{host} has version {version} and {} bytes", status.db_size());
    match (is_old, status.leader(), status.errors()) {
        (true, ..) => Finding::danger("server", found, "dlock needs etcd 3.4 or later"),
        (_, 0, _) => {
            Finding::warning("server", format!("{found}, and no leader"), "bring the other members back")
        }
        (_, _, [_, ..]) => Finding::warning(
            "server",
            format!("{found}, and says {}", status.errors().join("; ")),
            "see what `etcdctl endpoint status` says",
        ),
        _ => Finding::fine("server", found),
    }
}

fn of_alarm(alarm: AlarmType) -> Finding {
    match alarm {
        AlarmType::Nospace => Finding::danger(
            "space",
            "the space of the database is used up, so that no lock can be taken",
            "compact and defragment it, raise --quota-backend-bytes, then run `etcdctl alarm disarm`",
        ),
        _ => Finding::danger("data", "the data of a member is corrupt", "replace the member"),
    }
}

#[cfg(test)]
mod tests {
    use super::revokes_what_it_does_not_lead;

    #[test]
    fn versions_whose_old_leaders_revoke_leases_are_known() {
        for version in ["3.3.27", "3.4.23", "3.4.30", "3.5.0", "3.5.12", "3.5.12-rc.1"] {
            assert!(revokes_what_it_does_not_lead(version), "{version}");
        }
        for version in ["3.4.31", "3.4.39", "3.5.13", "3.6.0", "3.6.0-rc.5", "3.7.3", "4.0.0"] {
            assert!(!revokes_what_it_does_not_lead(version), "{version}");
        }
    }
}
