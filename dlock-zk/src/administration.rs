//! The holders of locks, for operators, and the release of a lock by force.

use std::sync::Arc;

use dlock_core::backend::{Forced, by_then};
use dlock_core::{ErrorKind, Failure, Holder, Key};
use tokio::time::Instant;
use zookeeper::{Acl, Acls, CreateMode, Error};

use crate::config::Config;
use crate::error::of_write;
use crate::holder::holder;
use crate::left;
use crate::recipe::Recipe;
use crate::semaphore;
use crate::session::Session;
use crate::sessions::Sessions;
use crate::wire::{in_time, read};

/// The number of requests that are under way at the most, so that the servers' answers to others do not wait for those
/// to an operator.
const AT_ONCE: usize = 128;

/// Returns all locks that are held, each with its holders.
pub(crate) async fn holders(sessions: &Arc<Sessions>) -> Result<Vec<(Key, Holder)>, Failure> {
    let session = connected(sessions, in_time()).await?;
    let base = &sessions.config().base;
    let below = if base.path() == "/" { "" } else { base.path() };
    // By way of the leader; the answers after it on this session are no older.
    let names = session.list(base.path(), in_time()).await?.unwrap_or_default();
    let locks: Vec<(Key, String)> =
        names.into_iter().filter_map(|name| Some((base.key_of(&name)?, format!("{below}/{name}")))).collect();
    let mut held = Vec::new();
    for some in locks.chunks(AT_ONCE) {
        let mut some = some.to_vec();
        for look in 1..=LOOKS {
            // Keys of which a node was gone before it was read.
            let gone = holders_of(&session, sessions.config().recipe, &some, &mut held).await?;
            // What the last look found of a key that changes all the time is kept.
            if gone.is_empty() || look == LOOKS {
                break;
            }
            // What was found of them is dropped: the next look finds it again.
            some.retain(|(key, _)| gone.contains(key));
            held.retain(|(key, _)| !gone.contains(key));
        }
    }
    Ok(held)
}

/// The number of looks at a queue whose nodes are gone before they are read: a node that was left may have taken their
/// place.
const LOOKS: u32 = 4;

/// A node that is there for a moment when a semaphore got another number of permits. It is in no queue.
const RESIZED: &str = "%resized";

/// A part of the queue of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    /// One of the holders.
    First,
    Holding,
    Waiting,
}

/// Returns how many permits a semaphore has, and the holders and the waiters of a lock or a semaphore, in their order.
pub(crate) async fn places(
    sessions: &Arc<Sessions>,
    key: &Key,
    which: Which,
) -> Result<(Option<u32>, Vec<Holder>), Failure> {
    let session = connected(sessions, in_time()).await?;
    let Config { base, recipe, .. } = sessions.config();
    let directory = base.directory(key);
    let mut looks = 0;
    loop {
        looks += 1;
        let children = session.list(&directory, in_time()).await?.unwrap_or_default();
        let permits = permits(&session, *recipe, &directory).await?;
        let queue = recipe.in_order(&children);
        let holding = holding(*recipe, permits, &queue);
        let wanted = match which {
            Which::All => &queue[..],
            Which::First => &queue[..holding.min(1)],
            Which::Holding => &queue[..holding],
            Which::Waiting => &queue[holding..],
        };
        let paths = wanted.iter().map(|name| ((), format!("{directory}/{name}"))).collect::<Vec<_>>();
        let (mut found, mut gone) = (Vec::with_capacity(paths.len()), false);
        for some in paths.chunks(AT_ONCE) {
            let vanished =
                read_all(&session, (*recipe, permits), some, |(), holder| found.push(holder)).await?;
            gone |= !vanished.is_empty();
        }
        // A waiter whose node is gone has left, or holds the lock by now: neither has to be found again.
        if which == Which::Waiting || !gone || looks == LOOKS {
            return Ok((permits, found));
        }
    }
}

/// Returns how many permits the semaphore of this directory has; `None` if there is none.
async fn permits(session: &Session, recipe: Recipe, directory: &str) -> Result<Option<u32>, Failure> {
    if !recipe.has_permits() {
        return Ok(None);
    }
    let content = read(directory, in_time(), session.client.get_data(directory)).await?;
    Ok(content.and_then(|(data, _)| semaphore::permits(&data)))
}

/// Returns how many of the nodes of a queue, in its order, have the lock or their permits.
fn holding(recipe: Recipe, permits: Option<u32>, in_order: &[&str]) -> usize {
    match in_order.first() {
        Some(first) if recipe.takes(first).is_some() => {
            semaphore::holding(recipe, in_order, permits.unwrap_or(u32::MAX))
        }
        _ => recipe.holding(in_order),
    }
}

/// Stores another number of permits, and has waiters look again. Returns the number before.
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
        // By its version, so that the number that is returned is the one that was replaced.
        let stored = session.client.set_data(&directory, content.as_bytes(), Some(stat.version));
        match by_then(until, stored).await {
            Some(Ok(_)) => {
                wake(&session, &directory, acl).await;
                return Ok(Some(before));
            }
            Some(Err(Error::BadVersion)) => {}
            Some(Err(Error::NoNode)) => return Ok(None),
            Some(Err(error)) => return Err(of_write(error, &directory)),
            None => return Err(Failure::unknown(format!("no answer in time from {directory}"))),
        }
    }
}

/// Changes the nodes of a directory for a moment, which the first waiter is notified of. If that fails, the waiter
/// looks when its next look is due.
async fn wake(session: &Session, directory: &str, acl: &[Acl]) {
    let path = format!("{directory}/{RESIZED}");
    let options = CreateMode::Ephemeral.with_acls(Acls::new(acl));
    // Both are sent together, so that the node does not stay.
    let made = session.client.create(&path, &[], &options);
    let deleted = session.client.delete(&path, None);
    let _ = by_then(in_time(), async { (made.await, deleted.await) }).await;
}

/// Adds the holders of `locks` to `held`. Returns the keys that have to be looked at again.
async fn holders_of(
    session: &Session,
    recipe: Recipe,
    locks: &[(Key, String)],
    held: &mut Vec<(Key, Holder)>,
) -> Result<Vec<Key>, Failure> {
    let until = in_time();
    // All are sent before the first answer is waited for.
    let asked: Vec<_> = locks.iter().map(|(_, directory)| session.client.list_children(directory)).collect();
    let mut of_locks = Vec::new();
    let mut of_semaphores = Vec::new();
    for ((key, directory), asked) in locks.iter().zip(asked) {
        let children = read(directory, until, asked).await?.unwrap_or_default();
        let queue = recipe.in_order(&children);
        let paths = |names: &[&str]| {
            names.iter().map(|name| (key, format!("{directory}/{name}"))).collect::<Vec<_>>()
        };
        if queue.first().is_some_and(|first| recipe.takes(first).is_some()) {
            let permits = permits(session, recipe, directory).await?;
            of_semaphores.push((permits, paths(&queue[..holding(recipe, permits, &queue)])));
        } else {
            of_locks.extend(paths(&queue[..recipe.holding(&queue)]));
        }
    }
    of_semaphores.push((None, of_locks));
    let mut gone = Vec::new();
    for (permits, nodes) in of_semaphores {
        for some in nodes.chunks(AT_ONCE) {
            let note = |key: &Key, holder| held.push((key.clone(), holder));
            gone.extend(read_all(session, (recipe, permits), some, note).await?.into_iter().cloned());
        }
    }
    Ok(gone)
}

/// Reads nodes, and leaves out those whose time is over. Returns the first parts of the `nodes` that are gone
/// meanwhile.
async fn read_all<T: Copy + Send + Sync>(
    session: &Session,
    (recipe, permits): (Recipe, Option<u32>),
    nodes: &[(T, String)],
    mut note: impl FnMut(T, Holder) + Send,
) -> Result<Vec<T>, Failure> {
    let until = in_time();
    let left_for = |path: &str| recipe.left_for(path.rsplit('/').next()?);
    // Asked for only if there is a node that has an end.
    let now = match nodes.iter().any(|(_, path)| left_for(path).is_some()) {
        true => session.server_time(until).await?,
        false => 0,
    };
    let mut gone = Vec::new();
    let asked: Vec<_> = nodes.iter().map(|(_, path)| session.client.get_data(path)).collect();
    for ((of, path), asked) in nodes.iter().zip(asked) {
        let Some((data, stat)) = read(path, until, asked).await? else {
            gone.push(*of);
            continue;
        };
        let mut holder = holder(recipe, permits, path, &data, &stat);
        if let Some(millis) = left_for(path) {
            let Some(left) = left::remaining(millis, &stat, now) else { continue };
            holder.expires_in = Some(left);
        }
        note(*of, holder);
    }
    Ok(gone)
}

/// Deletes the nodes that were left in the queues of all keys and whose time is over. Returns their number.
pub(crate) async fn prune(sessions: &Arc<Sessions>) -> Result<u64, Failure> {
    let session = connected(sessions, in_time()).await?;
    let Config { base, recipe, .. } = sessions.config();
    let below = if base.path() == "/" { "" } else { base.path() };
    let names = session.list(base.path(), in_time()).await?.unwrap_or_default();
    let of_keys = names.iter().filter(|name| base.key_of(name).is_some());
    let directories: Vec<String> = of_keys.map(|name| format!("{below}/{name}")).collect();
    let mut pruned = 0;
    for some in directories.chunks(AT_ONCE) {
        let until = in_time();
        let asked: Vec<_> = some.iter().map(|directory| session.client.list_children(directory)).collect();
        let mut left = Vec::new();
        for (directory, asked) in some.iter().zip(asked) {
            let children = read(directory, until, asked).await?.unwrap_or_default();
            let of_left =
                |name: &String| Some((recipe.left_for(name)?, Arc::from(format!("{directory}/{name}"))));
            left.extend(children.iter().filter_map(of_left));
        }
        pruned += remove_ended(&session, &left, until).await?;
    }
    Ok(pruned)
}

/// Deletes the nodes in `left` whose time is over; each keeps its key taken for so many milliseconds. Returns their
/// number.
async fn remove_ended(session: &Session, left: &[(u64, Arc<str>)], until: Instant) -> Result<u64, Failure> {
    if left.is_empty() {
        return Ok(0);
    }
    let now = session.server_time(until).await?;
    let asked: Vec<_> = left.iter().map(|(_, path)| session.client.check_stat(path)).collect();
    let mut removed = 0;
    for ((millis, path), asked) in left.iter().zip(asked) {
        let there = read(path, until, asked).await?.flatten();
        if there.is_some_and(|stat| left::remaining(*millis, &stat, now).is_none()) {
            session.delete(path, until).await?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Deletes the nodes of all holders of the lock; with `seen`, only if these are all of them. Each node is one holder's
/// alone, so that a holder that comes meanwhile keeps the lock.
pub(crate) async fn force(
    sessions: &Arc<Sessions>,
    key: &Key,
    seen: Option<&[Holder]>,
) -> Result<Forced, Failure> {
    let until = in_time();
    let session = connected(sessions, until).await?;
    let Config { base, recipe, .. } = sessions.config();
    let directory = base.directory(key);
    let mut looked_at = None;
    loop {
        let children = session.list(&directory, until).await?.unwrap_or_default();
        let permits = permits(&session, *recipe, &directory).await?;
        let queue = recipe.in_order(&children);
        if let Some((millis, first)) = queue.first().and_then(|first| Some((recipe.left_for(first)?, first)))
            && remove_ended(&session, &[(millis, format!("{directory}/{first}").into())], until).await? > 0
        {
            // The lock was free already.
            return Ok(Forced::Free);
        }
        let holding = queue[..holding(*recipe, permits, &queue)].iter();
        let nodes: Vec<((), String)> = holding.map(|name| ((), format!("{directory}/{name}"))).collect();
        if nodes.is_empty() {
            return Ok(Forced::Free);
        }
        if let Some(seen) = seen {
            let (mut now, mut gone) = (Vec::new(), false);
            for some in nodes.chunks(AT_ONCE) {
                let vanished =
                    read_all(&session, (*recipe, permits), some, |(), holder| now.push(holder)).await?;
                gone |= !vanished.is_empty();
            }
            if gone {
                continue;
            }
            if let Some(answer) = Forced::without_release(&now, seen) {
                return Ok(answer);
            }
        } else if *looked_at.get_or_insert_with(|| nodes.clone()) != nodes {
            return Ok(Forced::HeldByOthers);
        }
        if delete_all(&session, nodes, until).await? {
            return Ok(Forced::Released);
        }
        // All have left by themselves: another client may hold the lock now, or one of them by another node.
    }
}

/// Deletes nodes of holders, and returns `true` if any of them was there.
async fn delete_all(session: &Session, nodes: Vec<((), String)>, until: Instant) -> Result<bool, Failure> {
    let asked = nodes.into_iter().map(|((), path)| (session.client.delete(&path, None), path));
    let asked = asked.collect::<Vec<_>>();
    let mut deleted = false;
    for (deletion, path) in asked {
        match by_then(until, deletion).await {
            Some(Ok(())) => deleted = true,
            Some(Err(Error::NoNode)) => {}
            Some(Err(error)) => return Err(of_write(error, &path)),
            None => return Err(Failure::unknown(format!("no answer in time to the deletion of {path:?}"))),
        }
    }
    Ok(deleted)
}

async fn connected(sessions: &Arc<Sessions>, until: Instant) -> Result<Arc<Session>, Failure> {
    let session = sessions.get(until).await?;
    session.connected(until).await?;
    Ok(session)
}
