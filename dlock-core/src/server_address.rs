use std::sync::Arc;

/// The address of a backend's server: `server.address` and `server.port` of OpenTelemetry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    host: Arc<str>,
    port: Option<u16>,
}

impl ServerAddress {
    /// Returns the part of `url` between the scheme and the path; `None` if it is empty, a list of servers, or no
    /// address. `url` must have no user and no password.
    ///
    /// ```
    /// use dlock_core::backend::ServerAddress;
    ///
    /// let server = ServerAddress::in_url("redis://db.example:6379/0").unwrap();
    /// assert_eq!((server.host(), server.port()), ("db.example", Some(6379)));
    /// assert_eq!(ServerAddress::in_url("zk://a:2181,b:2181"), None);
    /// ```
    #[must_use]
    pub fn in_url(url: &str) -> Option<Self> {
        let (_, rest) = url.split_once("://")?;
        let authority = rest.split(['/', '?']).next()?;
        // An address of IPv6 stands in brackets.
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().ok()?)),
            _ => (authority, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        (!host.is_empty() && !host.contains([',', '@'])).then(|| Self { host: host.into(), port })
    }

    /// Returns the name or the IP address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port, where it is known.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        self.port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> Option<(String, Option<u16>)> {
        ServerAddress::in_url(url).map(|server| (server.host().to_owned(), server.port()))
    }

    #[test]
    fn one_server_has_an_address_and_a_list_or_a_path_has_none() {
        assert_eq!(of("postgres://localhost:5432/app/dlock"), Some(("localhost".into(), Some(5432))));
        assert_eq!(of("zk://one"), Some(("one".into(), None)));
        assert_eq!(of("redis://[::1]:6379/0"), Some(("::1".into(), Some(6379))));
        assert_eq!(of("redis://[::1]"), Some(("::1".into(), None)));
        for none in [
            "redis://a:1,b:2/0",
            "postgres:///run/postgres:5432/app",
            "redis://a:port",
            "memory",
            "redis://:6379",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
