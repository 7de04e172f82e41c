//! The members of a quorum, and changing them.

use std::io::{Write, stdout};
use std::time::Duration;

use dlock::{ErrorKind, NodeMark, NodeSetup, Quorum, QuorumInUse};
use serde_json::{Value, json};

use crate::QuorumTask;
use crate::report::changed;
use crate::show::{self, Person, printable, short};
use crate::store;
use crate::trouble::{DANGER, Trouble, seen};

/// The pause between two looks at whether the last lock is released.
const LOOKING: Duration = Duration::from_millis(250);

pub(crate) async fn quorum(url: &str, task: QuorumTask, json: bool) -> Result<u8, Trouble> {
    let members = || dlock::quorum_from_url(url);
    match task {
        // Nodes that are away are to be shown, and must not be an error when the URL is opened.
        QuorumTask::Show => show(&dlock::quorum_from_url(&lazily(url)).await?, json).await,
        QuorumTask::Bootstrap { force, .. } => bootstrap(&members().await?, force, json).await,
        QuorumTask::Change { to, to_file, force } => {
            let from = members().await?;
            let to = match to_file {
                Some(path) => store::read_url(&path)?,
                None => to.unwrap_or_default(),
            };
            change(&from, &dlock::quorum_from_url(&to).await?, force, json).await
        }
    }
}

/// Returns the URL with `connect=lazy`, once: a parameter that is there twice is refused.
fn lazily(url: &str) -> String {
    let query = url.rsplit_once('|').and_then(|(_, last)| last.strip_prefix('?'));
    match query {
        Some(query) if query.split('&').any(|pair| pair.split('=').next() == Some("connect")) => {
            url.to_owned()
        }
        Some(_) => format!("{url}&connect=lazy"),
        None => format!("{url}|?connect=lazy"),
    }
}

/// Returns a mark as one word.
const fn word(mark: &NodeMark) -> &'static str {
    match mark {
        NodeMark::Durable => "durable",
        NodeMark::Votes => "votes",
        NodeMark::Missing => "missing",
        NodeMark::VotesIn(_) => "young",
        NodeMark::Ahead => "ahead",
        NodeMark::Suspended => "suspended",
        NodeMark::Foreign(_) => "foreign",
        _ => "unknown",
    }
}

/// Prints the mark of each node. The exit code is [`DANGER`] if no majority votes.
async fn show(quorum: &Quorum, json: bool) -> Result<u8, Trouble> {
    let marks = quorum.marks().await;
    let (count, voting) = (marks.len(), marks.iter().flatten().filter(|mark| mark.votes()).count());
    let needed = count / 2 + 1;
    let print = || {
        let mut out = stdout().lock();
        if json {
            let nodes: Vec<Value> = marks
                .iter()
                .enumerate()
                .map(|(place, mark)| match mark {
                    Ok(mark) => json!({ "node": place + 1, "mark": word(mark) }),
                    Err(error) => json!({ "node": place + 1, "error": error.to_string() }),
                })
                .collect();
            let document = json!({ "nodes": nodes, "voting": voting, "needed": needed });
            writeln!(out, "{}", show::json(&document)?)?;
        } else {
            for (place, mark) in marks.iter().enumerate() {
                match mark {
                    Ok(mark) => writeln!(out, "node {} {mark}", place + 1)?,
                    Err(error) => writeln!(out, "{}", printable(&error.to_string()))?,
                }
            }
            writeln!(out, "{voting} of {count} vote, {needed} have to")?;
        }
        Ok(())
    };
    seen(print())?;
    Ok(if voting >= needed { 0 } else { DANGER })
}

async fn bootstrap(quorum: &Quorum, force: bool, json: bool) -> Result<u8, Trouble> {
    match quorum.bootstrap().await {
        Err(refused) if force => forced(quorum, &refused, json).await,
        done => Ok(report(&done?, None, json)),
    }
}

/// Sets up the quorum although that was refused, and reports why it was.
async fn forced(quorum: &Quorum, refused: &dlock::Error, json: bool) -> Result<u8, Trouble> {
    Ok(report(&quorum.force_bootstrap().await?, Some(refused), json))
}

fn report(done: &[NodeSetup], forced_over: Option<&dlock::Error>, json: bool) -> u8 {
    let word = |setup: &NodeSetup| match setup {
        NodeSetup::Durable => "durable",
        NodeSetup::Kept => "kept",
        NodeSetup::Marked => "marked",
        NodeSetup::Repaired => "repaired",
        _ => "set up",
    };
    let nodes: Vec<&str> = done.iter().map(word).collect();
    let mut document = json!({ "nodes": nodes });
    let mut lines = Vec::new();
    if let Some(refused) = forced_over {
        document["forced_over"] = json!(refused.to_string());
        document["held"] = in_use(refused).map_or_else(|| json!([]), held);
        lines.push(format!("by force, over: {}", printable(&refused.to_string())));
    }
    lines.extend(nodes.iter().zip(1..).map(|(word, place)| format!("node {place} votes ({word})")));
    changed(json, &document, &lines.join("\n"))
}

/// Returns the locks because of which the request was refused.
fn in_use(refused: &dlock::Error) -> Option<&QuorumInUse> {
    std::error::Error::source(refused)?.downcast_ref()
}

fn held(in_use: &QuorumInUse) -> Value {
    let locks = in_use.locks.iter();
    locks
        .map(|lock| {
            json!({
                "key": lock.key.as_str(),
                "nodes": lock.nodes,
                "nodes_before": lock.nodes_before,
                "holder": Person::of(&lock.holder),
            })
        })
        .collect()
}

/// Prints a step that takes its time, unless a document is wanted. A change that has begun does not end half-way
/// because its reader is gone.
fn say(json: bool, text: &str) {
    if !json {
        let mut out = stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

/// Gives the quorum other members.
///
/// ```text
/// suspend all nodes -> wait for the longest lease -> suspend again, look for locks --none--> `to` votes
///                                                         ^                |
///                                                         +--some, 250 ms--+
/// ```
///
/// An old client gets no vote from a suspended node, and has too few others. A lock that it was granted before, or by a
/// request that was still under way, is held or given up by its request timeout, which is less than the longest lease.
async fn change(from: &Quorum, to: &Quorum, force: bool, json: bool) -> Result<u8, Trouble> {
    let Some(longest) = from.longest_lease().max(to.longest_lease()) else {
        return Err(Trouble::usage(
            "the nodes are durable and have no marks; stop all services to change them",
        ));
    };
    if from.settings() == to.settings() {
        return Err(Trouble::usage(
            "both URLs have the same members, or the same name: nothing is to be changed, or clients of before would \
             not be told from others; give the new quorum another name=",
        ));
    }
    if !force {
        are_of(&[from, to]).await?;
    }
    for quorum in [from, to] {
        for unreached in quorum.suspend().await?.into_iter().filter_map(Result::err) {
            say(json, &format!("not suspended, a minority: {}", printable(&unreached.to_string())));
        }
    }
    say(json, &format!("no node votes; waiting for the longest lease, {}", short(longest)));
    tokio::time::sleep(longest).await;
    let mut before = None;
    loop {
        // A client may have left its mark in the place of a suspension that was evicted or removed by hand.
        from.suspend().await?;
        let held = from.remaining().await?;
        let (count, such) = match held.first() {
            Some((key, holder)) => (held.len(), format!("{} by {holder}", printable(key.as_str()))),
            None => match to.bootstrap_after(from).await {
                Err(refused) if refused.kind() == ErrorKind::Busy => {
                    (in_use(&refused).map_or(0, |held| held.locks.len()), printable(&refused.to_string()))
                }
                Err(refused) if refused.kind() == ErrorKind::InvalidConfig && force => {
                    return forced(to, &refused, json).await;
                }
                done => return Ok(report(&done?, None, json)),
            },
        };
        if before.replace(count) != Some(count) {
            say(json, &format!("waiting for {count} locks that are still held, such as {such}"));
        }
        tokio::time::sleep(LOOKING).await;
    }
}

/// Refuses nodes whose marks are of a third quorum: it would lose its votes, and the locks that it granted are not
/// waited for.
async fn are_of(quorums: &[&Quorum]) -> Result<(), Trouble> {
    for (which, quorum) in ["old", "new"].iter().zip(quorums) {
        for (place, mark) in quorum.marks().await.into_iter().enumerate() {
            if let Ok(NodeMark::Foreign(settings)) = mark
                && !quorums.iter().any(|known| known.settings() == settings)
            {
                return Err(Trouble::usage(format!(
                    "node {} of the {which} quorum belongs to a third one ({}); correct the URL, or give --force where \
                     that one is in use no more",
                    place + 1,
                    printable(&settings),
                )));
            }
        }
    }
    Ok(())
}
