//! Slots whose move has stalled: lock and counter lie on two servers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dlock_core::{ErrorKind, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};
use tokio::task::JoinSet;

use crate::support::{LONG, error_of, fence, is_counter, over, soon, take, until};

/// By the server that they came to, which sends who asks there to the one that still serves the slot.
#[tokio::test]
async fn locks_of_a_slot_whose_move_has_stalled_are_listed() {
    let cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster, "dlock:").await;
    let _guard = locks.lock("room").acquire().await.unwrap();
    let _reader = locks.lock("page").read().acquire().await.unwrap();
    for name in ["dlock:room", "dlock:page"] {
        let migration = cluster.begin_migration(name, (cluster.master_of(name) + 1) % 3);
        cluster.migrate_keys(migration);
        let held = locks.holders().await.unwrap();
        let mut keys: Vec<&str> = held.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["page", "room"], "while the slot of {name} moves");
        cluster.finish_migration(migration);
    }
}

async fn shared(cluster: &RedisCluster, prefix: &str) -> Locks {
    over(Redis::builder(&cluster.url()).with_prefix(prefix).connect().await.unwrap(), LONG)
}

/// Takes and releases a lock while its slot moves: before, in between with the counter behind and ahead, and
/// afterwards.
async fn moves(prefix: &str) {
    let cluster = RedisCluster::start().unwrap();
    let (ours, theirs) = (shared(&cluster, prefix).await, shared(&cluster, prefix).await);
    let name = format!("{prefix}room");
    let mut last = 0;
    let mut go = async || {
        for (holder, other) in [(&ours, &theirs), (&theirs, &ours)] {
            let guard = soon("the lock", holder.lock("room").acquire()).await.unwrap();
            assert!(fence(&guard) > last, "{} after {last}", fence(&guard));
            last = fence(&guard);
            let seen = holder.inspect("room").await.unwrap().unwrap();
            assert_eq!(seen.fence, guard.fence(), "the fence is stored with the lock");
            assert!(soon("an answer", other.lock("room").try_acquire()).await.unwrap().is_none());
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
    };
    let calls = |command: &str| -> u64 {
        let calls = |node: &RedisServer| node.command_calls().get(command).copied();
        cluster.nodes().iter().filter_map(calls).sum()
    };
    // What a waiter leaves where the lock is has whoever releases it notify him. Redisson notifies always.
    let is_marked = !prefix.is_empty();
    let hands_over = async || {
        let guard = ours.lock("room").acquire().await.unwrap();
        let (marks, lock) = (calls("append"), theirs.lock("room").with_wait(LONG));
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until("the waiter to listen", || cluster.nodes().iter().any(|node| !node.channels().is_empty()))
            .await;
        until("its mark", || !is_marked || calls("append") > marks).await;
        let published = calls("publish") + calls("spublish");
        guard.release().await.unwrap();
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
        assert!(calls("publish") + calls("spublish") > published, "the waiter was not notified");
    };
    go().await;
    let to = (cluster.master_of(&name) + 1) % 3;
    let migration = cluster.begin_migration(&name, to);
    // The counter is where the slot comes from, and new keys are made where it goes to.
    go().await;
    hands_over().await;
    cluster.migrate_keys(migration);
    go().await;
    hands_over().await;
    cluster.finish_migration(migration);
    go().await;
    let left: Vec<String> = cluster.keys().into_iter().filter(|key| !is_counter(key)).collect();
    assert_eq!(left, [""; 0]);
}

/// Depends on when a waiter's mark arrives: on a busy machine, a release was once seen to find none.
mod in_time {
    use super::*;

    #[tokio::test]
    async fn a_free_lock_is_granted_while_the_move_of_its_slot_stalls() {
        moves("dlock:").await;
    }

    #[tokio::test]
    async fn a_free_lock_that_is_shared_with_redisson_is_granted_while_the_move_of_its_slot_stalls() {
        moves("").await;
    }
}

#[tokio::test]
async fn several_locks_of_a_slot_are_taken_while_it_is_being_moved() {
    let cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster, "{locks}:").await;
    locks.lock_all(["a", "b", "c"]).acquire().await.unwrap().release().await.unwrap();
    let migration = cluster.begin_migration("{locks}:a", (cluster.master_of("{locks}:a") + 1) % 3);
    let guard = soon("the locks", locks.lock_all(["a", "b", "c"]).acquire()).await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    cluster.finish_migration(migration);
}

#[tokio::test]
async fn a_counter_that_is_refused_while_its_slot_is_moving_leaves_no_lock() {
    let cluster = RedisCluster::start().unwrap();
    let locks = shared(&cluster, "dlock:").await;
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    let counter = cluster.keys().remove(0);
    cluster.command_at::<()>(&counter, &["SET", &counter, "nonsense"]);
    let migration = cluster.begin_migration("dlock:room", (cluster.master_of("dlock:room") + 1) % 3);
    error_of(soon("an answer", locks.lock("room").acquire()).await, ErrorKind::InvalidConfig);
    // It was taken before the counter was asked.
    until("the clean-up", || cluster.keys() == [&*counter]).await;
    cluster.finish_migration(migration);
}

/// Pairs go on while the slot of their lock moves to and fro, and no two have it at once.
async fn pairs_while_it_moves(prefix: &'static str) {
    const TASKS: u64 = 4;
    const MOVES: usize = 3;
    let cluster = RedisCluster::start().unwrap();
    let name = format!("{prefix}room");
    let clients = [shared(&cluster, prefix).await, shared(&cluster, prefix).await];
    let highest = Arc::new(Mutex::new(0));
    let (moved, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, highest) = (clients[task as usize % 2].clone(), Arc::clone(&highest));
        let (moved, passed) = (Arc::clone(&moved), Arc::clone(&passed));
        tasks.spawn(async move {
            while !moved.load(Ordering::SeqCst) {
                let guard = take(&locks, "room").await;
                {
                    let mut highest = highest.try_lock().expect("two have it");
                    assert!(fence(&guard) > *highest, "{} after {highest}", fence(&guard));
                    *highest = fence(&guard);
                }
                passed.fetch_add(1, Ordering::SeqCst);
                // What becomes of a release that was cut off is found out in the background.
                drop(guard.release().await);
            }
        });
    }
    let more = async || {
        let before = passed.load(Ordering::SeqCst);
        until("more pairs", || passed.load(Ordering::SeqCst) > before + TASKS).await;
    };
    for _ in 0..MOVES {
        more().await;
        let migration = cluster.begin_migration(&name, (cluster.master_of(&name) + 1) % 3);
        more().await;
        cluster.migrate_keys(migration);
        more().await;
        cluster.finish_migration(migration);
    }
    more().await;
    moved.store(true, Ordering::SeqCst);
    while let Some(task) = soon("the end", tasks.join_next()).await {
        task.unwrap();
    }
}

#[tokio::test]
async fn pairs_go_on_while_the_slot_of_their_lock_moves_to_and_fro() {
    pairs_while_it_moves("dlock:").await;
}

#[tokio::test]
async fn pairs_that_are_shared_with_redisson_go_on_while_the_slot_of_their_lock_moves_to_and_fro() {
    pairs_while_it_moves("").await;
}
