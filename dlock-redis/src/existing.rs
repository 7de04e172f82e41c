//! The settings that are taken from clients of the `redis` crate that the program has already.

use std::fmt;
use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, RedisConnectionInfo};

use crate::url::{Credentials, Endpoint, Target, Topology};

/// The servers of existing clients, and how these connect to them.
#[derive(Clone)]
pub(crate) struct ExistingClients {
    pub(crate) target: Target,
    pub(crate) template: Option<ConnectionTemplate>,
    pub(crate) sentinel_template: Option<ConnectionTemplate>,
}

/// The settings by which a client connects. They are never shown.
#[derive(Clone)]
pub(crate) struct ConnectionTemplate(Arc<ConnectionInfo>);

impl fmt::Debug for ConnectionTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConnectionTemplate(..)")
    }
}

impl ConnectionTemplate {
    fn of(client: &Client) -> Self {
        Self(Arc::new(client.get_connection_info().clone()))
    }

    /// Returns the settings for another server.
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

/// Takes a single server from its client.
pub(crate) fn one(client: &Client) -> Result<ExistingClients, &'static str> {
    let template = ConnectionTemplate::of(client);
    Ok(existing(Topology::Single(template.endpoint()?), template, None))
}

/// Takes a cluster from the clients of some of its nodes.
pub(crate) fn cluster(nodes: &[Client]) -> Result<ExistingClients, &'static str> {
    let template = first(nodes, "a cluster needs the client of one of its nodes at least")?;
    if template.db() != 0 {
        return Err("a cluster has no databases but 0");
    }
    Ok(existing(Topology::Cluster(endpoints(nodes)?), template, None))
}

/// Takes a master under Sentinel from the clients of the sentinels and of a server.
pub(crate) fn sentinels(
    sentinels: &[Client],
    service: &str,
    server: &Client,
) -> Result<ExistingClients, &'static str> {
    let sentinel_template = first(sentinels, "the client of one sentinel is needed at least")?;
    let topology = Topology::Sentinel { sentinels: endpoints(sentinels)?, service: service.to_owned() };
    Ok(existing(topology, ConnectionTemplate::of(server), Some(sentinel_template)))
}

fn first(clients: &[Client], message: &'static str) -> Result<ConnectionTemplate, &'static str> {
    clients.first().map(ConnectionTemplate::of).ok_or(message)
}

fn endpoints(clients: &[Client]) -> Result<Vec<Endpoint>, &'static str> {
    clients.iter().map(|client| ConnectionTemplate::of(client).endpoint()).collect()
}

fn existing(
    topology: Topology,
    template: ConnectionTemplate,
    sentinel_template: Option<ConnectionTemplate>,
) -> ExistingClients {
    let target = Target {
        topology,
        // The credentials stay in the template.
        credentials: Credentials::default(),
        sentinel_credentials: Credentials::default(),
        db: template.db(),
        prefix: None,
        min_replicas: None,
        redisson: None,
        recipe: None,
        hash_slots: None,
        tracking: None,
    };
    ExistingClients { target, template: Some(template), sentinel_template }
}

/// A source of credentials that change.
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

        /// Returns the current credentials.
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
