//! Showing leaders, and ending their terms.

use std::io::{Write, stdout};
use std::time::{Duration, SystemTime};

use dlock::{Forced, Holder, Locks};
use serde_json::json;

use crate::Leader;
use crate::list::lines;
use crate::report::{changed, confirm};
use crate::show::{self, Line, Person, printable, table};
use crate::signals::Signals;
use crate::trouble::{BUSY, Trouble};

pub(crate) async fn leader(locks: &Locks, task: &Leader, json: bool) -> Result<u8, Trouble> {
    match task {
        Leader::Ls { prefix } => ls(locks, prefix.as_deref(), json).await,
        Leader::Watch { key, every, times } => {
            watch(locks, key.get()?, *every, times.unwrap_or(u64::MAX), json).await
        }
        Leader::Resign { key, yes } => resign(locks, key.get()?, *yes, json).await,
    }
}

async fn ls(locks: &Locks, prefix: Option<&str>, json: bool) -> Result<u8, Trouble> {
    let mut lines = lines(locks, prefix).await?.shown;
    lines.retain(|line| line.holder.candidate.is_some());
    let mut out = stdout().lock();
    if json {
        let all: Vec<_> = lines.iter().map(Line::to_json).collect();
        writeln!(out, "{}", show::json(&json!({ "backend": locks.backend(), "leaders": all }))?)?;
    } else if lines.is_empty() {
        let what =
            prefix.map_or_else(String::new, |prefix| format!(" what begins with {}", printable(prefix)));
        writeln!(out, "nobody leads{what}")?;
    } else {
        write!(out, "{}", table(&lines))?;
    }
    Ok(0)
}

/// Prints the leader, at first and after each change.
async fn watch(locks: &Locks, key: &str, every: Duration, times: u64, json: bool) -> Result<u8, Trouble> {
    let mut changes = locks.election(key).changes().with_interval(every);
    let mut signals = Signals::catch()?;
    let mut answered = false;
    for _ in 0..times {
        let change = tokio::select! {
            _ = signals.end() => return Ok(0),
            change = changes.next() => change,
        };
        answered |= change.is_ok();
        let at = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let (text, mut document) = match change {
            Ok(Some(leader)) => (format!("{leader} leads"), json!({ "leader": Person::of(leader.holder()) })),
            Ok(None) => ("nobody leads".to_owned(), json!({ "leader": null })),
            // The stream asks again, and reports an outage once, as it does a refusal of what was allowed before.
            Err(error) if error.is_retryable() || answered => {
                (error.to_string(), json!({ "error": error.to_string() }))
            }
            Err(error) => return Err(error.into()),
        };
        let mut out = stdout().lock();
        if json {
            (document["at"], document["key"]) = (at.into(), key.into());
            writeln!(out, "{}", show::json(&document)?)?;
        } else {
            writeln!(out, "{at}  {}  {}", printable(key), printable(&text))?;
        }
        out.flush()?;
    }
    Ok(0)
}

/// Shows the leader, asks the user, and takes away the term that was shown.
async fn resign(locks: &Locks, key: &str, yes: bool, json: bool) -> Result<u8, Trouble> {
    let shown = printable(key);
    let report = |resigned: bool, leader: Option<&Holder>, text: &str| {
        let leader = leader.map(Person::of);
        Ok(changed(json, &json!({ "key": key, "resigned": resigned, "leader": leader }), text))
    };
    // A quorum looks at every node for this, so that no vote of the term is left.
    let holders = locks.occupancy(key).await?.holders;
    let Some(leader) = holders.first() else {
        return report(false, None, &format!("nobody leads {shown}"));
    };
    if leader.candidate.is_none() {
        let what =
            format!("{shown} is a lock, held by {leader}, and no term of a leader; see `dlock release`");
        return Err(Trouble::new(BUSY, what));
    }
    if !yes {
        let question = "It is not stopped by this: until its next renewal, up to a third of its lease, it and the next \
                        leader may both act. Take the term away? [y/N] ";
        confirm(
            &format!("{shown} is led by {leader}\n{question}"),
            "nobody was made to resign (say y, or give --yes)",
        )?;
    }
    match locks.force_release_of(key, &holders).await? {
        Forced::Released => {
            report(true, Some(leader), &format!("took the term of {shown} away from {leader}"))
        }
        Forced::Free => report(false, Some(leader), &format!("nobody leads {shown}")),
        // A leader that came since was not shown to the user, and is not meant.
        _ => {
            let what = format!("{shown} has another leader, or another term, by now; nothing was changed");
            Err(Trouble::new(BUSY, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use dlock::{Memory, Quorum, Term};

    use super::*;
    use crate::release::tests::PassesOn;

    async fn elected(locks: &Locks) -> Term {
        locks.election("k").campaign().next().await.unwrap()
    }

    #[tokio::test]
    async fn a_leader_of_a_quorum_that_leads_anew_is_not_made_to_resign_for_its_term_before() {
        let nodes = [Memory::new(), Memory::new(), Memory::new()];
        let quorum = Quorum::builder(nodes.clone()).with_durable_nodes().build().unwrap();
        let leaders = Locks::new(quorum.clone());
        let term = elected(&leaders).await;
        let again = Box::new(move || -> dlock::backend::BoxedFuture<'static, ()> {
            Box::pin(async move {
                term.resign().await.unwrap();
                std::mem::forget(elected(&leaders).await);
            })
        });
        let locks = Locks::new(PassesOn(quorum, Mutex::new(vec![again])));
        let refused = resign(&locks, "k", true, false).await.unwrap_err();
        assert!(refused.to_string().contains("another term"), "{refused}");
        assert_eq!(nodes.each_ref().map(Memory::held), [1, 1, 1]);
        assert_eq!(resign(&locks, "k", true, false).await.unwrap(), 0);
        assert_eq!(nodes.each_ref().map(Memory::held), [0, 0, 0]);
    }
}
