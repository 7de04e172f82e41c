//! The parts of a URL, which may hold a password.

use std::time::Duration;

use crate::error::Failure;

/// The parts of a URL `scheme://authority/path?query`, as they are written.
///
/// No failure repeats any part of the URL: wherever a `/`, a `?` or a `#` in a password was not escaped, what follows
/// it stands in another part.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlParts<'a> {
    /// What is before `://`.
    pub scheme: &'a str,
    /// User, password and hosts.
    pub authority: &'a str,
    /// With the slash that it begins with, if there is one.
    pub path: &'a str,
    /// Without the question mark.
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
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) when there is no `://`, when the URL has a fragment, or when
    /// an `@` follows the authority: then a password before it was most likely not escaped, and its parts would be
    /// taken for a host, a database or a parameter, which errors name. Write such an `@` as `%40`. In the query of a
    /// URL without an authority it may stand.
    pub fn of(url: &'a str) -> Result<Self, Failure> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| Failure::invalid_config("the URL has no :// in it"))?;
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
        Ok(Self { scheme, authority, path, query })
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
