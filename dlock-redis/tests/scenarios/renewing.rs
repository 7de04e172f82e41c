//! Locks that are held for long.

use std::time::Duration;

use dlock_core::{ErrorKind, Guard, Locks, Quorum, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;
use redis::Connection;

use crate::support::{HOUR, error_of, held, is_counter, locks, soon, until};

/// Long enough for a busy machine to renew in time: nothing here waits for the end of a lease.
const LEASE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_thousand_renewals_never_give_more_than_a_lease_and_lose_nothing() {
    const LOCKS: usize = 25;
    let server = RedisServer::start().unwrap();
    let lease = Duration::from_millis(600);
    let locks = locks(&server.url(), lease).await;
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    let clients = || server.info("connected_clients");
    until("the first renewals", || locks.stats().renewals >= 25).await;
    let connections = clients();
    let mut longest = 0;
    until("a thousand renewals", || {
        longest = longest.max(server.command::<u64>(&["PTTL", "dlock:room_7"]));
        locks.stats().renewals >= 1000
    })
    .await;
    assert!(u128::from(longest) <= lease.as_millis(), "{longest} ms");
    assert_eq!(clients(), connections, "renewals open no connections");
    assert_eq!((locks.stats().lost, locks.stats().held), (0, LOCKS));
    for guard in guards {
        guard.check().unwrap();
        guard.release().await.unwrap();
    }
    assert_eq!(held(&server), [""; 0]);
}

fn command<T: redis::FromRedisValue>(admin: &mut Connection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query(admin).unwrap()
}

/// Has the server take no more connections than it has now.
fn close_to_others(server: &RedisServer) -> Connection {
    let mut admin = server.admin();
    let clients: String = command(&mut admin, &["CLIENT", "LIST"]);
    let used = clients.lines().count().to_string();
    command::<()>(&mut admin, &["CONFIG", "SET", "maxclients", &used]);
    admin
}

/// Holds that are renewed by each of the scripts.
async fn of_each_kind(locks: &Locks, has_readers: bool) -> Vec<Guard> {
    let mut guards = vec![
        locks.lock("alone").acquire().await.unwrap(),
        locks.lock("line").with_fairness(true).acquire().await.unwrap(),
        locks.semaphore("permits", 4).acquire().await.unwrap(),
    ];
    if has_readers {
        guards.push(locks.lock("page").read().acquire().await.unwrap());
    }
    guards
}

async fn renewed_often(locks: &Locks, guards: &[Guard]) {
    let renewals = locks.stats().renewals;
    until("renewals", || {
        guards.iter().for_each(|guard| guard.check().unwrap());
        locks.stats().renewals >= renewals + 5 * guards.len() as u64
    })
    .await;
}

#[tokio::test]
async fn what_is_held_is_renewed_and_released_where_no_more_connections_are_to_be_had() {
    for (parameters, has_readers) in [("", true), ("/?redisson=true", false)] {
        let server = RedisServer::start().unwrap();
        let ours = locks(&format!("{}{parameters}", server.url()), LEASE).await;
        let mut admin = close_to_others(&server);
        let mut guards = of_each_kind(&ours, has_readers).await;
        renewed_often(&ours, &guards).await;
        drop(guards.pop());
        for guard in guards {
            guard.release().await.unwrap();
        }
        until("the clean-up", || ours.stats().background == 0).await;
        let left: Vec<String> = command(&mut admin, &["KEYS", "*"]);
        let is_held = |key: &&String| !is_counter(key) && !key.contains("permits");
        assert_eq!(left.iter().filter(is_held).count(), 0, "{left:?}");
        assert_eq!(ours.stats().lost, 0);
    }
}

#[tokio::test]
async fn what_is_held_is_renewed_where_the_password_has_changed_since_its_connection_was_opened() {
    let server = RedisServer::options().user("locks", "old", &["~*", "&*", "+@all"]).start().unwrap();
    let ours = locks(&server.url_as("locks", "old"), LEASE).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", ">new", "<old"]);
    let guards = of_each_kind(&ours, true).await;
    renewed_often(&ours, &guards).await;
    Redis::connect(&server.url_as("locks", "old")).await.unwrap_err();
}

/// The connection that it was taken over goes with its runtime.
#[test]
fn what_is_held_is_renewed_when_its_runtime_is_gone_and_no_more_connections_are_to_be_had() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let taking = runtime();
    let (ours, guard) = taking.block_on(async {
        let ours = locks(&format!("{}/?tracking=0", server.url()), Duration::from_secs(15)).await;
        let guard = ours.lock("room").acquire().await.unwrap();
        let connected = || server.info("connected_clients").parse::<u32>().unwrap() - 1;
        until("the connection of the keeper", || connected() == 2).await;
        (ours, guard)
    });
    assert_eq!(ours.stats().renewals, 0, "it is opened ahead of the first renewal");
    let _admin = close_to_others(&server);
    drop(taking);
    runtime().block_on(until("a renewal", || ours.stats().renewals > 0));
    guard.check().unwrap();
}

#[tokio::test]
async fn a_quorum_renews_over_open_connections_when_its_nodes_take_no_more_and_passwords_have_changed() {
    let user = |_| RedisServer::options().user("locks", "old", &["~*", "&*", "+@all"]).start().unwrap();
    let servers: Vec<RedisServer> = (0..3).map(user).collect();
    let mut nodes = Vec::new();
    for server in &servers {
        nodes.push(Redis::connect(&server.url_as("locks", "old")).await.unwrap());
    }
    let quorum = Quorum::builder(nodes).with_durable_nodes().build().unwrap();
    let ours = Locks::builder(quorum).with_lease(LEASE).build().unwrap();
    for server in &servers {
        server.command::<()>(&["ACL", "SETUSER", "locks", ">new", "<old"]);
    }
    let _admins: Vec<Connection> = servers.iter().map(close_to_others).collect();
    let guard = ours.lock("room").acquire().await.unwrap();
    renewed_often(&ours, &[guard]).await;
}

/// Whoever asks for a lock is refused, and whoever has one knows nothing of it.
#[tokio::test]
async fn a_full_server_renews_downgrades_and_releases_in_all_modes() {
    let recipes = ["", "/?redisson=true", "/?redisson=true&recipe=read-write-lock"];
    for (recipe, parameters) in recipes.into_iter().enumerate() {
        let server = RedisServer::start().unwrap();
        let url = format!("{}{parameters}", server.url());
        let (ours, theirs) = (locks(&url, LEASE).await, locks(&url, LEASE).await);
        let mut guards = vec![
            ours.lock("alone").acquire().await.unwrap(),
            ours.semaphore("permits", 4).acquire().await.unwrap(),
        ];
        if recipe != 1 {
            guards.push(ours.lock("page").read().acquire().await.unwrap());
            guards.push(theirs.lock("page").read().acquire().await.unwrap());
        }
        let mut waiter = None;
        if recipe != 2 {
            guards.push(ours.lock("line").with_fairness(true).acquire().await.unwrap());
            let next = theirs.lock("line").with_fairness(true).with_wait(HOUR);
            waiter = Some(tokio::spawn(async move { next.acquire().await }));
        }
        let left = ours.lock("left").with_hold_at_least(HOUR);
        let left = if recipe == 0 { Some(left.acquire().await.unwrap()) } else { None };
        let mut book = if recipe == 1 { None } else { Some(ours.lock("book").acquire().await.unwrap()) };
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        server.try_command::<()>(&["SET", "a", "b"]).expect_err("the server is full");
        if let Some(book) = &mut book {
            book.downgrade().await.unwrap();
        }
        guards.extend(book);
        // One of those who share them seems to be over.
        let seems_over = "redis.call('DEL', 'none') redis.call('HSET', KEYS[1], 'e', 1)";
        let make_it_seem = || {
            for key in ["dlock:page", "dlock:permits"].iter().filter(|_| recipe == 0) {
                server.command::<()>(&["EVAL", seems_over, "1", key]);
            }
        };
        make_it_seem();
        renewed_often(&ours, &guards).await;
        let refused = ours.lock("other").with_wait(Wait::No).acquire().await;
        error_of(refused, ErrorKind::Unavailable);
        make_it_seem();
        for guard in guards.into_iter().chain(left) {
            guard.release().await.unwrap();
        }
        if recipe == 0 {
            let holder = ours.inspect("left").await.unwrap().expect("it stays taken");
            assert!(holder.left_behind, "{holder}");
        }
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        if let Some(waiter) = waiter {
            soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
        }
        assert_eq!((ours.stats().lost, theirs.stats().lost), (0, 0));
    }
}
