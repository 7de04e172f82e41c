//! Rights that are missing or taken away, on one server and on some of several.

use std::time::Duration;

use dlock_core::backend::Severity;
use dlock_core::{Error, ErrorKind, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisOptions, RedisSentinel, RedisServer};

use crate::support::{LONG, error_of, locks, over, soon, until};

/// What a lock that is held alone needs, by docs/backends/redis.md, without channels; and what others need besides.
const ALONE: [&str; 16] = [
    "+evalsha",
    "+eval",
    "+get",
    "+getrange",
    "+pttl",
    "+incrby",
    "+time",
    "+set",
    "+append",
    "+pexpire",
    "+del",
    "+publish",
    "+subscribe",
    "+unsubscribe",
    "+client|tracking",
    "+client|trackinginfo",
];
const REDISSON: [&str; 6] = ["+hset", "+hget", "+hgetall", "+hlen", "+hexists", "+hdel"];
const PERMITS: [&str; 10] = [
    "+type",
    "+decrby",
    "+incr",
    "+hkeys",
    "+zadd",
    "+zrem",
    "+zcard",
    "+zscore",
    "+zrange",
    "+zrangebyscore",
];

fn server_with(rights: &[&[&str]]) -> RedisServer {
    RedisServer::options().user("locks", "pw", &rights.concat()).start().unwrap()
}

#[tokio::test]
async fn a_channel_that_the_user_may_not_use_is_named_before_a_lock_is_taken() {
    let server = server_with(&[&["~dlock:*", "&other:*"], &ALONE]);
    let error = error_of(Redis::connect(&server.url_as("locks", "pw")).await, ErrorKind::Denied);
    assert!(error.to_string().contains("&dlock:*"), "{error}");
    server.command::<()>(&["ACL", "SETUSER", "locks", "&dlock:*"]);
    Redis::connect(&server.url_as("locks", "pw")).await.unwrap();

    let server = server_with(&[&["~*", "&dlock:*"], &ALONE, &REDISSON, &PERMITS]);
    let url = format!("{}?redisson=true", server.url_as("locks", "pw"));
    let error = error_of(Redis::connect(&url).await, ErrorKind::Denied);
    assert!(error.to_string().contains("&redisson_lock__channel:{dlock:*"), "{error}");
    server.command::<()>(&["ACL", "SETUSER", "locks", "&redisson_lock__channel:*"]);
    let locks = locks(&url, LONG).await;
    let error = error_of(locks.semaphore("permits", 2).acquire().await, ErrorKind::Denied);
    assert!(error.to_string().contains("&redisson_sc:{dlock:*"), "{error}");
    server.command::<()>(&["ACL", "SETUSER", "locks", "&redisson_sc:*"]);
    locks.semaphore("permits", 2).acquire().await.unwrap().release().await.unwrap();
}

/// Redis says which command it is from 7.2 on.
#[tokio::test]
async fn a_right_that_is_taken_away_after_connect_is_named_and_found_again() {
    let server = server_with(&[&["~dlock:*", "&dlock:*"], &ALONE, &["+exists", "+incr"]]);
    let set = |right: &str| server.command::<()>(&["ACL", "SETUSER", "locks", right]);
    let locks = locks(&server.url_as("locks", "pw"), LONG).await;
    let once = || locks.lock("room").with_wait(Wait::No);
    let names = |error: Error, command: &str| {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().to_lowercase().contains(command), "without {command}: {error}");
    };
    for command in ["incrby", "set", "time", "getrange", "get"] {
        set(&format!("-{command}"));
        let taken = match command {
            // They look at a lock that is taken.
            "get" | "getrange" => {
                server.command::<()>(&["SET", "dlock:room", "x 1+0 y", "PX", "9999"]);
                once().acquire().await.err()
            }
            _ => once().acquire().await.err(),
        };
        if let Some(error) = taken.filter(|error| error.kind() != ErrorKind::Busy) {
            names(error, command);
        }
        set(&format!("+{command}"));
        server.command::<()>(&["DEL", "dlock:room"]);
        once().acquire().await.unwrap().release().await.unwrap();
    }
    let both = || locks.lock_all(["room", "hall"]).with_wait(Wait::No);
    set("-exists");
    names(both().acquire().await.unwrap_err(), "exists");
    set("+exists");
    both().acquire().await.unwrap().release().await.unwrap();
    let baton = locks.lock("room").acquire().await.unwrap().hand_over().await.unwrap();
    set("-incr");
    names(locks.take_over(&baton).await.unwrap_err(), "incr");
    set("+incr");
    locks.take_over(&baton).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn what_tries_the_rights_leaves_nothing_where_the_user_may_delete_nothing() {
    let rights = ["~*", "&*", "-@all"];
    let server = server_with(&[&rights, &ALONE, &REDISSON, &PERMITS, &["-del"]]);
    let url = format!("{}?redisson=true", server.url_as("locks", "pw"));
    let locks = locks(&url, LONG).await;
    locks.semaphore("permits", 2).acquire().await.unwrap().release().await.unwrap();
    until("the probe to go", || !server.keys().iter().any(|key| key.contains("%probe"))).await;
}

#[tokio::test]
async fn a_right_that_one_server_of_a_cluster_does_not_give_is_found_by_doctor() {
    let cluster =
        RedisCluster::start_with(RedisOptions::default().user("locks", "pw", &["~*", "&*", "+@all"]))
            .unwrap();
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://locks:pw@");
    let locks = locks(&url, LONG).await;
    for key in ["a", "b", "c"] {
        let node = &cluster.nodes()[cluster.master_of(key)];
        node.command::<()>(&["ACL", "SETUSER", "locks", "-pexpire"]);
        let findings = locks.diagnose().await.unwrap();
        let dangers = findings.iter().filter(|finding| finding.severity == Severity::Danger);
        let found: Vec<&str> =
            dangers.filter(|finding| finding.subject == "rights").map(|finding| &*finding.found).collect();
        assert!(found.iter().any(|found| found.contains("PEXPIRE")), "{findings:?}");
        node.command::<()>(&["ACL", "SETUSER", "locks", "+pexpire"]);
    }
}

#[tokio::test]
async fn one_server_of_a_cluster_with_another_password_refuses_its_own_locks_only_until_it_is_set_back() {
    let cluster =
        RedisCluster::start_with(RedisOptions::default().user("locks", "pw", &["~*", "&*", "+@all"]))
            .unwrap();
    let url = cluster.url().replace("redis+cluster://", "redis+cluster://locks:pw@");
    let ours = over(Redis::connect(&url).await.unwrap(), Duration::from_secs(9));
    let on = |key: &str| cluster.master_of(&format!("dlock:{key}"));
    // The rights are tried on another one.
    let tried = on("%probe");
    let key = (0..).map(|n| format!("leader_{n}")).find(|key| on(key) != tried).unwrap();
    let away = on(&key);
    let elsewhere = (0..).map(|n| format!("room_{n}")).find(|key| on(key) != away).unwrap();
    let held = ours.lock(&elsewhere).acquire().await.unwrap();
    let node = &cluster.nodes()[away];
    node.command::<()>(&["ACL", "SETUSER", "locks", "resetpass", ">other"]);
    node.command::<u64>(&["CLIENT", "KILL", "USER", "locks"]);
    let mut campaign = ours.election(&key).campaign();
    let candidate = tokio::spawn(async move { (campaign.next().await, campaign.failure().map(drop)) });
    let refused = locks(&url, LONG).await;
    let error = soon("the refusal", refused.lock(&key).with_wait(Wait::No).acquire()).await;
    let error = error_of(error, ErrorKind::Denied);
    assert!(error.to_string().contains("password") && !error.to_string().contains("pw@"), "{error}");
    assert!(soon("the answer", refused.lock(&elsewhere).try_acquire()).await.unwrap().is_none());
    let renewals = ours.stats().renewals;
    until("renewals elsewhere", || ours.stats().renewals > renewals).await;
    node.command::<()>(&["ACL", "SETUSER", "locks", "resetpass", ">pw"]);
    let (term, failure) = soon("the term", candidate).await.unwrap();
    assert!(failure.is_none());
    term.unwrap().resign().await.unwrap();
    held.check().unwrap();
    held.release().await.unwrap();
}

#[tokio::test]
async fn sentinels_that_want_another_password_are_passed_over_until_all_do() {
    let watched = RedisSentinel::start().unwrap();
    let set = |sentinel: usize, rights: &[&str]| {
        let address = watched.sentinels()[sentinel];
        let client = redis::Client::open(format!("redis://keeper:keys@{address}")).unwrap();
        let admin = || -> redis::RedisResult<()> {
            let mut to = client.get_connection()?;
            redis::cmd("ACL").arg("SETUSER").arg("default").arg(rights).query(&mut to)
        };
        if admin().is_err() {
            let client = redis::Client::open(format!("redis://{address}")).unwrap();
            let mut to = client.get_connection().unwrap();
            let keeper = ["keeper", "on", ">keys", "+@all", "~*", "&*"];
            let _: () = redis::cmd("ACL").arg("SETUSER").arg(&keeper).query(&mut to).unwrap();
            admin().unwrap();
        }
    };
    let ours = locks(&watched.url(), LONG).await;
    for sentinel in 0..2 {
        set(sentinel, &["resetpass", ">other"]);
        let theirs = locks(&watched.url(), LONG).await;
        theirs.lock("room").acquire().await.unwrap().release().await.unwrap();
    }
    let held = ours.lock("held").acquire().await.unwrap();
    set(2, &["resetpass", ">other"]);
    let error = error_of(Redis::connect(&watched.url()).await, ErrorKind::Denied);
    assert!(error.to_string().contains("password"), "{error}");
    held.check().unwrap();
    // The master is known already.
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    set(2, &["nopass"]);
    soon("a sentinel", Redis::connect(&watched.url())).await.unwrap();
    held.release().await.unwrap();
}
