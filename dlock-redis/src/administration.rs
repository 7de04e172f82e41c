//! Who holds which lock, and taking one away.

use std::time::Duration;

use dlock_core::{Failure, Holder, Key};
use redis::{Cmd, Value};

use crate::backend::{Shared, holder};
use crate::connection::Node;
use crate::error::Fault;
use crate::keys::Names;
use crate::scripts::ours;

const FORCE: &str = include_str!("scripts/force.lua");
/// How long one answer of a server may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many names a server looks at for one answer, so that it does not keep others waiting.
const AT_ONCE: usize = 1_000;

/// The command that takes a lock away from whoever holds it, and the slot it has to go to. Rarely used, so that servers need not
/// keep the script.
pub(crate) fn force(names: &Names) -> (u16, Cmd) {
    let mut command = redis::cmd("EVAL");
    command.arg(FORCE).arg(1).arg(&names.lock).arg(&names.channel);
    (names.slot, command)
}

/// All locks that are held, from all servers.
pub(crate) async fn holders(shared: &Shared) -> Result<Vec<(Key, Holder)>, Failure> {
    let mut held = Vec::new();
    for node in shared.servers.masters().await? {
        holders_at(shared, &node, &mut held).await?;
    }
    // A name can come twice, when the server makes room meanwhile or a slot moves.
    held.sort_by(|(a, _), (b, _)| a.cmp(b));
    held.dedup_by(|(a, _), (b, _)| a == b);
    Ok(held)
}

async fn holders_at(shared: &Shared, node: &Node, held: &mut Vec<(Key, Holder)>) -> Result<(), Failure> {
    let pattern = shared.namer.pattern();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::pipe();
        scan.cmd("SCAN")
            .arg(&cursor)
            .arg("MATCH")
            .arg(&pattern)
            .arg("COUNT")
            .arg(AT_ONCE)
            .arg("TYPE")
            .arg("hash");
        let reply = ask(shared, node, &scan).await?.pop().unwrap_or(Value::Nil);
        let (next, names) = page(extract(reply)?).ok_or_else(senseless)?;
        let locks: Vec<(Key, String)> =
            names.into_iter().filter_map(|name| Some((shared.namer.key_of(&name)?, name))).collect();
        if !locks.is_empty() {
            let mut look = redis::pipe();
            for (_, name) in &locks {
                look.cmd("PTTL").arg(name).cmd("HGETALL").arg(name);
            }
            let mut replies = ask(shared, node, &look).await?.into_iter();
            for (key, _) in locks {
                let (left, fields) = (replies.next(), replies.next());
                // Whatever is gone, has moved, or is no lock is passed over.
                let found = left.zip(fields).and_then(|(left, fields)| holder_of(&left, fields));
                held.extend(found.map(|holder| (key, holder)));
            }
        }
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

async fn ask(shared: &Shared, node: &Node, commands: &redis::Pipeline) -> Result<Vec<Value>, Failure> {
    let asked = tokio::time::timeout(PATIENCE, shared.servers.ask_at(node, PATIENCE, commands)).await;
    asked
        .unwrap_or_else(|_| Err(Failure::unavailable(format!("no answer within {PATIENCE:?}"))))
        .map_err(unchanged)
}

/// Nothing was to be changed, so that it does not matter whether it was carried out.
fn unchanged(failure: Failure) -> Failure {
    match failure.kind() {
        dlock_core::ErrorKind::Unknown => Failure::unavailable(failure.message().to_owned()),
        _ => failure,
    }
}

fn extract(reply: Value) -> Result<Value, Failure> {
    reply.extract_error().map_err(|error| unchanged(Fault::of(error).into_failure()))
}

fn senseless() -> Failure {
    Failure::unavailable("the reply makes no sense")
}

/// The cursor and the names of an answer to `SCAN`. Names that are no text are none of ours.
fn page(reply: Value) -> Option<(String, Vec<String>)> {
    let Value::Array(parts) = reply else { return None };
    let [cursor, Value::Array(names)] = <[Value; 2]>::try_from(parts).ok()? else { return None };
    Some((text(cursor)?, names.into_iter().filter_map(text).collect()))
}

/// The holder by the answers to `PTTL` and `HGETALL`; `None` when nobody holds it or it is no lock.
fn holder_of(left: &Value, fields: Value) -> Option<Holder> {
    let mut fields = match fields {
        Value::Map(fields) => fields,
        Value::Array(flat) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| flat.next().zip(flat.next())).collect()
        }
        _ => return None,
    };
    let (owner, value) = fields.pop().filter(|_| fields.is_empty())?;
    let (owner, value) = (text(owner)?, text(value)?);
    if !is_owner(&owner) {
        return None;
    }
    let left = match left {
        Value::Int(left) => u64::try_from(*left).ok().map(Duration::from_millis),
        _ => return None,
    };
    Some(match ours(&value) {
        Some((fence, who)) => holder(Some(who), Some(fence), left),
        None => holder(Some(&owner), None, left),
    })
}

/// The UUID of a client, and the mark of a claim or a thread: as the script that takes locks away has it.
fn is_owner(field: &str) -> bool {
    field.split_once(':').is_some_and(|(client, mark)| {
        let parts: Vec<&str> = client.split('-').collect();
        let hex = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        parts.len() == 5
            && parts.iter().all(hex)
            && !mark.is_empty()
            && mark.bytes().all(|b| b.is_ascii_alphanumeric())
    })
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

    const OWNER: &str = "0a1b2c3d-0000-4000-8000-00000000000a:17";

    #[test]
    fn only_a_hash_with_one_owner_is_a_lock() {
        let one = |field: &str, value: &str| Value::Array(vec![bulk(field), bulk(value)]);
        let ours = holder_of(&Value::Int(250), one(OWNER, "7 host=a pid=5")).unwrap();
        assert_eq!((ours.host.as_deref(), ours.fence.map(|fence| fence.get())), (Some("a"), Some(7)));
        assert_eq!(ours.expires_in, Some(Duration::from_millis(250)));
        let java = holder_of(&Value::Int(-1), one(OWNER, "2")).unwrap();
        assert_eq!((java.label.as_deref(), java.expires_in), (Some(OWNER), None));
        let map = Value::Map(vec![(bulk(OWNER), bulk("7 host=a"))]);
        assert!(holder_of(&Value::Int(1), map).is_some());
        for fields in [
            Value::Array(vec![]),
            one("name", "value"),
            one("a:b", "1"),
            Value::Array(vec![bulk(OWNER), bulk("1"), bulk("mode"), bulk("read")]),
            Value::Nil,
        ] {
            assert_eq!(holder_of(&Value::Int(1), fields.clone()), None, "{fields:?}");
        }
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
