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
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(invalid(format!("the URL has no scheme; this build knows {}", known_schemes())));
    };
    match scheme {
        "memory" if url == "memory:" => Ok(Locks::builder(Memory::new())),
        "memory" => Err(invalid("a memory backend takes no name; write `memory:`".into())),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(Locks::builder(dlock_sql::Sqlite::connect(url).await?)),
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(not_compiled_in(scheme, "sqlite")),
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
        "postgres" | "postgresql" => Err(not_compiled_in(scheme, "postgres")),
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
        "mysql" | "mariadb" => Err(not_compiled_in(scheme, "mysql")),
        #[cfg(feature = "redis")]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => Ok(Locks::builder(dlock_redis::Redis::connect(url).await?)),
        #[cfg(not(feature = "redis"))]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            Err(not_compiled_in(scheme, if scheme.starts_with("rediss") { "redis-tls" } else { "redis" }))
        }
        #[cfg(feature = "zk")]
        "zk" | "zk+tls" => Ok(Locks::builder(dlock_zk::ZooKeeper::connect(url).await?)),
        #[cfg(not(feature = "zk"))]
        "zk" | "zk+tls" => Err(not_compiled_in(scheme, if scheme == "zk" { "zk" } else { "zk-tls" })),
        other => Err(invalid(match likely_scheme(other, rest) {
            Some(likely) if rest.starts_with("//") => {
                format!("nothing is known of the URL's scheme; write {likely}://")
            }
            Some(likely) => format!("the URL has no scheme; write {likely}:// before the host"),
            None if rest.starts_with("//") => {
                format!("nothing is known of the URL's scheme; this build knows {}", known_schemes())
            }
            None => format!("the URL has no scheme before the host; this build knows {}", known_schemes()),
        })),
    }
}

/// Returns the scheme that was meant: the same in lower case, another name of a server, or that of the usual port.
fn likely_scheme(scheme: &str, rest: &str) -> Option<&'static str> {
    if rest.starts_with("//") {
        return match scheme.to_ascii_lowercase().as_str() {
            "zk" | "zookeeper" => Some("zk"),
            "redis" | "valkey" => Some("redis"),
            "rediss" | "redis+tls" => Some("rediss"),
            "postgres" | "postgresql" => Some("postgres"),
            "mysql" | "mariadb" => Some("mysql"),
            "sqlite" | "sqlite3" | "file" => Some("sqlite"),
            _ => None,
        };
    }
    // `host:port`, or several, or with a user before the host.
    let host = rest.rsplit('@').next().unwrap_or(rest);
    let port = host.split(['/', ',', '?']).next().unwrap_or(host).rsplit(':').next();
    match port {
        Some("6379") => Some("redis"),
        Some("2181") => Some("zk"),
        Some("5432") => Some("postgres"),
        Some("3306") => Some("mysql"),
        _ => None,
    }
}

/// Returns how a URL of each backend that is compiled in begins.
fn known_schemes() -> String {
    let known = [
        (true, "memory:"),
        (cfg!(feature = "sqlite"), "sqlite:///path"),
        (cfg!(feature = "postgres"), "postgres://"),
        (cfg!(feature = "mysql"), "mysql://"),
        (cfg!(feature = "redis"), "redis://, redis+sentinel://, redis+cluster://, redis+unix://"),
        (cfg!(feature = "redis-tls"), "rediss://, rediss+sentinel://, rediss+cluster://"),
        (cfg!(feature = "zk"), "zk://"),
        (cfg!(feature = "zk-tls"), "zk+tls://"),
    ];
    let known: Vec<&str> = known.into_iter().filter(|(on, _)| *on).map(|(_, scheme)| scheme).collect();
    known.join(", ")
}

#[cfg(not(all(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis",
    feature = "zk"
)))]
fn not_compiled_in(scheme: &str, feature: &str) -> Error {
    invalid(format!(
        "`{scheme}:` needs the feature `{feature}`, which is not compiled in; add it to the dependency `dlock-sdk` in \
         Cargo.toml"
    ))
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

    #[tokio::test]
    async fn a_password_that_is_not_escaped_is_in_no_error_wherever_it_is_cut() {
        for (before, after) in [
            ("redis://u:", "@h/"),
            ("rediss://:", "@h:1/0"),
            ("redis+unix://u:", "@/run/x"),
            ("redis+sentinel://u:", "@h,i/service/0?db=1"),
            ("redis+cluster://u:", "@h,i?prefix=x"),
            ("zk://u:", "@h,i:1/x?create_chroot=true"),
            ("zk+tls://u:", "@h"),
            ("postgres://u:", "@h/d?table=t"),
            ("mysql://u:", "@h/d?migrate=true"),
            ("mariadb://u:", "@h/d?mode=row"),
            ("http://u:", "@h"),
            ("", "@h:6379"),
            ("u:", "@h"),
        ] {
            for divider in
                ["/", "?", "#", "://", "1/", "1?db=", "1?table=", "@h/", "@h?mode=", "1/?a=b#", "/@"]
            {
                let url = format!("{before}Xq7Vz{divider}Wk9Jp{after}");
                let error = from_url(&url).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
                let text = format!("{error} {error:?}");
                assert!(!text.contains("Xq7Vz") && !text.contains("Wk9Jp"), "{url}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn a_url_without_a_scheme_or_with_another_spelling_of_it_is_answered_with_what_to_write() {
        for (url, advice) in [
            ("localhost:6379", "redis://"),
            ("127.0.0.1:6379/0", "redis://"),
            ("user:hunter2@cache:6379", "redis://"),
            ("zk-1:2181,zk-2:2181/shop", "zk://"),
            ("db:5432/shop", "postgres://"),
            ("user:hunter2@db:3306/shop?migrate=true", "mysql://"),
            ("zookeeper://zk-1", "zk://"),
            ("REDIS://cache", "redis://"),
            ("sqlite3:///var/lib/locks.db", "sqlite://"),
            ("localhost:7000", "memory:"),
            ("localhost", "memory:"),
        ] {
            let text = connect(url).await.unwrap_err().to_string();
            assert!(text.contains(advice) && !text.contains("hunter2"), "{url}: {text}");
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
