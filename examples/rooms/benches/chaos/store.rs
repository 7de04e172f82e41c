//! The store of the locks, behind a proxy, and all that can happen to it.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use dlock_rig::proxy::{Direction, Flow, Proxy};
use dlock_rig::servers::mysql::MysqlServer;
use dlock_rig::servers::postgres::PostgresServer;
use dlock_rig::servers::redis::RedisServer;
use dlock_rig::servers::zookeeper::ZooKeeperServer;
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection, Executor};

use crate::held::LEASE;
use crate::{Fault, STEP};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    Redis,
    #[value(name = "zk")]
    ZooKeeper,
    #[value(name = "postgres")]
    PostgreSql,
    #[value(name = "mysql")]
    MariaDb,
    #[value(name = "sqlite")]
    Sqlite,
}

enum Server {
    Redis(RedisServer),
    ZooKeeper(ZooKeeperServer),
    PostgreSql(PostgresServer),
    MariaDb(MysqlServer),
}

/// The same call on whichever server it is.
macro_rules! whichever {
    ($server:expr, $it:ident => $call:expr) => {
        match $server {
            Server::Redis($it) => $call,
            Server::ZooKeeper($it) => $call,
            Server::PostgreSql($it) => $call,
            Server::MariaDb($it) => $call,
        }
    };
}

pub(crate) struct Store {
    /// Through the proxy, as a user with the documented rights.
    pub(crate) url: String,
    server: Option<(Server, Proxy)>,
    directory: tempfile::TempDir,
    is_behind: bool,
}

impl Store {
    pub(crate) async fn start(kind: Kind) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let server = match kind {
            Kind::Redis => {
                Server::Redis(RedisServer::options().append_only("always").stepped_clock().start()?)
            }
            Kind::ZooKeeper => Server::ZooKeeper(ZooKeeperServer::start()?),
            Kind::PostgreSql => Server::PostgreSql(PostgresServer::options().stepped_clock().start()?),
            Kind::MariaDb => Server::MariaDb(MysqlServer::options().stepped_clock().start()?),
            Kind::Sqlite => {
                let url = format!("sqlite://{}", directory.path().join("locks.db").display());
                return Ok(Self { url, server: None, directory, is_behind: false });
            }
        };
        let proxy = Proxy::start(whichever!(&server, server => server.address()))?;
        let address = proxy.address();
        let url = match &server {
            Server::Redis(server) => server.url_through(address),
            Server::ZooKeeper(_) => format!("zk://{address}?session_timeout=10s"),
            Server::PostgreSql(server) => {
                let url = server.url_through(address);
                dlock::connect(&format!("{url}&migrate=true"))
                    .await?
                    .shutdown(Duration::from_secs(5))
                    .await?;
                server
                    .query("CREATE USER app PASSWORD 'right'; GRANT SELECT, INSERT, UPDATE ON dlock TO app");
                as_app(&url)?
            }
            Server::MariaDb(server) => {
                let url = server.url_through(address);
                dlock::connect(&format!("{url}?migrate=true"))
                    .await?
                    .shutdown(Duration::from_secs(5))
                    .await?;
                server.query(
                    "CREATE USER app@'%' IDENTIFIED BY 'right'; GRANT SELECT, INSERT, UPDATE ON dlock TO app@'%'",
                );
                as_app(&url)?
            }
        };
        Ok(Self { url, server: Some((server, proxy)), directory, is_behind: false })
    }

    /// Why a fault cannot be made here.
    pub(crate) fn cannot(&self, fault: Fault) -> Option<&'static str> {
        let unable = match (fault, self.server.as_ref().map(|(server, _)| server)) {
            (Fault::Deploys | Fault::Blocked | Fault::Frozen | Fault::FrozenLong, _) => return None,
            (Fault::Killed | Fault::Slow, None) => "not made: there is no server",
            (Fault::Full | Fault::ReadOnly, None) => "not made: a file has no such state that ends by itself",
            (Fault::ClockAhead | Fault::ClockBehind, None) => "not made: its clock is that of the machine",
            (Fault::Descriptors, None) => "not made: it has no connection that could be cut",
            (Fault::Full | Fault::ReadOnly, Some(Server::ZooKeeper(_))) => {
                "not made: it ends when it cannot write, see killed"
            }
            (Fault::ClockAhead | Fault::ClockBehind, Some(Server::ZooKeeper(_))) => {
                "not made: it counts time by a clock that cannot be set"
            }
            _ => return None,
        };
        Some(unable)
    }

    /// How long a lock is held after it was confirmed: of a session of `ZooKeeper`, two thirds.
    pub(crate) fn believed(&self) -> Duration {
        match &self.server {
            Some((Server::ZooKeeper(_), _)) => LEASE * 2 / 3,
            _ => LEASE,
        }
    }

    fn server(&mut self) -> Result<&mut (Server, Proxy)> {
        self.server.as_mut().context("there is no server")
    }

    pub(crate) async fn kill_for(&mut self, time: Duration) -> Result<()> {
        let (server, _) = self.server()?;
        whichever!(server, server => server.kill());
        tokio::time::sleep(time).await;
        Ok(whichever!(server, server => server.restart())?)
    }

    /// Nothing is answered; of a file, somebody else keeps it locked.
    pub(crate) async fn freeze_for(&mut self, time: Duration) -> Result<()> {
        let Some((server, _)) = &self.server else {
            let path = self.directory.path().join("locks.db");
            let mut other = SqliteConnection::connect(&format!("sqlite://{}", path.display())).await?;
            other.execute("BEGIN EXCLUSIVE").await?;
            tokio::time::sleep(time).await;
            other.execute("ROLLBACK").await?;
            return Ok(other.close().await?);
        };
        whichever!(server, server => server.pause());
        tokio::time::sleep(time).await;
        whichever!(server, server => server.resume());
        Ok(())
    }

    /// Refuses writes, or takes them again: for lack of space or of connections, or as a server that may be read only.
    pub(crate) fn refuse_writes(&mut self, full: bool, on: bool) -> Result<()> {
        let (server, _) = self.server()?;
        match (server, full) {
            (Server::Redis(server), true) => {
                server.command::<()>(&["CONFIG", "SET", "maxmemory", if on { "1" } else { "0" }]);
            }
            (Server::Redis(server), false) => {
                let of: &[&str] = if on { &["127.0.0.1", "1"] } else { &["NO", "ONE"] };
                server.command::<()>(&[&["REPLICAOF"], of].concat());
            }
            (Server::PostgreSql(server), true) => {
                let most = if on { 0 } else { -1 };
                server.query(&format!("ALTER ROLE app CONNECTION LIMIT {most}"));
                if on {
                    server.disconnect_all();
                }
            }
            (Server::PostgreSql(server), false) => {
                server.query(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}"));
                server.query("SELECT pg_reload_conf()");
            }
            (Server::MariaDb(server), true) => {
                let most = i32::from(on);
                server.query(&format!("ALTER USER app@'%' WITH MAX_USER_CONNECTIONS {most}"));
                if on {
                    server.disconnect_all();
                }
            }
            (Server::MariaDb(server), false) => drop(server.query(&format!("SET GLOBAL read_only = {on}"))),
            (Server::ZooKeeper(_), _) => bail!("it has no such state"),
        }
        Ok(())
    }

    /// Every answer comes so much later.
    pub(crate) async fn slow_for(&mut self, by: Duration, time: Duration) -> Result<()> {
        let (_, proxy) = self.server()?;
        proxy.set(Direction::ToClient, Flow::Delay(by));
        tokio::time::sleep(time).await;
        proxy.mend();
        Ok(())
    }

    /// Sets its clock, which stays so: to set it right would be a step in the other direction.
    pub(crate) fn step_clock(&mut self, ahead: bool) -> Result<()> {
        let behind = std::mem::replace(&mut self.is_behind, !ahead);
        let clock = self.clock()?;
        match (ahead, behind) {
            (true, true) => clock.right(),
            (true, false) => clock.ahead(STEP),
            (false, _) => clock.behind(STEP),
        }
        Ok(())
    }

    fn clock(&mut self) -> Result<&dlock_rig::servers::SteppedClock> {
        Ok(match &self.server()?.0 {
            Server::Redis(server) => server.clock(),
            Server::PostgreSql(server) => server.clock(),
            Server::MariaDb(server) => server.clock(),
            Server::ZooKeeper(_) => bail!("its clock cannot be set"),
        })
    }

    /// What the server has said, and whether it still runs.
    pub(crate) fn output(&self) -> String {
        let Some((server, _)) = &self.server else { return String::new() };
        let (output, runs) = whichever!(server, server => (server.output(), server.is_running()));
        format!("{output}\n(it {})", if runs { "runs" } else { "has ended" })
    }

    /// Cuts all connections to it.
    pub(crate) fn cut(&self) {
        if let Some((_, proxy)) = &self.server {
            proxy.cut();
        }
    }

    /// How many locks there are when all have ended.
    pub(crate) async fn locks_left(&self) -> Result<usize> {
        let locks = dlock::connect(&self.url).await?;
        let left = locks.holders().await?.len();
        locks.shutdown(Duration::from_secs(5)).await?;
        Ok(left)
    }
}

/// The same URL for the user of the service.
fn as_app(url: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").context("it has a scheme")?;
    let (_, place) = rest.split_once('@').context("it has a user")?;
    Ok(format!("{scheme}://app:right@{place}"))
}
