//! A backend from a URL, as it stands in a configuration.

use dlock_core::{Error, Failure, Locks, LocksBuilder, Memory, Operation, Result};

/// Connects to the backend that `url` names, with the default options.
///
/// | URL | backend | feature |
/// |---|---|---|
/// | `memory:` | this process only, for tests; every call makes a new one | |
/// | `postgres://user:password@host/database` | a PostgreSQL database, where the table was made; `?migrate=true` makes it | `postgres` |
/// | `mysql://user:password@host/database` | a MariaDB or MySQL database, likewise | `mysql` |
/// | both with `?mode=lease` (the default), `?mode=session`, `?mode=row` | locks by lease rows, by the session, by locked rows | |
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
/// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) when the URL is not one of these, or its feature is
/// not compiled in; [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) and other kinds of the backend. No error
/// contains the URL's password.
///
/// # Cancel safety
///
/// Cancel-safe.
pub async fn connect(url: &str) -> Result<Locks> {
    // In a box: the futures of drivers are deep, and a program's own contain this one.
    Box::pin(from_url(url)).await?.build()
}

/// Connects like [`connect`], and returns a builder, for options that are not the defaults.
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
        "postgres" | "postgresql" => {
            use dlock_sql::{Postgres, PostgresRowLocks, PostgresSessions};
            let (url, mode) = divide(url)?;
            Ok(match mode {
                Mode::Lease => Locks::builder(Postgres::connect(&url).await?),
                Mode::Session => Locks::builder(PostgresSessions::connect(&url).await?),
                Mode::Row => Locks::builder(PostgresRowLocks::connect(&url).await?),
            })
        }
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => {
            Err(invalid("`postgres:` needs the `postgres` feature of dlock, which is not compiled in".into()))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            use dlock_sql::{Mysql, MysqlRowLocks, MysqlSessions};
            let (url, mode) = divide(url)?;
            Ok(match mode {
                Mode::Lease => Locks::builder(Mysql::connect(&url).await?),
                Mode::Session => Locks::builder(MysqlSessions::connect(&url).await?),
                Mode::Row => Locks::builder(MysqlRowLocks::connect(&url).await?),
            })
        }
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

/// By what a database server keeps locks.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lease,
    Session,
    Row,
}

/// The URL without its mode, and the mode.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn divide(url: &str) -> Result<(String, Mode)> {
    let Some((place, query)) = url.split_once('?') else { return Ok((url.to_owned(), Mode::Lease)) };
    let (ours, others): (Vec<_>, Vec<_>) = query.split('&').partition(|part| part.starts_with("mode="));
    let mode = match *ours {
        [] | ["mode=lease"] => Mode::Lease,
        ["mode=session"] => Mode::Session,
        ["mode=row"] => Mode::Row,
        _ => {
            return Err(invalid(
                "the mode in the URL is none; write mode=lease, mode=session or mode=row".into(),
            ));
        }
    };
    let url = if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) };
    Ok((url, mode))
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
            "mysql://user:hunter2@host/d?mode=hunter2",
            "postgres://user:hunter2@host/d?mode=row&mode=session",
            "sqlite://hunter2.db?mode=session",
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

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    #[test]
    fn the_mode_is_taken_out_of_the_url() {
        for (url, rest, mode) in [
            ("x://h/d", "x://h/d", Mode::Lease),
            ("x://h/d?a=b", "x://h/d?a=b", Mode::Lease),
            ("x://h/d?mode=lease", "x://h/d", Mode::Lease),
            ("x://h/d?a=b&mode=session&c=d", "x://h/d?a=b&c=d", Mode::Session),
            ("x://h/d?mode=row&c=d", "x://h/d?c=d", Mode::Row),
        ] {
            assert_eq!(divide(url).unwrap(), (rest.to_owned(), mode));
        }
    }
}
