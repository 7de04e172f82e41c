//! What a server's limits, a torn stream and strangers on a lock's channel do to locks.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim, Mode, Mutex};
use dlock_core::{ErrorKind, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};
use dlock_testkit::claim_request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{LONG, SHORT, error_of, held, locks, over, soon, take, until};

#[tokio::test]
async fn a_connection_that_the_server_closed_for_its_idleness_costs_no_request() {
    let server = RedisServer::start().unwrap();
    let locks = over(Redis::connect(&server.url()).await.unwrap(), LONG);
    let guard = locks.lock("held").acquire().await.unwrap();
    server.command::<()>(&["CONFIG", "SET", "timeout", "1"]);
    until("the end of the connections", || server.info("connected_clients") == "1").await;
    let once = locks.lock("room").with_rechecks(0);
    once.acquire().await.unwrap().release().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_server_that_takes_no_more_connections_is_unavailable_and_waited_for() {
    let server = RedisServer::start().unwrap();
    // Longer than a busy machine lets this process stand still.
    let ours = locks(&server.url(), Duration::from_secs(12)).await;
    let guard = ours.lock("room").acquire().await.unwrap();
    until("a renewal", || ours.stats().renewals > 0).await;
    let theirs = Locks::new(Redis::builder(&server.url()).build().unwrap());
    let mut admin = server.admin();
    let used = server.info("connected_clients").parse::<u32>().unwrap() - 1;
    redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(used).exec(&mut admin).unwrap();
    let error = Redis::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    error_of(theirs.lock("room").try_acquire().await, ErrorKind::Unavailable);
    // Who is connected goes on, although there is no connection for messages.
    let lock = ours.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    let lock = theirs.lock("other").with_wait(LONG);
    let stranger = tokio::spawn(async move { lock.acquire().await });
    let renewals = ours.stats().renewals;
    until("renewals", || ours.stats().renewals > renewals + 1).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert!(!stranger.is_finished());
    redis::cmd("CONFIG").arg("SET").arg("maxclients").arg(1000).exec(&mut admin).unwrap();
    soon("the lock", stranger).await.unwrap().unwrap().release().await.unwrap();
}

/// Passes on one byte after the other. A connection on which `budget` runs out stays open, and silent.
async fn dribble(to: SocketAddr, budget: Arc<AtomicI64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.unwrap();
            client.set_nodelay(true).unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let budget = Arc::clone(&budget);
            tokio::spawn(async move {
                while let Ok(byte) = from_server.read_u8().await {
                    if budget.fetch_sub(1, Ordering::SeqCst) <= 0 {
                        budget.store(i64::MAX, Ordering::SeqCst);
                        std::future::pending::<()>().await;
                    }
                    if to_client.write_u8(byte).await.is_err() {
                        return;
                    }
                    tokio::task::yield_now().await;
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn replies_that_come_in_pieces_of_a_byte_are_replies() {
    let server = RedisServer::start().unwrap();
    let address = dribble(server.address(), Arc::new(AtomicI64::new(i64::MAX))).await;
    let (ours, theirs) = (locks(&server.url_through(address), LONG).await, locks(&server.url(), LONG).await);
    let guards = ours.lock_all(["a", "b", "c"]).acquire().await.unwrap();
    let lock = ours.lock("room").with_wait(LONG);
    let guard = theirs.lock("room").acquire().await.unwrap();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    let guard = soon("the lock", waiter).await.unwrap().unwrap();
    let listed: Vec<String> =
        ours.holders().await.unwrap().into_iter().map(|(key, _)| key.to_string()).collect();
    assert_eq!(listed, ["a", "b", "c", "room"]);
    guard.release().await.unwrap();
    guards.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_lock_whose_reply_breaks_off_in_its_middle_is_adopted_or_given_back() {
    let server = RedisServer::start().unwrap();
    let budget = Arc::new(AtomicI64::new(i64::MAX));
    let address = dribble(server.address(), Arc::clone(&budget)).await;
    let ours = locks(&server.url_through(address), SHORT).await;
    for pass in [1, 5, 12, 20] {
        take(&ours, "before").await.release().await.unwrap();
        budget.store(pass, Ordering::SeqCst);
        let guard = take(&ours, "room").await;
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    until("the clean-up", || ours.stats().background == 0).await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_flood_of_messages_by_strangers_is_answered_by_few_requests() {
    let server = RedisServer::start().unwrap();
    let (ours, theirs) = (locks(&server.url(), LONG).await, locks(&server.url(), LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    let lock = theirs.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    let flood = "for n = 1, 1000 do redis.call('PUBLISH', KEYS[1], n) end";
    for _ in 0..100 {
        server.command::<()>(&["EVAL", flood, "1", "dlock:room"]);
        tokio::task::yield_now().await;
    }
    let calls = server.command_calls().get("evalsha").copied().unwrap_or(0);
    guard.check().unwrap();
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    assert!(calls <= 300, "{calls} requests after 100,000 messages");
}

#[tokio::test]
async fn a_right_that_is_taken_away_and_given_back_within_a_lease_loses_no_lock() {
    let server = RedisServer::options().user("locks", "pw", &["~*", "&*", "+@all"]).start().unwrap();
    let locks = locks(&server.url_as("locks", "pw"), Duration::from_secs(3)).await;
    let guard = locks.lock("room").acquire().await.unwrap();
    until("a renewal", || locks.stats().renewals > 0).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", "-pexpire"]);
    until("a refusal", || server.denials() > 0).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", "+pexpire"]);
    let renewals = locks.stats().renewals;
    until("renewals", || locks.stats().renewals > renewals).await;
    guard.check().unwrap();
    // All its connections end.
    let refused = server.denials();
    server.command::<()>(&["ACL", "SETUSER", "locks", ">other", "<pw"]);
    server.command::<u32>(&["CLIENT", "KILL", "USER", "locks"]);
    until("a refusal", || server.denials() > refused).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", ">pw"]);
    let renewals = locks.stats().renewals;
    until("renewals", || locks.stats().renewals > renewals).await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_the_others_of_its_cluster_forgot_is_found_again() {
    let cluster = RedisCluster::start().unwrap();
    let locks = locks(&cluster.url(), LONG).await;
    let key = "room";
    take(&locks, key).await.release().await.unwrap();
    let master = cluster.master_of(key);
    let id = cluster.nodes()[master].command::<String>(&["CLUSTER", "MYID"]);
    let (host, port) = (
        cluster.nodes()[master].address().ip().to_string(),
        cluster.nodes()[master].address().port().to_string(),
    );
    let others = || cluster.nodes().iter().enumerate().filter(|(at, _)| *at != master).map(|(_, node)| node);
    for node in others() {
        let _ = node.try_command::<()>(&["CLUSTER", "FORGET", &id]);
    }
    let guard = take(&locks, key).await;
    for node in others() {
        let _ = node.try_command::<()>(&["CLUSTER", "MEET", &host, &port]);
    }
    guard.release().await.unwrap();
    take(&locks, key).await.release().await.unwrap();
}

/// Passes on everything, but puts `result`, once, in the place of what the next call of a script returned.
async fn garble(to: SocketAddr, result: Arc<Mutex<Option<&'static str>>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
            let result = Arc::clone(&result);
            tokio::spawn(async move {
                let mut bytes = vec![0; 65_536];
                while let Ok(length @ 1..) = from_server.read(&mut bytes).await {
                    let reply = String::from_utf8_lossy(&bytes[..length]).into_owned();
                    // The last part of a script's reply is the number of its call.
                    let instead = reply.starts_with(['*', '$']).then(|| result.lock().take()).flatten();
                    let number = reply.rfind('$').map(|at| &reply[at..]);
                    let reply = match instead.zip(number) {
                        Some((result, number)) => format!("*2\r\n{result}{number}"),
                        None => reply,
                    };
                    if to_client.write_all(reply.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_claim_whose_release_was_answered_without_sense_is_not_clean() {
    let server = RedisServer::start().unwrap();
    let result = Arc::<Mutex<Option<&str>>>::default();
    let address = garble(server.address(), Arc::clone(&result)).await;
    let redis = Redis::connect(&server.url_through(address)).await.unwrap();
    // What an attempt is answered with that had the lock already.
    let (alone, among_others) = ("*1\r\n$1\r\nx\r\n", "*3\r\n:0\r\n:1\r\n*1\r\n$1\r\nx\r\n");
    for (mode, is_left, answer) in
        [(Mode::Exclusive, false, among_others), (Mode::Shared, false, alone), (Mode::Exclusive, true, alone)]
    {
        let mut request = claim_request("room", LONG, false).await.unwrap();
        request.mode = mode;
        let mut claim = redis.claim(request);
        assert!(matches!(claim.attempt().await, Ok(Attempt::Granted(_))));
        *result.lock() = Some(answer);
        let released = if is_left { claim.leave(LONG).await } else { claim.withdraw().await };
        assert_eq!(released.unwrap_err().kind(), ErrorKind::Unknown);
        assert!(result.lock().is_none() && !claim.is_clean(), "{mode:?}, left: {is_left}");
        assert!(claim.withdraw().await.unwrap().settled);
        assert!(claim.is_clean());
    }
}
