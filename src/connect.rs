//! Backends from URLs, as a configuration has them.

#[cfg(feature = "quorum")]
mod quorum;

use dlock_core::{Error, Failure, Locks, LocksBuilder, Memory, Operation, Result, keeper};

#[cfg(feature = "quorum")]
pub use self::quorum::quorum_from_url;

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
/// | `etcd://[user:password@]host[:port],host[:port][/prefix]` | an etcd server or cluster | `etcd` |
/// | `etcd+tls://...` | the same over TLS | `etcd-tls` |
/// | `sqlite:///absolute/path.db`, `sqlite://relative/path.db` | processes on one host; the file and the table are made | `sqlite` |
/// | `quorum:<URL>\|<URL>\|<URL>` | a [`Quorum`](crate::Quorum) of nodes, each with a URL of its own, see [`quorum_from_url`] | `quorum`, and those of the nodes |
///
/// With the parameter `connect=lazy` nothing is connected to now: the first use connects, and if that fails the next
/// one does, so that a program can start during an outage. Wrong settings of the URL are errors at once. What only the
/// server knows, such as a wrong password or a missing table, is the error of the first use;
/// [`Locks::ping`](crate::Locks::ping) asks for it. In the URL of a database the table then needs its schema
/// (`table=public.dlock`). Not for `sqlite:`, which has no server.
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
    from_url(url).await?.build()
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
    let url = url.to_owned();
    served(async move { any(&url).await }).await
}

/// Awaits a future that connects: here, or on dlock's own thread where the caller's runtime cannot serve.
fn served<T: Send + 'static>(
    connecting: impl Future<Output = Result<T>> + Send + 'static,
) -> impl Future<Output = Result<T>> + Send {
    let served = keeper::anywhere(connecting);
    async { served.await.map_err(|failure| Error::new(Operation::Configure, failure))? }
}

/// Connects to one backend or a quorum.
async fn any(url: &str) -> Result<LocksBuilder> {
    #[cfg(feature = "quorum")]
    if let Some(nodes) = url.strip_prefix("quorum:") {
        return Ok(Locks::builder(quorum::quorum_of(nodes).await?));
    }
    #[cfg(not(feature = "quorum"))]
    if url.starts_with("quorum:") {
        return Err(not_compiled_in("quorum", "quorum"));
    }
    let (url, is_lazy) = without_connect(url)?;
    if is_lazy && url.split(':').next().is_some_and(|scheme| matches!(scheme, "memory" | "sqlite")) {
        return Err(invalid("connect=lazy is for servers; leave it out".into()));
    }
    single(&url, is_lazy).await
}

/// Connects to one backend that is no quorum. If it `is_lazy`, no server is asked.
#[cfg_attr(
    not(any(feature = "etcd", feature = "mysql", feature = "postgres", feature = "redis", feature = "zk")),
    expect(unused_variables, reason = "a file needs no server")
)]
#[cfg_attr(
    not(any(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "redis",
        feature = "sqlite",
        feature = "zk"
    )),
    expect(clippy::unused_async, reason = "nothing is asked of memory")
)]
async fn single(url: &str, is_lazy: bool) -> Result<LocksBuilder> {
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
            use dlock_sql::{PostgresOptions, PostgresRowLocks, PostgresSessions};
            let (url, mode) = divide(url)?;
            let options = PostgresOptions::from_url(&url)?;
            Ok(match mode {
                Mode::Lease if is_lazy => Locks::builder(options.build()?),
                Mode::Lease => Locks::builder(options.connect().await?),
                Mode::Session if is_lazy => Locks::builder(PostgresSessions::build(options)?),
                Mode::Session => Locks::builder(PostgresSessions::with_options(options).await?),
                Mode::Row if is_lazy => Locks::builder(PostgresRowLocks::build(options)?),
                Mode::Row => Locks::builder(PostgresRowLocks::with_options(options).await?),
            })
        }
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => Err(not_compiled_in(scheme, "postgres")),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            use dlock_sql::{MysqlOptions, MysqlRowLocks, MysqlSessions};
            let (url, mode) = divide(url)?;
            let options = MysqlOptions::from_url(&url)?;
            Ok(match mode {
                Mode::Lease if is_lazy => Locks::builder(options.build()?),
                Mode::Lease => Locks::builder(options.connect().await?),
                Mode::Session if is_lazy => Locks::builder(MysqlSessions::build(options)?),
                Mode::Session => Locks::builder(MysqlSessions::with_options(options).await?),
                Mode::Row if is_lazy => Locks::builder(MysqlRowLocks::build(options)?),
                Mode::Row => Locks::builder(MysqlRowLocks::with_options(options).await?),
            })
        }
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => Err(not_compiled_in(scheme, "mysql")),
        #[cfg(feature = "redis")]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            let redis = dlock_redis::Redis::builder(url);
            Ok(Locks::builder(if is_lazy { redis.build()? } else { redis.connect().await? }))
        }
        #[cfg(not(feature = "redis"))]
        "unix" | "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel"
        | "redis+cluster" | "rediss+cluster" => {
            Err(not_compiled_in(scheme, if scheme.starts_with("rediss") { "redis-tls" } else { "redis" }))
        }
        #[cfg(feature = "zk")]
        "zk" | "zk+tls" => {
            let zookeeper = dlock_zk::ZooKeeper::builder(url);
            Ok(Locks::builder(if is_lazy { zookeeper.build()? } else { zookeeper.connect().await? }))
        }
        #[cfg(not(feature = "zk"))]
        "zk" | "zk+tls" => Err(not_compiled_in(scheme, if scheme == "zk" { "zk" } else { "zk-tls" })),
        #[cfg(feature = "etcd")]
        "etcd" | "etcd+tls" => {
            let etcd = dlock_etcd::Etcd::builder(url);
            Ok(Locks::builder(if is_lazy { etcd.build()? } else { etcd.connect().await? }))
        }
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcd+tls" => {
            Err(not_compiled_in(scheme, if scheme == "etcd" { "etcd" } else { "etcd-tls" }))
        }
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

/// Returns the URL without `connect=lazy`, and whether it had that.
fn without_connect(url: &str) -> Result<(String, bool)> {
    match take_parameter(url, "connect=") {
        (url, None) => Ok((url, false)),
        (url, Some("lazy")) => Ok((url, true)),
        _ => Err(invalid("the parameter connect of the URL is lazy, or left out".into())),
    }
}

/// Returns the URL without the parameters that begin with `name`, and the value of the only one of them. For several
/// parameters of that name the value is empty, which every caller refuses.
fn take_parameter<'u>(url: &'u str, name: &str) -> (String, Option<&'u str>) {
    let Some((place, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (ours, others): (Vec<_>, Vec<_>) = query.split('&').partition(|part| part.starts_with(name));
    let value = match *ours {
        [] => None,
        [only] => Some(&only[name.len()..]),
        _ => Some(""),
    };
    (if others.is_empty() { place.to_owned() } else { format!("{place}?{}", others.join("&")) }, value)
}

/// Returns the scheme that was probably meant: the scheme in lower case, another name of a server, or the scheme of the
/// usual port.
fn likely_scheme(scheme: &str, rest: &str) -> Option<&'static str> {
    if rest.starts_with("//") {
        return match scheme.to_ascii_lowercase().as_str() {
            "etcd" => Some("etcd"),
            "etcds" | "etcd+tls" => Some("etcd+tls"),
            "zk" | "zookeeper" => Some("zk"),
            "zk+tls" | "zookeeper+tls" => Some("zk+tls"),
            "redis" | "valkey" => Some("redis"),
            "rediss" | "valkeys" | "redis+tls" => Some("rediss"),
            "redis+unix" => Some("redis+unix"),
            "redis+sentinel" | "redis-sentinel" => Some("redis+sentinel"),
            "rediss+sentinel" | "rediss-sentinel" => Some("rediss+sentinel"),
            "redis+cluster" | "redis-cluster" => Some("redis+cluster"),
            "rediss+cluster" | "rediss-cluster" => Some("rediss+cluster"),
            "postgres" | "postgresql" => Some("postgres"),
            "mysql" | "mariadb" => Some("mysql"),
            "sqlite" | "sqlite3" | "file" => Some("sqlite"),
            _ => None,
        };
    }
    // The text is `host:port`, or several, or has a user before the host.
    let host = rest.rsplit('@').next().unwrap_or(rest);
    let port = host.split(['/', ',', '?']).next().unwrap_or(host).rsplit(':').next();
    match port {
        Some("6379") => Some("redis"),
        Some("2181") => Some("zk"),
        Some("2379") => Some("etcd"),
        Some("5432") => Some("postgres"),
        Some("3306") => Some("mysql"),
        _ => None,
    }
}

/// Returns the beginning of a URL of each backend that is compiled in.
pub(crate) fn known_schemes() -> String {
    let known = [
        (true, "memory:"),
        (cfg!(feature = "sqlite"), "sqlite:///path"),
        (cfg!(feature = "postgres"), "postgres://"),
        (cfg!(feature = "mysql"), "mysql://"),
        (cfg!(feature = "redis"), "redis://, redis+sentinel://, redis+cluster://, redis+unix://"),
        (cfg!(feature = "redis-tls"), "rediss://, rediss+sentinel://, rediss+cluster://"),
        (cfg!(feature = "etcd"), "etcd://"),
        (cfg!(feature = "etcd-tls"), "etcd+tls://"),
        (cfg!(feature = "zk"), "zk://"),
        (cfg!(feature = "zk-tls"), "zk+tls://"),
        (cfg!(feature = "quorum"), "quorum:"),
    ];
    let known: Vec<&str> = known.into_iter().filter(|(on, _)| *on).map(|(_, scheme)| scheme).collect();
    known.join(", ")
}

#[cfg(not(all(
    feature = "etcd",
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "quorum",
    feature = "redis",
    feature = "zk"
)))]
fn not_compiled_in(scheme: &str, feature: &str) -> Error {
    invalid(format!(
        "`{scheme}:` needs the feature `{feature}`, which is not compiled in; add it to the dependency `dlock-sdk` in \
         Cargo.toml"
    ))
}

/// The means by which a database server keeps locks.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Lease,
    Session,
    Row,
}

/// Returns the URL without its mode, and the mode.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn divide(url: &str) -> Result<(String, Mode)> {
    let (url, mode) = take_parameter(url, "mode=");
    let mode = match mode {
        None | Some("lease") => Mode::Lease,
        Some("session") => Mode::Session,
        Some("row") => Mode::Row,
        _ => {
            return Err(invalid(
                "the mode in the URL is none; write mode=lease, mode=session or mode=row".into(),
            ));
        }
    };
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
            "etcd://user:hunter2@host:port/",
            "etcd://user:hunter2@host/?what=hunter2",
            "redis://:hunter2@h?connect=eager",
            "redis://:hunter2@h?connect=lazy&connect=lazy",
            "memory:?connect=lazy",
            "sqlite:///hunter2.db?connect=lazy",
            "postgres://u:hunter2@h/d?connect=lazy",
            "mysql://u:hunter2@h/d?mode=row&connect=lazy",
            "quorum:",
            "quorum:memory:|",
            "quorum:redis://:hunter2@h,redis://i",
            "quorum:redis://:hunter2@h|redis://:hunter2@h/",
            "quorum:redis://:hun|?ter2@h|redis://i|redis://j",
            "quorum:memory:|memory:|?longest_lease=hunter2",
            "quorum:memory:|memory:|?longest_lease=1ms",
            "quorum:memory:|memory:|?name=a%20b",
            "quorum:memory:|memory:|?hunter2=1",
            "quorum:quorum:memory:|memory:",
            "memory:shared",
            "http://u:hunter2@h",
            "://",
        ] {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }

    #[cfg(all(
        feature = "etcd",
        feature = "mysql",
        feature = "postgres",
        feature = "quorum",
        feature = "redis",
        feature = "zk"
    ))]
    #[tokio::test]
    async fn whoever_misspells_a_parameter_is_answered_with_all_there_are() {
        for url in ["redis://h", "zk://h", "etcd://h", "postgres://h/d", "mysql://h/d"] {
            let error = connect(&format!("{url}?conect=lazy")).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("connect=lazy"), "{error}");
        }
        for url in
            ["quorum:redis://a?connect=lazy|redis://b", "quorum:redis://a|redis://b?db=1&connect=eager"]
        {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("|?connect=lazy"), "{error}");
        }
    }

    #[cfg(all(
        feature = "mysql",
        feature = "postgres",
        feature = "quorum",
        feature = "redis",
        feature = "sqlite",
        feature = "zk"
    ))]
    #[tokio::test]
    async fn a_parameter_that_stands_twice_is_refused_wherever_the_locks_are() {
        for url in [
            "redis://h?prefix=a&prefix=b",
            "redis+cluster://h?prefix=a&db=0&prefix=a",
            "unix:///run/x?db=1&db=2",
            "zk://h?base=/a&base=/b",
            "postgres://h/d?table=s.a&table=s.b",
            "mysql://h/d?table=s.a&table=s.b",
            "sqlite:///missing/x.db?table=a&table=b",
            "quorum:memory:|memory:|memory:|?name=a&durable=true&name=b",
            "quorum:redis://a?prefix=a&prefix=b|redis://b|redis://c",
        ] {
            let error = connect(url).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}: {error}");
            assert!(error.to_string().contains("twice"), "{url}: {error}");
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
            ("quorum:redis://:", "@h|redis://i|redis://j"),
            ("quorum:zk://h|redis://:", "@h|postgres://u:p@i/d?table=s.t|?durable=true"),
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

    #[cfg(all(
        feature = "mysql",
        feature = "postgres",
        feature = "quorum",
        feature = "redis",
        feature = "zk"
    ))]
    #[tokio::test]
    async fn a_connection_that_is_made_later_is_no_error_now_and_the_error_of_the_first_use() {
        // Nothing listens on a port that was bound a moment ago.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let of_databases = ["postgres", "mysql"].into_iter().flat_map(|scheme| {
            let url = format!("{scheme}://u:hunter2@127.0.0.1:{port}/d?connect=lazy&table=s.t");
            ["lease", "session", "row"].map(|mode| format!("{url}&mode={mode}"))
        });
        let others = [
            format!("redis://:hunter2@127.0.0.1:{port}?connect=lazy"),
            format!("zk://u:hunter2@127.0.0.1:{port}/x?connect=lazy&base=/b"),
        ];
        for url in of_databases.chain(others) {
            let locks = connect(&url).await.unwrap();
            for _ in 0..2 {
                let error = locks.lock("k").try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
                assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
            }
            assert_eq!(locks.ping().await.unwrap_err().kind(), ErrorKind::Unavailable, "{url}");
        }
        let quorum =
            format!("quorum:redis://127.0.0.1:{port}|zk://127.0.0.1:{port}|redis://127.0.0.1:{port}/1");
        assert_eq!(connect(&quorum).await.unwrap_err().kind(), ErrorKind::QuorumNotReached);
        let locks = connect(&format!("{quorum}|?connect=lazy")).await.unwrap();
        assert_eq!(locks.lock("k").try_acquire().await.unwrap_err().kind(), ErrorKind::QuorumNotReached);
        assert_eq!(locks.health().nodes.len(), 3);
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
