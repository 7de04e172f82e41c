//! Settings of a connection, and the URL that has them.

use std::fmt;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::UrlParts;
use etcd_client::ConnectOptions;
use percent_encoding::percent_decode_str;

const PORT: u16 = 2379;
const PREFIX: &str = "dlock";
const LONGEST_PREFIX: usize = 512;
/// The time in which a connection has to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// The time between two pings on a connection in use, and that in which one is answered. The servers end a connection
/// on which pings come more often than every 5 s, or while it is not in use.
const PING: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(4));

const FORMS: &str = "write etcd://[user:password@]host[:port][,host...][/prefix], or etcd+tls:// for TLS";

/// Settings of an [`Etcd`](crate::Etcd) backend that are not the defaults.
///
/// | setting | default | meaning |
/// |---|---|---|
/// | prefix | `dlock` | what all keys begin with; the path of the URL |
/// | root certificate | those of the operating system | what signs the servers' certificates, for `etcd+tls://` |
///
/// The root certificate can also stand in the URL, as the path of a file in PEM form:
/// `etcd+tls://host/?root_certificate=/etc/ssl/etcd.pem`.
#[must_use = "settings do nothing until they are connected"]
#[derive(Clone)]
pub struct EtcdBuilder {
    url: String,
    prefix: Option<String>,
    #[cfg(feature = "tls")]
    tls: etcd_client::TlsOptions,
    #[cfg(feature = "tls")]
    has_root: bool,
}

/// Checked settings.
pub(crate) struct Config {
    /// The URL of each server, in the order in which they are asked.
    pub(crate) hosts: Vec<String>,
    pub(crate) prefix: String,
    pub(crate) options: ConnectOptions,
    pub(crate) has_user: bool,
}

impl EtcdBuilder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            prefix: None,
            #[cfg(feature = "tls")]
            tls: etcd_client::TlsOptions::new(),
            #[cfg(feature = "tls")]
            has_root: false,
        }
    }

    /// Sets what all keys begin with, without a slash at its end. Default `dlock`. To share locks with Go: all before
    /// the last slash of the names that its mutexes were given.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Sets the root certificate, in PEM form, that signs the servers' certificates. Default: the file that the URL
    /// names, else those that the operating system trusts.
    #[cfg(feature = "tls")]
    pub fn with_root_certificate(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.tls = self.tls.ca_certificate(etcd_client::Certificate::from_pem(pem));
        self.has_root = true;
        self
    }

    /// Sets the certificate and the key, in PEM form, by which this client identifies itself. For `etcd+tls://`.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(mut self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Self {
        self.tls = self.tls.identity(etcd_client::Identity::from_pem(certificate, key));
        self
    }

    /// Reads the URL. No failure repeats it, since it may hold a password.
    pub(crate) fn check(self) -> Result<Config, Failure> {
        let UrlParts { scheme, authority, path, query, .. } = UrlParts::of(&self.url)?;
        let scheme = match scheme {
            "etcd" => "http",
            "etcd+tls" if cfg!(feature = "tls") => "https",
            "etcd+tls" => {
                return Err(Failure::invalid_config(
                    "`etcd+tls:` needs the feature `etcd-tls` of dlock-sdk (`tls` of dlock-etcd), which is not compiled in",
                ));
            }
            _ => return Err(invalid("nothing is known of the URL's scheme")),
        };
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let mut options = ConnectOptions::new()
            .with_connect_timeout(CONNECT)
            .with_keep_alive(PING.0, PING.1)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        match credentials.map(|text| text.split_once(':')) {
            Some(Some((user, password))) if !user.is_empty() => {
                options = options.with_user(decode(user)?, decode(password)?);
            }
            Some(_) => return Err(invalid("write user and password before the @, separated by a colon")),
            None => {}
        }
        let hosts: Option<Vec<String>> = hosts.split(',').map(|host| address(scheme, host)).collect();
        // Not repeated: an unescaped password may have ended up here.
        let hosts = hosts.ok_or_else(|| {
            invalid("an address is not host, host:port or [v6]:port (escape @ / ? # in a password as %40 %2F %3F %23)")
        })?;
        let of_url = Some(decode(path.trim_matches('/'))?).filter(|path| !path.is_empty());
        let prefix = self.prefix.clone().or(of_url).unwrap_or_else(|| PREFIX.to_owned());
        if prefix.is_empty()
            || prefix.len() > LONGEST_PREFIX
            || prefix.ends_with('/')
            || prefix.contains('\0')
        {
            let what = format!("the prefix has 1 to {LONGEST_PREFIX} bytes, no NUL and no slash at its end");
            return Err(Failure::invalid_config(what));
        }
        let mut certificate = None;
        for (name, value) in UrlParts::parameters(query) {
            match name {
                "root_certificate" if scheme == "https" => certificate = Some(decode(value)?),
                "root_certificate" => return Err(invalid("root_certificate is for etcd+tls://")),
                _ => {
                    return Err(invalid(
                        "the URL has an unknown parameter; known is root_certificate, and to `dlock::connect` connect=lazy",
                    ));
                }
            }
        }
        #[cfg(feature = "tls")]
        if scheme == "https" {
            options = options.with_tls(self.trusting(certificate)?);
        }
        #[cfg(not(feature = "tls"))]
        drop(certificate);
        Ok(Config { hosts, prefix, options, has_user: credentials.is_some() })
    }

    #[cfg(feature = "tls")]
    fn trusting(&self, file: Option<String>) -> Result<etcd_client::TlsOptions, Failure> {
        match file {
            _ if self.has_root => Ok(self.tls.clone()),
            None => Ok(self.tls.clone().with_enabled_roots()),
            Some(path) => {
                let pem = std::fs::read(&path)
                    .map_err(|error| Failure::invalid_config(format!("{path:?} cannot be read ({error})")))?;
                Ok(self.tls.clone().ca_certificate(etcd_client::Certificate::from_pem(pem)))
            }
        }
    }
}

impl Config {
    /// Returns the servers in alphabetical order, for the ids of locks: other processes may name them in another one.
    pub(crate) fn place(&self) -> String {
        let name = |url: &String| {
            url.split_once("://").map_or_else(String::new, |(_, host)| host.to_ascii_lowercase())
        };
        let mut hosts: Vec<_> = self.hosts.iter().map(name).collect();
        hosts.sort();
        hosts.dedup();
        format!("etcd://{}", hosts.join(","))
    }
}

/// Returns the URL of a server, in the form of the client library.
fn address(scheme: &str, text: &str) -> Option<String> {
    let (host, port) = UrlParts::host(text)?;
    let port = port.unwrap_or(PORT);
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Some(format!("{scheme}://{host}:{port}"))
}

fn decode(text: &str) -> Result<String, Failure> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(invalid("a percent-escape in the URL is not UTF-8")),
    }
}

fn invalid(what: &str) -> Failure {
    Failure::invalid_config(format!("{what}; {FORMS}"))
}

impl fmt::Debug for EtcdBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBuilder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Config {
        EtcdBuilder::new(url).check().unwrap()
    }

    #[test]
    fn servers_and_the_prefix_are_read() {
        let of_url = config("etcd://shop:p%40s:s@a:2380,b,[0:0::1]:7/app/x");
        assert_eq!(of_url.hosts, ["http://a:2380", "http://b:2379", "http://[::1]:7"]);
        assert_eq!((&*of_url.prefix, of_url.has_user), ("app/x", true));
        let plain = config("etcd://h/");
        assert_eq!((&*plain.prefix, plain.has_user), ("dlock", false));
        let by_method = EtcdBuilder::new("etcd://h/a").with_prefix("b").check().unwrap();
        assert_eq!(by_method.prefix, "b");
    }

    #[test]
    fn the_same_servers_in_another_order_are_the_same_place() {
        assert_eq!(config("etcd://b,A:2380").place(), config("etcd://u:p@a:2380,b:2379/x").place());
        assert_ne!(config("etcd://a,b").place(), config("etcd://a,c").place());
    }

    #[test]
    fn what_cannot_work_is_refused_and_no_password_is_repeated() {
        for url in [
            "etcd:h",
            "etc://hunter2@h",
            "etcd://hunter2@h",
            "etcd://u:hunter2@",
            "etcd://u:hunter2@h:port",
            "etcd://u:hunter2@h?conect=lazy",
            "etcd://u:hunter2@h?root_certificate=/x",
            "etcd://u:hunter2@h/%FF",
        ] {
            let failure = EtcdBuilder::new(url).check().err().expect(url);
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
        for prefix in ["", "a/", "a\0", &"x".repeat(513)] {
            assert!(EtcdBuilder::new("etcd://h").with_prefix(prefix).check().is_err(), "{prefix:?}");
        }
        assert!(!format!("{:?}", EtcdBuilder::new("etcd://u:hunter2@h")).contains("hunter2"));
    }
}
