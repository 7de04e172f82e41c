//! Who holds which lock, and taking one away.

use std::sync::Arc;

use dlock_core::{Failure, Holder, Key};
use tokio::time::Instant;
use zookeeper::Error;

use crate::backend::{holder, in_time};
use crate::error::of_write;
use crate::names;
use crate::session::{Session, Sessions, read};

/// How many requests are under way at the most, so that the servers' answers to others do not wait for ours.
const AT_ONCE: usize = 128;

/// All locks that are held.
pub(crate) async fn holders(sessions: &Arc<Sessions>) -> Result<Vec<(Key, Holder)>, Failure> {
    let session = connected(sessions, in_time()).await?;
    let base = &sessions.config().base;
    let below = if base.path() == "/" { "" } else { base.path() };
    // By way of the leader; what comes after it on this session is no older.
    let names = session.list(base.path(), in_time()).await?.unwrap_or_default();
    let locks: Vec<(Key, String)> =
        names.into_iter().filter_map(|name| Some((base.key_of(&name)?, format!("{below}/{name}")))).collect();
    let mut held = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        holders_of(&session, some, &mut held).await?;
    }
    Ok(held)
}

async fn holders_of(
    session: &Session,
    locks: &[(Key, String)],
    held: &mut Vec<(Key, Holder)>,
) -> Result<(), Failure> {
    let until = in_time();
    // All are sent before the first answer is waited for.
    let asked: Vec<_> = locks.iter().map(|(_, directory)| session.client.list_children(directory)).collect();
    let mut first = Vec::new();
    for ((key, directory), asked) in locks.iter().zip(asked) {
        let children = read(directory, until, asked).await?.unwrap_or_default();
        if let Some(node) = names::in_order(&children).first() {
            first.push((key, format!("{directory}/{node}")));
        }
    }
    let asked: Vec<_> = first.iter().map(|(_, path)| session.client.get_data(path)).collect();
    for ((key, path), asked) in first.iter().zip(asked) {
        // One who left meanwhile is passed over.
        if let Some((data, stat)) = read(path, until, asked).await? {
            held.push(((*key).clone(), holder(&data, &stat)));
        }
    }
    Ok(())
}

/// Deletes the first place in line, whoever's it is; whether there was one.
pub(crate) async fn force(sessions: &Arc<Sessions>, key: &Key) -> Result<bool, Failure> {
    let until = in_time();
    let session = connected(sessions, until).await?;
    let directory = sessions.config().base.directory(key);
    let children = session.list(&directory, until).await?.unwrap_or_default();
    let Some(first) = names::in_order(&children).into_iter().next() else { return Ok(false) };
    let path = format!("{directory}/{first}");
    match tokio::time::timeout_at(until, session.client.delete(&path, None)).await {
        Ok(Ok(())) => Ok(true),
        // It left by itself.
        Ok(Err(Error::NoNode)) => Ok(false),
        Ok(Err(error)) => Err(of_write(error, &path)),
        Err(_) => Err(Failure::unknown(format!("no answer in time to the deletion of {path:?}"))),
    }
}

async fn connected(sessions: &Arc<Sessions>, until: Instant) -> Result<Arc<Session>, Failure> {
    let session = sessions.get(until).await?;
    session.connected(until).await?;
    Ok(session)
}
