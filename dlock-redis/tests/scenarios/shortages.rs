//! Servers that end connections, have no room for more, lack replicas, or lack commands.

use std::time::Duration;

use dlock_core::{ErrorKind, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisOptions, RedisPair, RedisServer};

use crate::support::{LONG, error_of, held, locks, over, soon, take, until};

fn connections_since_start(server: &RedisServer) -> u64 {
    server.info("total_connections_received").parse().unwrap()
}

/// The connections of dlock: all but that which asks.
fn connected(server: &RedisServer) -> usize {
    server
        .command::<String>(&["CLIENT", "LIST"])
        .lines()
        .filter(|client| !client.contains("cmd=client"))
        .count()
}

#[tokio::test]
async fn connections_that_the_server_closes_while_they_are_idle_cost_no_lock_and_no_error() {
    for protocol in ["resp3", "resp2"] {
        let options = RedisServer::options().argument("timeout", "1");
        let server = match protocol {
            "resp3" => options.start().unwrap(),
            _ => options.argument("rename-command", "hello no-hello").start().unwrap(),
        };
        let ours = locks(&server.url(), LONG).await;
        let guard = ours.lock("held").acquire().await.unwrap();
        until("the idle connections to be closed", || connected(&server) == 0).await;
        let before = connections_since_start(&server);
        let other = ours.lock("room").acquire().await.unwrap();
        guard.check().unwrap();
        other.release().await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(held(&server), [""; 0]);
        let opened = connections_since_start(&server) - before;
        assert!(opened <= 6, "{opened} connections were opened, {protocol}");
    }
}

#[tokio::test]
async fn a_server_without_room_for_connections_is_unavailable_until_it_has_some() {
    let server = RedisServer::start().unwrap();
    let ours = locks(&server.url(), LONG).await;
    let guard = ours.lock("held").acquire().await.unwrap();
    let mut admin = server.admin();
    let mut command =
        |words: &[&str]| redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut admin);
    command(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
    let full = async {
        loop {
            let error = ours.lock("room").with_wait(Wait::No).acquire().await.unwrap_err();
            // What went out on the connection that was closed has no known outcome.
            match error.kind() {
                ErrorKind::Unavailable => return,
                kind => assert_eq!(kind, ErrorKind::Unknown, "{error}"),
            }
        }
    };
    soon("the refusal", full).await;
    let waiting = ours.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    guard.check().unwrap();
    command(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_master_whose_replica_falls_behind_refuses_renewals_and_the_holder_knows_in_time() {
    let pair = RedisPair::start().unwrap();
    // The holder gives it up a part of the lease earlier than the server: more than this process stands still.
    let ours = locks(&pair.master().url(), Duration::from_secs(12)).await;
    let guard = take(&ours, "room").await;
    for setting in [["min-replicas-max-lag", "1"], ["min-replicas-to-write", "1"]] {
        pair.master().command::<()>(&["CONFIG", "SET", setting[0], setting[1]]);
    }
    pair.replica().pause();
    soon("the loss", guard.lost()).await;
    assert_eq!(held(pair.master()), ["room"], "the server still has it when the holder gives it up");
    let error = error_of(ours.lock("other").with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
    assert!(error.to_string().contains("replicas"), "{error}");
    drop(guard);
    let lock = ours.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    pair.replica().resume();
    pair.master().command::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    until("the clean-up", || ours.stats().background == 0).await;
    assert_eq!(held(pair.master()), [""; 0]);
}

#[tokio::test]
async fn a_server_whose_commands_were_renamed_is_refused_or_used_without_them() {
    let without = |commands: &[&str]| {
        let rename = |options: RedisOptions, name: &&str| {
            options.argument("rename-command", &format!("{name} no-{name}"))
        };
        commands.iter().fold(RedisServer::options(), rename).start().unwrap()
    };
    let needed = [
        ("", &["TIME", "GET", "GETRANGE", "PTTL", "PEXPIRE", "DEL", "INCRBY", "SET", "PUBLISH"][..]),
        ("", &["APPEND"]),
        ("?prefix=", &["HSET", "HLEN", "HGET", "HGETALL", "HEXISTS", "HDEL"]),
    ];
    for (parameters, commands) in needed {
        let server = without(commands);
        let connected = Redis::connect(&format!("{}/{parameters}", server.url())).await;
        let error = error_of(connected, ErrorKind::Unsupported);
        for command in commands {
            assert!(error.to_string().contains(command), "{command}: {error}");
        }
    }
    let server = without(&["SUBSCRIBE", "CLIENT", "MGET", "SELECT", "WAIT", "ROLE", "EXISTS", "SCAN"]);
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let lock = theirs.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    tokio::task::yield_now().await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert!(ours.inspect("room").await.unwrap().is_none());
}

#[tokio::test]
async fn many_locks_outlive_a_storm_of_killed_connections_and_forgotten_scripts_at_few_requests() {
    const LOCKS: usize = 300;
    const KILLS: u64 = 20;
    let server = RedisServer::start().unwrap();
    let ours = over(Redis::connect(&server.url()).await.unwrap(), Duration::from_secs(300));
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(ours.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    let tracked = || server.info("tracking_total_keys").parse::<usize>().unwrap();
    until("the locks to be tracked", || tracked() == LOCKS).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    for _ in 0..KILLS {
        server.command::<()>(&["SCRIPT", "FLUSH"]);
        server.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]);
        until("the connection", || connected(&server) > 0).await;
    }
    until("the locks to be tracked again", || tracked() == LOCKS).await;
    for guard in &guards {
        guard.check().unwrap();
    }
    let calls = server.command_calls();
    let scripts: u64 = ["eval", "evalsha"].iter().filter_map(|name| calls.get(*name)).sum();
    // Each connection renews all of them, many in a call, which is repeated where the script was forgotten.
    assert!(scripts <= KILLS * 40, "{scripts} scripts for {KILLS} connections that ended");
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert_eq!(held(&server), [""; 0]);
}
