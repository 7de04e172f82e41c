//! What is taken from clients of the `redis` crate that the program has already.

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::url::{Credentials, Endpoint, Target, Topology};

/// The servers of such clients, and how these connect to them.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) target: Target,
    pub(crate) like: Option<Like>,
    pub(crate) like_of_sentinels: Option<Like>,
}

/// How a client connects. Never shown.
#[derive(Clone)]
pub(crate) struct Like(Arc<ConnectionInfo>);

impl fmt::Debug for Like {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Like(..)")
    }
}

impl Like {
    fn of(client: &Client) -> Self {
        Self(Arc::new(client.get_connection_info().clone()))
    }

    /// The same for another server.
    pub(crate) fn at(&self, endpoint: &Endpoint, protocol: ProtocolVersion) -> ConnectionInfo {
        let addr = match (endpoint, self.0.addr()) {
            (Endpoint::Tcp { host, port, .. }, ConnectionAddr::TcpTls { insecure, tls_params, .. }) => {
                ConnectionAddr::TcpTls {
                    host: host.clone(),
                    port: *port,
                    insecure: *insecure,
                    tls_params: tls_params.clone(),
                }
            }
            (Endpoint::Tcp { host, port, .. }, _) => ConnectionAddr::Tcp(host.clone(), *port),
            (Endpoint::Unix(path), _) => ConnectionAddr::Unix(path.clone()),
        };
        let tcp = self.0.tcp_settings().clone().set_nodelay(true);
        ConnectionInfo::clone(&self.0)
            .set_addr(addr)
            .set_tcp_settings(tcp)
            .set_redis_settings(self.redis(protocol))
    }

    fn redis(&self, protocol: ProtocolVersion) -> RedisConnectionInfo {
        self.0.redis_settings().clone().set_protocol(protocol)
    }

    fn endpoint(&self) -> Result<Endpoint, &'static str> {
        Ok(match self.0.addr() {
            ConnectionAddr::Tcp(host, port) => Endpoint::Tcp { host: host.clone(), port: *port, tls: false },
            ConnectionAddr::TcpTls { host, port, .. } => {
                Endpoint::Tcp { host: host.clone(), port: *port, tls: true }
            }
            ConnectionAddr::Unix(path) => Endpoint::Unix(path.clone()),
            _ => {
                return Err("the client has an address of a kind that is not known");
            }
        })
    }

    fn db(&self) -> i64 {
        self.0.redis_settings().db()
    }
}

pub(crate) fn one(client: &Client) -> Result<Taken, &'static str> {
    let like = Like::of(client);
    Ok(taken(Topology::Single(like.endpoint()?), like, None))
}

pub(crate) fn cluster(nodes: &[Client]) -> Result<Taken, &'static str> {
    let like = first(nodes, "a cluster needs the client of one of its nodes at least")?;
    if like.db() != 0 {
        return Err("a cluster has no databases but 0");
    }
    Ok(taken(Topology::Cluster(endpoints(nodes)?), like, None))
}

pub(crate) fn sentinels(sentinels: &[Client], service: &str, server: &Client) -> Result<Taken, &'static str> {
    let like_of_sentinels = first(sentinels, "the client of one sentinel is needed at least")?;
    let topology = Topology::Sentinel { sentinels: endpoints(sentinels)?, service: service.to_owned() };
    Ok(taken(topology, Like::of(server), Some(like_of_sentinels)))
}

fn first(clients: &[Client], message: &'static str) -> Result<Like, &'static str> {
    clients.first().map(Like::of).ok_or(message)
}

fn endpoints(clients: &[Client]) -> Result<Vec<Endpoint>, &'static str> {
    clients.iter().map(|client| Like::of(client).endpoint()).collect()
}

fn taken(topology: Topology, like: Like, like_of_sentinels: Option<Like>) -> Taken {
    let target = Target {
        topology,
        // They stay where they are.
        credentials: Credentials::default(),
        sentinel_credentials: Credentials::default(),
        db: like.db(),
        prefix: None,
        min_replicas: None,
        redisson: None,
        hash_slots: None,
        tracking: None,
    };
    Taken { target, like: Some(like), like_of_sentinels }
}

/// Credentials that change.
#[cfg(feature = "credentials")]
#[derive(Clone)]
pub(crate) struct Provider(Arc<dyn redis::StreamingCredentialsProvider>);

#[cfg(feature = "credentials")]
mod provider {
    use std::fmt;
    use std::pin::Pin;
    use std::sync::Arc;

    use futures_util::{Stream, StreamExt};
    use redis::{BasicAuth, RedisResult, StreamingCredentialsProvider};

    use super::Provider;

    impl Provider {
        pub(crate) fn new(provider: impl StreamingCredentialsProvider + 'static) -> Self {
            Self(Arc::new(provider))
        }

        /// The credentials of this moment.
        pub(crate) async fn now(&self) -> RedisResult<BasicAuth> {
            let ended =
                || Err((redis::ErrorKind::AuthenticationFailed, "the provider has no credentials").into());
            self.0.subscribe().next().await.unwrap_or_else(ended)
        }
    }

    impl StreamingCredentialsProvider for Provider {
        fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
            self.0.subscribe()
        }
    }

    impl fmt::Debug for Provider {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Provider(..)")
        }
    }
}
