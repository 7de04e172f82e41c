//! The servers and the settings that a URL names.

use std::fmt;
use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::UrlParts;
use percent_encoding::percent_decode_str;

use crate::recipe::Recipe;

const PORT: u16 = 2181;

const FORMS: &str = "write zk://[user:password@]host[:port],host[:port][/chroot], or zk+tls:// for TLS";

/// The content of a URL.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The addresses with their ports, separated by commas.
    pub(crate) servers: String,
    pub(crate) tls: bool,
    /// The user and the password.
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) sasl: bool,
    pub(crate) chroot: Option<String>,
    pub(crate) base: Option<String>,
    pub(crate) recipe: Option<Recipe>,
    pub(crate) session_timeout: Option<Duration>,
    pub(crate) tick: Option<Duration>,
    pub(crate) creates_chroot: bool,
    /// The path of a file.
    pub(crate) root_certificate: Option<String>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("servers", &self.servers).finish_non_exhaustive()
    }
}

/// Reads a URL. No failure repeats it, since it may hold a password.
pub(crate) fn parse(url: &str) -> Result<Target, Failure> {
    let UrlParts { scheme, authority, path, query, .. } = UrlParts::of(url)?;
    let tls = match scheme {
        "zk" => false,
        "zk+tls" => true,
        _ => return Err(invalid("nothing is known of the URL's scheme")),
    };
    if tls && !cfg!(feature = "tls") {
        return Err(Failure::invalid_config(
            "`zk+tls:` needs the feature `zk-tls` of dlock-sdk (`tls` of dlock-zk), which is not compiled in",
        ));
    }
    let (credentials, hosts) = match authority.rsplit_once('@') {
        Some((credentials, hosts)) => (Some(credentials), hosts),
        None => (None, authority),
    };
    let credentials = match credentials.map(|text| text.split_once(':')) {
        Some(Some((user, password))) if !user.is_empty() => Some((decode(user)?, decode(password)?)),
        Some(_) => return Err(invalid("write user and password before the @, separated by a colon")),
        None => None,
    };
    let servers: Option<Vec<String>> = hosts.split(',').map(address).collect();
    // Not repeated: an unescaped password may have ended up here.
    let servers = servers.ok_or_else(|| {
        invalid("an address is not host, host:port or [v6]:port (escape @ / ? # in a password as %40 %2F %3F %23)")
    })?;
    let chroot = Some(decode(path.trim_end_matches('/'))?).filter(|path| !path.is_empty());
    let mut target = Target {
        servers: servers.join(","),
        tls,
        credentials,
        sasl: false,
        chroot,
        base: None,
        recipe: None,
        session_timeout: None,
        tick: None,
        creates_chroot: false,
        root_certificate: None,
    };
    for (name, value) in UrlParts::parameters(query) {
        match name {
            "base" => target.base = Some(decode(value)?),
            "recipe" => {
                let known = Recipe::of(value)
                    .ok_or_else(|| invalid("recipe is mutex, read-write-lock or leader-latch"))?;
                target.recipe = Some(known);
            }
            "session_timeout" => target.session_timeout = Some(duration(value)?),
            "tick_time" => target.tick = Some(duration(value)?),
            "create_chroot" if value == "true" => target.creates_chroot = true,
            "create_chroot" => return Err(invalid("create_chroot is true, or left out")),
            "sasl" if value != "digest-md5" => return Err(invalid("sasl is digest-md5, or left out")),
            "sasl" if !cfg!(feature = "sasl") => {
                return Err(Failure::invalid_config(
                    "SASL needs the feature `zk-sasl` of dlock-sdk (`sasl` of dlock-zk), which is not compiled in",
                ));
            }
            "sasl" => target.sasl = true,
            "root_certificate" if !tls => return Err(invalid("root_certificate is for zk+tls://")),
            "root_certificate" => target.root_certificate = Some(decode(value)?),
            _ => {
                return Err(invalid(
                    "the URL has an unknown parameter; known are base, recipe, session_timeout, tick_time, create_chroot, sasl \
                     and root_certificate, and to `dlock::connect` connect=lazy",
                ));
            }
        }
    }
    Ok(target)
}

/// Returns the address with its port, in the form of the client library.
fn address(text: &str) -> Option<String> {
    let (host, port) = UrlParts::host(text)?;
    let port = port.unwrap_or(PORT);
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

fn duration(text: &str) -> Result<Duration, Failure> {
    UrlParts::time(text)
        .ok_or_else(|| invalid("a length of time is not a whole number with a unit, such as 10s"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_credentials_and_chroot_are_read() {
        let target =
            parse("zk://shop:p%40s:s@a:2182,b,[0:0::1]:7,[::2]/app/x?base=/locks&session_timeout=1500ms")
                .unwrap();
        assert_eq!(target.servers, "a:2182,b:2181,[::1]:7,[::2]:2181");
        assert_eq!(target.credentials, Some(("shop".to_owned(), "p@s:s".to_owned())));
        assert_eq!(target.chroot.as_deref(), Some("/app/x"));
        assert_eq!(target.base.as_deref(), Some("/locks"));
        assert_eq!(target.session_timeout, Some(Duration::from_millis(1500)));
        let plain = parse("zk://h/").unwrap();
        assert_eq!((plain.servers.as_str(), plain.credentials, plain.chroot), ("h:2181", None, None));
        let more = parse("zk://h/x?create_chroot=true&tick_time=100ms").unwrap();
        assert_eq!((more.creates_chroot, more.tick), (true, Some(Duration::from_millis(100))));
        assert!(!plain.creates_chroot);
        assert_eq!(plain.recipe, None);
        let shared = parse("zk://h/?recipe=read-write-lock").unwrap();
        assert_eq!(shared.recipe, Some(Recipe::ReadWriteLock));
        let elects = parse("zk://h/?recipe=leader-latch").unwrap();
        assert_eq!(elects.recipe, Some(Recipe::LeaderLatch));
        assert_eq!(parse("zk://h?session_timeout=4s").unwrap().session_timeout, Some(Duration::from_secs(4)));
    }

    #[test]
    fn wrong_urls_are_refused_without_being_repeated() {
        for url in [
            "zk:hunter2",
            "hunter2://h",
            "zk://u:hunter2@",
            "zk://hunter2@h",
            "zk://:hunter2@h",
            "zk://u:hunter2@h:port",
            "zk://u:hunter2/x@h:1",
            "zk://u:hunter2",
            "zk://h:0",
            "zk://h,,i",
            "zk://[::1",
            "zk://[]:1",
            "zk://u:hunter2@h/?pasword=hunter2",
            "zk://u:hunter2@h/?session_timeout=10",
            "zk://u:hunter2@h/?tick_time=1",
            "zk://u:hunter2@h/x?create_chroot=yes",
            "zk://u:hunter2@h/?sasl=gssapi",
            "zk://u:hunter2@h/?recipe=semaphore",
            "zk://u:hunter2@h/#x",
            "zk://u:%ff@h",
        ] {
            let failure = parse(url).unwrap_err();
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig, "{url}");
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn a_password_of_any_characters_is_read_whole_or_refused_without_being_repeated() {
        for divider in
            (' '..='~').chain("\n\0ä🔒".chars()).map(String::from).chain(["1/".into(), "@h/".into()])
        {
            for after in ["@h:2181", "@h,i/x?base=/y", "@h?create_chroot=true"] {
                let url = format!("zk://u:Xq7Vz{divider}Wk9Jp{after}");
                let text = match parse(&url) {
                    Ok(target) => {
                        assert!(target.servers.starts_with("h:2181"), "{url}: {}", target.servers);
                        assert!(
                            target.credentials.as_ref().is_some_and(|(_, p)| p.ends_with("k9Jp")),
                            "{url}"
                        );
                        format!("{target:?}")
                    }
                    Err(failure) => format!("{failure} {failure:?}"),
                };
                assert!(!text.contains("Xq7Vz") && !text.contains("k9Jp"), "{url}: {text}");
            }
        }
    }

    #[test]
    fn debug_shows_no_password() {
        assert!(!format!("{:?}", parse("zk://u:hunter2@h").unwrap()).contains("hunter2"));
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn tls_without_its_feature_says_which_one() {
        assert!(parse("zk+tls://h").unwrap_err().message().contains("zk-tls"));
    }
}
