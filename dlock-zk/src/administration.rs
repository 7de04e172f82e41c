//! Who holds which lock, and taking one away.

use std::sync::Arc;

use dlock_core::{Failure, Holder, Key};
use tokio::time::Instant;
use zookeeper::Error;

use crate::backend::{holder, in_time};
use crate::config::Config;
use crate::error::of_write;
use crate::recipe::Recipe;
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
        holders_of(&session, sessions.config().recipe, some, &mut held).await?;
    }
    Ok(held)
}

/// Which of those in line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// One of those who hold it.
    First,
    Holding,
    Waiting,
}

/// Those who stand in line for a lock, in their order.
pub(crate) async fn places(
    sessions: &Arc<Sessions>,
    key: &Key,
    which: Which,
) -> Result<Vec<Holder>, Failure> {
    let session = connected(sessions, in_time()).await?;
    let Config { base, recipe, .. } = sessions.config();
    let directory = base.directory(key);
    let children = session.list(&directory, in_time()).await?.unwrap_or_default();
    let line = recipe.in_order(&children);
    let holding = recipe.holding(&line);
    let wanted = match which {
        Which::All => &line[..],
        Which::First => &line[..holding.min(1)],
        Which::Holding => &line[..holding],
        Which::Waiting => &line[holding..],
    };
    let paths = wanted.iter().map(|name| ((), format!("{directory}/{name}"))).collect::<Vec<_>>();
    let mut found = Vec::with_capacity(paths.len());
    for some in paths.chunks(AT_ONCE) {
        read_all(&session, *recipe, some, |(), holder| found.push(holder)).await?;
    }
    Ok(found)
}

async fn holders_of(
    session: &Session,
    recipe: Recipe,
    locks: &[(Key, String)],
    held: &mut Vec<(Key, Holder)>,
) -> Result<(), Failure> {
    let until = in_time();
    // All are sent before the first answer is waited for.
    let asked: Vec<_> = locks.iter().map(|(_, directory)| session.client.list_children(directory)).collect();
    let mut holding = Vec::new();
    for ((key, directory), asked) in locks.iter().zip(asked) {
        let children = read(directory, until, asked).await?.unwrap_or_default();
        let line = recipe.in_order(&children);
        let nodes = &line[..recipe.holding(&line)];
        holding.extend(nodes.iter().map(|node| (key, format!("{directory}/{node}"))));
    }
    for some in holding.chunks(AT_ONCE) {
        read_all(session, recipe, some, |key, holder| held.push((key.clone(), holder))).await?;
    }
    Ok(())
}

/// Reads nodes, and passes over those that are gone meanwhile.
async fn read_all<T: Copy + Send + Sync>(
    session: &Session,
    recipe: Recipe,
    nodes: &[(T, String)],
    mut note: impl FnMut(T, Holder) + Send,
) -> Result<(), Failure> {
    let until = in_time();
    let asked: Vec<_> = nodes.iter().map(|(_, path)| session.client.get_data(path)).collect();
    for ((of, path), asked) in nodes.iter().zip(asked) {
        if let Some((data, stat)) = read(path, until, asked).await? {
            note(*of, holder(recipe, path, &data, &stat));
        }
    }
    Ok(())
}

/// Deletes the nodes of all who hold the lock; whether there was one.
pub(crate) async fn force(sessions: &Arc<Sessions>, key: &Key) -> Result<bool, Failure> {
    let until = in_time();
    let session = connected(sessions, until).await?;
    let Config { base, recipe, .. } = sessions.config();
    let directory = base.directory(key);
    let children = session.list(&directory, until).await?.unwrap_or_default();
    let line = recipe.in_order(&children);
    let paths = line[..recipe.holding(&line)].iter().map(|name| format!("{directory}/{name}"));
    let asked = paths.map(|path| (session.client.delete(&path, None), path)).collect::<Vec<_>>();
    let mut released = false;
    for (deletion, path) in asked {
        match tokio::time::timeout_at(until, deletion).await {
            Ok(Ok(())) => released = true,
            // It left by itself.
            Ok(Err(Error::NoNode)) => {}
            Ok(Err(error)) => return Err(of_write(error, &path)),
            Err(_) => return Err(Failure::unknown(format!("no answer in time to the deletion of {path:?}"))),
        }
    }
    Ok(released)
}

async fn connected(sessions: &Arc<Sessions>, until: Instant) -> Result<Arc<Session>, Failure> {
    let session = sessions.get(until).await?;
    session.connected(until).await?;
    Ok(session)
}
