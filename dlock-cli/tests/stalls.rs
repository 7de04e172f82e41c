//! Commands under locks of which less is left than the usual grace: they are stopped when a lock cannot be renewed, and
//! not before.

mod support;

use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use support::{Store, until};

fn runs_to_its_end_under_a_session_of(server: &ZooKeeperServer, timeout: &str) {
    let store = Store::at(&format!("{}?session_timeout={timeout}", server.url()));
    for options in [&["--grace", "1h"][..], &["--grace", "1h", "--once", "2h"]] {
        let done = store.run(timeout, options, "sleep 0.3; exit 7").done();
        assert_eq!((done.code, done.err.as_str()), (7, ""), "{timeout} {options:?}");
    }
}

#[test]
fn a_command_runs_to_its_end_under_a_session_that_is_shorter_than_the_grace() {
    runs_to_its_end_under_a_session_of(&ZooKeeperServer::start().unwrap(), "12s");
}

#[test]
fn a_command_that_waited_in_line_runs_to_its_end() {
    let server = RedisServer::start().unwrap();
    let store = Store::at(&server.url());
    // What is left of the lock is less than the grace until it is renewed for the first time.
    let fair = |script| store.run("k", &["--fair", "--wait", "forever"], script).start();
    let mut first = fair("echo ready; read end; true");
    first.says("ready");
    let listening = server.channels().len();
    let mut second = fair("echo ready; read end; exit 7");
    until("the second to stand in line", || server.channels().len() > listening);
    first.finish();
    assert_eq!(first.wait().code, 0);
    second.says("ready");
    second.finish();
    let done = second.wait();
    assert_eq!((done.code, done.err.as_str()), (7, ""));
}

mod in_time {
    use std::time::Duration;

    use dlock_rig::servers::mysql::MysqlServer;
    use dlock_rig::servers::postgres::PostgresServer;

    use super::*;

    const STALL: Duration = Duration::from_millis(2_500);

    /// Freezes a server, or has it go on.
    type Freeze<'a> = Box<dyn Fn(bool) + 'a>;

    macro_rules! freezes {
        ($server:expr) => {
            Box::new(|frozen: bool| if frozen { $server.pause() } else { $server.resume() }) as Freeze<'_>
        };
    }

    fn stalls(store: &Store, freeze: &Freeze<'_>, stall: Duration) {
        let mut running = store.run("k", &[], "echo ready; read end; exit 7").start();
        running.says("ready");
        freeze(true);
        std::thread::sleep(stall);
        freeze(false);
        // And for as long again.
        std::thread::sleep(stall);
        running.finish();
        let done = running.wait();
        assert_eq!((done.code, done.err.as_str()), (7, ""), "{}", store.url());
    }

    #[test]
    fn a_command_runs_to_its_end_under_a_session_of_a_few_seconds() {
        let server = ZooKeeperServer::start().unwrap();
        for timeout in ["4s", "6s", "8s"] {
            runs_to_its_end_under_a_session_of(&server, timeout);
        }
    }

    #[test]
    fn a_server_that_stalls_for_less_than_it_is_trusted_stops_no_command() {
        let (redis, zookeeper) = (RedisServer::start().unwrap(), ZooKeeperServer::start().unwrap());
        let (postgres, mysql) = (PostgresServer::start().unwrap(), MysqlServer::start().unwrap());
        let quorum = format!("quorum:{0}/1|{0}/2|{0}/3|?durable=true", redis.url().trim_end_matches('/'));
        let timeout = |timeout| format!("{}?session_timeout={timeout}", zookeeper.url());
        let mut stores = vec![
            (timeout("4s"), freezes!(zookeeper), STALL / 2),
            (timeout("8s"), freezes!(zookeeper), STALL),
            (zookeeper.url(), freezes!(zookeeper), STALL),
            (redis.url(), freezes!(redis), STALL),
            (quorum, freezes!(redis), STALL),
        ];
        for mode in ["lease", "session", "row"] {
            let postgres_url = format!("{}&migrate=true&mode={mode}", postgres.url());
            stores.push((postgres_url, freezes!(postgres), STALL));
            stores.push((format!("{}?migrate=true&mode={mode}", mysql.url()), freezes!(mysql), STALL));
        }
        for (url, freeze, stall) in &stores {
            stalls(&Store::at(url), freeze, *stall);
        }
    }

    #[test]
    fn a_lock_that_is_only_suspect_is_not_lost_for_a_command_that_ends_or_goes_on() {
        let server = ZooKeeperServer::start().unwrap();
        let store = Store::at(&format!("{}?session_timeout=20s", server.url()));
        let mut running = store.run("k", &[], "echo $$; read end; echo bye; exit 7").start();
        let pid: u32 = running.line().trim().parse().unwrap();
        server.pause();
        // So long that the connection is given up, and half of what the session is trusted for.
        std::thread::sleep(Duration::from_secs(5));
        running.signal(20);
        until("the command to stop", || store.state(pid) == 'T');
        until("the program to stop", || store.state(running.pid()) == 'T');
        running.signal(18);
        until("the command to go on", || store.state(pid) != 'T');
        running.finish();
        running.says("bye");
        server.resume();
        let done = running.wait();
        assert_eq!((done.code, done.err.as_str()), (7, ""));
    }
}
