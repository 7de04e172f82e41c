//! Who holds which lock, and taking one away.

use std::time::Duration;

use dlock_core::{ErrorKind, Failure, Holder, Key};
use redis::Value;

use crate::client::Client;
use crate::error::{Fault, refusal};
use crate::format::Found;
use crate::servers::Node;

/// How long one answer of a server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many names a server looks at for one answer, so that it does not keep others waiting.
const AT_ONCE: usize = 1_000;

/// Who holds one lock.
pub(crate) async fn inspect(client: &Client, key: &Key) -> Result<Option<Holder>, Failure> {
    let names = client.names(key);
    let mut look = redis::pipe();
    client.format.look(&names.lock, &mut look);
    let asking = client.servers.ask_slot(names.slot, PATIENCE, &look);
    let replies = tokio::time::timeout(PATIENCE, asking).await;
    let replies =
        replies.unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {PATIENCE:?}"))));
    let mut replies = replies.map_err(unchanged)?.into_iter();
    let (Some(left), Some(stored)) = (replies.next(), replies.next()) else { return Err(senseless()) };
    let left = extract(left)?;
    match client.format.seen(&left, stored)? {
        Found::Nothing => Ok(None),
        Found::Held(holder) => Ok(Some(holder)),
        Found::Foreign if !client.among_data => Ok(Some(foreign())),
        Found::Foreign | Found::Data => Err(refusal("WRONGTYPE the key holds something that is no lock")),
    }
}

/// Takes a lock away from whoever holds it; whether anybody did.
pub(crate) async fn force_release(client: &Client, key: &Key) -> Result<bool, Failure> {
    let names = client.names(key);
    let command = client.format.force(&names, client.among_data);
    Ok(client.ask(names.slot, &command).await? == Value::Int(1))
}

/// All locks that are held, from all servers.
pub(crate) async fn holders(client: &Client) -> Result<Vec<(Key, Holder)>, Failure> {
    let mut held = Vec::new();
    for node in client.servers.masters().await? {
        holders_at(client, &node, &mut held).await?;
    }
    // A name can come twice, when the server makes room meanwhile or a slot moves.
    held.sort_by(|(a, _), (b, _)| a.cmp(b));
    held.dedup_by(|(a, _), (b, _)| a == b);
    Ok(held)
}

async fn holders_at(client: &Client, node: &Node, held: &mut Vec<(Key, Holder)>) -> Result<(), Failure> {
    let pattern = client.namer.pattern();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::pipe();
        scan.cmd("SCAN").arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(AT_ONCE);
        if let Some(kind) = client.format.scanned() {
            scan.arg("TYPE").arg(kind);
        }
        let reply = ask(client, node, &scan).await?.pop().unwrap_or(Value::Nil);
        let (next, names) = page(extract(reply)?).ok_or_else(senseless)?;
        let locks: Vec<(Key, String)> =
            names.into_iter().filter_map(|name| Some((client.namer.key_of(&name)?, name))).collect();
        if !locks.is_empty() {
            let mut look = redis::pipe();
            for (_, name) in &locks {
                client.format.look(name, &mut look);
            }
            let mut replies = ask(client, node, &look).await?.into_iter();
            for (key, _) in locks {
                let (Some(left), Some(stored)) = (replies.next(), replies.next()) else {
                    return Err(senseless());
                };
                match client.format.seen(&left, stored) {
                    Ok(Found::Held(holder)) => held.push((key, holder)),
                    // It is in the way of a lock, and may be removed.
                    Ok(Found::Foreign) if !client.among_data => held.push((key, foreign())),
                    Ok(_) => {}
                    // Whatever has moved is passed over.
                    Err(failure) if failure.kind() != ErrorKind::Denied => {}
                    Err(denied) => return Err(denied),
                }
            }
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

async fn ask(client: &Client, node: &Node, commands: &redis::Pipeline) -> Result<Vec<Value>, Failure> {
    let asked = tokio::time::timeout(PATIENCE, client.servers.ask_at(node, PATIENCE, commands)).await;
    asked
        .unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {PATIENCE:?}"))))
        .map_err(unchanged)
}

/// Nothing was to be changed, so that it does not matter whether it was carried out.
fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        ErrorKind::Unknown => Failure::unavailable(failure.message().to_owned()),
        _ => failure,
    }
}

fn extract(reply: Value) -> Result<Value, Failure> {
    reply.extract_error().map_err(|error| unchanged(Fault::of(error).into_failure()))
}

fn senseless() -> Failure {
    Failure::unavailable("malformed reply")
}

/// The cursor and the names of an answer to `SCAN`. Names that are no text are none of ours.
fn page(reply: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = reply else { return None };
    let [cursor, Value::Array(names)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    Some((text(cursor)?, names.into_iter().filter_map(text).collect()))
}

/// What lies under the name of a lock and is none.
fn foreign() -> Holder {
    let mut holder = Holder::default();
    holder.label = Some("not a lock of dlock".into());
    holder
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
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
