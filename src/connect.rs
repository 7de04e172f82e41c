//! A backend from a URL, as it stands in a configuration.

use dlock_core::{Error, Failure, Locks, LocksBuilder, Memory, Operation, Result};

/// Connects to the backend that `url` names, with the default options.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `memory:` | this process only, for tests; every call makes a new one | |
/// | `postgres://user:password@host/database` | a PostgreSQL database, where the table was made; `&migrate=true` makes it | `postgres` |
/// | `mysql://user:password@host/database` | a MariaDB or MySQL database, likewise | `mysql` |
/// | `redis://[user:password@]host[:port][/db]`, `redis+unix:///path`, `unix:///path` | a Redis server | `redis` |
/// | `redis+sentinel://host,host/service[/db]`, `redis+cluster://host,host` | Redis under Sentinel, or a Cluster | `redis` |
/// | `rediss://...`, `rediss+sentinel://...`, `rediss+cluster://...` | the same over TLS | `redis-tls` |
/// | `zk://[user:password@]host[:port],host[:port][/chroot]` | a ZooKeeper server or ensemble | `zk` |
/// | `zk+tls://...` | the same over TLS | `zk-tls` |
/// | `sqlite:///absolute/path.db`, `sqlite://relative/path.db` | processes on one host; the file and the table are made | `sqlite` |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
/// let locks = dlock::connect("memory:").await?;
/// locks.lock("room_7").run(async {}).await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the URL is not one of these, or its feature is not
/// compiled in; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and other kinds of the backend. No error
/// contains the URL's password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<Locks> {
    from_url(url).await?.build()
}

/// Like [`connect`], for options that are not the defaults.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock::Error> {
/// use std::time::Duration;
///
/// let locks = dlock::from_url("memory:").await?.with_lease(Duration::from_secs(5)).build()?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`connect`].
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn from_url(url: &str) -> Result<LocksBuilder> {
    let Some((scheme, _)) = url.split_once(':') else {
        return Err(invalid(
            "the URL has no scheme; write for example sqlite:///var/lib/shop/locks.db".into(),
        ));
    };
    match scheme {
        "memory" if url == "memory:" => Ok(Locks::builder(Memory::new())),
        "memory" => Err(invalid("a memory backend takes no name; write `memory:`".into())),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Locks::builder(dlock_sql::Sqlite::connect(url).await?)),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => {
            Err(invalid("`sqlite:` needs the `sqlite` feature of dlock, which is not compiled in".into()))
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => Ok(Locks::builder(dlock_sql::Postgres::connect(url).await?)),
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => {
            Err(invalid("`postgres:` needs the `postgres` feature of dlock, which is not compiled in".into()))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => Ok(Locks::builder(dlock_sql::Mysql::connect(url).await?)),
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => {
            Err(invalid("`mysql:` needs the `mysql` feature of dlock, which is not compiled in".into()))
        }
        #[cfg(feature = "redis")]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => Ok(Locks::builder(dlock_redis::Redis::connect(url).await?)),
        #[cfg(not(feature = "redis"))]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            Err(invalid(format!("`{scheme}:` needs the `redis` feature of dlock, which is not compiled in")))
        }
        #[cfg(feature = "zk")]
        "zk" | "zk+tls" => Ok(Locks::builder(dlock_zk::ZooKeeper::connect(url).await?)),
        #[cfg(not(feature = "zk"))]
        "zk" | "zk+tls" => {
            Err(invalid(format!("`{scheme}:` needs the `zk` feature of dlock, which is not compiled in")))
        }
        other => {
            let known = [
                (true, "memory:"),
                (cfg!(feature = "sqlite"), "sqlite:"),
                (cfg!(feature = "postgres"), "postgres:"),
                (cfg!(feature = "mysql"), "mysql:"),
                (cfg!(feature = "redis"), "redis:, redis+sentinel:, redis+cluster:, redis+unix:"),
                (cfg!(feature = "zk"), "zk:"),
            ];
            let known: Vec<&str> =
                known.into_iter().filter(|(on, _)| *on).map(|(_, scheme)| scheme).collect();
            Err(invalid(format!(
                "nothing is known of the scheme {other:?}; this build knows {}",
                known.join(", ")
            )))
        }
    }
}

fn invalid(what: String) -> Error {
    Error::new(Operation::Configure, Failure::invalid_config(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    #[tokio::test]
    async fn wrong_urls_are_refused_and_never_repeat_a_password() {
        for url in [
            "",
            "locks.db",
            "redis://user:hunter2@host:port/",
            "postgres://user:hunter2@host:port/",
            "mysql://user:hunter2@host/d?what=hunter2",
            "zk://user:hunter2@host:port/",
            "memory:shared",
            "http://u:hunter2@h",
            "://",
        ] {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
