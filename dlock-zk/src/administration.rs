//! Who holds which lock, and taking one away.

use std::sync::Arc;

use dlock_core::{ErrorKind, Failure, Holder, Key};
use tokio::time::Instant;
use zookeeper::{Acl, Acls, CreateMode, Error};

use crate::backend::{holder, in_time};
use crate::config::Config;
use crate::error::of_write;
use crate::recipe::Recipe;
use crate::semaphore;
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

/// A node that is there for a moment when a semaphore got another number of permits. It is in no queue.
const RESIZED: &str = "%resized";

/// Which of those in line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// One of those who hold it.
    First,
    Holding,
    Waiting,
}

/// How many permits a semaphore has, and those who stand in line for a lock or it, in their order.
pub(crate) async fn places(
    sessions: &Arc<Sessions>,
    key: &Key,
    which: Which,
) -> Result<(Option<u32>, Vec<Holder>), Failure> {
    let session = connected(sessions, in_time()).await?;
    let Config { base, recipe, .. } = sessions.config();
    let directory = base.directory(key);
    let children = session.list(&directory, in_time()).await?.unwrap_or_default();
    let permits = permits(&session, *recipe, &directory).await?;
    let line = recipe.in_order(&children);
    let holding = holding(*recipe, permits, &line);
    let wanted = match which {
        Which::All => &line[..],
        Which::First => &line[..holding.min(1)],
        Which::Holding => &line[..holding],
        Which::Waiting => &line[holding..],
    };
    let paths = wanted.iter().map(|name| ((), format!("{directory}/{name}"))).collect::<Vec<_>>();
    let mut found = Vec::with_capacity(paths.len());
    for some in paths.chunks(AT_ONCE) {
        read_all(&session, (*recipe, permits), some, |(), holder| found.push(holder)).await?;
    }
    Ok((permits, found))
}

/// How many permits the semaphore of this directory has; `None` where there is none.
async fn permits(session: &Session, recipe: Recipe, directory: &str) -> Result<Option<u32>, Failure> {
    if !recipe.has_permits() {
        return Ok(None);
    }
    let content = read(directory, in_time(), session.client.get_data(directory)).await?;
    Ok(content.and_then(|(data, _)| semaphore::permits(&data)))
}

/// How many of the nodes of a queue, in its order, have the lock or their permits.
fn holding(recipe: Recipe, permits: Option<u32>, in_order: &[&str]) -> usize {
    match in_order.first() {
        Some(first) if recipe.takes(first).is_some() => {
            semaphore::holding(recipe, in_order, permits.unwrap_or(u32::MAX))
        }
        _ => recipe.holding(in_order),
    }
}

/// Stores another number of permits, and has those who wait look again. Returns the number before.
pub(crate) async fn resize(
    sessions: &Arc<Sessions>,
    key: &Key,
    permits: u32,
) -> Result<Option<u32>, Failure> {
    let until = in_time();
    let Config { base, recipe, acl, .. } = sessions.config();
    if !recipe.has_permits() {
        let what = "nodes of this recipe are no semaphore's, so that there is no number of permits to change";
        return Err(Failure::new(ErrorKind::Unsupported, what));
    }
    let session = connected(sessions, until).await?;
    let directory = base.directory(key);
    loop {
        let content = read(&directory, until, session.client.get_data(&directory)).await?;
        let Some((data, stat)) = content else { return Ok(None) };
        let Some(before) = semaphore::permits(&data) else { return Ok(None) };
        let content = semaphore::content(permits);
        let stored = session.client.set_data(&directory, content.as_bytes(), Some(stat.version));
        match tokio::time::timeout_at(until, stored).await {
            Ok(Ok(_)) => {
                wake(&session, &directory, acl).await;
                return Ok(Some(before));
            }
            Ok(Err(Error::BadVersion)) => {}
            Ok(Err(Error::NoNode)) => return Ok(None),
            Ok(Err(error)) => return Err(of_write(error, &directory)),
            Err(_) => return Err(Failure::unknown(format!("no answer in time from {directory}"))),
        }
    }
}

/// Changes the nodes of a directory for a moment, which is what the first one that waits watches. Without it, the next
/// look comes when it is due.
async fn wake(session: &Session, directory: &str, acl: &[Acl]) {
    let path = format!("{directory}/{RESIZED}");
    let options = CreateMode::Ephemeral.with_acls(Acls::new(acl));
    let made = session.client.create(&path, &[], &options);
    let deleted = session.client.delete(&path, None);
    let _ = tokio::time::timeout_at(in_time(), async { (made.await, deleted.await) }).await;
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
    let mut of_locks = Vec::new();
    let mut of_semaphores = Vec::new();
    for ((key, directory), asked) in locks.iter().zip(asked) {
        let children = read(directory, until, asked).await?.unwrap_or_default();
        let line = recipe.in_order(&children);
        let paths = |names: &[&str]| {
            names.iter().map(|name| (key, format!("{directory}/{name}"))).collect::<Vec<_>>()
        };
        if line.first().is_some_and(|first| recipe.takes(first).is_some()) {
            let permits = permits(session, recipe, directory).await?;
            of_semaphores.push((permits, paths(&line[..holding(recipe, permits, &line)])));
        } else {
            of_locks.extend(paths(&line[..recipe.holding(&line)]));
        }
    }
    of_semaphores.push((None, of_locks));
    for (permits, nodes) in of_semaphores {
        for some in nodes.chunks(AT_ONCE) {
            read_all(session, (recipe, permits), some, |key, holder| held.push((key.clone(), holder)))
                .await?;
        }
    }
    Ok(())
}

/// Reads nodes, and passes over those that are gone meanwhile.
async fn read_all<T: Copy + Send + Sync>(
    session: &Session,
    (recipe, permits): (Recipe, Option<u32>),
    nodes: &[(T, String)],
    mut note: impl FnMut(T, Holder) + Send,
) -> Result<(), Failure> {
    let until = in_time();
    let asked: Vec<_> = nodes.iter().map(|(_, path)| session.client.get_data(path)).collect();
    for ((of, path), asked) in nodes.iter().zip(asked) {
        if let Some((data, stat)) = read(path, until, asked).await? {
            note(*of, holder(recipe, permits, path, &data, &stat));
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
    let permits = permits(&session, *recipe, &directory).await?;
    let line = recipe.in_order(&children);
    let paths = line[..holding(*recipe, permits, &line)].iter().map(|name| format!("{directory}/{name}"));
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
