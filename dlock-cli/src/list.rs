//! Who holds what.

use std::io::{Write, stdout};

use dlock::{Holder, Locks};
use serde_json::json;

use crate::show::{self, Line, Person};
use crate::trouble::{OTHER, Trouble};

/// All locks that are held.
pub(crate) async fn ls(locks: &Locks, json: bool) -> Result<u8, Trouble> {
    let lines = lines(locks).await?;
    let mut out = stdout().lock();
    if json {
        let all: Vec<_> = lines.iter().map(Line::to_json).collect();
        writeln!(out, "{}", show::json(&json!({ "backend": locks.backend(), "held": all }))?)?;
    } else if lines.is_empty() {
        writeln!(out, "no lock is held")?;
    } else {
        write!(out, "{}", show::table(&lines))?;
    }
    Ok(0)
}

/// The locks that are held, with the number of those who wait where the backend knows.
pub(crate) async fn lines(locks: &Locks) -> Result<Vec<Line>, Trouble> {
    let mut lines = Vec::new();
    for (key, holder) in locks.holders().await? {
        let waiting =
            if locks.capabilities().shows_waiters { Some(locks.waiters(&key).await?.len()) } else { None };
        lines.push(Line { key, holder, waiting });
    }
    Ok(lines)
}

/// The key with this hash, among those that are held.
pub(crate) async fn with_hash(locks: &Locks, hash: &str) -> Result<String, Trouble> {
    let held = locks.holders().await?;
    let found = held.iter().find(|(key, _)| key.hash_shown().eq_ignore_ascii_case(hash));
    found.map(|(key, _)| key.as_str().to_owned()).ok_or_else(|| {
        let hash = show::printable(hash);
        Trouble::new(OTHER, format!("no lock that is held here has a key with the hash {hash}"))
    })
}

/// Everything that is known of one lock.
pub(crate) async fn inspect(locks: &Locks, key: &str, json: bool) -> Result<u8, Trouble> {
    let mut held = locks.occupancy(key).await?;
    held.holders.sort_by_key(|holder| (holder.fence, holder.since));
    let waiters = if locks.capabilities().shows_waiters { Some(locks.waiters(key).await?) } else { None };
    let mut out = stdout().lock();
    if json {
        let people = |all: &[Holder]| json!(all.iter().map(Person::of).collect::<Vec<_>>());
        let mut document = json!({
            "backend": locks.backend(),
            "key": key,
            "holder": held.holders.first().map(Person::of),
            "holders": people(&held.holders),
        });
        if let Some(permits) = held.permits {
            document["permits"] = json!({ "of": permits, "taken": held.taken() });
        }
        if let Some(waiters) = &waiters {
            document["waiters"] = people(waiters);
        }
        writeln!(out, "{}", show::json(&document)?)?;
        return Ok(0);
    }
    if held.holders.is_empty() {
        writeln!(out, "nobody holds {}", show::printable(key))?;
        return Ok(0);
    }
    writeln!(out, "key         {}", show::printable(key))?;
    if let Some(permits) = held.permits {
        writeln!(out, "permits     {} of {permits} are taken", held.taken())?;
    }
    for (name, value) in held.holders.iter().flat_map(facts) {
        writeln!(out, "{name:<11} {value}")?;
    }
    match waiters {
        None => {}
        Some(waiters) if waiters.is_empty() => writeln!(out, "waiting     nobody")?,
        Some(waiters) => {
            for (place, waiter) in waiters.iter().enumerate() {
                let name = if place == 0 { "waiting" } else { "" };
                let label = waiter.label.as_deref().map(show::printable).unwrap_or_default();
                let (who, mode) = (show::place(waiter), show::mode(waiter));
                let who = format!("{name:<11} {}. {who} {mode} {label}", place + 1);
                writeln!(out, "{}", who.trim_end())?;
            }
        }
    }
    Ok(0)
}

fn facts(holder: &Holder) -> Vec<(&'static str, String)> {
    let (who, left) = match (holder.left_behind, holder.first_in_line) {
        (true, _) => ("last holder", "free in"),
        (_, true) => ("holder", "free in"),
        _ => ("holder", "lease left"),
    };
    let mut facts = vec![(who, show::place(holder)), ("mode", show::mode(holder))];
    let mut add = |name, value: Option<String>| facts.extend(value.map(|value| (name, value)));
    add("label", holder.label.as_deref().map(show::printable));
    add("since", holder.since.map(|since| humantime::format_rfc3339_millis(since).to_string()));
    add("held for", show::held_for(holder).map(show::short));
    add(left, holder.expires_in.map(show::short));
    add("kept until", show::until(holder));
    add("fence", holder.fence.map(|fence| fence.to_string()));
    add("trace", holder.trace.as_deref().map(show::printable));
    facts
}
