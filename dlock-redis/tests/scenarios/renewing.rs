//! Locks that are held for long.

use std::time::{Duration, Instant};

use dlock_core::{ErrorKind, Guard, Locks, Wait};
use dlock_quorum::Quorum;
use dlock_redis::Redis;
use dlock_rig::proxy::{Direction, Flow};
use dlock_rig::servers::redis::RedisServer;
use redis::Connection;

use crate::support::{HOUR, Proxied, SHORT, error_of, held, is_counter, locks, soon, until};

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
        let ours = locks(&format!("{}{parameters}", server.url()), SHORT).await;
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
    let ours = locks(&server.url_as("locks", "old"), SHORT).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", ">new", "<old"]);
    let guards = of_each_kind(&ours, true).await;
    renewed_often(&ours, &guards).await;
    Redis::connect(&server.url_as("locks", "old")).await.unwrap_err();
}

/// Many log-ins that are refused look like an attack, and have users locked out.
#[tokio::test]
async fn a_password_that_has_changed_is_not_tried_by_each_request_that_goes_over_an_open_connection() {
    const REST: Duration = Duration::from_secs(1);
    const DROPPED: u32 = 100;
    let server = RedisServer::options().user("locks", "old", &["~*", "&*", "+@all"]).start().unwrap();
    let ours = locks(&server.url_as("locks", "old"), HOUR).await;
    server.command::<()>(&["ACL", "SETUSER", "locks", ">new", "<old"]);
    let begin = Instant::now();
    for _ in 0..DROPPED {
        // The keeper releases it, over the only connection that there is.
        drop(ours.lock("room").acquire().await.unwrap());
        until("the release", || ours.stats().background == 0).await;
    }
    let all: String = server.command(&["INFO", "commandstats"]);
    let hello = all.lines().find(|line| line.starts_with("cmdstat_hello:")).unwrap();
    let failed = hello.rsplit_once("failed_calls=").unwrap().1.trim().parse::<u64>().unwrap();
    let rests = begin.elapsed().as_secs() / REST.as_secs();
    assert!(failed > 0 && failed <= rests + 2, "{failed} were refused within {rests} rests");
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
    let ours = Locks::builder(quorum).with_lease(SHORT).build().unwrap();
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
        let (ours, theirs) = (locks(&url, SHORT).await, locks(&url, SHORT).await);
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
        error_of(ours.semaphore("others", 2).with_wait(Wait::No).acquire().await, ErrorKind::Unavailable);
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

/// A script that has changed something is refused nothing more, such as one that has taken away what has run out.
#[tokio::test]
async fn a_full_server_grants_nothing_in_the_place_of_what_has_run_out() {
    let token = "0123456789abcdef0123456789abcdef";
    for parameters in ["", "/?redisson=true"] {
        let server = RedisServer::start().unwrap();
        let ours = locks(&format!("{}{parameters}", server.url()), HOUR).await;
        let is_own = parameters.is_empty();
        // Permits, readers, and a line, of a client that died.
        let gone = "for _, kind in ipairs({ 'permits', 'page', 'line', 'till' }) do
              local share = { 'n', 1, 'e', 1, 'h', ARGV[1], ARGV[1], '1 1 7 v=1' }
              if kind == 'permits' then share[9], share[10] = 'of', 2 end
              if kind == 'line' or kind == 'till' then
                share = { 'f', 1, 'q', 1, 'n', 0, 'e', 0, 'q1', ARGV[1] .. ' 1', '?' .. ARGV[1], '1' }
              end
              redis.call('HSET', 'dlock:' .. kind, unpack(share))
              redis.call('PEXPIRE', 'dlock:' .. kind, 3600000)
            end";
        let gone_of_redisson = "redis.call('SET', 'dlock:permits', 1)
            redis.call('ZADD', '{dlock:permits}:timeout', 1, '0123456789abcdef')
            redis.call('RPUSH', 'redisson_lock_queue:{dlock:line}', 'client:' .. ARGV[1])";
        let script = if is_own { gone } else { gone_of_redisson };
        server.command::<()>(&["EVAL", script, "0", token]);
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        let attempts = async || {
            let no = Wait::No;
            let mut taken = vec![
                ("permits", ours.semaphore("permits", 2).with_wait(no).acquire().await),
                ("line", ours.lock("line").with_fairness(true).with_wait(no).acquire().await),
            ];
            if is_own {
                taken.push(("page", ours.lock("page").with_wait(no).acquire().await));
                taken.push(("till", ours.lock("till").with_wait(no).acquire().await));
            }
            taken
        };
        for _ in 0..2 {
            for (what, refused) in attempts().await {
                let error = refused.err().unwrap_or_else(|| panic!("{what} is granted, {parameters:?}"));
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{what}: {error}");
            }
        }
        server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
        for (what, taken) in attempts().await {
            taken.unwrap_or_else(|error| panic!("{what}: {error}")).release().await.unwrap();
        }
    }
}

/// What goes to the server in one call is refused and carried out as if each went alone.
#[tokio::test]
async fn a_full_server_grants_nothing_in_a_call_that_releases_and_renews_others() {
    const ROUNDS: usize = 5;
    for parameters in ["", "/?redisson=true"] {
        let on = Proxied::start();
        let ours = locks(&format!("{}{parameters}", on.url()), HOUR).await;
        let mut guards = Vec::new();
        for number in 0..ROUNDS * 3 {
            guards.push(ours.lock(format!("held_{number}")).acquire().await.unwrap());
        }
        on.server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
        for round in 0..ROUNDS {
            // All that is asked for while the first call is under way goes in the next one.
            on.proxy.set(Direction::ToClient, Flow::Delay(Duration::from_millis(50)));
            let (first, second, third) =
                (guards.pop().unwrap(), guards.pop().unwrap(), guards.pop().unwrap());
            let lock = ours.lock(format!("new_{round}")).with_wait(Wait::No);
            let (_, _, _, refused) =
                tokio::join!(first.release(), second.release(), third.release(), lock.acquire());
            on.proxy.mend();
            error_of(refused, ErrorKind::Unavailable);
        }
    }
}
