//! What administrators and other users of a server do to it while locks are used.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{ErrorKind, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;
use tokio::task::JoinSet;

use crate::support::{LONG, error_of, held, impatient, locks, over, soon, take, until};

/// Lets tasks of several clients pass one lock around while `disturb` is done again and again, and checks that no two
/// had it at once.
async fn pass_around(server: &RedisServer, rounds: u64, disturb: impl Fn(&RedisServer) + Send + Sync) {
    const TASKS: u64 = 4;
    let (inside, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    // Withdrawals whose connection is gone are repeated for as long as a lease.
    let lease = Duration::from_secs(5);
    let clients = [impatient(&server.url(), lease).await, impatient(&server.url(), lease).await];
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, inside, passed) =
            (clients[task as usize % 2].clone(), Arc::clone(&inside), Arc::clone(&passed));
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = take(&locks, "room").await;
                assert!(!inside.swap(true, Ordering::SeqCst), "two had it");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                passed.fetch_add(1, Ordering::SeqCst);
                // What becomes of a release that was cut off is found out in the background.
                drop(guard.release().await);
            }
        });
    }
    let mut seen = 0;
    soon("all rounds", async {
        while seen < TASKS * rounds {
            disturb(server);
            tokio::time::sleep(Duration::from_millis(20)).await;
            seen = passed.load(Ordering::SeqCst);
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    })
    .await;
    until("the clean-up", || clients.iter().all(|locks| locks.stats().background == 0)).await;
    assert_eq!(held(server), [""; 0]);
}

#[tokio::test]
async fn a_server_that_is_made_to_forget_its_scripts_again_and_again_grants_one_holder_at_a_time() {
    let server = RedisServer::start().unwrap();
    pass_around(&server, 50, |server| server.command::<()>(&["SCRIPT", "FLUSH"])).await;
}

#[tokio::test]
async fn a_server_whose_functions_are_loaded_and_flushed_again_and_again_grants_one_holder_at_a_time() {
    let server = RedisServer::start().unwrap();
    let library = "#!lua name=others\nredis.register_function('count', function() return 1 end)";
    pass_around(&server, 20, |server| {
        server.command::<String>(&["FUNCTION", "LOAD", "REPLACE", library]);
        server.command::<()>(&["FUNCTION", "FLUSH"]);
        server.command::<()>(&["SCRIPT", "FLUSH", "ASYNC"]);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_sleeps_again_and_again_grants_one_holder_at_a_time() {
    let server = RedisServer::options().argument("enable-debug-command", "yes").start().unwrap();
    // Some requests are given up meanwhile, and carried out when it wakes up.
    pass_around(&server, 6, |server| server.command::<()>(&["DEBUG", "SLEEP", "0.3"])).await;
}

#[tokio::test]
async fn clients_whose_connections_are_killed_again_and_again_exclude_each_other() {
    let server = RedisServer::start().unwrap();
    pass_around(&server, 10, |server| {
        for kind in ["normal", "pubsub"] {
            server.command::<u32>(&["CLIENT", "KILL", "TYPE", kind]);
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_pauses_writes_again_and_again_grants_one_holder_at_a_time() {
    let server = RedisServer::start().unwrap();
    pass_around(&server, 10, |server| server.command::<()>(&["CLIENT", "PAUSE", "10", "WRITE"])).await;
}

#[tokio::test]
async fn a_pause_that_outlasts_the_patience_of_requests_leaves_no_lock_behind() {
    let server = RedisServer::start().unwrap();
    let locks = impatient(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.command::<()>(&["CLIENT", "PAUSE", "1500", "WRITE"]);
    let lock = locks.lock("room").with_wait(Wait::No);
    let error = soon("the end of the acquire", lock.acquire()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::TimedOut), "{error}");
    // Carried out after the pause, and withdrawn after that.
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn requests_that_are_cancelled_among_those_that_share_their_call_take_nothing_and_spoil_nothing() {
    const REQUESTS: usize = 300;
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    locks.lock("before").acquire().await.unwrap().release().await.unwrap();
    server.pause();
    let mut kept = Vec::new();
    let mut cancelled = Vec::new();
    for number in 0..REQUESTS {
        let lock = locks.lock(format!("room_{number}")).with_wait(Wait::Forever);
        let acquire = tokio::spawn(async move { lock.acquire().await });
        if number % 3 == 0 { cancelled.push(acquire) } else { kept.push(acquire) }
    }
    // All have asked.
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    cancelled.iter().for_each(tokio::task::JoinHandle::abort);
    server.resume();
    let mut guards = Vec::new();
    for acquire in kept {
        guards.push(soon("the lock", acquire).await.unwrap().unwrap());
    }
    until("the clean-up", || locks.stats().background == 0).await;
    assert_eq!(held(&server).len(), guards.len());
    for guard in guards {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn the_holder_of_a_lock_that_is_evicted_knows_at_once() {
    let used = RedisServer::start().unwrap().info("used_memory").parse::<u64>().unwrap();
    let server = RedisServer::options().max_memory(used + (4 << 20), "volatile-lru").start().unwrap();
    let locks = over(Redis::connect(&server.url()).await.unwrap(), Duration::from_secs(600));
    let guard = locks.lock("room").acquire().await.unwrap();
    until("the lock to be tracked", || server.info("tracking_total_keys") == "1").await;
    // Only locks can be evicted here: nothing else expires.
    let data = "x".repeat(100_000);
    for number in 0..60 {
        drop(server.try_command::<()>(&["SET", &format!("data_{number}"), &data]));
    }
    assert_eq!(server.info("evicted_keys"), "1");
    soon("the loss", guard.lost()).await;
}

#[tokio::test]
async fn a_server_whose_scripts_were_renamed_away_is_refused_when_it_is_connected() {
    for command in ["EVALSHA", "EVAL"] {
        let options = RedisServer::options().argument("rename-command", &format!("{command} \"\""));
        let server = options.start().unwrap();
        let error = error_of(Redis::connect(&server.url()).await, ErrorKind::Unsupported);
        assert!(!error.is_retryable() && error.to_string().contains("command"), "{error}");
    }
}

#[tokio::test]
async fn a_subscription_that_is_ended_for_its_full_buffer_is_made_again() {
    let limits = RedisServer::options().argument("client-output-buffer-limit", "pubsub 64kb 64kb 1");
    let server = limits.start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let lock = theirs.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    let flood = "x".repeat(1 << 20);
    for _ in 0..3 {
        server.command::<u32>(&["PUBLISH", "dlock:room", &flood]);
    }
    until("the waiter to listen again", || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn locks_of_two_databases_are_different_also_in_what_is_told_of_them() {
    let server = RedisServer::start().unwrap();
    let in_database = async |number: u8| {
        let redis = Redis::connect(&format!("{}/{number}", server.url())).await.unwrap();
        over(redis, Duration::from_secs(600))
    };
    let (first, second): (Locks, Locks) = (in_database(0).await, in_database(1).await);
    let guards = [first.lock("room").acquire().await.unwrap(), second.lock("room").acquire().await.unwrap()];
    let renewed = |locks: &Locks| locks.stats().renewals;
    until("the first renewals", || renewed(&first) > 0 && renewed(&second) > 0).await;
    let before = renewed(&second);
    server.command::<u32>(&["DEL", "dlock:room"]);
    soon("the loss", guards[0].lost()).await;
    // One name, since the server does not tell databases apart here.
    until("the look at the other", || renewed(&second) > before).await;
    guards[1].check().unwrap();
}

#[tokio::test]
async fn hundreds_of_waiters_of_several_clients_all_get_their_turn() {
    const WAITERS: usize = 150;
    let server = RedisServer::start().unwrap();
    let first = locks(&server.url(), LONG).await;
    let guard = first.lock("room").acquire().await.unwrap();
    let mut waiters = JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..3 {
        let locks = locks(&server.url(), LONG).await;
        for _ in 0..WAITERS {
            let lock = locks.lock("room").with_wait(Wait::Forever);
            waiters.spawn(async move { lock.acquire().await?.release().await });
        }
        clients.push(locks);
    }
    until("somebody to listen", || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    for _ in 0..3 * WAITERS {
        soon("the next turn", waiters.join_next()).await.unwrap().unwrap().unwrap();
    }
    until("the channels to be left", || server.channels().is_empty()).await;
    assert_eq!(held(&server), [""; 0]);
}
