//! The parts of a URL, which may hold a password.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::error::Failure;

/// The longest URL, and the longest name of a host, which errors repeat.
const LONGEST: usize = 64 * 1024;
const LONGEST_HOST: usize = 255;

/// The parts of a URL `scheme://authority/path?query`, as they are written.
///
/// No failure repeats any part of the URL: wherever a `/`, a `?` or a `#` in a password was not escaped, the rest of
/// the password stands in another part.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlParts<'a> {
    /// The part before `://`.
    pub scheme: &'a str,
    /// User, password and hosts.
    pub authority: &'a str,
    /// The path, with the slash that it begins with, if there is one.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: &'a str,
}

impl<'a> UrlParts<'a> {
    /// Divides a URL.
    ///
    /// ```
    /// use dlock_core::backend::UrlParts;
    ///
    /// let parts = UrlParts::of("redis://shop:p%2Fw@h:1/3?prefix=a")?;
    /// assert_eq!((parts.scheme, parts.authority), ("redis", "shop:p%2Fw@h:1"));
    /// assert_eq!((parts.path, parts.query), ("/3", "prefix=a"));
    /// assert!(UrlParts::of("redis://shop:p/w@h:1/3").is_err());
    /// # Ok::<(), dlock_core::Failure>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when there is no `://`, when the URL has more than 64 KiB or
    /// a fragment, or when an `@` follows the authority, or is in it twice: then a password before it was most likely
    /// not escaped, and its parts would be taken for a host, a database or a parameter, which errors name, or for a
    /// part of the user. Write such an `@` as `%40`. In the query of a URL without an authority it may stand.
    pub fn of(url: &'a str) -> Result<Self, Failure> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| Failure::invalid_config("the URL has no :// in it"))?;
        if url.len() > LONGEST {
            return Err(Failure::invalid_config("the URL is too long; it may have 64 KiB"));
        }
        let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = before.split_at(before.find('/').unwrap_or(before.len()));
        if rest.contains('#') {
            return Err(Failure::invalid_config("the URL has a fragment (write %23 for a # in a password)"));
        }
        if path.contains('@') || !authority.is_empty() && query.contains('@') {
            return Err(Failure::invalid_config(
                "the URL has an @ after its host (write %2F, %3F and %23 for / ? # in a password, and %40 for an @ in \
                 a path or parameter)",
            ));
        }
        if authority.matches('@').count() > 1 {
            return Err(Failure::invalid_config(
                "the URL has several @ before its host (write %40 for an @ in a user or a password)",
            ));
        }
        Self::check_query(query)?;
        Ok(Self { scheme, authority, path, query })
    }

    /// Refuses a query in which a parameter stands twice, since only one of the two would count.
    ///
    /// ```
    /// use dlock_core::backend::UrlParts;
    ///
    /// assert!(UrlParts::check_query("prefix=a&db=1").is_ok());
    /// assert!(UrlParts::check_query("prefix=a&prefix=b").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when a parameter does.
    pub fn check_query(query: &str) -> Result<(), Failure> {
        let mut names: Vec<&str> = Self::parameters(query).map(|(name, _)| name).collect();
        names.sort_unstable();
        match names.is_sorted_by(|one, next| one < next) {
            true => Ok(()),
            false => {
                Err(Failure::invalid_config("a parameter stands twice in the URL; leave one of them out"))
            }
        }
    }

    /// Returns the parameters of a query, each a name and a value as they are written. A value is empty where no `=`
    /// follows the name.
    ///
    /// ```
    /// use dlock_core::backend::UrlParts;
    ///
    /// let all: Vec<_> = UrlParts::parameters("prefix=a%2Fb&&lazy").collect();
    /// assert_eq!(all, [("prefix", "a%2Fb"), ("lazy", "")]);
    /// ```
    pub fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
        let written = query.split('&').filter(|part| !part.is_empty());
        written.map(|part| part.split_once('=').unwrap_or((part, "")))
    }

    /// Reads `host`, `host:port`, `[v6]` or `[v6]:port`, as it stands in an authority: the host without brackets, and
    /// the port, if there is one. An address of IPv6 is the same however it is written; its zone may follow it, after
    /// `%25`. `None` when the text is none of these.
    ///
    /// ```
    /// use dlock_core::backend::UrlParts;
    ///
    /// assert_eq!(UrlParts::host("db:5432"), Some(("db".to_owned(), Some(5432))));
    /// assert_eq!(UrlParts::host("[0:0::1]"), Some(("::1".to_owned(), None)));
    /// assert_eq!(UrlParts::host("[fe80::1%25eth0]:1"), Some(("fe80::1%eth0".to_owned(), Some(1))));
    /// assert_eq!(UrlParts::host("::1"), None);
    /// ```
    #[must_use]
    pub fn host(text: &str) -> Option<(String, Option<u16>)> {
        let (host, after) = match text.strip_prefix('[') {
            Some(v6) => {
                let (v6, after) = v6.split_once(']')?;
                let (address, zone) = match v6.split_once("%25").or_else(|| v6.split_once('%')) {
                    Some((address, zone)) => (address, Some(zone).filter(|zone| !zone.is_empty())?),
                    None => (v6, ""),
                };
                let address = address.parse::<Ipv6Addr>().ok()?;
                (if zone.is_empty() { address.to_string() } else { format!("{address}%{zone}") }, after)
            }
            None => {
                let (host, after) = text.split_at(text.find(':').unwrap_or(text.len()));
                (host.to_owned(), after)
            }
        };
        let port = match after {
            "" => None,
            port => Some(port.strip_prefix(':')?.parse().ok().filter(|port| *port != 0)?),
        };
        let wrong = |c: char| c.is_whitespace() || c.is_control() || "@[]".contains(c);
        (!host.is_empty() && host.len() <= LONGEST_HOST && !host.contains(wrong)).then_some((host, port))
    }

    /// Reads a length of time as it stands in a parameter: a whole number with `ms`, `s`, `m` or `h`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dlock_core::backend::UrlParts;
    ///
    /// assert_eq!(UrlParts::time("2m"), Some(Duration::from_secs(120)));
    /// assert_eq!(UrlParts::time("2"), None);
    /// ```
    #[must_use]
    pub fn time(text: &str) -> Option<Duration> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().ok()?;
        Some(match unit {
            "ms" => Duration::from_millis(number),
            "s" => Duration::from_secs(number),
            "m" => Duration::from_secs(number.checked_mul(60)?),
            "h" => Duration::from_secs(number.checked_mul(3_600)?),
            _ => return None,
        })
    }
}

impl std::fmt::Debug for UrlParts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UrlParts").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_at_sign_that_is_not_escaped_is_refused_wherever_it_stands() {
        for wrong in
            ["x://u:hunter2@w@h", "x://u@w:hunter2@h/d", "x://u:hunter2@h/a@b", "x://u:hunter2@h?a=@"]
        {
            let failure = UrlParts::of(wrong).unwrap_err();
            assert!(failure.message().contains("%40") && !failure.message().contains("hunter2"), "{failure}");
        }
        for right in ["x://u:p%40w@h", "x://h", "x:///run/a?pass=a@b"] {
            UrlParts::of(right).unwrap();
        }
    }

    #[test]
    fn what_is_longer_than_anybody_means_is_refused_and_not_repeated() {
        for wrong in [format!("x://h?a={}", "y".repeat(LONGEST)), format!("{}://h", "y".repeat(LONGEST))] {
            assert!(UrlParts::of(&wrong).unwrap_err().message().len() < 100);
        }
        let longest = "y".repeat(LONGEST_HOST);
        assert!(UrlParts::host(&longest).is_some() && UrlParts::host(&format!("{longest}y")).is_none());
    }

    #[test]
    fn hosts_are_read_in_every_form() {
        let host = |text| UrlParts::host(text).map(|(host, port)| (host.leak() as &str, port));
        for (text, read) in [
            ("h", ("h", None)),
            ("127.0.0.1:7", ("127.0.0.1", Some(7))),
            ("[::1]", ("::1", None)),
            ("[0:0:0:0:0:0:0:1]:7", ("::1", Some(7))),
            ("[::ffff:127.0.0.1]", ("::ffff:127.0.0.1", None)),
            ("[fe80::1%eth0]", ("fe80::1%eth0", None)),
        ] {
            assert_eq!(host(text), Some(read));
        }
        for wrong in [
            "",
            ":7",
            "h:",
            "h:0",
            "h:x",
            "h:70000",
            "::1",
            "[::1",
            "[::1]7",
            "[]",
            "[h]",
            "[::1%25]",
            "a b",
            "[::1%25a b]",
        ] {
            assert_eq!(host(wrong), None, "{wrong}");
        }
    }
}
