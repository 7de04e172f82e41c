//! The holders of locks, for operators, and the release of a lock by force.

use std::collections::BTreeMap;

use dlock_core::backend::{Forced, Occupancy};
use dlock_core::{Failure, Holder, Key};
use etcd_client::{Compare, CompareOp, GetOptions, Txn, TxnOp};

use crate::answer::{Answer, Entry, unchanged};
use crate::names::{lock_of, number_key};
use crate::servers::{PATIENCE, Servers, kv};

/// The number of keys that are read at once.
const PAGE: i64 = 1_000;
/// The most keys that are deleted in one step.
const AT_ONCE: usize = 100;

/// A part of the queue of a lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    All,
    Holding,
    Waiting,
}

/// Reads the directory of a lock, and the number of its permits.
async fn read(servers: &Servers, number_key: &str) -> Result<Answer, Failure> {
    let look = Txn::new().and_then([
        TxnOp::get(number_key, None),
        TxnOp::get(format!("{number_key}/"), Some(GetOptions::new().with_prefix())),
    ]);
    let answer = servers.look(|client| {
        let look = look.clone();
        async move { kv(&client).txn(look).await }
    });
    Ok(Answer::of(&answer.await?, number_key))
}

/// Returns a holder, with the time that is left of it if it was left.
async fn holder(servers: &Servers, entry: &Entry, permits: Option<u32>) -> Result<Holder, Failure> {
    let mut holder = entry.holder(permits);
    if let Some(taken_for) = entry.left_for() {
        let lease = entry.lease;
        let left = servers
            .look(|client| async move { client.lease_client().time_to_live(lease, None).await })
            .await?;
        // The lease is longer than what was asked for.
        let left = std::time::Duration::from_secs(left.ttl().try_into().unwrap_or(0));
        holder.expires_in = Some(left.min(taken_for));
    }
    Ok(holder)
}

/// Returns the number of permits, and some of those in the queue of a lock, in their order.
pub(crate) async fn places(servers: &Servers, key: &Key, which: Which) -> Result<Occupancy, Failure> {
    let answer = read(servers, &number_key(&servers.config.prefix, key)).await?;
    let holding = answer.holding();
    let wanted = match which {
        Which::All => &answer.entries[..],
        Which::Holding => &answer.entries[..holding],
        Which::Waiting => &answer.entries[holding..],
    };
    let mut found = Vec::with_capacity(wanted.len());
    for entry in wanted {
        found.push(holder(servers, entry, answer.permits()).await?);
    }
    Ok(Occupancy::new(answer.permits(), found))
}

/// Returns all locks that are held, each with its holders.
pub(crate) async fn holders(servers: &Servers) -> Result<Vec<(Key, Holder)>, Failure> {
    let prefix = &servers.config.prefix;
    let mut locks: BTreeMap<Key, Answer> = BTreeMap::new();
    // `0` is the character after the slash.
    let (mut from, end) = (format!("{prefix}/").into_bytes(), format!("{prefix}0"));
    let mut options = GetOptions::new().with_range(end).with_limit(PAGE);
    loop {
        let page = servers.look(|client| {
            let (from, options) = (from.clone(), options.clone());
            async move { kv(&client).get(from, Some(options)).await }
        });
        let page = page.await?;
        for stored in page.kvs() {
            let Some(key) = stored.key_str().ok().and_then(|key| lock_of(prefix, key)) else { continue };
            let number_key = number_key(prefix, &key);
            locks.entry(key).or_default().note(stored, &number_key);
        }
        let (true, Some(last)) = (page.more(), page.kvs().last()) else { break };
        from = [last.key(), b"\0"].concat();
        // All pages show one moment.
        options = options.with_revision(page.header().map_or(0, |header| header.revision()));
    }
    let mut held = Vec::new();
    for (key, mut answer) in locks {
        answer.sort();
        for entry in &answer.entries[..answer.holding()] {
            held.push((key.clone(), holder(servers, entry, answer.permits()).await?));
        }
    }
    Ok(held)
}

/// Deletes the keys of all holders of the lock; with `seen`, only if these are all of them.
pub(crate) async fn force(servers: &Servers, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
    let number_key = number_key(&servers.config.prefix, key);
    let mut seen = seen.map(<[Holder]>::to_vec);
    loop {
        let answer = read(servers, &number_key).await?;
        let holding = &answer.entries[..answer.holding()];
        let now: Vec<Holder> = holding.iter().map(|entry| entry.holder(answer.permits())).collect();
        if let Some(answer) = Forced::without_release(&now, seen.get_or_insert_with(|| now.clone())) {
            return Ok(answer);
        }
        let mut released = false;
        for some in holding.chunks(AT_ONCE) {
            // Those that are deleted have not left by themselves, nor, until then, has another one come.
            let there =
                |entry: &Entry| Compare::create_revision(&*entry.name, CompareOp::Equal, entry.revision);
            let mut when: Vec<_> = some.iter().map(there).collect();
            when.extend((!released).then(|| unchanged(&number_key, answer.revision)));
            let deletions: Vec<_> = some.iter().map(|entry| TxnOp::delete(&*entry.name, None)).collect();
            released |= servers.txn(PATIENCE, Txn::new().when(when).and_then(deletions)).await?.succeeded();
        }
        if released {
            return Ok(Forced::Released);
        }
    }
}

/// Stores another number of permits, which waiters are notified of. Returns the number before.
pub(crate) async fn resize(servers: &Servers, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
    let number_key = number_key(&servers.config.prefix, key);
    loop {
        let Some(before) = read(servers, &number_key).await?.number else { return Ok(None) };
        if servers.replace_number(PATIENCE, &number_key, before, permits).await? {
            return Ok(Some(before.permits));
        }
    }
}
