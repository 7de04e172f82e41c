//! The opening of connections.
//!
//! | `resp2` | a connection is opened | becomes |
//! |---|---|---|
//! | not set | in RESP3, and in RESP2 where the server refuses `HELLO` | set, once RESP2 has succeeded after a refusal |
//! | set | in RESP2 at once | stays so, for all connections of this opener |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{tell, within};
use dlock_core::{Failure, keeper};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo, RedisResult,
};
use tokio::sync::mpsc::UnboundedSender;

use super::messages::MessageConnection;
use crate::config::{Certificates, Config};
use crate::error::{lacks_hello, not_opened};
use crate::existing::ConnectionTemplate;
#[cfg(feature = "credentials")]
use crate::existing::Provider;
use crate::url::{Credentials, Endpoint};

/// The settings by which connections are opened.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    credentials: Credentials,
    db: i64,
    timeout: Duration,
    certificates: Certificates,
    template: Option<ConnectionTemplate>,
    #[cfg(feature = "credentials")]
    provider: Option<Provider>,
    /// `true` once a server, or a proxy before it, refused RESP3.
    resp2: Arc<AtomicBool>,
}

/// An open connection, and the flag that is set when it ends.
pub(crate) struct Opened {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) ended: Arc<AtomicBool>,
    /// `true` if the server can send messages of its own on the connection.
    pub(crate) resp3: bool,
}

type Listen = Arc<dyn Fn(PushInfo) + Send + Sync>;

impl Opener {
    /// Returns the opener for the servers that keep the locks.
    pub(crate) fn to_servers(config: &Config) -> Self {
        Self {
            credentials: config.target.credentials.clone(),
            db: config.target.db,
            timeout: config.connect_timeout,
            certificates: config.certificates.clone(),
            template: config.template.clone(),
            #[cfg(feature = "credentials")]
            provider: config.provider.clone(),
            resp2: Arc::default(),
        }
    }

    /// Returns the opener for the sentinels, which have credentials of their own and no databases.
    pub(crate) fn to_sentinels(config: &Config) -> Self {
        Self {
            credentials: config.target.sentinel_credentials.clone(),
            db: 0,
            template: config.sentinel_template.clone(),
            #[cfg(feature = "credentials")]
            provider: None,
            ..Self::to_servers(config)
        }
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens a connection that is driven by the calling runtime, or by dlock's own thread if that runtime cannot drive
    /// it. `listen` gets the messages that the server sends of its own accord, if the protocol is RESP3.
    pub(crate) async fn open(
        &self,
        endpoint: &Endpoint,
        listen: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Opened, Failure> {
        // Shared, since `keeper::open` may have to open twice: here, and then on dlock's own thread.
        let listen: Listen = Arc::new(listen);
        let opening = || {
            let (opener, endpoint, listen) = (self.clone(), endpoint.clone(), Arc::clone(&listen));
            async move { opener.open_here(&endpoint, listen).await }
        };
        keeper::open(opening).await?
    }

    /// Opens a connection that is driven by the calling runtime: in RESP3, and in RESP2 where that is refused.
    async fn open_here(&self, endpoint: &Endpoint, listen: Listen) -> Result<Opened, Failure> {
        let ended = Arc::new(AtomicBool::new(false));
        // A refusal is remembered for all later connections, so that only the first pays the second round trip. It is
        // remembered only once RESP2 has succeeded, since a server that refuses everything says nothing about
        // protocols.
        let refused = if self.resp2.load(Ordering::Relaxed) {
            None
        } else {
            let flag = Arc::clone(&ended);
            // Set at the opening, so that no report of the server and no end of the connection is missed.
            let config = self.config().set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    flag.store(true, Ordering::Release);
                }
                listen(push);
                Ok::<(), std::convert::Infallible>(())
            });
            match self.connect(endpoint, ProtocolVersion::RESP3, &config).await? {
                Ok(connection) => return Ok(Opened { connection, ended, resp3: true }),
                // A server before Redis 6, or a proxy, that does not know `HELLO`: the second try speaks RESP2.
                Err(error) if lacks_hello(&error) => Some(error),
                Err(error) => return Err(not_opened(&error, &endpoint.to_string())),
            }
        };
        match self.connect(endpoint, ProtocolVersion::RESP2, &self.config()).await? {
            Ok(connection) => {
                // Reported once, by the first of those that found out at one moment.
                if refused.is_some() && !self.resp2.swap(true, Ordering::Relaxed) {
                    let what = "the server refused RESP3, and is spoken to in RESP2";
                    tell(|| tracing::debug!({ dlock.endpoint = %endpoint }, "{what}"));
                }
                Ok(Opened { connection, ended, resp3: false })
            }
            Err(error) => Err(not_opened(&error, &endpoint.to_string())),
        }
    }

    /// Opens a connection for messages. They go to `push`, or to the returned stream if the protocol is RESP2.
    pub(crate) async fn listen(
        &self,
        endpoint: &Endpoint,
        push: UnboundedSender<PushInfo>,
    ) -> Result<(MessageConnection, Option<PubSubStream>), Failure> {
        if !self.resp2.load(Ordering::Relaxed) {
            let opened = self.open(endpoint, move |said| drop(push.send(said))).await?;
            // In RESP2 the connection cannot have its messages read; it is dropped, and another kind is opened below.
            if opened.resp3 {
                return Ok((MessageConnection::Resp3(opened.connection), None));
            }
        }
        let opening = async {
            let client = self.client(endpoint, ProtocolVersion::RESP2)?;
            #[cfg(feature = "credentials")]
            let client = self.provided(client).await?;
            client.get_async_pubsub().await
        };
        let (sink, messages) = match self.in_time(endpoint, opening).await? {
            Ok(opened) => opened.split(),
            Err(error) => return Err(not_opened(&error, &endpoint.to_string())),
        };
        Ok((MessageConnection::Resp2(sink), Some(messages)))
    }

    /// Returns the client with the current credentials, for a connection that does not ask the provider itself.
    #[cfg(feature = "credentials")]
    async fn provided(&self, client: Client) -> RedisResult<Client> {
        let Some(provider) = &self.provider else { return Ok(client) };
        // Read at each opening: a token of before may have expired.
        let now = provider.now().await?;
        let info = client.get_connection_info().clone();
        let redis = info.redis_settings().clone().set_username(now.username()).set_password(now.password());
        Client::open(info.set_redis_settings(redis))
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        protocol: ProtocolVersion,
        config: &AsyncConnectionConfig,
    ) -> Result<RedisResult<MultiplexedConnection>, Failure> {
        let opening = async {
            let client = self.client(endpoint, protocol)?;
            client.get_multiplexed_async_connection_with_config(config).await
        };
        self.in_time(endpoint, opening).await
    }

    /// Bounds the opening of a connection by the connect timeout.
    async fn in_time<T>(&self, endpoint: &Endpoint, opening: impl Future<Output = T>) -> Result<T, Failure> {
        let late = || Failure::unavailable(format!("{endpoint}: no connection within {:?}", self.timeout));
        within(self.timeout, opening).await.ok_or_else(late)
    }

    fn config(&self) -> AsyncConnectionConfig {
        let config = AsyncConnectionConfig::new()
            // The engine bounds every request, and a reply that comes after that bound is still read: it must not end
            // the connection.
            .set_response_timeout(None)
            .set_connection_timeout(None)
            // As many as `MOST_STEPS`: a step counts as written once it has its turn, and is not to wait once more for
            // room in the queue of the driver.
            .set_pipeline_buffer_size(256);
        #[cfg(feature = "credentials")]
        if let Some(provider) = &self.provider {
            return config.set_credentials_provider(provider.clone());
        }
        config
    }

    fn client(&self, endpoint: &Endpoint, protocol: ProtocolVersion) -> RedisResult<Client> {
        // A client that the program had already: all of its settings hold, and none of those below.
        if let Some(template) = &self.template {
            #[cfg(feature = "tls")]
            choose_crypto();
            return Client::open(template.at(endpoint, protocol));
        }
        let tls = matches!(endpoint, Endpoint::Tcp { tls: true, .. });
        let addr = match endpoint {
            Endpoint::Tcp { host, port, tls: false } => ConnectionAddr::Tcp(host.clone(), *port),
            Endpoint::Tcp { host, port, tls: true } => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Endpoint::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let mut redis = RedisConnectionInfo::default()
            .set_db(self.db)
            .set_protocol(protocol)
            .set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.credentials.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.credentials.password {
            redis = redis.set_password(password);
        }
        // A host that vanished without a word is noticed by the operating system, also on a connection that is idle.
        let keepalive =
            TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        // Keepalive tests an idle connection only. Bytes that are never acknowledged would be sent again for minutes.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(Duration::from_secs(20));
        let info = addr.into_connection_info()?.set_redis_settings(redis).set_tcp_settings(tcp);
        if tls { self.tls_client(info) } else { Client::open(info) }
    }

    #[cfg(feature = "tls")]
    fn tls_client(&self, info: redis::ConnectionInfo) -> RedisResult<Client> {
        choose_crypto();
        let Certificates { root, client } = self.certificates.clone();
        if root.is_none() && client.is_none() {
            return Client::open(info);
        }
        let client_tls =
            client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert: root })
    }

    /// Opens a client. URLs that ask for TLS are refused when the feature is off, and never get here.
    #[cfg(not(feature = "tls"))]
    fn tls_client(&self, info: redis::ConnectionInfo) -> RedisResult<Client> {
        let Certificates {} = self.certificates;
        Client::open(info)
    }
}

/// Installs a default cryptography provider for rustls, which panics if it cannot choose one. A provider that the
/// program has installed stays.
#[cfg(feature = "tls")]
fn choose_crypto() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was first, whose provider serves as well.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}
