//! Who holds which lock, and taking one away.

use std::time::Duration;

use dlock_core::backend::{Administration, BoxedFuture, Forced, Mode, Occupancy, boxed, within};
use dlock_core::{Failure, Holder, Key};
use redis::Value;

use crate::client::{Client, unchanged};
use crate::command::Respondent;
use crate::error::{Fault, is_no_lock, refusal};
use crate::format::{Again, Found, NO_LOCK, ScannedFor, shares};
use crate::keys::Names;
use crate::request::text;
use crate::servers::Node;

/// How long one answer of a server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many names a server looks at for one answer, so that it does not keep others waiting.
const AT_ONCE: usize = 1_000;

impl Administration for Client {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        boxed(holders(self))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        boxed(async move {
            match seen {
                Some(seen) => force_release_of(self, &key, &seen).await,
                None if force_release(self, &key).await? => Ok(Forced::Released),
                None => Ok(Forced::Free),
            }
        })
    }

    fn resize(&self, key: Key, permits: u32) -> BoxedFuture<'_, Result<Option<u32>, Failure>> {
        boxed(async move { resize(self, &key, permits).await })
    }
}

/// Who holds one lock; of several the first that the server tells of.
pub(crate) async fn inspect(client: &Client, key: &Key) -> Result<Option<Holder>, Failure> {
    Ok(occupancy(client, key).await?.holders.into_iter().next())
}

/// All who hold one lock.
pub(crate) async fn occupancy(client: &Client, key: &Key) -> Result<Occupancy, Failure> {
    Ok(look(client, &client.names(key), Respondent::Any).await?.occupancy)
}

/// Returns who holds one lock, or what is in the way of one, as the server says that grants it: a replica may be late.
pub(crate) async fn inspect_granted(client: &Client, names: &Names) -> Result<Option<Holder>, Failure> {
    match look(client, names, Respondent::Master).await {
        Ok(looked) => Ok(looked.occupancy.holders.into_iter().next()),
        Err(failure) if is_no_lock(&failure) => Ok(Some(foreign())),
        Err(failure) => Err(failure),
    }
}

/// What a look at one lock found.
struct Looked {
    occupancy: Occupancy,
    /// What tells those who hold it from all others.
    identities: Vec<Vec<u8>>,
    /// As what it was looked at.
    kind: Option<Again>,
}

/// Looks at a lock. A replica, which may be late, answers only where it is allowed to.
async fn look(client: &Client, names: &Names, by: Respondent) -> Result<Looked, Failure> {
    let call = |number| client.format.look(&names.lock, number);
    let looked = client.question(names.slot, by, call).await;
    let (found, identities) = match looked.map_err(unchanged) {
        Ok(looked) => {
            let identities = client.format.identities(None, &looked);
            (client.format.seen(looked), identities)
        }
        // Perhaps several hold it.
        Err(failure) if is_no_lock(&failure) => {
            return look_again(client, names, Again::Other, by).await;
        }
        Err(failure) => return Err(failure),
    };
    let holders = match found {
        Found::ReadWriteLock => return look_again(client, names, Again::ReadWriteLock, by).await,
        Found::Several(holders) => holders,
        Found::Nothing => Vec::new(),
        Found::Held(holder) => vec![holder],
        Found::Foreign if !client.among_data => vec![foreign()],
        Found::Foreign | Found::Data => return Err(refusal(NO_LOCK)),
    };
    Ok(Looked { occupancy: Occupancy::new(None, holders), identities, kind: None })
}

async fn look_again(client: &Client, names: &Names, kind: Again, by: Respondent) -> Result<Looked, Failure> {
    let call = |number| client.format.look_again(kind, &names.lock, number);
    let looked = client.question(names.slot, by, call).await.map_err(unchanged)?;
    let identities = client.format.identities(Some(kind), &looked);
    let occupancy = client.format.seen_again(kind, looked).ok_or_else(senseless)?;
    Ok(Looked { occupancy, identities, kind: Some(kind) })
}

/// Takes a lock away from whoever holds it; whether anybody did.
async fn force_release(client: &Client, key: &Key) -> Result<bool, Failure> {
    let names = client.names(key);
    let call = |number| client.format.force(&names, client.among_data, &[], number);
    let kind = match client.ask(names.slot, call).await {
        Err(failure) if is_no_lock(&failure) => Again::Other,
        Ok(Value::Int(2)) => Again::ReadWriteLock,
        forced => return Ok(forced? == Value::Int(1)),
    };
    let call = |number| client.format.force_again(kind, &names.lock, &[], number);
    Ok(client.ask(names.slot, call).await? == Value::Int(1))
}

/// Takes a lock away from those who were seen to hold it, if nobody else does.
async fn force_release_of(client: &Client, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
    let names = client.names(key);
    // What is read now is what the server compares with: no holder has it that comes later.
    let Looked { occupancy, identities, kind } = look(client, &names, Respondent::Master).await?;
    if let Some(answer) = Forced::without_release(&occupancy.holders, seen) {
        return Ok(answer);
    }
    let call = |number| match kind {
        None => client.format.force(&names, client.among_data, &identities, number),
        Some(kind) => client.format.force_again(kind, &names.lock, &identities, number),
    };
    match client.ask(names.slot, call).await {
        Ok(Value::Int(0)) => Ok(Forced::Free),
        Ok(Value::Int(1)) => Ok(Forced::Released),
        Ok(_) => Ok(Forced::HeldByOthers),
        // It is of another kind by now.
        Err(failure) if is_no_lock(&failure) => Ok(Forced::HeldByOthers),
        Err(failure) => Err(failure),
    }
}

/// Changes the number of permits of a semaphore; returns what it was.
async fn resize(client: &Client, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
    let names = client.names(key);
    let resized = client.ask(names.slot, |number| client.format.resize(&names.lock, permits, number)).await?;
    let asked = Mode::Permits { of: permits, take: 1 };
    let resized = shares::resized(&resized).ok_or_else(senseless)?;
    resized.map_err(|used| asked.conflict(&used).unwrap_or_else(senseless))
}

fn senseless() -> Failure {
    Failure::unavailable("malformed reply")
}

/// All locks that are held, from all servers.
async fn holders(client: &Client) -> Result<Vec<(Key, Holder)>, Failure> {
    let mut held = Vec::new();
    for node in client.servers.masters().await? {
        holders_at(client, &node, &mut held).await?;
    }
    // A name can come twice, when the server makes room meanwhile or a slot moves.
    held.sort_by(|(a, one), (b, other)| a.cmp(b).then(one.fence.cmp(&other.fence)));
    let who = |of: &Holder| (of.fence, of.host.clone(), of.pid, of.label.clone());
    held.dedup_by(|(a, one), (b, other)| a == b && who(one) == who(other));
    Ok(held)
}

async fn holders_at(client: &Client, node: &Node, held: &mut Vec<(Key, Holder)>) -> Result<(), Failure> {
    for ScannedFor { kind, is_line, pattern, lock_of } in client.format.scanned_again() {
        let mut cursor = "0".to_owned();
        loop {
            let names;
            (cursor, names) = scan(client, node, &cursor, (&pattern, Some(kind))).await?;
            let locks = names.iter().filter_map(|name| lock_of(name));
            let known = locks.filter_map(|lock| Some((client.namer.key_of(lock)?, lock.to_owned())));
            match is_line {
                true => first_in_line(client, node, known.collect(), held).await?,
                false => held_by_several(client, node, (Again::Other, known.collect()), held).await?,
            }
            if cursor == "0" {
                break;
            }
        }
    }
    let pattern = client.namer.pattern();
    let mut cursor = "0".to_owned();
    loop {
        let (next, names) = scan(client, node, &cursor, (&pattern, client.format.scanned())).await?;
        let locks: Vec<(Key, String)> = names
            .into_iter()
            .filter_map(|name| Some((client.namer.key_of(client.format.lock_of(&name)?)?, name)))
            .collect();
        if !locks.is_empty() {
            let looks = locks.iter().map(|(_, name)| |number| client.format.look(name, number));
            let looked = answered(client.servers.ask_at(node, PATIENCE, looks)).await?;
            let (mut several, mut read_write) = (Vec::new(), Vec::new());
            for ((key, name), looked) in locks.into_iter().zip(looked) {
                let found = match looked {
                    Ok(looked) => client.format.seen(looked),
                    // It may be held by several.
                    Err(fault) if fault.is_no_lock() => {
                        several.push((key, name));
                        continue;
                    }
                    Err(fault) => {
                        held_elsewhere(client, key, fault, held).await?;
                        continue;
                    }
                };
                match found {
                    Found::Held(holder) => held.push((key, holder)),
                    Found::Several(holders) => {
                        held.extend(holders.into_iter().map(|holder| (key.clone(), holder)));
                    }
                    Found::ReadWriteLock => read_write.push((key, name)),
                    // It is in the way of a lock, and may be removed.
                    Found::Foreign if !client.among_data => held.push((key, foreign())),
                    _ => {}
                }
            }
            held_by_several(client, node, (Again::Other, several), held).await?;
            held_by_several(client, node, (Again::ReadWriteLock, read_write), held).await?;
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

/// Looks at some names of a server.
async fn scan(
    client: &Client,
    node: &Node,
    cursor: &str,
    (pattern, kind): (&str, Option<&str>),
) -> Result<(String, Vec<String>), Failure> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(AT_ONCE);
    if let Some(kind) = kind {
        scan.arg("TYPE").arg(kind);
    }
    page(answered(client.servers.plain(node, PATIENCE, &scan)).await?).ok_or_else(senseless)
}

/// Adds those who hold these, as far as they are locks.
async fn held_by_several(
    client: &Client,
    node: &Node,
    (kind, locks): (Again, Vec<(Key, String)>),
    held: &mut Vec<(Key, Holder)>,
) -> Result<(), Failure> {
    if locks.is_empty() {
        return Ok(());
    }
    let looks = locks.iter().map(|(_, name)| |number| client.format.look_again(kind, name, number));
    let looked = answered(client.servers.ask_at(node, PATIENCE, looks)).await?;
    for ((key, _), looked) in locks.into_iter().zip(looked) {
        match looked.map(|looked| client.format.seen_again(kind, looked)) {
            Ok(Some(found)) => held.extend(found.holders.into_iter().map(|holder| (key.clone(), holder))),
            // It is in the way of a lock, and may be removed.
            Ok(None) if !client.among_data => held.push((key, foreign())),
            Ok(None) => {}
            // Data of others.
            Err(fault) if fault.is_no_lock() => {}
            Err(fault) => held_elsewhere(client, key, fault, held).await?,
        }
    }
    Ok(())
}

/// Adds those who stand first in line for these and keep others out, where nobody holds them.
async fn first_in_line(
    client: &Client,
    node: &Node,
    locks: Vec<(Key, String)>,
    held: &mut Vec<(Key, Holder)>,
) -> Result<(), Failure> {
    if locks.is_empty() {
        return Ok(());
    }
    let looks = locks.iter().map(|(_, name)| |number| client.format.look(name, number));
    let looked = answered(client.servers.ask_at(node, PATIENCE, looks)).await?;
    for ((key, _), looked) in locks.into_iter().zip(looked) {
        match looked.map(|looked| client.format.seen(looked)) {
            Ok(Found::Held(holder)) if holder.first_in_line => held.push((key, holder)),
            // It is held, and listed with the locks, or ours wait for it.
            Ok(_) => {}
            Err(fault) if fault.is_no_lock() => {}
            Err(fault) => held_elsewhere(client, key, fault, held).await?,
        }
    }
    Ok(())
}

/// Adds those who hold what a server did not tell of: while a slot of a cluster is being moved, it may send the
/// question to another server. Whatever else keeps a lock from being looked at is an error: none is left out without a
/// word.
async fn held_elsewhere(
    client: &Client,
    key: Key,
    fault: Fault,
    held: &mut Vec<(Key, Holder)>,
) -> Result<(), Failure> {
    if fault.redirect().is_none() {
        return Err(unchanged(fault.into_failure()));
    }
    match occupancy(client, &key).await {
        Ok(found) => held.extend(found.holders.into_iter().map(|holder| (key.clone(), holder))),
        // Data of others.
        Err(failure) if is_no_lock(&failure) => {}
        Err(failure) => return Err(failure),
    }
    Ok(())
}

/// Waits for an answer, but not for ever.
async fn answered<T>(asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let asked = within(PATIENCE, asking).await;
    asked
        .unwrap_or_else(|| Err(Failure::unavailable(format!("no answer within {PATIENCE:?}"))))
        .map_err(unchanged)
}

/// The cursor and the names of an answer to `SCAN`. Names that are no text are none of ours.
fn page(reply: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = reply else { return None };
    let [cursor, Value::Array(names)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    Some((text(&cursor)?.to_owned(), names.iter().filter_map(text).map(str::to_owned).collect()))
}

/// What lies under the name of a lock and is none.
fn foreign() -> Holder {
    let mut holder = Holder::default();
    holder.label = Some("not a lock of dlock".into());
    holder
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn pages_have_a_cursor_and_names() {
        let reply =
            Value::Array(vec![bulk("17"), Value::Array(vec![bulk("a"), Value::BulkString(vec![0xff])])]);
        assert_eq!(page(reply), Some(("17".into(), vec!["a".into()])));
        for reply in [Value::Nil, Value::Array(vec![bulk("0")]), Value::Array(vec![bulk("0"), bulk("a")])] {
            assert_eq!(page(reply.clone()), None, "{reply:?}");
        }
    }
}
