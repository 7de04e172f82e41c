//! The administration of locks: who holds which lock, and releases by force.

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

/// The longest wait for one answer of a server.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of names that a server looks at for one answer. More would keep it from its other clients for too long.
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

/// Returns the holder of one lock; of several the first that the server lists.
pub(crate) async fn inspect(client: &Client, key: &Key) -> Result<Option<Holder>, Failure> {
    Ok(occupancy(client, key).await?.holders.into_iter().next())
}

/// Returns all holders of one lock.
pub(crate) async fn occupancy(client: &Client, key: &Key) -> Result<Occupancy, Failure> {
    Ok(look(client, &client.namer.names(key), Respondent::Any).await?.occupancy)
}

/// Returns the holder of one lock, or the data in its place, by the server that grants it: a replica may be late.
pub(crate) async fn inspect_granted(client: &Client, names: &Names) -> Result<Option<Holder>, Failure> {
    match look(client, names, Respondent::Master).await {
        Ok(looked) => Ok(looked.occupancy.holders.into_iter().next()),
        Err(failure) if is_no_lock(&failure) => Ok(Some(foreign())),
        Err(failure) => Err(failure),
    }
}

/// The findings of a look at one lock.
struct Looked {
    occupancy: Occupancy,
    /// The identities of the holders, which no later holder has.
    identities: Vec<Vec<u8>>,
    /// The kind of the lock by the second look, if there was one.
    kind: Option<Again>,
}

/// Looks at a lock. A replica, which may be late, answers only if `by` allows it.
async fn look(client: &Client, names: &Names, by: Respondent) -> Result<Looked, Failure> {
    let call = |number| client.format.look(&names.lock, number);
    let looked = client.question(names.slot, by, call).await;
    let (found, identities) = match looked.map_err(unchanged) {
        Ok(looked) => {
            let identities = client.format.identities(None, &looked);
            (client.format.seen(looked), identities)
        }
        // Several clients may hold it: that is another type of key.
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

/// Looks at a lock of this kind.
async fn look_again(client: &Client, names: &Names, kind: Again, by: Respondent) -> Result<Looked, Failure> {
    let call = |number| client.format.look_again(kind, &names.lock, number);
    let looked = client.question(names.slot, by, call).await.map_err(unchanged)?;
    let identities = client.format.identities(Some(kind), &looked);
    let occupancy = client.format.seen_again(kind, looked).ok_or_else(senseless)?;
    Ok(Looked { occupancy, identities, kind: Some(kind) })
}

/// Releases a lock by force, whoever holds it. Returns `true` if there was a holder.
async fn force_release(client: &Client, key: &Key) -> Result<bool, Failure> {
    let names = client.namer.names(key);
    let call = |number| client.format.force(&names, client.among_data, &[], number);
    let kind = match client.ask(names.slot, call).await {
        Err(failure) if is_no_lock(&failure) => Again::Other,
        Ok(Value::Int(2)) => Again::ReadWriteLock,
        forced => return Ok(forced? == Value::Int(1)),
    };
    let call = |number| client.format.force_again(kind, &names.lock, &[], number);
    Ok(client.ask(names.slot, call).await? == Value::Int(1))
}

/// Releases a lock by force if all its holders are among `seen`.
async fn force_release_of(client: &Client, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
    let names = client.namer.names(key);
    // The server compares with the identities that are read here. A holder that comes later has another one, so that
    // its lock is not released by a decision about an earlier holder.
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
        // The lock is of another kind by now, and so has another holder.
        Err(failure) if is_no_lock(&failure) => Ok(Forced::HeldByOthers),
        Err(failure) => Err(failure),
    }
}

/// Changes the number of permits of a semaphore. Returns the number before.
async fn resize(client: &Client, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
    let names = client.namer.names(key);
    let resized = client.ask(names.slot, |number| client.format.resize(&names.lock, permits, number)).await?;
    let asked = Mode::Permits { of: permits, take: 1 };
    let resized = shares::resized(&resized).ok_or_else(senseless)?;
    resized.map_err(|used| asked.conflict(&used).unwrap_or_else(senseless))
}

fn senseless() -> Failure {
    Failure::unavailable("malformed reply")
}

/// Returns all locks that are held, from all servers.
async fn holders(client: &Client) -> Result<Vec<(Key, Holder)>, Failure> {
    let mut held = Vec::new();
    for node in client.servers.masters().await? {
        holders_at(client, &node, &mut held).await?;
    }
    // `SCAN` may list a name twice while the server resizes its table or a slot is being moved.
    held.sort_by(|(a, one), (b, other)| a.cmp(b).then(one.fence.cmp(&other.fence)));
    let who = |of: &Holder| (of.fence, of.host.clone(), of.pid, of.label.clone());
    held.dedup_by(|(a, one), (b, other)| a == b && who(one) == who(other));
    Ok(held)
}

/// Adds the holders of all locks of one server.
async fn holders_at(client: &Client, node: &Node, held: &mut Vec<(Key, Holder)>) -> Result<(), Failure> {
    // First the names beside locks, by their own patterns: a semaphore, or a queue of a lock that is free, has no key
    // that the scan of locks below finds.
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
                    // Several clients may hold it.
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
                    // It is in the way of a lock, and may be removed by force.
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

/// Returns some names of a server, and the cursor of the next.
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

/// Adds the holders of these keys, as far as they are locks.
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
            // It is in the way of a lock, and may be removed by force.
            Ok(None) if !client.among_data => held.push((key, foreign())),
            Ok(None) => {}
            // Data of other programs.
            Err(fault) if fault.is_no_lock() => {}
            Err(fault) => held_elsewhere(client, key, fault, held).await?,
        }
    }
    Ok(())
}

/// Adds the first waiter in the queue of each of these locks, if the lock is free and kept for that waiter.
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
            // The lock is held, and listed with the locks; or claims of dlock wait for it, which are not listed.
            Ok(_) => {}
            Err(fault) if fault.is_no_lock() => {}
            Err(fault) => held_elsewhere(client, key, fault, held).await?,
        }
    }
    Ok(())
}

/// Adds the holders of a lock that a server did not answer for: while a slot of a cluster is being moved, the question
/// may be redirected. Any other fault is an error: no lock is left out silently.
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
        // Data of other programs.
        Err(failure) if is_no_lock(&failure) => {}
        Err(failure) => return Err(failure),
    }
    Ok(())
}

/// Waits for an answer within the time limit.
async fn answered<T>(asking: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let asked = within(PATIENCE, asking).await;
    asked
        .unwrap_or_else(|| Err(Failure::unavailable(format!("no answer within {PATIENCE:?}"))))
        .map_err(unchanged)
}

/// Reads the cursor and the names of a reply to `SCAN`. Names that are no text are no names of locks.
fn page(reply: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = reply else { return None };
    let [cursor, Value::Array(names)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    Some((text(&cursor)?.to_owned(), names.iter().filter_map(text).map(str::to_owned).collect()))
}

/// Returns the holder that stands for data under the name of a lock.
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
