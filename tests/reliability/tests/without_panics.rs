//! Each store is opened, waited for and closed by callers whose runtime does not serve, in a program that ends at its
//! first panic. The exception is tokio's own panic in a runtime without I/O, by which `keeper::open` learns that there
//! is none: tokio tells it in no other way. A program that is built with `panic = "abort"` has not even that one.

use std::sync::Once;
use std::time::Duration;

use dlock::{ErrorKind, Locks, Wait};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::{RedisCluster, RedisSentinel, RedisServer};
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use futures_util::future::join;
use tokio::runtime::Builder;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(300);

fn end_at_a_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            if !panic.to_string().contains("IO is disabled") {
                eprintln!("{panic}");
                std::process::abort();
            }
        }));
    });
}

/// Runs `test` without a runtime, in one that has neither timers nor I/O, and in one whose clock is paused.
fn everywhere(test: impl AsyncFn(&str)) {
    end_at_a_panic();
    pollster::block_on(test("none"));
    let bare = Builder::new_current_thread().build().expect("a runtime");
    bare.block_on(test("bare"));
    let paused = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    paused.block_on(test("paused"));
}

/// What a program does with the store at `url`, from its first line to its last.
fn has_a_whole_life(store: &str, url: &str) {
    everywhere(async |runtime| {
        let variable = format!("DLOCK_{store}_{runtime}_URL").to_uppercase();
        let backends = dlock::init().with_variables([(variable, url)]).await.expect("the store opens");
        let ours = dlock::registered(&format!("{store}_{runtime}")).expect("it is registered");
        // A memory is of one `Locks`.
        let theirs = if store == "memory" { ours.clone() } else { dlock::connect(url).await.expect("again") };
        contend(&ours, &theirs).await;
        theirs.shutdown(LONG).await.expect("nothing is left");
        backends.shutdown(LONG).await.expect("nothing is left");
    });
}

async fn contend(ours: &Locks, theirs: &Locks) {
    let held = theirs.lock("k").acquire().await.expect("it is free");
    assert!(ours.lock("k").try_acquire().await.expect("an answer").is_none());
    let late = ours.lock("k").with_wait(SHORT).acquire().await;
    assert_eq!(late.expect_err("it is held").kind(), ErrorKind::TimedOut);
    let (taken, released) = join(ours.lock("k").with_wait(Wait::Forever).acquire(), held.release()).await;
    released.expect("it was held");
    let taken = taken.expect("it was released");
    assert!(theirs.inspect("k").await.expect("an answer").is_some());
    taken.release().await.expect("it was held");
    assert_eq!(ours.lock("k").run(async { 7 }).await.expect("it is free"), 7);
    // Released in the background.
    drop(ours.lock("k").acquire().await.expect("it is free"));
    ours.ping().await.expect("it answers");
}

#[test]
fn redis() {
    let server = RedisServer::options().start().unwrap();
    has_a_whole_life("redis", &server.url_through(server.address()));
}

#[test]
fn a_redis_cluster() {
    let cluster = RedisCluster::start().unwrap();
    has_a_whole_life("cluster", &cluster.url());
}

#[test]
fn redis_under_sentinels() {
    let watched = RedisSentinel::start().unwrap();
    has_a_whole_life("sentinel", &watched.url());
}

#[test]
fn a_quorum_of_redis_servers() {
    let servers = [(); 3].map(|()| RedisServer::options().start().unwrap());
    let urls = servers.each_ref().map(|server| server.url_through(server.address()));
    has_a_whole_life("quorum", &format!("quorum:{}|?durable=true", urls.join("|")));
}

#[test]
fn zookeeper() {
    let server = ZooKeeperServer::start().unwrap();
    has_a_whole_life("zookeeper", &server.url());
}

#[test]
fn postgres() {
    let server = PostgresServer::options().start().unwrap();
    let url = server.url_through(server.address());
    has_a_whole_life("postgres", &format!("{url}&migrate=true"));
    for kind in ["session", "row"] {
        has_a_whole_life(&format!("postgres_{kind}"), &format!("{url}&migrate=true&mode={kind}"));
    }
}

#[test]
fn mariadb() {
    let server = MysqlServer::options().start().unwrap();
    let url = server.url_through(server.address());
    has_a_whole_life("mysql", &format!("{url}?migrate=true"));
    for kind in ["session", "row"] {
        has_a_whole_life(&format!("mysql_{kind}"), &format!("{url}?migrate=true&mode={kind}"));
    }
}

#[test]
fn sqlite() {
    let directory = tempfile::tempdir().unwrap();
    has_a_whole_life("sqlite", &format!("sqlite://{}", directory.path().join("locks.db").display()));
}

#[test]
fn memory() {
    has_a_whole_life("memory", "memory:");
}

/// Nobody listens there.
#[test]
fn a_server_that_is_away_is_an_error() {
    everywhere(async |_| {
        for url in [
            "redis://127.0.0.1:1/",
            "zk://127.0.0.1:1",
            "postgres://u@127.0.0.1:1/d",
            "mysql://u@127.0.0.1:1/d",
        ] {
            let error = dlock::connect(url).await.expect_err("nobody listens");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    });
}
