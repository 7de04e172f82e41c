//! The settings of a server that endanger locks, and what is between here and the server.

use std::sync::Arc;

use dlock_core::backend::{Finding, by_then};
use dlock_core::{ErrorKind, Failure};

use tokio::time::Instant;

use crate::failure::unchanged;
use crate::findings::Facts;
use crate::gateway::Connections;
use crate::keeper_task::on_the_keeper;
use crate::limits::QUESTION;
use crate::server::Server;

/// Looks at the rights, the settings, and whether sessions are shared.
pub(crate) async fn diagnose<S: Server>(connections: &Arc<Connections<S>>) -> Result<Vec<Finding>, Failure> {
    let mut findings = match connections.verify().await {
        Ok(()) => vec![Finding::fine("rights", "the user has what locks need")],
        Err(failure) if failure.kind() == ErrorKind::Denied => {
            let advice = "grant the rights that docs/backends/sql.md lists";
            vec![Finding::danger("rights", failure.message().to_owned(), advice)]
        }
        Err(failure) => return Err(failure),
    };
    let asked = Arc::clone(connections);
    let asking = on_the_keeper(async move {
        let (server, connector) = (asked.server(), asked.connector());
        let failed = |error| unchanged(server.fault(error).failure);
        let (mut one, mut other) = (connector.open().await?, connector.open().await?);
        let shared =
            server.ping(&mut one).await.map_err(failed)? == server.ping(&mut other).await.map_err(failed)?;
        let facts = server.facts(&mut one).await.map_err(failed)?;
        Ok((shared, facts))
    });
    let answer = by_then(Instant::now() + QUESTION, asking).await;
    let (shared, facts) =
        answer.unwrap_or_else(|| Err(Failure::unavailable(format!("no answer within {QUESTION:?}"))))?;
    findings.push(sessions(shared));
    let judged = S::SETTINGS.iter().filter_map(|(name, judge)| Some(judge(facts.get(*name)?, &facts)));
    findings.extend(judged);
    findings.extend(room(&facts, connections.most()));
    Ok(findings)
}

/// Two connections that are open at the same time have two sessions.
fn sessions(shared: bool) -> Finding {
    match shared {
        false => Finding::fine("sessions", "each connection has one"),
        true => Finding::warning(
            "sessions",
            "connections share them: something between here and the server pools transactions, such as PgBouncer",
            "lease rows work, and notifications of releases do not get through (statements=simple leaves them out); for \
             mode=session and mode=row connect directly, or with pool_mode = session",
        ),
    }
}

/// Returns a finding on the room for the connections of this process.
fn room(facts: &Facts, most: usize) -> Option<Finding> {
    let number = |name: &str| facts.get(name)?.parse::<usize>().ok();
    let (limit, used) = (number("max_connections")?, number("connections")?);
    let found = format!("{used} of {limit} are in use; a process of dlock may open up to {most}");
    Some(match limit.saturating_sub(used) >= most {
        true => Finding::fine("max_connections", found),
        false => Finding::warning(
            "max_connections",
            found,
            "raise it, or use fewer connections (max_connections in the URL): renewals that get no connection end in lost \
             locks",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::backend::Severity;

    #[test]
    fn room_for_connections_is_what_the_server_has_left() {
        let facts = |limit: &str, used: &str| {
            let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            Facts::from([pair("max_connections", limit), pair("connections", used)])
        };
        assert_eq!(room(&facts("100", "10"), 20).unwrap().severity, Severity::Fine);
        assert_eq!(room(&facts("20", "10"), 20).unwrap().severity, Severity::Warning);
        assert_eq!(room(&facts("5", "10"), 1).unwrap().severity, Severity::Warning);
        assert_eq!(room(&facts("many", "10"), 1), None);
    }
}
