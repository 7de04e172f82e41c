//! The addresses of the servers, read from a URL.

use std::fmt;
use std::path::PathBuf;

use dlock_core::Failure;
use dlock_core::backend::UrlParts;
use percent_encoding::percent_decode_str;

use crate::format::Recipe;

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Tcp { host: String, port: u16, tls: bool },
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The arrangement of the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Endpoint),
    Sentinel { sentinels: Vec<Endpoint>, service: String },
    Cluster(Vec<Endpoint>),
}

/// A name and a password. They are never shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.password.is_some() { "Credentials(..)" } else { "None" })
    }
}

/// The contents of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) topology: Topology,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) db: i64,
    pub(crate) prefix: Option<String>,
    pub(crate) min_replicas: Option<u32>,
    pub(crate) redisson: Option<bool>,
    pub(crate) recipe: Option<Recipe>,
    pub(crate) hash_slots: Option<bool>,
    pub(crate) tracking: Option<usize>,
}

impl Target {
    /// Returns the servers and the database in one order and without a password.
    pub(crate) fn place(&self) -> String {
        // The names of hosts do not depend on case.
        let name = |endpoint: &Endpoint| match endpoint {
            Endpoint::Tcp { .. } => endpoint.to_string().to_ascii_lowercase(),
            Endpoint::Unix(_) => endpoint.to_string(),
        };
        let list = |endpoints: &[Endpoint]| {
            let mut names: Vec<_> = endpoints.iter().map(name).collect();
            names.sort();
            names.join(",")
        };
        match &self.topology {
            Topology::Single(endpoint) => format!("redis://{}/{}", name(endpoint), self.db),
            Topology::Sentinel { sentinels, service } => {
                format!("redis+sentinel://{}/{service}/{}", list(sentinels), self.db)
            }
            Topology::Cluster(seeds) => format!("redis+cluster://{}", list(seeds)),
        }
    }
}

const FORMS: &str = "write redis://[user:password@]host[:port][/db], rediss:// for TLS, redis+unix:///path, \
                     redis+sentinel://host,host/service[/db] or redis+cluster://host,host";

/// The longest path that the address of a socket has room for, in bytes.
const LONGEST_SOCKET: usize = 107;

const NO_DATABASES: &str = "a cluster has no numbered databases; leave the database out";

enum Kind {
    Single,
    Unix,
    Sentinel,
    Cluster,
}

/// Reads a URL. No failure repeats it, since it may hold a password.
pub(crate) fn parse(url: &str) -> Result<Target, Failure> {
    if url.ends_with("#insecure") {
        return Err(invalid(
            "certificates are always verified; give a private root certificate with with_root_certificate instead of \
             #insecure"
                .into(),
        ));
    }
    let UrlParts { scheme, authority, path, query, .. } = UrlParts::of(url)?;
    let (tls, kind) = match scheme {
        "redis" => (false, Kind::Single),
        "rediss" => (true, Kind::Single),
        "unix" | "redis+unix" => (false, Kind::Unix),
        "redis+sentinel" => (false, Kind::Sentinel),
        "rediss+sentinel" => (true, Kind::Sentinel),
        "redis+cluster" => (false, Kind::Cluster),
        "rediss+cluster" => (true, Kind::Cluster),
        _ => return Err(invalid(format!("nothing is known of the URL's scheme; {FORMS}"))),
    };
    if tls && !cfg!(feature = "tls") {
        return Err(invalid(format!(
            "`{scheme}:` needs the feature `redis-tls` of dlock-sdk (`tls` of dlock-redis), which is not compiled in"
        )));
    }
    let (user_info, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let mut target = Target {
        topology: Topology::Cluster(Vec::new()),
        credentials: Credentials { user: non_empty(decode(user)?), password: non_empty(decode(password)?) },
        sentinel_credentials: Credentials::default(),
        db: 0,
        prefix: None,
        min_replicas: None,
        redisson: None,
        recipe: None,
        hash_slots: None,
        tracking: None,
    };
    target.read_query(query)?;
    let has = |name: &str| UrlParts::parameters(query).any(|(other, _)| other == name);
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let db = match (&kind, parts.as_slice()) {
        (Kind::Cluster, [_, ..]) => return Err(invalid(NO_DATABASES.into())),
        (Kind::Cluster, []) if has("db") => return Err(invalid(NO_DATABASES.into())),
        (Kind::Unix, _) | (Kind::Single | Kind::Cluster, []) | (Kind::Sentinel, [_]) => None,
        (Kind::Single, [db]) | (Kind::Sentinel, [_, db]) => Some(*db),
        (Kind::Sentinel, []) => return Err(invalid(format!("the URL names no service; {FORMS}"))),
        _ => return Err(invalid(format!("the path has too many parts; {FORMS}"))),
    };
    // The server would get one of the two, and the other would have no effect.
    let elsewhere = [("db", db.is_some()), ("user", !user.is_empty()), ("pass", !password.is_empty())];
    if elsewhere.iter().any(|(name, stands)| *stands && has(name)) {
        return Err(invalid(
            "the user, the password or the database stands twice in the URL, before the query and in it; leave one of \
             them out"
                .into(),
        ));
    }
    if !matches!(kind, Kind::Sentinel) && (has("sentinel_user") || has("sentinel_pass")) {
        return Err(invalid(
            "sentinel_user and sentinel_pass are for redis+sentinel://; leave them out".into(),
        ));
    }
    if let Some(db) = db {
        target.set_db(db)?;
    }
    target.topology = match kind {
        Kind::Unix if !hosts.is_empty() || path.len() < 2 => {
            return Err(invalid(
                "a socket needs an absolute path, as in redis+unix:///run/redis.sock".into(),
            ));
        }
        Kind::Unix => match decode(path)? {
            socket if socket.len() > LONGEST_SOCKET || socket.contains('\0') => {
                return Err(invalid(format!(
                    "the path of a socket has up to {LONGEST_SOCKET} bytes and no NUL, as in \
                     redis+unix:///run/redis.sock"
                )));
            }
            socket => Topology::Single(Endpoint::Unix(socket.into())),
        },
        Kind::Single => match <[Endpoint; 1]>::try_from(endpoints(hosts, 6379, tls)?) {
            Ok([endpoint]) => Topology::Single(endpoint),
            Err(_) => return Err(invalid(format!("a single server has one address; {FORMS}"))),
        },
        Kind::Sentinel => Topology::Sentinel {
            sentinels: endpoints(hosts, 26_379, tls)?,
            service: decode(parts.first().copied().unwrap_or_default())?,
        },
        Kind::Cluster => Topology::Cluster(endpoints(hosts, 6379, tls)?),
    };
    Ok(target)
}

impl Target {
    fn set_db(&mut self, text: &str) -> Result<(), Failure> {
        self.db =
            text.parse::<i32>().ok().filter(|db| *db >= 0).map(i64::from).ok_or_else(|| {
                invalid("the database in the URL is no number; write for example /0".into())
            })?;
        Ok(())
    }

    fn read_query(&mut self, query: &str) -> Result<(), Failure> {
        for (name, value) in UrlParts::parameters(query) {
            let value = decode(value)?;
            match name {
                "db" => self.set_db(&value)?,
                "user" => self.credentials.user = non_empty(value),
                "pass" => self.credentials.password = non_empty(value),
                "sentinel_user" => self.sentinel_credentials.user = non_empty(value),
                "sentinel_pass" => self.sentinel_credentials.password = non_empty(value),
                "prefix" => self.prefix = Some(value),
                "min_replicas" => {
                    let number = value.parse();
                    self.min_replicas =
                        Some(number.map_err(|_| invalid("min_replicas is not a whole number".into()))?);
                }
                "redisson" => {
                    let yes = value.parse();
                    self.redisson =
                        Some(yes.map_err(|_| invalid("redisson is neither true nor false".into()))?);
                }
                "recipe" => {
                    let recipe = Recipe::of(&value);
                    let refused = || invalid("recipe is neither lock nor read-write-lock".into());
                    self.recipe = Some(recipe.ok_or_else(refused)?);
                }
                "tracking" => {
                    let number = value.parse();
                    self.tracking =
                        Some(number.map_err(|_| invalid("tracking is not a whole number".into()))?);
                }
                "hash_slots" => {
                    let yes = value.parse();
                    self.hash_slots =
                        Some(yes.map_err(|_| invalid("hash_slots is neither true nor false".into()))?);
                }
                _ => {
                    return Err(invalid(
                        "the URL has an unknown parameter; known are db, user, pass, sentinel_user, sentinel_pass, \
                         prefix, min_replicas, redisson, recipe, hash_slots and tracking, and to `dlock::connect` \
                         connect=lazy"
                            .into(),
                    ));
                }
            }
        }
        Ok(())
    }
}

fn endpoints(hosts: &str, default_port: u16, tls: bool) -> Result<Vec<Endpoint>, Failure> {
    hosts
        .split(',')
        .map(|text| match UrlParts::host(text) {
            Some((host, port)) => Ok(Endpoint::Tcp { host, port: port.unwrap_or(default_port), tls }),
            // The text is not repeated: an unescaped password may have ended up here.
            None => Err(invalid(format!(
                "an address is not host, host:port or [v6]:port (escape @ / ? # in a password as %40 %2F %3F %23); \
                 {FORMS}"
            ))),
        })
        .collect()
}

fn decode(text: &str) -> Result<String, Failure> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(invalid("a percent-escape in the URL is not UTF-8".into())),
    }
}

fn non_empty(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn invalid(what: String) -> Failure {
    Failure::invalid_config(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp { host: host.into(), port, tls: false }
    }

    #[test]
    fn a_single_server_has_host_port_user_and_database() {
        let target = parse("redis://shop:p%40ss@db.example:6380/3").unwrap();
        assert_eq!(target.topology, Topology::Single(tcp("db.example", 6380)));
        assert_eq!(target.credentials.user.as_deref(), Some("shop"));
        assert_eq!(target.credentials.password.as_deref(), Some("p@ss"));
        assert_eq!(target.db, 3);
        let plain = parse("redis://[::1]").unwrap();
        assert_eq!(plain.topology, Topology::Single(tcp("::1", 6379)));
        assert_eq!(parse("redis://[0:0:0::1]:6379").unwrap().place(), plain.place());
        assert_eq!(plain.credentials, Credentials::default());
        assert_eq!(parse("redis://:pw@h/").unwrap().credentials.password.as_deref(), Some("pw"));
    }

    #[test]
    fn sockets_sentinels_and_clusters_are_told_apart() {
        for url in ["unix:///run/redis.sock?db=2&pass=x", "redis+unix:///run/redis.sock?db=2&pass=x"] {
            let target = parse(url).unwrap();
            assert_eq!(target.topology, Topology::Single(Endpoint::Unix("/run/redis.sock".into())));
            assert_eq!((target.db, target.credentials.password.as_deref()), (2, Some("x")));
        }
        let sentinel = parse("redis+sentinel://:pw@a,b:5/mymaster/1?sentinel_pass=s&min_replicas=1").unwrap();
        let sentinels = vec![tcp("a", 26_379), tcp("b", 5)];
        assert_eq!(sentinel.topology, Topology::Sentinel { sentinels, service: "mymaster".into() });
        assert_eq!(sentinel.sentinel_credentials.password.as_deref(), Some("s"));
        assert_eq!((sentinel.db, sentinel.min_replicas), (1, Some(1)));
        let cluster = parse("redis+cluster://a:7000,b:7001?prefix=").unwrap();
        assert_eq!(cluster.topology, Topology::Cluster(vec![tcp("a", 7000), tcp("b", 7001)]));
        assert_eq!(cluster.prefix.as_deref(), Some(""));
    }

    #[test]
    fn wrong_urls_are_refused_without_being_repeated() {
        let wrong = [
            "redis:hunter2",
            "http://u:hunter2@h",
            "redis://u:hunter2@",
            "redis://u:hunter2@h:port",
            "redis://u:hunter2/x@h:1",
            "redis://h/hunter2/1",
            "redis://a,b:1",
            "redis://u:hunter2@h/?pasword=hunter2",
            "redis://u:hunter2@h/#insecure",
            "redis+sentinel://u:hunter2@h",
            "redis+cluster://u:hunter2@h/1",
            "redis+unix://u:hunter2@h/x",
            "unix://",
            "redis://u:%ff@h",
            "redis://u:hunter2@h/?min_replicas=x",
            "redis://u:hunter2@h/?tracking=x",
        ];
        for url in wrong {
            let failure = parse(url).unwrap_err();
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn a_password_of_any_characters_is_read_whole_or_refused_without_being_repeated() {
        let dividers = (' '..='~').chain("\n\0ä🔒".chars()).map(String::from);
        for divider in dividers.chain(["1/".into(), "@h/".into()]) {
            for (before, after) in [
                ("redis://u:", "@h/0"),
                ("redis://:", "@h?db=0"),
                ("redis+sentinel://u:", "@h/m"),
                ("redis+cluster://u:", "@h?prefix=x"),
                ("redis+unix://u:", "@/run/x"),
            ] {
                // What looks like a port may be taken for one.
                for secret in ["Xq7Vz", "54321"] {
                    let url = format!("{before}{secret}{divider}Wk9Jp{after}");
                    let plain = parse(&format!("{before}p{after}")).unwrap();
                    let text = match parse(&url) {
                        Ok(target) => {
                            assert_eq!(target.topology, plain.topology, "{url}");
                            let password = target.credentials.password.clone();
                            assert!(password.is_some_and(|password| password.ends_with("k9Jp")), "{url}");
                            format!("{target:?} {}", target.place())
                        }
                        Err(failure) => format!("{failure} {failure:?}"),
                    };
                    assert!(!text.contains(secret) && !text.contains("k9Jp"), "{url}: {text}");
                }
            }
        }
    }

    #[test]
    fn debug_shows_no_password() {
        let target = parse("redis+sentinel://shop:hunter2@h/m?sentinel_pass=hunter3").unwrap();
        let text = format!("{target:?}");
        assert!(!text.contains("hunter") && text.contains(r#""m""#), "{text}");
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn tls_without_its_feature_says_which_one() {
        assert!(parse("rediss://h").unwrap_err().message().contains("redis-tls"));
    }
}
