//! Servers are reached by every form of their address.

use std::net::SocketAddr;

use dlock_core::{Backend, Key, Locks};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::{Mysql, Postgres};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Db, on_both, take};

/// Passes on what comes to a port of the loopback address of IPv6.
async fn over_ipv6(to: SocketAddr) -> u16 {
    let listener = TcpListener::bind("[::1]:0").await;
    let listener = listener.expect("this test needs the loopback address of IPv6, ::1 on the interface lo");
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    port
}

async fn works(backend: impl Backend) {
    take(&Locks::new(backend), "a").await.release().await.unwrap();
}

on_both! {
    async fn an_address_of_ipv6_is_reached_and_is_one_however_it_is_written<D: Db>(db: D) {
        drop(db.backend().await);
        let (port, plain) = (over_ipv6(db.address()).await, db.address().to_string());
        let mut ids = Vec::new();
        for host in ["[::1]", "[0:0:0:0:0:0:0:1]", "[0::0001]"] {
            let url = db.url().replace(&plain, &format!("{host}:{port}"));
            let backend = D::connect(&url).await.unwrap();
            let told = backend.server_address().unwrap();
            assert_eq!((told.host(), told.port()), ("::1", Some(port)), "{host}");
            ids.push(backend.lock_id(&Key::new("a").unwrap()));
            works(backend).await;
        }
        ids.dedup();
        assert_eq!(ids.len(), 1);
    }
}

/// libpq's forms: no host before the path, with a user or without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_postgresql_is_reached_by_a_host_or_a_socket_among_the_parameters() {
    let server = PostgresServer::start().unwrap();
    let (directory, port) = (server.unix_socket_directory(), server.address().port());
    let (directory, v6) = (directory.display(), over_ipv6(server.address()).await);
    let escaped = directory.to_string().replace('/', "%2F");
    for url in [
        format!("postgres://postgres@/postgres?host={directory}&port={port}"),
        format!("postgres:///postgres?user=postgres&host={directory}&port={port}"),
        format!("postgres://postgres@{escaped}/postgres?port={port}"),
        format!("postgres://postgres@/postgres?sslmode=disable&host=::1&port={v6}"),
        format!("postgres://postgres@nowhere.invalid/postgres?sslmode=disable&hostaddr=::1&port={v6}"),
        format!("postgres://postgres@/postgres?sslmode=disable&host=127.0.0.1&port={port}"),
    ] {
        let connected = Postgres::connect(&format!("{url}&migrate=true")).await;
        works(connected.unwrap_or_else(|error| panic!("{url}: {error}"))).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_mariadb_is_reached_by_its_socket() {
    let server = MysqlServer::start().unwrap();
    let socket = server.unix_socket();
    for place in ["admin@localhost", "admin@"] {
        let url = format!("mysql://{place}/locks?socket={}&migrate=true", socket.display());
        works(Mysql::connect(&url).await.unwrap_or_else(|error| panic!("{url}: {error}"))).await;
    }
}
