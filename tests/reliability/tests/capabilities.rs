//! What backends say of themselves: the pages "Which backend?" and "Which lock?" say the same, and where their servers
//! are.

use std::net::SocketAddr;
use std::time::Duration;

use dlock::redis::Redis;
use dlock::sql::{Mysql, Postgres};
use dlock::zk::ZooKeeper;
use dlock::{Backend, Capabilities, Locks, Memory, Quorum};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;

const BACKENDS: &str = include_str!("../../../docs/which-backend.md");
const LOCKS: &str = include_str!("../../../docs/which-lock.md");

/// What the table whose head begins with `first` says of `backend` in the line `property`.
#[track_caller]
fn cell(page: &'static str, first: &str, backend: &str, property: &str) -> &'static str {
    let lines = page.lines().skip_while(|line| !line.starts_with(&format!("| | {first}")));
    let lines = lines.take_while(|line| line.starts_with('|'));
    let table: Vec<Vec<&str>> =
        lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect();
    let head = table.first().expect("the page has the table");
    let at = head.iter().position(|name| name.contains(backend)).expect("there is a column for it");
    let line = table.iter().find(|line| line[0].contains(property)).expect("there is a line for it");
    line[at]
}

#[track_caller]
fn agrees(backend: &str, capabilities: Capabilities) {
    let cell = |property| cell(BACKENDS, "PostgreSQL", backend, property);
    let says = |property, yes: &str| cell(property).starts_with(yes);
    assert_eq!(says("fence", "yes"), capabilities.fencing, "{backend}: fence");
    let order = says("first come, first served between processes", "yes");
    assert_eq!(order, capabilities.fair, "{backend}: first come, first served");
    assert_eq!(says("who waits can be listed", "yes"), capabilities.shows_waiters, "{backend}: who waits");
    assert_eq!(says("kept by", "a session"), capabilities.session_kept, "{backend}: kept by");
    assert_eq!(says("stay taken", "yes"), capabilities.leaves, "{backend}: keys that stay taken");
    assert_eq!(says("handed over", "yes"), capabilities.hands_over, "{backend}: locks that are handed over");
    let waiters = cell("waiters in other processes");
    match waiters.split_once(" (PostgreSQL), or ") {
        Some((notified, polling)) => {
            let expected = if backend == "PostgreSQL" { notified } else { polling };
            assert_eq!(expected == "notified", capabilities.notified, "{backend}: waiters");
        }
        None => assert_eq!(waiters == "notified", capabilities.notified, "{backend}: waiters"),
    }
}

async fn of(url: &str) -> Capabilities {
    let builder = dlock::from_url(url).await.expect("the store opens");
    builder.with_lease(Duration::from_secs(10)).build().expect("the lease suits").capabilities()
}

#[tokio::test]
async fn the_page_says_of_each_backend_what_it_says_of_itself() {
    let directory = tempfile::tempdir().unwrap();
    agrees("SQLite", of(&format!("sqlite://{}", directory.path().join("locks.db").display())).await);
    let redis = RedisServer::options().start().unwrap();
    agrees("Redis", of(&redis.url_through(redis.address())).await);
    let zookeeper = ZooKeeperServer::start().unwrap();
    agrees("ZooKeeper", of(&zookeeper.url()).await);
    let postgres = PostgresServer::options().start().unwrap();
    agrees("PostgreSQL", of(&format!("{}&migrate=true", postgres.url_through(postgres.address()))).await);
    let mysql = MysqlServer::options().start().unwrap();
    agrees("MySQL", of(&format!("{}?migrate=true", mysql.url_through(mysql.address()))).await);
    let quorum = Quorum::new([Memory::new(), Memory::new(), Memory::new()]).unwrap();
    agrees("quorum", Locks::new(quorum).capabilities());
}

/// Each kind of lock is refused by the column `backend` exactly where no form of that backend has it.
#[track_caller]
fn has_these_locks(backend: &str, forms: &[Capabilities]) {
    let has = |ability: fn(&Capabilities) -> bool| forms.iter().any(ability);
    for (property, there) in [
        ("read and write", has(|of| of.shared)),
        ("a writer becomes a reader", has(|of| of.downgrades)),
        ("permits", has(|of| of.permits)),
        ("in order", has(|of| of.fair || of.fair_on_request)),
    ] {
        let says = cell(LOCKS, "memory", backend, property);
        assert_eq!(says != "refused", there, "{backend}: {property} is said to be: {says}");
    }
}

#[tokio::test]
async fn the_page_says_of_each_backend_which_locks_it_refuses() {
    has_these_locks("memory", &[Locks::new(Memory::new()).capabilities()]);
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite://{}", directory.path().join("locks.db").display());
    has_these_locks("SQLite", &[of(&sqlite).await]);
    let quorum = Quorum::new([Memory::new(), Memory::new(), Memory::new()]).unwrap();
    has_these_locks("quorum", &[Locks::new(quorum).capabilities()]);

    let server = RedisServer::options().start().unwrap();
    let redis = server.url_through(server.address());
    has_these_locks("Redis, own format", &[of(&redis).await]);
    let rlock = of(&format!("{redis}?redisson=true")).await;
    let read_write = of(&format!("{redis}?redisson=true&recipe=read-write-lock")).await;
    has_these_locks("Redisson's format", &[rlock, read_write]);
    let zookeeper = ZooKeeperServer::start().unwrap();
    has_these_locks("ZooKeeper", &[of(&zookeeper.url()).await]);

    let postgres = PostgresServer::options().start().unwrap();
    let mysql = MysqlServer::options().start().unwrap();
    let urls = [
        format!("{}&migrate=true", postgres.url_through(postgres.address())),
        format!("{}?migrate=true", mysql.url_through(mysql.address())),
    ];
    for (column, mode) in [
        ("lease rows of SQL servers", ""),
        ("their sessions", "&mode=session"),
        ("their locked rows", "&mode=row"),
    ] {
        let forms = urls.each_ref().map(|url| format!("{url}{mode}"));
        has_these_locks(column, &[of(&forms[0]).await, of(&forms[1]).await]);
    }
}

/// One server has an address, as its URL says.
#[track_caller]
fn is_at(backend: &impl Backend, server: SocketAddr) {
    let told = backend.server_address().expect("there is one server");
    assert_eq!(
        (told.host(), told.port()),
        (&*server.ip().to_string(), Some(server.port())),
        "{}",
        backend.name()
    );
}

#[tokio::test]
async fn a_backend_of_one_server_says_where_it_is() {
    let redis = RedisServer::options().start().unwrap();
    is_at(&Redis::connect(&redis.url_through(redis.address())).await.unwrap(), redis.address());
    let zookeeper = ZooKeeperServer::start().unwrap();
    is_at(&ZooKeeper::connect(&zookeeper.url()).await.unwrap(), zookeeper.address());
    let postgres = PostgresServer::options().start().unwrap();
    let url = format!("{}&migrate=true", postgres.url_through(postgres.address()));
    is_at(&Postgres::connect(&url).await.unwrap(), postgres.address());
    let mysql = MysqlServer::options().start().unwrap();
    let url = format!("{}?migrate=true", mysql.url_through(mysql.address()));
    is_at(&Mysql::connect(&url).await.unwrap(), mysql.address());
    assert_eq!(Memory::new().server_address(), None);
}
