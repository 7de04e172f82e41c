//! The `dlock` program over servers.

mod support;

use dlock_rig::proxy::Proxy;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use support::{Store, until};

fn round_trip(store: &Store) {
    let mut running = store.holding("room {7}");
    let document = store.dlock(["--json", "ls"]).done().json();
    assert_eq!(document["held"].as_array().unwrap().len(), 1, "{document}");
    assert_eq!(document["held"][0]["key"], "room {7}");
    assert_eq!(document["held"][0]["pid"], running.pid());
    assert_eq!(store.run("room {7}", &["--wait", "0"], "true").done().code, 75);
    let released = store.dlock(["--json", "release", "--force", "--yes", "room {7}"]).done();
    assert_eq!(released.json()["released"], true, "{}", released.err);
    let done = store.run("room {7}", &["--wait", "5s"], "echo $DLOCK_FENCE").done();
    assert!(done.out.trim().parse::<u64>().unwrap() > document["held"][0]["fence"].as_u64().unwrap());
    running.finish();
    running.wait();
}

#[test]
fn locks_on_redis_are_listed_and_released_by_force() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    round_trip(&store);
    // Data beside the locks is none of dlock's business.
    server.command::<u64>(&["HSET", "dlock:data", "name", "value"]);
    assert_eq!(store.dlock(["ls"]).done().out.trim(), "no lock is held");
    let refused = store.dlock(["release", "--force", "--yes", "data"]).done();
    assert_ne!(refused.code, 0, "{}", refused.out);
    assert_eq!(server.command::<u64>(&["EXISTS", "dlock:data"]), 1, "data was deleted");
}

#[test]
fn a_holder_that_nobody_can_be_is_shown_and_released_without_a_panic() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    // A grant of the year 33658, by a host that turns the direction of writing.
    let stored = format!("{} 1000000000000000000+0 host=%e2%80%ae%1b[2J pid=99999999999", "ab".repeat(16));
    server.command::<()>(&["SET", "dlock:k", &stored, "PX", "60000"]);
    // What is longer than a lock is none.
    server.command::<()>(&["SET", "dlock:long", &format!("{stored} label={}", "x".repeat(1_000_000))]);
    for task in [
        &["ls"][..],
        &["inspect", "k"],
        &["watch", "--times", "1"],
        &["--json", "ls"],
        &["--json", "inspect", "k"],
        &["--json", "watch", "--times", "1"],
        &["--json", "release", "--force", "--yes", "k"],
    ] {
        let done = store.dlock(task.iter().copied()).done();
        assert_eq!(done.code, 0, "{task:?}: {}", done.err);
        assert!(
            !done.out.contains(['\u{1b}', '\u{202e}']) && done.out.len() < 2000,
            "{task:?}: {:?}",
            done.out
        );
        if task[0] == "--json" {
            let document = done.json();
            let holder = document["held"].get(0).unwrap_or(&document["holder"]);
            assert_eq!(holder["host"], "\u{202e}\u{1b}[2J", "{document}");
            assert!(holder["since"].is_null() && holder["pid"].is_null(), "{document}");
        }
    }
    let long = store.dlock(["--json", "release", "--force", "--yes", "long"]).done();
    assert_eq!(long.json()["holder"]["label"], "not a lock of dlock", "{}", long.err);
    assert_eq!(server.command::<u64>(&["EXISTS", "dlock:k"]), 0);
}

#[test]
fn a_command_that_does_not_end_is_dead_before_a_lease_that_is_not_renewed_ends() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Store::at(&server.url_through(proxy.address()));
    let beat = store.path("beat");
    let script = format!(
        "trap '' TERM; (trap '' TERM; while :; do date +%s%3N > {0}.new; mv {0}.new {0}; sleep 0.01; done) & \
         echo ready; wait; while :; do sleep 0.01; done",
        beat.display()
    );
    let mut running = store.run("k", &["--lease", "3s", "--grace", "10s"], &script).start();
    running.says("ready");
    proxy.black_hole();
    // Nobody renews it any more.
    let ends: u64 = server.command(&["PEXPIRETIME", "dlock:k"]);
    let done = running.wait();
    let last: u64 = std::fs::read_to_string(&beat).unwrap().trim().parse().unwrap();
    assert_eq!(done.code, 79, "{}", done.err);
    assert!(done.err.contains("cannot be renewed"), "{}", done.err);
    assert!(last < ends, "it ran for {} ms beside the next one", last - ends);
}

#[test]
fn locks_on_zookeeper_are_listed_with_those_who_wait_in_line() {
    let server = ZooKeeperServer::start().unwrap();
    let store = Store::at(&server.url());
    round_trip(&store);
    let mut running = store.holding("k");
    let mut waiting = Vec::new();
    for count in 1..=2 {
        waiting.push(store.run("k", &["--wait", "forever"], "true").start());
        until("it to stand in line", || {
            let document = store.dlock(["--json", "inspect", "k"]).done().json();
            document["waiters"].as_array().is_some_and(|waiters| waiters.len() == count)
        });
    }
    let document = store.dlock(["--json", "inspect", "k"]).done().json();
    let pids: Vec<_> =
        document["waiters"].as_array().unwrap().iter().map(|waiter| waiter["pid"].clone()).collect();
    assert_eq!(pids, waiting.iter().map(|one| one.pid().into()).collect::<Vec<serde_json::Value>>());
    assert!(store.dlock(["ls"]).done().out.contains("WAITING"));
    let text = store.dlock(["inspect", "k"]).done().out;
    assert!(text.contains(&format!("2. {}@", waiting[1].pid())), "{text}");
    running.finish();
    assert_eq!(running.wait().code, 0);
    for one in waiting {
        assert_eq!(one.wait().code, 0);
    }
}

#[test]
fn locks_in_databases_are_listed_and_released_by_force_whatever_keeps_them() {
    let (postgres, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
    let url = |url: String, mode: &str| {
        let more = if url.contains('?') { '&' } else { '?' };
        format!("{url}{more}migrate=true&mode={mode}")
    };
    for mode in ["lease", "session", "row"] {
        for url in [url(postgres.url(), mode), url(mysql.url(), mode)] {
            round_trip(&Store::at(&url));
        }
    }
}

#[test]
fn ping_tells_whether_a_server_answers_and_doctor_which_settings_endanger_locks() {
    let mut server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    assert_eq!(store.dlock(["--json", "ping"]).done().json()["backend"], "redis");
    let well = store.dlock(["doctor"]).done();
    assert_eq!(well.code, 0, "{}{}", well.out, well.err);
    assert!(well.out.contains("fine     maxmemory-policy: noeviction"), "{}", well.out);
    assert!(well.out.contains("warning  appendfsync"), "{}", well.out);
    for setting in [["maxmemory", "100mb"], ["maxmemory-policy", "allkeys-lru"]] {
        server.command::<()>(&["CONFIG", "SET", setting[0], setting[1]]);
    }
    let ill = store.dlock(["--json", "doctor"]).done();
    assert_eq!(ill.code, 78, "{}", ill.err);
    let worst = &ill.json()["findings"][0];
    assert_eq!(
        (&worst["severity"], &worst["subject"]),
        (&"danger".into(), &"maxmemory-policy".into()),
        "{worst}"
    );
    assert!(worst["advice"].as_str().unwrap().contains("noeviction"), "{worst}");
    server.command::<()>(&[
        "ACL",
        "SETUSER",
        "few",
        "on",
        ">secret",
        "resetchannels",
        "~dlock:*",
        "&dlock:*",
        "+evalsha",
        "+eval",
        "+get",
        "+getrange",
        "+pttl",
    ]);
    let denied = Store::at(&server.url_as("few", "secret")).dlock(["doctor"]).done();
    assert_eq!(denied.code, 77, "{}{}", denied.out, denied.err);
    assert!(!denied.err.contains("secret"), "{}", denied.err);
    server.kill();
    for task in ["ping", "doctor"] {
        let dead = store.dlock([task]).done();
        assert_eq!(dead.code, 69, "{}", dead.err);
    }
}
