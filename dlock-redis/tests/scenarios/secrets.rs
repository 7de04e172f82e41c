//! Rights and passwords.

use std::fmt::Write as _;
use std::time::Duration;

use dlock_core::{Error, ErrorKind, Guard, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::RedisServer;

use crate::support::{LONG, Proxied, SHORT, error_of, held, locks, over, soon, until};

const PASSWORD: &str = "hunter2-canary";

#[tokio::test]
async fn passwords_are_in_no_error_and_in_no_debug_output() {
    let mut on = Proxied::before(
        RedisServer::options().password("another").user("eve", PASSWORD, &[]).start().unwrap(),
    );
    let address = on.proxy.address();
    let dead = dlock_rig::servers::Ports::free();
    let mut said = String::new();
    for url in [
        format!("redis://:{PASSWORD}@{address}"),
        format!("redis://eve:{PASSWORD}@{address}"),
        format!("redis://mallory:{PASSWORD}@{address}"),
        format!("redis://:{PASSWORD}@127.0.0.1:{dead}"),
        format!("redis://:{PASSWORD}@{address}/x"),
        format!("redis://:{PASSWORD}@"),
        format!("rediss://:{PASSWORD}@{address}"),
        format!("redis+cluster://:{PASSWORD}@{address}"),
        format!("redis+sentinel://:{PASSWORD}@{address}/locks"),
        format!("reddis://:{PASSWORD}@{address}"),
    ] {
        let builder = Redis::builder(&url).with_connect_timeout(Duration::from_millis(300));
        write!(said, "{builder:?}").unwrap();
        let Err(mut error) = builder.clone().connect().await.map(|redis| format!("{redis:?}")) else {
            panic!("{url} works")
        };
        write!(said, "{error} {error:?} {error:#?}").unwrap();
        let mut source = std::error::Error::source(&error).map(ToString::to_string);
        while let Some(text) = source.take() {
            said.push_str(&text);
        }
        if let Ok(redis) = builder.build() {
            write!(said, "{redis:?}").unwrap();
            let locks = over(redis, LONG);
            error = locks
                .lock("room")
                .with_wait(Duration::from_millis(50))
                .acquire()
                .await
                .expect_err("the same");
            write!(said, "{locks:?} {error} {error:#?}").unwrap();
        }
    }
    assert!(!said.contains(PASSWORD), "{said}");

    let good = Redis::connect(&on.url()).await.unwrap();
    let locks = over(good.clone(), LONG);
    let guard = locks.lock("room").acquire().await.unwrap();
    on.server.kill();
    let said = format!("{good:?} {locks:?} {guard:?} {:?}", locks.lock("other").try_acquire().await);
    assert!(!said.contains("another"), "{said}");
}

/// The rights that the documentation says are enough.
fn documented_rights() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/backends/redis.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = text.lines().find_map(|line| line.trim().strip_prefix("ACL SETUSER "));
    let words = line.expect("docs/backends/redis.md has a line `ACL SETUSER ...`").split_whitespace();
    let is_right = |word: &&str| word.starts_with(['~', '&', '+', '-', '%']);
    words.filter(is_right).map(str::to_owned).collect()
}

/// A server without the command that logs in repeats what was sent with it.
#[tokio::test]
async fn a_password_that_looks_like_an_error_of_a_server_is_neither_shown_nor_taken_for_one() {
    for password in ["ASK", "BUSY-hunter2", "hunter2.NOAUTH"] {
        let options = RedisServer::options().argument("rename-command", "hello no-hello");
        let server = options.password(password).start().unwrap();
        let ours = locks(&server.url(), LONG).await;
        ours.lock("room").acquire().await.unwrap().release().await.unwrap();
        let sentinel = format!("redis+sentinel://{}/room?sentinel_pass={password}", server.address());
        let error = error_of(Redis::connect(&sentinel).await, ErrorKind::InvalidConfig);
        let said = format!("{error} {error:?} {error:#?}");
        assert!(!said.contains(password), "{said}");
    }
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_everything() {
    let rights = documented_rights();
    let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
    let server = RedisServer::options().user("locks", "pw", &rights).start().unwrap();
    let url = server.url_as("locks", "pw");
    let (ours, theirs) = (locks(&url, Duration::from_secs(9)).await, locks(&url, LONG).await);
    let guard = ours.lock("room").acquire().await.unwrap();
    until("a renewal", || ours.stats().renewals > 0).await;
    assert!(theirs.lock("room").try_acquire().await.unwrap().is_none());
    assert!(theirs.inspect("room").await.unwrap().is_some());
    let lock = theirs.lock("room").with_wait(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until("the waiter to listen", || !server.channels().is_empty()).await;
    guard.release().await.unwrap();
    soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    until("the channel to be left", || server.channels().is_empty()).await;
    server.command::<()>(&["SCRIPT", "FLUSH"]);
    ours.lock("room").acquire().await.unwrap().release().await.unwrap();
    // A server that is silent for long is asked for a sign of life, which these rights do not have.
    let denied: Vec<_> = server.denied().into_iter().filter(|what| what != "ping").collect();
    assert!(denied.is_empty(), "{denied:?}");
}

#[tokio::test]
async fn every_documented_right_is_needed() {
    let rights = documented_rights();
    for left_out in rights.iter().filter(|right| right.starts_with('+')) {
        // Only for the courtesy of telling the server who we are, or for other settings than these.
        if [
            "+hello",
            "+client",
            "+wait",
            "+role",
            "+ping",
            "+select",
            "+ssubscribe",
            "+spublish",
            "+sunsubscribe",
        ]
        .iter()
        .any(|optional| left_out.starts_with(optional))
        {
            continue;
        }
        let rest: Vec<&str> = rights.iter().filter(|right| *right != left_out).map(String::as_str).collect();
        let server = RedisServer::options().user("locks", "pw", &rest).start().unwrap();
        let redis = Redis::builder(&server.url_as("locks", "pw")).build().unwrap();
        let locks = over(redis, SHORT);
        let works = async {
            let guard = locks.lock("room").acquire().await?;
            until("a renewal", || locks.stats().renewals + locks.stats().failed_renewals > 0).await;
            assert!(locks.lock("room").with_wait(Duration::from_millis(300)).acquire().await.is_err());
            guard.release().await
        };
        drop(works.await);
        let connected = Redis::connect(&server.url_as("locks", "pw")).await;
        match left_out.trim_start_matches('+') {
            // Who may not listen asks instead.
            "subscribe" | "unsubscribe" => drop(connected.unwrap()),
            right => {
                let error = error_of(connected, ErrorKind::Denied).to_string().to_lowercase();
                assert!(error.contains(right), "{right}: {error}");
            }
        }
        until(&format!("a denial for want of {left_out}"), || server.denials() > 0).await;
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_is_verified_and_never_left_out() {
    let server = RedisServer::options().tls().start().unwrap();
    let authority = std::fs::read(server.certificates().authority()).unwrap();
    // A handshake takes its time on a busy machine.
    let trusting = Redis::builder(&server.tls_url()).with_root_certificate(authority.clone());
    let trusting = trusting.with_connect_timeout(Duration::from_secs(10)).connect().await.unwrap();
    over(trusting, LONG).lock("room").acquire().await.unwrap().release().await.unwrap();

    error_of(Redis::connect(&server.tls_url()).await, ErrorKind::InvalidConfig);
    let by_another_name = server.tls_url().replace("localhost", "127.0.0.1");
    let refused = Redis::builder(&by_another_name).with_root_certificate(authority.clone()).connect().await;
    error_of(refused, ErrorKind::InvalidConfig);
    // A server that speaks no TLS is not talked to without it.
    let plain = format!("rediss://localhost:{}", server.port());
    Redis::builder(&plain).with_root_certificate(authority).connect().await.expect_err("no TLS there");
}

/// The rights that the documentation lists for one use.
fn documented_for(used: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/backends/redis.md");
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let row = text.lines().find(|line| line.starts_with(&format!("| {used}")));
    let row = row.unwrap_or_else(|| panic!("the rights for {used:?} are listed"));
    let words = row.split([' ', '`', ',']).filter(|word| word.starts_with('+'));
    words.map(str::to_owned).collect()
}

/// A use of locks that needs rights of its own.
#[derive(Clone, Copy, Debug)]
enum Used {
    Read,
    Write,
    Permits,
    InLine,
    /// Held alone, and then to read.
    Turned,
}

impl Used {
    async fn take(self, locks: &Locks) -> Result<Guard, Error> {
        match self {
            Self::Read => locks.lock("read").read().acquire().await,
            Self::Write => locks.lock("written").acquire().await,
            Self::Permits => locks.semaphore("permits", 4).take(2).acquire().await,
            Self::InLine => locks.lock("till").with_fairness(true).acquire().await,
            Self::Turned => {
                let mut guard = locks.lock("turned").acquire().await?;
                guard.downgrade().await.map(|()| guard)
            }
        }
    }
}

/// One that is missing would else be met when the lock is renewed or released: held, and soon lost, or held and left.
#[tokio::test]
async fn each_right_of_a_use_is_tried_before_a_lock_is_used_in_that_way() {
    let keys = ["~*", "&*"].map(str::to_owned);
    let plain = ("readers, semaphores, fair locks, and downgrades", vec![]);
    let in_redisson = || documented_for("locks in Redisson's form");
    for ((row, besides), format, uses) in [
        (plain, "?", &[Used::Read, Used::Permits, Used::InLine, Used::Turned][..]),
        (
            ("`Recipe::ReadWriteLock`", in_redisson()),
            "?redisson=true&recipe=read-write-lock",
            &[Used::Read, Used::Write],
        ),
        (("permits in Redisson's form", in_redisson()), "?redisson=true", &[Used::Permits]),
        (("fair locks in Redisson's form", in_redisson()), "?redisson=true", &[Used::InLine]),
    ] {
        let documented = documented_rights().into_iter().filter(|right| right.starts_with('+'));
        let least: Vec<String> = keys.clone().into_iter().chain(documented).chain(besides).collect();
        let more = documented_for(row);
        for left_out in more.iter().map(Some).chain([None]) {
            // What a lock alone needs is tried at `connect`. The list is for tidying up, which is left without a right.
            if left_out.is_some_and(|right| {
                least.contains(right) || format == "?redisson=true" && *right == "+hkeys"
            }) {
                continue;
            }
            let given = more.iter().filter(|right| Some(*right) != left_out);
            let rights: Vec<&str> = least.iter().chain(given).map(String::as_str).collect();
            let server = RedisServer::options().user("locks", "pw", &rights).start().unwrap();
            let url = format!("{}{format}", server.url_as("locks", "pw"));
            let locks = over(Redis::connect(&url).await.unwrap(), Duration::from_secs(9));
            let mut guards = Vec::new();
            for used in uses {
                let taken = used.take(&locks).await;
                match left_out {
                    Some(right) => {
                        let error = error_of(taken, ErrorKind::Denied);
                        let right = right.trim_start_matches('+').to_uppercase();
                        assert!(error.to_string().contains(&right), "{used:?} without {right}: {error}");
                    }
                    None => guards.push(taken.unwrap()),
                }
            }
            let renewals = locks.stats().renewals + 2 * guards.len() as u64;
            until("renewals", || locks.stats().renewals >= renewals).await;
            for guard in guards {
                guard.release().await.unwrap();
            }
            until("all releases", || locks.stats().background == 0).await;
            let keys = server.keys();
            let is_left = left_out.is_none() || keys.iter().all(|key| key.starts_with("dlock:fence:"));
            assert!(is_left, "{left_out:?} {keys:?}");
        }
    }
}

/// A lock that is held alone needs less than a reader's. Who may not do the rest keeps it, and can give it back.
#[tokio::test]
async fn a_downgrade_that_is_denied_leaves_the_lock_as_it_was() {
    let least = documented_rights();
    let least: Vec<&str> = least.iter().map(String::as_str).collect();
    let server = RedisServer::options().user("locks", "pw", &least).start().unwrap();
    let ours = locks(&server.url_as("locks", "pw"), Duration::from_secs(6)).await;
    let mut guard = ours.lock("page").acquire().await.unwrap();
    error_of(guard.downgrade().await, ErrorKind::Denied);
    let (renewals, failed) = (ours.stats().renewals, ours.stats().failed_renewals);
    until("renewals", || ours.stats().renewals >= renewals + 2).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!((held(&server), ours.stats().failed_renewals), (vec![], failed));

    server.command::<()>(&["ACL", "SETUSER", "locks", "+@all"]);
    let ours = locks(&server.url_as("locks", "pw"), LONG).await;
    let mut first = ours.lock("first").acquire().await.unwrap();
    first.downgrade().await.unwrap();
    for right in ["type", "hset", "pttl", "pexpire"] {
        let mut guard = ours.lock("page").acquire().await.unwrap();
        let kind = || server.command::<String>(&["TYPE", "dlock:page"]);
        server.command::<()>(&["ACL", "SETUSER", "locks", &format!("-{right}")]);
        error_of(guard.downgrade().await, ErrorKind::Denied);
        assert_eq!(kind(), "string", "without {right}");
        server.command::<()>(&["ACL", "SETUSER", "locks", "+@all"]);
        until("the downgrade", || kind() == "hash").await;
        guard.release().await.unwrap();
        assert_eq!(kind(), "none", "with {right} again");
    }
}

/// A step is a script, of which the server carries out what comes before the command that it refuses.
#[tokio::test]
async fn a_right_that_is_taken_away_between_two_steps_leaves_no_lock_that_stays() {
    let own: &[_] = &[Used::Read, Used::Permits, Used::InLine];
    let rights =
        ["pttl", "pexpire", "hset", "hdel", "incr", "publish", "zadd", "zrem", "decrby", "incrby", "lpop"];
    for (format, uses) in [
        ("", own),
        ("?redisson=true&recipe=read-write-lock", &[Used::Read, Used::Write]),
        ("?redisson=true", &[Used::Permits, Used::InLine]),
    ] {
        let server = RedisServer::options().user("locks", "pw", &["~*", "&*", "+@all"]).start().unwrap();
        let set = |right: &str| server.command::<()>(&["ACL", "SETUSER", "locks", right]);
        let lease = Duration::from_secs(3);
        let theirs = over(Redis::connect(&format!("{}{format}", server.url())).await.unwrap(), lease);
        for (used, right) in uses.iter().flat_map(|used| rights.map(|right| (used, right))) {
            let url = format!("{}{format}", server.url_as("locks", "pw"));
            let ours = over(Redis::connect(&url).await.unwrap(), lease);
            for releases in [false, true] {
                // What it needs is tried by the first one.
                let held = used.take(&ours).await.unwrap();
                if releases {
                    set(&format!("-{right}"));
                }
                let released = held.release().await;
                assert!(released.is_ok() || releases, "{format} {used:?} {right}");
                if !releases {
                    set(&format!("-{right}"));
                    drop(used.take(&ours).await);
                }
                set("+@all");
                let taken = used.take(&theirs).await;
                let taken =
                    taken.unwrap_or_else(|error| panic!("{format} {used:?} {right} {releases}: {error}"));
                taken.release().await.unwrap();
                until("all releases", || ours.stats().background == 0).await;
            }
        }
    }
}

#[tokio::test]
async fn a_release_that_is_refused_is_no_loss_and_is_made_once_it_is_allowed() {
    let server = RedisServer::options().user("locks", "pw", &["~*", "&*", "+@all"]).start().unwrap();
    let locks = locks(&server.url_as("locks", "pw"), LONG).await;
    for hold_at_least in [Duration::from_millis(1), Duration::from_millis(300)] {
        let guard = locks.lock("room").with_hold_at_least(hold_at_least).acquire().await.unwrap();
        server.command::<()>(&["ACL", "SETUSER", "locks", "-get", "-mget"]);
        error_of(guard.release().await, ErrorKind::Denied);
        server.command::<()>(&["ACL", "SETUSER", "locks", "+@all"]);
        until("the release", || locks.stats().background == 0).await;
        soon("the next one", locks.lock("room").acquire()).await.unwrap().release().await.unwrap();
        assert_eq!(locks.stats().abandoned, 0);
    }
}
