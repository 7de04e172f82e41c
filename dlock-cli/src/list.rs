//! Listing locks, and showing one.

use std::io::{Write, stdout};

use dlock::{Holder, Locks};
use serde_json::{Value, json};

use crate::show::{self, Line, Person};
use crate::trouble::{OTHER, Trouble};

/// The mode of a key that no process holds and that stays taken: stores keep all of these alike.
const KEPT: &str = "kept, by a job that ran, by hold_at_least, or for a baton";

/// The locks that are held, or those of them whose keys begin with the prefix that was asked for.
pub(crate) struct Lines {
    pub(crate) shown: Vec<Line>,
    prefix: Option<String>,
    /// The number of locks with another prefix.
    others: usize,
}

impl Lines {
    pub(crate) fn to_json(&self, backend: &str) -> Value {
        let shown: Vec<_> = self.shown.iter().map(Line::to_json).collect();
        let mut document = json!({ "backend": backend, "held": shown });
        if let Some(prefix) = &self.prefix {
            document["prefix"] = json!(prefix);
            document["others"] = json!(self.others);
        }
        document
    }

    /// Returns the text that stands in place of an empty list.
    pub(crate) fn none(&self) -> Option<String> {
        match (&self.prefix, self.others) {
            _ if !self.shown.is_empty() => None,
            (Some(prefix), 1..) => {
                Some(format!("0 of {} held locks begin with {}", self.others, show::printable(prefix)))
            }
            _ => Some("no lock is held".to_owned()),
        }
    }
}

pub(crate) async fn ls(locks: &Locks, prefix: Option<&str>, json: bool) -> Result<u8, Trouble> {
    let lines = lines(locks, prefix).await?;
    let mut out = stdout().lock();
    if json {
        writeln!(out, "{}", show::json(&lines.to_json(locks.backend()))?)?;
    } else if let Some(none) = lines.none() {
        writeln!(out, "{none}")?;
    } else {
        write!(out, "{}", show::table(&lines.shown))?;
    }
    Ok(0)
}

/// Reads the locks that are held, with the number of waiters where the backend knows it.
pub(crate) async fn lines(locks: &Locks, prefix: Option<&str>) -> Result<Lines, Trouble> {
    let (mut shown, mut others) = (Vec::new(), 0);
    for (key, holder) in locks.holders().await? {
        if prefix.is_some_and(|prefix| !key.as_str().starts_with(prefix)) {
            others += 1;
            continue;
        }
        let waiting =
            if locks.capabilities().shows_waiters { Some(locks.waiters(&key).await?.len()) } else { None };
        shown.push(Line { key, holder, waiting });
    }
    Ok(Lines { shown, prefix: prefix.map(str::to_owned), others })
}

/// Finds the key with this hash among the locks that are held.
pub(crate) async fn with_hash(locks: &Locks, hash: &str) -> Result<String, Trouble> {
    let held = locks.holders().await?;
    let found = held.iter().find(|(key, _)| key.hash_shown().eq_ignore_ascii_case(hash));
    found.map(|(key, _)| key.as_str().to_owned()).ok_or_else(|| {
        let hash = show::printable(hash);
        Trouble::new(OTHER, format!("no lock that is held here has a key with the hash {hash}"))
    })
}

/// Prints everything that is known of one lock.
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
    let mode = if holder.left_behind { KEPT.to_owned() } else { show::mode(holder) };
    let mut facts = vec![(who, show::place(holder)), ("mode", mode)];
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
