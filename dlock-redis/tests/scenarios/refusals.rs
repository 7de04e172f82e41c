//! What servers refuse, and what that means for an acquire.

use std::time::Duration;

use dlock_core::{ErrorKind, Lock, Locks, Wait};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisServer};

use crate::support::{LONG, error_of, held, locks, over, soon, until};

async fn try_once(locks: &Locks) -> dlock_core::Result<dlock_core::Guard> {
    locks.lock("room").with_wait(Wait::No).acquire().await
}

#[tokio::test]
async fn a_wrong_password_and_a_missing_one_are_denied() {
    let server = RedisServer::options().password("right").start().unwrap();
    let address = server.address();
    for url in [
        format!("redis://:wrong@{address}"),
        format!("redis://nobody:right@{address}"),
        format!("redis://{address}"),
    ] {
        let error = error_of(Redis::connect(&url).await, ErrorKind::Denied);
        assert!(!error.is_retryable() && error.to_string().contains("password"), "{error}");
        // Also where nobody asked before.
        let locks = over(Redis::builder(&url).build().unwrap(), LONG);
        error_of(soon("the refusal", locks.lock("room").acquire()).await, ErrorKind::Denied);
    }
    try_once(&locks(&server.url(), LONG).await).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_right_that_is_missing_is_denied_at_once() {
    let server = RedisServer::options()
        .user("reader", "pw", &["~dlock:*", "&*", "+@connection", "+@read"])
        .start()
        .unwrap();
    let error = error_of(Redis::connect(&server.url_as("reader", "pw")).await, ErrorKind::Denied);
    assert!(!error.is_retryable() && error.to_string().contains("right"), "{error}");
}

#[tokio::test]
async fn keys_outside_of_the_users_rights_are_denied_at_once() {
    let server = RedisServer::options().user("shop", "pw", &["~shop:*", "&*", "+@all"]).start().unwrap();
    let redis = Redis::builder(&server.url_as("shop", "pw")).build().unwrap();
    let error =
        error_of(soon("the refusal", over(redis, LONG).lock("room").acquire()).await, ErrorKind::Denied);
    assert!(!error.is_retryable(), "{error}");
    let redis = Redis::builder(&server.url_as("shop", "pw")).with_prefix("shop:").build().unwrap();
    over(redis, LONG).lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_candidate_that_is_refused_for_a_while_leads_once_it_is_let_in_again() {
    let server = RedisServer::options().user("shop", "pw", &["~*", "&*", "+@all"]).start().unwrap();
    for (away, back) in [
        (["resetpass", ">new"], ["resetpass", ">pw"]),
        (["off", "sanitize-payload"], ["on", "sanitize-payload"]),
        (["-@all", "+ping"], ["+@all", "+ping"]),
        (["resetkeys", "~other:*"], ["resetkeys", "~*"]),
    ] {
        let set = |rights: [&str; 2]| {
            server.command::<()>(&[&["ACL", "SETUSER", "shop"][..], &rights[..]].concat());
        };
        let locks = over(Redis::connect(&server.url_as("shop", "pw")).await.unwrap(), LONG);
        set(away);
        server.command::<u64>(&["CLIENT", "KILL", "USER", "shop"]);
        server.command::<()>(&["ACL", "LOG", "RESET"]);
        let mut campaign = locks.election("leader").campaign();
        let candidate = tokio::spawn(async move { (campaign.next().await, campaign) });
        until("a refusal", || !server.command::<Vec<redis::Value>>(&["ACL", "LOG"]).is_empty()).await;
        set(back);
        let (term, campaign) = soon("the term", candidate).await.unwrap();
        let term = term.unwrap_or_else(|| panic!("{away:?}: {:?}", campaign.failure()));
        term.resign().await.unwrap();
    }
}

#[tokio::test]
async fn a_key_that_is_denied_fails_none_of_those_it_is_asked_for_with() {
    let rights = ["~dlock:mine_*", "~dlock:fence:*", "&*", "+@all"];
    let server = RedisServer::options().user("shop", "pw", &rights).start().unwrap();
    let redis = Redis::builder(&server.url_as("shop", "pw")).build().unwrap();
    let locks = over(redis, LONG);
    locks.lock("mine_first").acquire().await.unwrap().release().await.unwrap();
    // The second time also the script is not known.
    for _ in 0..2 {
        let key = |n| format!("{}_{n}", if n == 5 { "other" } else { "mine" });
        let several: Vec<_> = (0..8).map(|n| locks.lock(key(n))).collect();
        let together = futures_util::future::join_all(several.iter().map(Lock::acquire));
        for (n, taken) in soon("the answers", together).await.into_iter().enumerate() {
            match taken {
                Ok(guard) => guard.release().await.unwrap(),
                Err(error) => {
                    assert_eq!((n, error.kind()), (5, ErrorKind::Denied), "{error}");
                }
            }
        }
        server.command::<()>(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn a_key_that_holds_data_is_an_error_and_the_data_stays() {
    let server = RedisServer::start().unwrap();
    server.command::<()>(&["SET", "dlock:room", "data"]);
    let locks = locks(&server.url(), LONG).await;
    let error = error_of(soon("the refusal", locks.lock("room").acquire()).await, ErrorKind::InvalidConfig);
    assert!(!error.is_retryable() && error.to_string().contains("data"), "{error}");
    assert_eq!(server.command::<String>(&["GET", "dlock:room"]), "data");
}

#[tokio::test]
async fn of_locks_released_at_once_each_has_an_answer_of_its_own() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let several: Vec<_> = (0..6).map(|n| locks.lock(format!("room_{n}"))).collect();
    let taken = futures_util::future::join_all(several.iter().map(Lock::acquire)).await;
    server.command::<()>(&["DEL", "dlock:room_1", "dlock:room_3"]);
    server.command::<()>(&["HSET", "dlock:room_1", "field", "data"]);
    server.command::<()>(&["SET", "dlock:room_4", &"data".repeat(1_000)]);
    let released = taken.into_iter().map(|guard| guard.unwrap().release());
    let released = soon("the answers", futures_util::future::join_all(released)).await;
    for (n, released) in released.into_iter().enumerate() {
        match n {
            1 | 3 | 4 => drop(error_of(released, ErrorKind::NotHeld)),
            _ => released.unwrap(),
        }
    }
    assert_eq!(held(&server), ["room_1", "room_4"], "what others put there stays");
}

#[tokio::test]
async fn a_server_whose_memory_is_used_up_refuses_and_nothing_is_left() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let guard = try_once(&locks).await.unwrap();
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let other = locks.lock("other");
    let error = error_of(soon("the refusal", other.try_acquire()).await, ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains("memory"), "{error}");
    assert_eq!(held(&server), ["room"]);
    // Who wants what is taken is told so.
    error_of(try_once(&self::locks(&server.url(), LONG).await).await, ErrorKind::Busy);
    // What frees memory goes on.
    guard.release().await.unwrap();
    // Who waits gets it once there is room.
    let waiting = tokio::spawn(async move { other.acquire().await });
    tokio::task::yield_now().await;
    server.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    soon("the room", waiting).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_still_loading_is_waited_for() {
    let mut server = RedisServer::options()
        .append_only("no")
        .argument("key-load-delay", "500")
        .argument("loading-process-events-interval-bytes", "1024")
        .start()
        .unwrap();
    server.command::<()>(&["DEBUG", "POPULATE", "2000", "key", "100"]);
    server.command::<()>(&["BGREWRITEAOF"]);
    until("the rewrite", || {
        server.info("aof_rewrite_in_progress") == "0" && server.info("aof_rewrites") == "1"
    })
    .await;
    let locks = locks(&server.url(), LONG).await;
    server.restart_at_once().unwrap();
    let mut refused = None;
    until("the server", || {
        server.try_command::<String>(&["PING"]).is_err_and(|error| error.code() == Some("LOADING"))
    })
    .await;
    soon("a refusal", async {
        while refused.is_none() {
            refused = try_once(&locks).await.err().filter(|error| error.to_string().contains("loading"));
        }
    })
    .await;
    let refused = refused.unwrap();
    assert!(refused.kind() == ErrorKind::Unavailable && refused.is_retryable(), "{refused}");
    soon("the lock", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_busy_with_a_script_is_waited_for() {
    let server = RedisServer::options().argument("busy-reply-threshold", "50").start().unwrap();
    let locks = locks(&server.url(), LONG).await;
    let mut admin = server.admin();
    let hog = std::thread::spawn(move || {
        redis::cmd("EVAL").arg("while true do end").arg(0).query::<()>(&mut admin).unwrap_err()
    });
    until("the server to be busy", || {
        server.try_command::<String>(&["PING"]).is_err_and(|error| error.code() == Some("BUSY"))
    })
    .await;
    let error = error_of(try_once(&locks).await, ErrorKind::Unavailable);
    assert!(error.is_retryable() && error.to_string().contains("busy"), "{error}");
    let lock = locks.lock("room");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    server.command::<()>(&["SCRIPT", "KILL"]);
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    hog.join().unwrap();
}

#[tokio::test]
async fn a_server_that_forgot_the_script_is_told_it_again() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server.url(), Duration::from_secs(3)).await;
    let guard = try_once(&locks).await.unwrap();
    server.command::<()>(&["SCRIPT", "FLUSH"]);
    let renewals = locks.stats().renewals;
    until("a renewal", || locks.stats().renewals > renewals).await;
    server.command::<()>(&["SCRIPT", "FLUSH"]);
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    server.command::<()>(&["SCRIPT", "FLUSH"]);
    guard.release().await.unwrap();
    assert_eq!(held(&server), [""; 0]);
    server.command::<()>(&["SCRIPT", "FLUSH"]);
    // Also when many ask at once.
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..50 {
        let lock = locks.lock(format!("room_{number}"));
        tasks.spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() });
    }
    tasks.join_all().await;
    assert_eq!(held(&server), [""; 0]);
}

#[tokio::test]
async fn a_cluster_behind_a_plain_url_is_a_wrong_setting() {
    let cluster = RedisCluster::start().unwrap();
    let mut refused = 0;
    for number in 0..12 {
        let redis = Redis::builder(&cluster.nodes()[0].url()).build().unwrap();
        match over(redis, LONG).lock(format!("room_{number}")).acquire().await {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
                assert!(error.to_string().contains("redis+cluster://"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "no key lay on another server");
    let single = RedisServer::start().unwrap();
    let url = single.url().replace("redis://", "redis+cluster://");
    let error = error_of(Redis::connect(&url).await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("use redis://"), "{error}");
    let of_a_node = format!("{}/1", cluster.nodes()[0].url());
    let error = error_of(Redis::connect(&of_a_node).await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("no numbered databases"), "{error}");
}

#[tokio::test]
async fn a_server_in_the_place_of_its_sentinels_is_a_wrong_setting() {
    let server = RedisServer::start().unwrap();
    let url = format!("{}/room", server.url().replace("redis://", "redis+sentinel://"));
    let error = error_of(Redis::connect(&url).await, ErrorKind::InvalidConfig);
    assert!(error.to_string().contains("no sentinel"), "{error}");
}

#[tokio::test]
async fn urls_that_cannot_work_are_refused_before_anything_is_sent() {
    for url in [
        "",
        "redis",
        "http://127.0.0.1",
        "redis://",
        "redis://h:99999",
        "redis://h/x",
        "redis+sentinel://h:1",
    ] {
        let error = error_of(Redis::connect(url).await, ErrorKind::InvalidConfig);
        assert!(!error.is_retryable(), "{url}: {error}");
    }
}

#[tokio::test]
async fn unix_sockets_and_databases_are_reached() {
    let server = RedisServer::start().unwrap();
    let url = format!("redis+unix://{}?db=3", server.unix_socket().display());
    let guard = try_once(&locks(&url, LONG).await).await.unwrap();
    assert_eq!(held(&server), [""; 0], "database 0 is another one");
    let url = format!("{}/3", server.url());
    assert!(locks(&url, LONG).await.lock("room").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}
