//! The `dlock` program over servers.

mod support;

use dlock_rig::proxy::Proxy;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::pgbouncer::PgBouncer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
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

/// Shows the lock `k`, whose holder's text `write` replaces, in every way, and releases it.
fn is_shown_and_released_without_a_panic(store: &Store, write: impl Fn(&str)) {
    let name = "host=%e2%80%ae%1b[2J%9b%00 pid=99999999999 label=";
    for (since, label) in [("1000000000000000000", "%ff%e2%80%8b".to_owned()), ("-1", "x".repeat(700))] {
        let mut running = store.holding("k");
        write(&format!("since={since} {name}{label}"));
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
            let harmful = ['\u{1b}', '\u{202e}', '\u{200b}', '\u{9b}', '\0'];
            assert!(!done.out.contains(harmful) && done.out.len() < 2_000, "{task:?}: {:?}", done.out);
            if task[0] == "--json" {
                let document = done.json();
                let holder = document["held"].get(0).unwrap_or(&document["holder"]);
                assert!(holder["host"].as_str().unwrap().starts_with("\u{202e}\u{1b}[2J"), "{document}");
                assert!(holder["since"].is_null() && holder["pid"].is_null(), "{document}");
            }
        }
        running.finish();
        running.wait();
    }
}

#[test]
fn whatever_stands_for_a_holder_in_a_database_or_a_node_is_shown_and_released_without_a_panic() {
    let postgres = PostgresServer::start().unwrap();
    let store = Store::at(&format!("{}&migrate=true", postgres.url()));
    is_shown_and_released_without_a_panic(&store, |text| {
        postgres.query(&format!("UPDATE dlock SET holder = '{text}' WHERE key = 'k'"));
    });
    let mysql = MysqlServer::start().unwrap();
    let store = Store::at(&format!("{}?migrate=true", mysql.url()));
    is_shown_and_released_without_a_panic(&store, |text| {
        // Its column, as a node, takes what is no UTF-8.
        mysql.query(&format!("UPDATE dlock SET holder = CONCAT('{text}', x'ff9b1b') WHERE `key` = 'k'"));
    });
    let zookeeper = ZooKeeperServer::start().unwrap();
    is_shown_and_released_without_a_panic(&Store::at(&zookeeper.url()), |text| {
        let admin = zookeeper.admin();
        for place in admin.children("/dlock/k") {
            admin.set_data(&format!("/dlock/k/{place}"), &[text.as_bytes(), b"\xff\x9b\x1b"].concat());
        }
    });
    let store = Store::new();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    is_shown_and_released_without_a_panic(&store, |text| {
        runtime.block_on(async {
            let url = format!("sqlite://{}", store.path("locks.db").display());
            let mut file = SqliteConnection::connect(&url).await.unwrap();
            let write = "UPDATE dlock SET holder = ? WHERE key = x'6b'";
            assert_eq!(sqlx::query(write).bind(text).execute(&mut file).await.unwrap().rows_affected(), 1);
        });
    });
}

#[test]
fn a_command_that_does_not_end_is_dead_before_a_lease_that_is_not_renewed_ends() {
    for grace in ["10s", "0s"] {
        is_dead_before_its_lease_ends(grace);
    }
}

fn is_dead_before_its_lease_ends(grace: &str) {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::start(server.address()).unwrap();
    let store = Store::at(&server.url_through(proxy.address()));
    let beat = store.path("beat");
    let script = format!(
        "trap '' TERM; (trap '' TERM; while :; do date +%s%3N > {0}.new; mv {0}.new {0}; sleep 0.01; done) & \
         echo ready; wait; while :; do sleep 0.01; done",
        beat.display()
    );
    let mut running = store.run("k", &["--lease", "3s", "--grace", grace], &script).start();
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
fn a_waiter_in_java_that_is_first_in_line_is_shown_as_such_and_removed() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&format!("{}?prefix=", server.url()));
    let _: i64 = server.command(&["RPUSH", "redisson_lock_queue:{till}", "java:5"]);
    let _: i64 = server.command(&["ZADD", "redisson_lock_timeout:{till}", "4102444800000", "java:5"]);
    let listed = store.dlock(["ls"]).done().out;
    assert!(listed.contains("till") && listed.contains("a waiter in Java is first in line"), "{listed}");
    let shown = store.dlock(["inspect", "till"]).done().out;
    assert!(shown.contains("java:5") && shown.contains("kept until  2100-01-01T00:0"), "{shown}");
    let document = store.dlock(["--json", "inspect", "till"]).done().json();
    assert_eq!(document["holders"][0]["first_in_line"], true, "{document}");
    let released = store.dlock(["release", "--force", "--yes", "till"]).done();
    assert!(
        released.code == 0 && released.out.contains("kept by a waiter"),
        "{}{}",
        released.out,
        released.err
    );
    assert!(store.dlock(["ls"]).done().out.contains("no lock is held"));
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

/// What the doctor says of each subject: the severities, and all of it.
fn doctor(store: &Store, code: u8) -> (impl Fn(&str) -> String + use<>, String) {
    let done = store.dlock(["--json", "doctor"]).done();
    assert_eq!(done.code, code, "{}{}", done.out, done.err);
    let findings = done.json()["findings"].as_array().unwrap().clone();
    for finding in &findings {
        let is_fine = finding["severity"] == "fine";
        assert_eq!(finding["advice"].as_str().unwrap().is_empty(), is_fine, "{finding}");
    }
    let severity = move |subject: &str| {
        let found = findings.iter().filter(|finding| finding["subject"] == subject);
        found.map(|finding| finding["severity"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    };
    (severity, done.out)
}

#[test]
fn the_doctor_finds_settings_of_postgresql_that_endanger_locks() {
    let well = PostgresServer::options().setting("fsync", "on").setting("synchronous_commit", "on");
    let well = well.setting("full_page_writes", "on").setting("autovacuum", "on").start().unwrap();
    let ill = PostgresServer::options().setting("fsync", "off").setting("synchronous_commit", "off");
    let ill = ill.setting("autovacuum", "off").setting("max_connections", "20").start().unwrap();
    ill.query("ALTER ROLE current_user SET statement_timeout = '500ms'");
    for mode in ["lease", "session", "row"] {
        let url = |server: &PostgresServer| format!("{}&mode={mode}&migrate=true", server.url());
        let (severity, all) = doctor(&Store::at(&url(&well)), 0);
        for subject in
            ["rights", "version", "fsync", "synchronous_commit", "sessions", "max_connections", "standbys"]
        {
            assert_eq!(severity(subject), "fine", "{subject} in {all}");
        }
        let (severity, all) = doctor(&Store::at(&url(&ill)), 78);
        for (subject, expected) in [
            ("fsync", "danger"),
            ("synchronous_commit", "danger"),
            ("autovacuum", "warning"),
            ("statement_timeout", "warning"),
            ("max_connections", "warning"),
        ] {
            assert_eq!(severity(subject), expected, "{subject} in {all}");
        }
    }
}

#[test]
fn the_doctor_finds_a_table_of_postgresql_that_loses_or_changes_what_is_written() {
    let server = PostgresServer::start().unwrap();
    let store = Store::at(&format!("{}&migrate=true", server.url()));
    let (severity, all) = doctor(&store, doctor_code(&store));
    assert_eq!((severity("table"), severity("triggers")), ("fine".into(), "fine".into()), "{all}");
    server.query("ALTER TABLE dlock SET UNLOGGED");
    server.query("CREATE FUNCTION old() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'");
    server.query("CREATE TRIGGER old BEFORE UPDATE ON dlock FOR EACH ROW EXECUTE FUNCTION old()");
    let (severity, all) = doctor(&store, 78);
    assert_eq!((severity("table"), severity("triggers")), ("danger".into(), "warning".into()), "{all}");
}

#[test]
fn the_doctor_finds_what_keeps_a_user_of_postgresql_from_rows_or_from_notifying() {
    let server = PostgresServer::start().unwrap();
    let owner = Store::at(&format!("{}&migrate=true", server.url()));
    let (severity, all) = doctor(&owner, doctor_code(&owner));
    assert_eq!(["rules", "row_security", "pg_notify", "standbys"].map(severity), ["fine"; 4], "{all}");
    server.query("CREATE ROLE app LOGIN PASSWORD 'secret'; GRANT ALL ON dlock TO app");
    server.query("CREATE RULE mute AS ON DELETE TO dlock DO INSTEAD NOTHING");
    server.query("ALTER TABLE dlock ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON dlock USING (true)");
    server.query("REVOKE EXECUTE ON FUNCTION pg_notify(text, text) FROM PUBLIC");
    let (severity, all) = doctor(&Store::at(&server.url_as("app", "secret")), 78);
    assert_eq!(["rules", "row_security", "pg_notify"].map(severity), ["danger"; 3], "{all}");
}

#[test]
fn the_doctor_finds_that_no_synchronous_standby_is_there() {
    let server = PostgresServer::options().setting("synchronous_commit", "on").start().unwrap();
    drop(Store::at(&format!("{}&migrate=true", server.url())).dlock(["ping"]).done());
    server.query("ALTER SYSTEM SET synchronous_standby_names = 'away'");
    server.query("SELECT pg_reload_conf()");
    let store = Store::at(&server.url());
    until("the server has read its settings again", || {
        doctor(&store, doctor_code(&store)).0("standbys") == "danger"
    });
}

#[test]
fn the_doctor_finds_a_redis_that_refuses_what_is_written() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    assert_eq!(doctor(&store, 0).0("min-replicas-to-write"), "fine");
    for (setting, of_ill, of_well) in [("min-replicas-to-write", "1", "0"), ("maxmemory", "1", "1000000000")]
    {
        server.command::<()>(&["CONFIG", "SET", setting, of_ill]);
        assert_eq!(doctor(&store, 78).0(setting), "danger");
        server.command::<()>(&["CONFIG", "SET", setting, of_well]);
        assert_eq!(doctor(&store, 0).0(setting), "fine");
    }
}

#[test]
fn the_doctor_finds_a_pooler_that_shares_sessions() {
    let server = PostgresServer::start().unwrap();
    let direct = Store::at(&format!("{}&migrate=true", server.url()));
    assert_eq!(doctor(&direct, doctor_code(&direct)).0("sessions"), "fine");
    let pooler = PgBouncer::start(&server).unwrap();
    let store = Store::at(&format!("{}&statements=simple", pooler.url()));
    assert_eq!(doctor(&store, doctor_code(&store)).0("sessions"), "warning");
}

/// The server may have other settings that are not what this is about.
fn doctor_code(store: &Store) -> u8 {
    store.dlock(["doctor"]).done().code
}

#[test]
fn the_doctor_finds_settings_of_mariadb_that_endanger_locks() {
    let well = MysqlServer::options()
        .setting("innodb-flush-log-at-trx-commit", "1")
        .setting("innodb-doublewrite", "1");
    let well = well.setting("max-connections", "100").start().unwrap();
    let ill =
        MysqlServer::options().setting("innodb-flush-log-at-trx-commit", "0").setting("autocommit", "0");
    let ill = ill.setting("wait-timeout", "20").setting("max-connections", "12").start().unwrap();
    for mode in ["lease", "session", "row"] {
        let url = |server: &MysqlServer| format!("{}?mode={mode}&migrate=true", server.url());
        let (severity, all) = doctor(&Store::at(&url(&well)), 0);
        for subject in [
            "rights",
            "version",
            "innodb_flush_log_at_trx_commit",
            "autocommit",
            "sessions",
            "max_connections",
        ] {
            assert_eq!(severity(subject), "fine", "{subject} in {all}");
        }
        let (severity, all) = doctor(&Store::at(&url(&ill)), 78);
        for (subject, expected) in [
            ("innodb_flush_log_at_trx_commit", "danger"),
            ("autocommit", "warning"),
            ("wait_timeout", "warning"),
            ("max_connections", "warning"),
        ] {
            assert_eq!(severity(subject), expected, "{subject} in {all}");
        }
    }
}

#[test]
fn the_doctor_finds_settings_of_zookeeper_that_endanger_locks() {
    let ill = ZooKeeperServer::options().setting("maxClientCnxns", "3").start().unwrap();
    let store = Store::at(&format!("{}?tick_time=10ms&session_timeout=200s", ill.url()));
    let (severity, all) = doctor(&store, 0);
    for (subject, expected) in [
        ("rights", "warning"),
        ("server", "fine"),
        ("servers", "warning"),
        ("session timeout", "fine"),
        ("tickTime", "warning"),
        ("maxClientCnxns", "warning"),
    ] {
        assert_eq!(severity(subject), expected, "{subject} in {all}");
    }
    let silent = ZooKeeperServer::options().setting("4lw.commands.whitelist", "srvr").start().unwrap();
    let (severity, all) = doctor(&Store::at(&silent.url()), 0);
    assert_eq!((severity("server"), severity("settings")), ("fine".into(), "fine".into()), "{all}");
    assert!(all.contains("4lw.commands.whitelist"), "{all}");
}

#[test]
fn a_zookeeper_that_has_as_many_connections_as_it_allows_is_not_taken_for_one_that_is_away() {
    let mut server = ZooKeeperServer::options().setting("maxClientCnxns", "1").start().unwrap();
    let store = Store::at(&server.url());
    let mut running = store.holding("k");
    let refused = store.dlock(["ls"]).done();
    assert_eq!(refused.code, 69, "{}", refused.out);
    assert!(refused.err.contains("maxClientCnxns") && !refused.err.contains("listening"), "{}", refused.err);
    running.finish();
    assert_eq!(running.wait().code, 0);
    server.kill();
    let away = store.dlock(["ls"]).done();
    assert!(away.code == 69 && away.err.contains("is a server listening there?"), "{}", away.err);
}

#[test]
fn the_doctor_finds_a_file_that_everybody_can_write() {
    use std::os::unix::fs::PermissionsExt;
    let store = Store::new();
    let (severity, all) = doctor(&store, 0);
    for subject in ["journal_mode", "file", "directory", "log", "disk"] {
        assert_eq!(severity(subject), "fine", "{subject} in {all}");
    }
    let mode = |name: &str, mode| {
        std::fs::set_permissions(store.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("locks.db", 0o666);
    assert_eq!(doctor(&store, 78).0("file"), "danger");
    mode("locks.db", 0o600);
    mode("", 0o777);
    assert_eq!(doctor(&store, 78).0("directory"), "danger");
    mode("", 0o1777);
    assert_eq!(doctor(&store, 0).0("directory"), "warning");
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
