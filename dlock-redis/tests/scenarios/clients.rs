//! Connections like those of clients that the program has already, and their end.

use std::time::Duration;

use dlock_core::{ErrorKind, Locks};
use dlock_redis::Redis;
use dlock_rig::servers::redis::{RedisCluster, RedisSentinel, RedisServer};
use redis::{Client, ConnectionAddr, IntoConnectionInfo};

use crate::support::{LONG, error_of, held, over, soon, until};

/// The lock is held for every client of the same server, and is free for others.
async fn excludes(ours: &Locks, theirs: &Locks) {
    let guard = soon("the lock", ours.lock("room").acquire()).await.unwrap();
    assert!(soon("an answer", theirs.lock("room").try_acquire()).await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn address_database_and_password_of_a_client_are_taken() {
    let server = RedisServer::options().password("hunter2").start().unwrap();
    let url = format!("{}/5", server.url());
    let client = Client::open(&*url).unwrap();
    let builder = Redis::from_client(&client).with_prefix("shop:");
    assert!(!format!("{builder:?}").contains("hunter2"));
    let redis = builder.connect().await.unwrap();
    assert!(!format!("{redis:?}").contains("hunter2"));
    let ours = over(redis, LONG);
    let theirs = over(Redis::connect(&format!("{url}?prefix=shop:")).await.unwrap(), LONG);
    excludes(&ours, &theirs).await;
    let elsewhere = over(Redis::connect(&format!("{}/4?prefix=shop:", server.url())).await.unwrap(), LONG);
    let guard = ours.lock("room").acquire().await.unwrap();
    assert!(elsewhere.lock("room").try_acquire().await.unwrap().is_some(), "another database, another lock");
    guard.release().await.unwrap();
    let client = Client::open(url.replace("hunter2", "wrong")).unwrap();
    error_of(Redis::from_client(&client).connect().await, ErrorKind::Denied);
}

#[tokio::test]
async fn a_client_of_a_unix_socket_is_taken() {
    let server = RedisServer::start().unwrap();
    let client =
        Client::open(ConnectionAddr::Unix(server.unix_socket()).into_connection_info().unwrap()).unwrap();
    let ours = over(Redis::from_client(&client).connect().await.unwrap(), LONG);
    excludes(&ours, &over(Redis::connect(&server.url()).await.unwrap(), LONG)).await;
}

#[tokio::test]
#[cfg(feature = "tls")]
async fn the_certificates_of_a_client_are_taken() {
    let server = RedisServer::options().tls().start().unwrap();
    let certificates = redis::TlsCertificates {
        client_tls: None,
        root_cert: Some(std::fs::read(server.certificates().authority()).unwrap()),
    };
    // What a program does that uses TLS by itself.
    Redis::builder(&server.tls_url()).build().unwrap();
    error_of(Redis::connect(&server.tls_url()).await, ErrorKind::InvalidConfig);
    let client = Client::build_with_tls(&*server.tls_url(), certificates).unwrap();
    let ours = over(Redis::from_client(&client).connect().await.unwrap(), LONG);
    excludes(&ours, &over(Redis::connect(&server.url()).await.unwrap(), LONG)).await;
}

#[tokio::test]
async fn a_cluster_is_found_by_clients_of_its_nodes() {
    let cluster = RedisCluster::start().unwrap();
    let nodes: Vec<Client> =
        cluster.nodes()[..2].iter().map(|node| Client::open(node.url()).unwrap()).collect();
    let ours = over(Redis::from_cluster_nodes(&nodes).connect().await.unwrap(), LONG);
    excludes(&ours, &over(Redis::connect(&cluster.url()).await.unwrap(), LONG)).await;
    error_of(Redis::from_cluster_nodes(&[]).connect().await, ErrorKind::InvalidConfig);
    let other = Client::open(format!("{}/1", cluster.nodes()[0].url())).unwrap();
    error_of(Redis::from_cluster_nodes(&[other]).connect().await, ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn the_master_is_found_by_clients_of_sentinels() {
    let sentinel = RedisSentinel::start().unwrap();
    let url = sentinel.url();
    let (hosts, service) = url.trim_start_matches("redis+sentinel://").split_once('/').unwrap();
    let sentinels: Vec<Client> =
        hosts.split(',').map(|host| Client::open(format!("redis://{host}")).unwrap()).collect();
    // Its address is not used.
    let server = Client::open("redis://nowhere.invalid").unwrap();
    let ours = over(Redis::from_sentinels(&sentinels, service, &server).connect().await.unwrap(), LONG);
    excludes(&ours, &over(Redis::connect(&url).await.unwrap(), LONG)).await;
}

#[cfg(feature = "credentials")]
mod credentials {
    use std::pin::Pin;

    use dlock_core::ErrorKind;
    use dlock_redis::Redis;
    use dlock_rig::servers::redis::{RedisOptions, RedisServer};
    use futures_util::{Stream, StreamExt, stream};
    use redis::{BasicAuth, RedisResult, StreamingCredentialsProvider};
    use tokio::sync::watch;

    use crate::support::{LONG, SHORT, error_of, over, soon, until};

    /// Tokens that rotate.
    struct Tokens(watch::Receiver<&'static str>);

    impl StreamingCredentialsProvider for Tokens {
        fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
            let mut tokens = self.0.clone();
            tokens.mark_changed();
            let next = |mut tokens: watch::Receiver<&'static str>| async move {
                tokens.changed().await.ok()?;
                let token = *tokens.borrow_and_update();
                Some((Ok(BasicAuth::new(format!("user-{token}"), token.to_owned())), tokens))
            };
            stream::unfold(tokens, next).boxed()
        }
    }

    fn server(options: RedisOptions) -> RedisServer {
        let rights = ["~*", "&*", "+@all"];
        options.user("user-first", "first", &rights).user("user-second", "second", &rights).start().unwrap()
    }

    #[tokio::test]
    async fn connections_follow_tokens_that_rotate() {
        let server = server(RedisServer::options());
        let (rotate, tokens) = watch::channel("first");
        let redis =
            Redis::builder(&server.url()).with_credentials_provider(Tokens(tokens)).connect().await.unwrap();
        let locks = over(redis, SHORT);
        let guard = locks.lock("room").acquire().await.unwrap();
        let used = |user: &str| server.command::<String>(&["CLIENT", "LIST"]).matches(user).count();
        assert!(used("user=user-first") > 0);
        rotate.send_replace("second");
        until("all connections to use the new token", || used("user=user-first") == 0).await;
        server.command::<()>(&["ACL", "SETUSER", "user-first", "off"]);
        let renewals = locks.stats().renewals;
        until("renewals", || locks.stats().renewals > renewals + 1).await;
        // Those that are opened later use it too.
        assert!(server.command::<u32>(&["CLIENT", "KILL", "TYPE", "normal"]) > 0);
        let renewals = locks.stats().renewals;
        until("renewals over new connections", || locks.stats().renewals > renewals + 1).await;
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert!(used("user=user-second") > 0);
    }

    #[tokio::test]
    async fn waiters_without_resp3_listen_with_the_token_of_the_moment() {
        let server = server(RedisServer::options().argument("rename-command", "hello no-hello"));
        let (_rotate, tokens) = watch::channel("second");
        let builder = Redis::builder(&server.url()).with_credentials_provider(Tokens(tokens.clone()));
        let ours = over(builder.clone().connect().await.unwrap(), LONG);
        let theirs = over(builder.connect().await.unwrap(), LONG);
        let guard = ours.lock("room").acquire().await.unwrap();
        let lock = theirs.lock("room");
        let waiter = tokio::spawn(async move { lock.acquire().await });
        until("the waiter to listen", || !server.channels().is_empty()).await;
        guard.release().await.unwrap();
        soon("the lock", waiter).await.unwrap().unwrap().release().await.unwrap();
    }

    #[tokio::test]
    async fn a_provider_with_wrong_or_no_credentials_is_denied() {
        let server = server(RedisServer::options());
        let (rotate, tokens) = watch::channel("third");
        let builder = Redis::builder(&server.url()).with_credentials_provider(Tokens(tokens));
        error_of(builder.clone().connect().await, ErrorKind::Denied);
        drop(rotate);
        error_of(builder.connect().await, ErrorKind::Denied);
    }
}

#[tokio::test]
async fn a_shutdown_gives_back_every_lock_and_closes_every_connection() {
    let server = RedisServer::start().unwrap();
    let redis = Redis::connect(&server.url()).await.unwrap();
    let locks = over(redis, LONG);
    let mut guards = Vec::new();
    for number in 0..100 {
        guards.push(locks.lock(format!("room_{number}")).acquire().await.unwrap());
    }
    assert_eq!(held(&server).len(), 100);
    locks.shutdown(Duration::from_secs(10)).await.unwrap();
    assert_eq!(held(&server), [""; 0]);
    error_of(locks.lock("room").acquire().await, ErrorKind::Closed);
    drop(guards);
    until("the connections to close", || {
        let clients: String = server.command(&["CLIENT", "LIST"]);
        !clients.contains("lib-name=dlock") && clients.lines().count() == 1
    })
    .await;
}
