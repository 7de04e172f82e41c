//! What is stored on the server, and that others can work with it.

use std::collections::BTreeMap;
use std::time::Duration;

use dlock_core::{Baton, ErrorKind, Fence, Locks};
use dlock_redis::{Redis, client_scripts, fence_key, fenced_script};
use dlock_rig::servers::redis::RedisServer;
use redis::Value;

const COUNTER: &str = "dlock:fence:{0}";
const PAGE: &str = include_str!("../../docs/backends/redis.md");
const WITHOUT_A_LOCK: &str = include_str!("../../docs/which-backend.md");

async fn locks(server: &RedisServer) -> Locks {
    Locks::new(Redis::connect(&server.url()).await.unwrap())
}

async fn next_fence(locks: &Locks) -> u64 {
    let guard = locks.lock("room").acquire().await.unwrap();
    let fence = guard.fence().expect("Redis has fences").get();
    guard.release().await.unwrap();
    fence
}

#[tokio::test]
async fn a_lock_is_stored_as_redisson_stores_it() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&format!("{}?redisson=true", server.url())).await.unwrap();
    let locks = Locks::new(redis);
    let guard = locks.lock("room").with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let fields: BTreeMap<String, String> = server.command(&["HGETALL", "dlock:room"]);
    let owner = fields.keys().find(|field| field.contains(':')).expect("a field of the owner");
    let (client, token) = owner.split_once(':').unwrap();
    assert_eq!((client.len(), token.len()), (36, 32), "{owner}");
    let (fence, who) = fields[owner].split_once(' ').unwrap();
    assert_eq!(fence, guard.fence().unwrap().to_string());
    assert!(who.contains("pid="), "{fields:?}");
    assert_eq!(fields.len(), 1);
    let left: i64 = server.command(&["PTTL", "dlock:room"]);
    assert!((15_000..=20_000).contains(&left), "{left}");
    guard.release().await.unwrap();
    assert_eq!(server.keys(), [COUNTER], "only the counter stays");
}

#[tokio::test]
async fn a_lock_of_our_own_is_one_short_text() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server).await;
    let guard = locks.lock("room").with_lease(Duration::from_secs(20)).acquire().await.unwrap();
    let value: String = server.command(&["GET", "dlock:room"]);
    let (token, rest) = value.split_once(' ').unwrap();
    assert_eq!(token.len(), 32, "{value}");
    assert!(rest.starts_with(&format!("{}+0 host=", guard.fence().unwrap())), "{value}");
    let holder = locks.inspect("room").await.unwrap().expect("we have it");
    assert_eq!((holder.pid, holder.fence), (Some(std::process::id()), guard.fence()));
    assert!(holder.since.is_some() && holder.expires_in.is_some(), "{holder:?}");
    // Somebody waits: what is stored says so, for as long as it takes.
    let waiting = locks.lock("room").with_wait(Duration::from_secs(30));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    while !server.command::<String>(&["GET", "dlock:room"]).ends_with(" !") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(locks.inspect("room").await.unwrap().unwrap().pid, Some(std::process::id()));
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(server.keys(), [COUNTER], "only the counter stays");
    // A held lock with its name and its expiry, and the table's share of it: what Redisson needs, and who holds it.
    let _guard = locks.lock("room").acquire().await.unwrap();
    let used: u64 = server.command(&["MEMORY", "USAGE", "dlock:room"]);
    assert!(used <= 200, "{used} bytes");
}

#[tokio::test]
async fn a_release_is_published_only_to_who_listens() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server).await;
    server.command::<()>(&["CONFIG", "RESETSTAT"]);
    for _ in 0..3 {
        locks.lock("room").acquire().await.unwrap().release().await.unwrap();
    }
    let guard = locks.lock("room").acquire().await.unwrap();
    assert!(
        locks.lock("room").try_acquire().await.unwrap().is_none(),
        "who does not wait listens to nothing"
    );
    guard.release().await.unwrap();
    assert_eq!(server.command_calls().get("publish"), None);
}

#[tokio::test]
async fn a_lock_of_redisson_is_respected_and_shown() {
    let server = RedisServer::start().unwrap();
    let locks = Locks::new(Redis::builder(&server.url()).with_prefix("").connect().await.unwrap());
    let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    server.command::<i64>(&["HSET", "room", java, "1"]);
    server.command::<i64>(&["PEXPIRE", "room", "30000"]);
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    let holder = locks.inspect("room").await.unwrap().expect("somebody has it");
    assert_eq!((holder.label.as_deref(), holder.fence), (Some(java), None));
    server.command::<i64>(&["DEL", "room"]);
    locks.lock("room").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn names_that_are_shared_with_redisson_are_stored_as_they_are() {
    let server = RedisServer::start().unwrap();
    let locks = Locks::new(Redis::builder(&server.url()).with_prefix("").connect().await.unwrap());
    let java = "8743c9c0-0795-4907-87fd-6c719a6b4586:1";
    for name in ["order:{42}", "%", "%7B", "a}b{", "{}"] {
        server.command::<i64>(&["HSET", name, java, "1"]);
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none(), "{name} was granted twice");
        server.command::<i64>(&["DEL", name]);
        let guard = locks.lock(name).acquire().await.unwrap();
        assert_eq!(server.command::<u64>(&["EXISTS", name]), 1, "{name} is stored under another name");
        assert_eq!(locks.holders().await.unwrap()[0].0.as_str(), name);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn fences_grow_when_the_counter_is_lost_behind_or_ahead_of_the_clock() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server).await;
    let mut last = next_fence(&locks).await;
    let mut grows = async |what: &str| {
        let next = next_fence(&locks).await;
        assert!(next > last, "{what}: {next} after {last}");
        last = next;
        next
    };
    grows("as ever").await;
    server.command::<()>(&["FLUSHALL"]);
    let seeded = grows("without the data").await;
    // A replica that took over had seen less.
    server.command::<()>(&["SET", COUNTER, "5"]);
    grows("with an old counter").await;
    // The clock was set back: a day, by the counter.
    let ahead = seeded + 86_400_000_000;
    server.command::<()>(&["SET", COUNTER, &ahead.to_string()]);
    assert_eq!(grows("with the clock behind").await, ahead + 1);
    assert_eq!(grows("and again").await, ahead + 2);
}

#[tokio::test]
async fn fences_never_repeat_whatever_stands_in_the_counter() {
    let server = RedisServer::start().unwrap();
    let exact = (1_u64 << 53) - 1;
    let odd = [exact, exact + 1, 1 << 62, i64::MAX as u64 - 3, i64::MAX as u64].map(|odd| odd.to_string());
    for parameters in ["", "?redisson=true"] {
        let locks = Locks::new(Redis::connect(&format!("{}{parameters}", server.url())).await.unwrap());
        for odd in odd.iter().map(String::as_str).chain(["9007199254740993.5", "text", "1e300", ""]) {
            server.command::<()>(&["SET", COUNTER, odd]);
            for _ in 0..3 {
                let error = locks.lock("room").acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{odd}: {error}");
                assert!(error.to_string().contains("counter of fences"), "{odd}: {error}");
            }
            let error = locks.lock_all(["room", "hall"]).acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{odd}: {error}");
            assert_eq!(server.keys(), [COUNTER], "{odd}: nothing was taken");
            assert_eq!(server.command::<String>(&["GET", COUNTER]), odd, "the counter is left as it was");
        }
        server.command::<()>(&["DEL", COUNTER]);
        assert!(next_fence(&locks).await < next_fence(&locks).await);
        server.command::<()>(&["SET", COUNTER, "-9223372036854775808"]);
        assert!(next_fence(&locks).await > 1_000_000_000_000_000, "below the clock the clock counts");
    }
}

#[tokio::test]
async fn data_in_the_place_of_the_counter_is_refused_as_such_and_stays() {
    let server = RedisServer::start().unwrap();
    server.command::<()>(&["LPUSH", COUNTER, "data"]);
    for parameters in ["", "?redisson=true"] {
        let locks = Locks::new(Redis::connect(&format!("{}{parameters}", server.url())).await.unwrap());
        let one = locks.lock("room").acquire().await.unwrap_err();
        let several = locks.lock_all(["room", "hall"]).acquire().await.unwrap_err();
        for error in [one, several] {
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("the counter of fences is data of others"), "{error}");
        }
        assert_eq!(server.keys(), [COUNTER], "nothing was taken");
    }
}

#[tokio::test]
async fn a_fenced_write_refuses_who_was_overtaken() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let [low, high, huge] = [9, 10, u64::MAX].map(Fence::new);
    assert!(redis.fenced_set("stock", "1", low).await.unwrap());
    assert!(redis.fenced_set("stock", "2", high).await.unwrap());
    assert!(redis.fenced_set("stock", "3", high).await.unwrap(), "the same grant may write again");
    assert!(!redis.fenced_set("stock", "4", low).await.unwrap());
    assert_eq!(server.command::<String>(&["GET", "stock"]), "3");
    assert!(redis.fenced_set("stock", "5", huge).await.unwrap());
    assert!(!redis.fenced_set("stock", "6", Fence::new(u64::MAX - 1)).await.unwrap(), "all 64 bits count");

    let script = fenced_script("return redis.call('INCRBY', KEYS[1], ARGV[1])");
    let key = fence_key("sold");
    let sell = |fence: &str| server.try_command::<i64>(&["EVAL", &script, "2", "sold", &key, "3", fence]);
    assert_eq!(sell("10").unwrap(), 3);
    let refused = sell("9").unwrap_err();
    assert_eq!(refused.code(), Some("STALE"), "{refused}");
    assert_eq!(sell("10").unwrap(), 6);
}

#[test]
fn what_which_backend_md_does_without_a_lock_are_commands_of_redis() {
    let server = RedisServer::start().unwrap();
    let block = WITHOUT_A_LOCK.split("```redis\n").nth(1).and_then(|rest| rest.split("```").next());
    let commands: Vec<Vec<&str>> =
        block.expect("the page has commands").lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(commands.len(), 2);
    server.command::<()>(&["SET", "stock:42", "1"]);
    for (left, is_first) in [(0, true), (-1, false)] {
        assert_eq!(server.command::<i64>(&commands[0]), left);
        assert_eq!(server.command::<Option<String>>(&commands[1]).is_some(), is_first);
    }
}

/// A client in another language, which knows what the page says of the scripts.
struct OtherClient<'a> {
    server: &'a RedisServer,
    key: &'a str,
    token: String,
}

const TURNED: fn(&str) -> String = |token| {
    let turned = |digit: char| char::from_digit(15 - digit.to_digit(16).expect("a digit"), 16);
    token.chars().filter_map(turned).collect()
};

impl<'a> OtherClient<'a> {
    fn new(server: &'a RedisServer, key: &'a str, digit: char) -> Self {
        Self { server, key, token: digit.to_string().repeat(32) }
    }

    /// Calls the script of this row of the page with its arguments.
    fn call(&self, what: &str, baton: &str) -> Value {
        let row = PAGE.lines().find_map(|line| line.strip_prefix(&format!("| {what} | "))).expect("a row");
        let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
        let turned = TURNED(&self.token);
        let words = |cell: &str| -> Vec<String> {
            let values = [
                ("key", self.key),
                ("counter", COUNTER),
                ("n", "7"),
                ("token", &self.token),
                ("turned", &turned),
                ("baton", baton),
                ("lease", "30000"),
                ("time", "20000"),
                ("who", "host=web-3"),
                ("0 who", "0 host=web-3"),
            ];
            let value = |name: &str| values.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
            let arguments = cell.split(", ").map(|word| word.trim_matches('`'));
            arguments.map(|word| value(word).unwrap_or(word.trim_matches('"')).to_owned()).collect()
        };
        let (keys, arguments) = (words(cells[1]), words(cells[2]));
        let scripts = client_scripts();
        let script = match cells[0] {
            "`lock`" => scripts.lock,
            "`hand_over`" => scripts.hand_over,
            "`take_over`" => scripts.take_over,
            other => panic!("no script {other}"),
        };
        let mut command = vec!["EVAL".to_owned(), script.to_owned(), keys.len().to_string()];
        command.extend(keys.into_iter().chain(arguments));
        self.server.command(&command.iter().map(|word| &**word).collect::<Vec<_>>())
    }
}

/// The reply as the page writes it, with the lease that is left and what is in a value left out.
fn written(reply: &Value) -> String {
    match reply {
        Value::Array(parts) => {
            let parts: Vec<String> = parts.iter().map(written).collect();
            format!("{{{}}}", parts.join(", "))
        }
        Value::Int(number @ 1_000..1_000_000) => format!("LEFT of {}", (number - 1) / 10_000),
        Value::Int(1_000_000..) => "FENCE".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(text) => {
            let text = String::from_utf8_lossy(text);
            let is_value = text.len() > 32 && text.as_bytes()[32] == b' ' && !text.starts_with("WRONGTYPE");
            if is_value { "VALUE".to_owned() } else { text.into_owned() }
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_program_that_knows_redis_md_holds_locks_and_hands_them_on_beside_dlock() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server).await;
    let theirs = OtherClient::new(&server, "dlock:room", 'a');
    let says = |client: &OtherClient<'_>, what: &str| written(&client.call(what, ""));
    // An acquire, again after a lost reply, and what either side sees of it.
    let reply = says(&theirs, "acquire");
    let first: u64 = reply.trim().strip_suffix("+7").expect("the number of the call").parse().unwrap();
    assert_eq!(says(&theirs, "acquire"), "{{FENCE, 1, {VALUE}}, 7}");
    let other = OtherClient::new(&server, "dlock:room", 'b');
    assert!(says(&other, "acquire").ends_with(", 1, {LEFT of 2, VALUE}}, 7}"));
    let holder = locks.inspect("room").await.unwrap().expect("they have it");
    assert_eq!((holder.host.as_deref(), holder.fence), (Some("web-3"), Some(Fence::new(first))));
    assert!(locks.lock("room").try_acquire().await.unwrap().is_none());
    assert_eq!(
        (says(&theirs, "renew"), says(&other, "renew")),
        ("7".to_owned(), "{{0, 1, 0}, 7}".to_owned())
    );
    // They hand it over, and it is taken over here, once.
    assert_eq!((says(&theirs, "hand over"), says(&theirs, "hand over")), ("{1, 7}".into(), "{1, 7}".into()));
    assert_eq!(says(&other, "hand over"), "{0, 7}");
    let baton = TURNED(&theirs.token);
    let text = format!("dlock-baton:1:redis:0:{first}:{baton}:room");
    let guard = locks.take_over(&text.parse::<Baton>().unwrap()).await.unwrap();
    assert!(guard.fence() > Some(Fence::new(first)));
    assert_eq!(written(&other.call("take over", &baton)), "{{LEFT of 2, VALUE}, 7}");
    // It is handed over here, and they take it over, once.
    let text = guard.hand_over().await.unwrap().to_text();
    let baton = text.split(':').nth(5).expect("a token").to_owned();
    let Value::Array(reply) = other.call("take over", &baton) else { panic!("no fence") };
    let Value::Int(second) = reply[0] else { panic!("{reply:?}") };
    assert!(second.unsigned_abs() > guard.fence().unwrap().get());
    assert_eq!(written(&other.call("take over", &baton)), "{{VALUE}, 7}", "their own, after a lost reply");
    assert_eq!(written(&theirs.call("take over", &baton)), "{{LEFT of 2, VALUE}, 7}");
    // A waiter here is notified of their release.
    let waiting = locks.lock("room").with_wait(Duration::from_secs(30));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    while !server.command::<String>(&["GET", "dlock:room"]).ends_with(" !") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(says(&other, "release"), "{{0, 1, 2}, 7}");
    assert_eq!(says(&other, "release"), "{{0, 1, 0}, 7}");
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(written(&theirs.call("take over", &baton)), "{0, 7}");
    let _readers = locks.lock("room").read().acquire().await.unwrap();
    let refused = says(&theirs, "acquire");
    assert!(refused.contains(", 1, WRONGTYPE"), "{refused}");
    // A key with a brace has the name that the page gives it.
    let odd = OtherClient::new(&server, "dlock:%a%7Bb%7D%25", 'c');
    assert!(says(&odd, "acquire").ends_with("+7"));
    assert!(locks.lock("a{b}%").try_acquire().await.unwrap().is_none());
    assert_eq!(says(&odd, "release"), "7");
}

#[tokio::test]
async fn many_tasks_share_calls_of_the_script() {
    let server = RedisServer::start().unwrap();
    let locks = locks(&server).await;
    let before = server.command_calls();
    let tasks: Vec<_> = (0..64)
        .map(|n| {
            let lock = locks.lock(format!("room_{n}"));
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap().unwrap());
    }
    assert_eq!(server.keys().len(), 65);
    let calls = server.command_calls();
    let of = |name: &str| calls.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
    assert!(of("evalsha") <= 16, "{} calls for 64 locks", of("evalsha"));
    assert!((64..=96).contains(&of("set")), "{} writes", of("set"));
    let fences: std::collections::HashSet<_> = guards.iter().map(|guard| guard.fence()).collect();
    assert_eq!(fences.len(), 64);
    for guard in guards {
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_socket_and_a_database_number_are_used() {
    let server = RedisServer::start().unwrap();
    let url = format!("redis+unix://{}?db=3", server.unix_socket().display());
    let locks = Locks::new(Redis::connect(&url).await.unwrap());
    let guard = locks.lock("room").acquire().await.unwrap();
    assert!(server.keys().is_empty(), "not in database 0");
    guard.release().await.unwrap();
    let error = Redis::connect(&url.replace("db=3", "db=99")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
}
