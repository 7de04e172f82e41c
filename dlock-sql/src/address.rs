//! The address of a server: in the driver's URL, and in the id of a lock.

use dlock_core::Failure;
use dlock_core::backend::UrlParts;

/// The host in the driver's URL where the real one is among its parameters, or is set afterwards.
const ELSEWHERE: &str = "localhost";

/// Returns the URL as the driver can read it, which does not take the brackets off an address of IPv6, and refuses a
/// URL that has its host among the parameters only, beside a user. An address of IPv6 becomes the parameter `host`
/// where the driver has that, and comes beside the URL otherwise.
pub(crate) fn for_driver(url: &str, has_parameter: bool) -> Result<(String, Option<String>), Failure> {
    let UrlParts { scheme, authority, path, query, .. } = UrlParts::of(url)?;
    let (user, place) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
    let is_several = |(name, value): (&str, &str)| {
        ["host", "hostaddr"].contains(&name) && !value.starts_with(['/', '%']) && value.contains(',')
    };
    if place.contains(',') || UrlParts::parameters(query).any(is_several) {
        return Err(Failure::invalid_config(
            "the URL names several hosts; name one host, which always leads to the primary (a name in DNS, or a proxy)",
        ));
    }
    let is_elsewhere = || {
        let is_host = |(name, _): (&str, &str)| ["host", "hostaddr", "socket"].contains(&name);
        !user.is_empty() && UrlParts::parameters(query).any(is_host)
    };
    let (host, port) = if place.starts_with('[') {
        let read = UrlParts::host(place).ok_or_else(|| {
            Failure::invalid_config("the address in brackets is none of IPv6; write [::1] or [::1]:port")
        })?;
        (Some(read.0), read.1.map(|port| format!(":{port}")).unwrap_or_default())
    } else if (place.is_empty() || place.starts_with(':')) && is_elsewhere() {
        (None, place.to_owned())
    } else {
        return Ok((url.to_owned(), None));
    };
    let (parameter, host) = match host {
        Some(host) if has_parameter => (Some(format!("host={}", host.replace('%', "%25"))), None),
        host => (None, host),
    };
    // Before the others: a host among them wins, as it does everywhere.
    let query: Vec<&str> =
        parameter.as_deref().into_iter().chain((!query.is_empty()).then_some(query)).collect();
    let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
    Ok((format!("{scheme}://{user}{ELSEWHERE}{port}{path}{query}"), host))
}

/// Returns the host without the brackets that an address of IPv6 has in a URL; `None` where it has none.
pub(crate) fn bare(host: &str) -> Option<&str> {
    host.strip_prefix('[')?.strip_suffix(']')
}

/// Returns the host as it stands in the id of a lock: in one form however it is written.
pub(crate) fn shown(host: &str) -> String {
    let host = bare(host).unwrap_or(host);
    match UrlParts::host(&format!("[{host}]")) {
        Some((address, _)) => format!("[{address}]"),
        None if host.contains(':') => format!("[{host}]"),
        // The name of a host is not changed by upper case.
        None => host.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, has_parameter: bool) -> (String, Option<String>) {
        for_driver(url, has_parameter).unwrap()
    }

    #[test]
    fn an_address_of_ipv6_is_given_to_the_driver_without_its_brackets() {
        let (url, host) = read("x://u:p@[::1]:7/d?a=b", true);
        assert_eq!((&*url, host), ("x://u:p@localhost:7/d?host=::1&a=b", None));
        let (url, host) = read("x://[fe80::1%25eth0]", true);
        assert_eq!((&*url, host), ("x://localhost?host=fe80::1%25eth0", None));
        let (url, host) = read("x://u@[0:0::1]/d", false);
        assert_eq!((&*url, host.as_deref()), ("x://u@localhost/d", Some("::1")));
        for wrong in ["x://u:hunter2@[::1", "x://u:hunter2@[h]", "x://u:hunter2@[::1]7", "x://[]"] {
            let failure = for_driver(wrong, true).unwrap_err();
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn a_host_among_the_parameters_needs_none_beside_the_user() {
        assert_eq!(read("x://u@/d?host=/run", true).0, "x://u@localhost/d?host=/run");
        assert_eq!(read("x://u:p@:7/d?a=b&socket=/run", false).0, "x://u:p@localhost:7/d?a=b&socket=/run");
        for url in ["x://u@/d", "x:///d?host=/run", "x://u@h/d?host=/run", "x://h"] {
            assert_eq!(read(url, true), (url.to_owned(), None));
        }
    }

    #[test]
    fn a_host_is_shown_in_one_way() {
        for host in ["::1", "[::1]", "0:0:0:0:0:0:0:1", "0::0001"] {
            assert_eq!(shown(host), "[::1]");
        }
        assert_eq!(
            (shown("Db.Internal"), shown("FE80::1%eth0")),
            ("db.internal".into(), "[fe80::1%eth0]".into())
        );
    }
}
