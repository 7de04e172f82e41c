//! Opening one connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::Failure;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisConnectionInfo,
};

use crate::config::{Certificates, Config};
use crate::error::not_opened;
use crate::url::{Credentials, Endpoint};

/// How connections are opened.
#[derive(Clone, Debug)]
pub(crate) struct Opener {
    credentials: Credentials,
    db: i64,
    timeout: Duration,
    certificates: Certificates,
}

/// An open connection, and whether it has ended.
pub(crate) struct Opened {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) ended: Arc<AtomicBool>,
}

impl Opener {
    /// To the servers that keep the locks.
    pub(crate) fn to_servers(config: &Config) -> Self {
        Self {
            credentials: config.target.credentials.clone(),
            db: config.target.db,
            timeout: config.connect_timeout,
            certificates: config.certificates.clone(),
        }
    }

    /// To the sentinels, which have credentials of their own and no databases.
    pub(crate) fn to_sentinels(config: &Config) -> Self {
        Self { credentials: config.target.sentinel_credentials.clone(), db: 0, ..Self::to_servers(config) }
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Opens a connection that is driven by the calling runtime. `listen` gets what the server says unasked.
    pub(crate) async fn open(
        &self,
        endpoint: &Endpoint,
        listen: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Opened, Failure> {
        let address = endpoint.to_string();
        let client = self.client(endpoint).map_err(|error| not_opened(&error, &address))?;
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        let config = AsyncConnectionConfig::new()
            // Every request has a limit of its own, set by the engine, and what comes too late is not lost.
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(256)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    flag.store(true, Ordering::Release);
                }
                listen(push);
                Ok::<(), std::convert::Infallible>(())
            });
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        match tokio::time::timeout(self.timeout, opening).await {
            Ok(Ok(connection)) => Ok(Opened { connection, ended }),
            Ok(Err(error)) => Err(not_opened(&error, &address)),
            Err(_) => {
                Err(Failure::unavailable(format!("{address}: no connection within {:?}", self.timeout)))
            }
        }
    }

    fn client(&self, endpoint: &Endpoint) -> redis::RedisResult<Client> {
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
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("dlock", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.credentials.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = &self.credentials.password {
            redis = redis.set_password(password);
        }
        let keepalive =
            TcpKeepalive::new().with_time(Duration::from_secs(10)).with_interval(Duration::from_secs(5));
        let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(Duration::from_secs(20));
        let info = addr.into_connection_info()?.set_redis_settings(redis).set_tcp_settings(tcp);
        if tls { self.tls_client(info) } else { Client::open(info) }
    }

    #[cfg(feature = "tls")]
    fn tls_client(&self, info: redis::ConnectionInfo) -> redis::RedisResult<Client> {
        // rustls panics when it cannot tell which provider to use. A choice of the program stands.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        }
        let Certificates { root, client } = self.certificates.clone();
        if root.is_none() && client.is_none() {
            return Client::open(info);
        }
        let client_tls =
            client.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, redis::TlsCertificates { client_tls, root_cert: root })
    }

    /// URLs that want TLS are refused when the feature is off.
    #[cfg(not(feature = "tls"))]
    fn tls_client(&self, info: redis::ConnectionInfo) -> redis::RedisResult<Client> {
        let Certificates {} = self.certificates;
        Client::open(info)
    }
}
