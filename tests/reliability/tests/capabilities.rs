//! What backends say of themselves: the page "Which backend?" says the same, and where their servers are.

use std::net::SocketAddr;
use std::time::Duration;

use dlock::redis::Redis;
use dlock::sql::{Mysql, Postgres};
use dlock::zk::ZooKeeper;
use dlock::{Backend, Capabilities, Memory, Quorum};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;

const PAGE: &str = include_str!("../../../docs/which-backend.md");

/// The table of properties: its lines, each with its cells.
fn table() -> Vec<Vec<&'static str>> {
    let (_, after) = PAGE.split_once("## What each of them gives").expect("the page has this part");
    let lines =
        after.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

/// What the table says of `backend` in the line `property`.
fn cell(backend: &str, property: &str) -> &'static str {
    let table = table();
    let at = table[0].iter().position(|name| name.contains(backend)).expect("there is a column for it");
    let line = table.iter().find(|line| line[0] == property).expect("there is a line for it");
    line[at]
}

#[track_caller]
fn agrees(backend: &str, capabilities: Capabilities) {
    let says = |property, yes: &str| cell(backend, property).starts_with(yes);
    assert_eq!(says("fence", "yes"), capabilities.fencing, "{backend}: fence");
    let order = says("first come, first served between processes", "yes");
    assert_eq!(order, capabilities.fair, "{backend}: first come, first served");
    assert_eq!(says("who waits can be listed", "yes"), capabilities.shows_waiters, "{backend}: who waits");
    assert_eq!(says("kept by", "a session"), capabilities.session_kept, "{backend}: kept by");
    let waiters = cell(backend, "waiters in other processes");
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
    agrees("quorum", dlock::Locks::new(quorum).capabilities());
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
