//! Who leads.

use std::io::{Write, stderr, stdin, stdout};
use std::time::{Duration, SystemTime};

use dlock::Locks;
use serde_json::json;

use crate::Leader;
use crate::list::lines;
use crate::show::{self, Line, Person, printable, table};
use crate::signals::Signals;
use crate::trouble::{BUSY, DENIED, Trouble};

pub(crate) async fn leader(locks: &Locks, task: &Leader, json: bool) -> Result<u8, Trouble> {
    match task {
        Leader::Ls => ls(locks, json).await,
        Leader::Watch { key, every, times } => {
            watch(locks, key, *every, times.unwrap_or(u64::MAX), json).await
        }
        Leader::Resign { key, yes } => resign(locks, key, *yes, json).await,
    }
}

async fn ls(locks: &Locks, json: bool) -> Result<u8, Trouble> {
    let mut lines = lines(locks).await?;
    lines.retain(|line| line.holder.candidate.is_some());
    let mut out = stdout().lock();
    if json {
        let all: Vec<_> = lines.iter().map(Line::to_json).collect();
        writeln!(out, "{}", show::json(&json!({ "backend": locks.backend(), "leaders": all }))?)?;
    } else if lines.is_empty() {
        writeln!(out, "nobody leads")?;
    } else {
        write!(out, "{}", table(&lines))?;
    }
    Ok(0)
}

/// Says who leads, at first and after each change.
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
            // It is asked again, and an outage is said once; so is a refusal of what was allowed before.
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

/// Shows who leads, asks, and takes the term away.
async fn resign(locks: &Locks, key: &str, yes: bool, json: bool) -> Result<u8, Trouble> {
    let election = locks.election(key);
    let shown = printable(key);
    let report = |resigned: bool, leader: Option<&dlock::Leader>, text: &str| -> Result<u8, Trouble> {
        let mut out = stdout().lock();
        if json {
            let leader = leader.map(|leader| Person::of(leader.holder()));
            let document = json!({ "key": key, "resigned": resigned, "leader": leader });
            writeln!(out, "{}", show::json(&document)?)?;
        } else {
            writeln!(out, "{text}")?;
        }
        Ok(0)
    };
    let Some(leader) = election.leader().await? else {
        return report(false, None, &format!("nobody leads {shown}"));
    };
    if leader.holder().candidate.is_none() {
        let what =
            format!("{shown} is a lock, held by {leader}, and no term of a leader; see `dlock release`");
        return Err(Trouble::new(BUSY, what));
    }
    if !yes {
        let question = "It is not stopped by this: until its next renewal, up to a third of its lease, it and the next \
                        leader may both act. Take the term away? [y/N] ";
        stderr().write_all(format!("{shown} is led by {leader}\n{question}").as_bytes())?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Trouble::new(DENIED, "nobody was made to resign (say y, or give --yes)"));
        }
    }
    // Whoever came since was not shown to anybody, and is not meant.
    let now = election.leader().await?;
    // A quorum has no fences, and its nodes do not agree on when a term began.
    let term = |of: &dlock::Leader| (of.fence(), of.holder().candidate.clone());
    if now.as_ref().is_some_and(|now| term(now) != term(&leader)) {
        let what = format!("{shown} has another leader by now; nothing was changed");
        return Err(Trouble::new(BUSY, what));
    }
    let resigned = now.is_some() && locks.force_release(key).await?;
    let text = match resigned {
        true => format!("took the term of {shown} away from {leader}"),
        false => format!("nobody leads {shown}"),
    };
    report(resigned, Some(&leader), &text)
}
