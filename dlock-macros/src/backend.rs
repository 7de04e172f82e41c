//! The name of a backend, and common mistakes in it.

use syn::LitStr;

/// The names that stand for backends of dlock, with their features where they have one, and other names for these. An
/// operator's name for a store, such as `cache` or `db`, is not among them: programs register it on purpose.
const OTHER_NAMES: [(&str, &[&str]); 7] = [
    ("etcd", &["etcd3", "etcdv3"]),
    ("memory", &["in-memory", "in_memory"]),
    ("mysql", &["mariadb"]),
    ("postgres", &["postgresql", "pg", "pgsql", "psql"]),
    ("redis", &["valkey", "rediss"]),
    ("sqlite", &["sqlite3"]),
    ("zk", &["zookeeper"]),
];

/// Checks the value of `backend`.
pub(crate) fn backend(name: &LitStr) -> syn::Result<LitStr> {
    let refuse = |message: String| Err(syn::Error::new(name.span(), message));
    let value = name.value();
    if value.is_empty() {
        return refuse(
            "an empty name; write the name that was given to `dlock::register`, or leave `backend` out for the default"
                .to_owned(),
        );
    }
    if let Some(scheme) = scheme(&value) {
        // The URL is not repeated: it may hold a password, and stands in enough places already.
        let (a_name, name) = known(scheme).map_or(("a name, such as ", "orders"), |known| ("", known));
        let variable = name.to_uppercase();
        return refuse(format!(
            "`backend` takes the name of a backend, and this is a URL; write {a_name}`backend = \"{name}\"`, call \
             `dlock::init()` at start-up, and set DLOCK_{variable}_URL to the URL"
        ));
    }
    if value.contains([':', '/', '@']) {
        return refuse(
            "`backend` takes the name of a backend, which has no `:`, `/` or `@` in it, as URLs have; write a name, such \
             as `backend = \"orders-eu\"`"
                .to_owned(),
        );
    }
    // A program may have registered such a name on purpose, as that of its MariaDB beside a MySQL. For almost all
    // others it is a slip, which passes the check of the feature and shows only at the first call. So the name is
    // refused, and the error says how to reach locks that are registered under it.
    if let Some(known) = known(&value).filter(|known| *known != value) {
        return refuse(format!(
            "the backend `{value}` is called `{known}` here; write `backend = \"{known}\"`; where locks are registered \
             as `{value}` on purpose, write `locks = dlock::registered(\"{value}\")?`"
        ));
    }
    Ok(name.clone())
}

/// Returns the name of the backend that is meant, in any case of letters.
fn known(name: &str) -> Option<&'static str> {
    let is_meant = |other: &&str| other.eq_ignore_ascii_case(name);
    let mut all = OTHER_NAMES.into_iter();
    all.find(|(known, others)| is_meant(known) || others.iter().any(is_meant)).map(|(known, _)| known)
}

/// Returns the first word of the scheme, such as that of `redis+sentinel`, if `value` is a URL.
fn scheme(value: &str) -> Option<&str> {
    let (scheme, rest) = value.split_once(':')?;
    let first = scheme.split('+').next().unwrap_or(scheme);
    (rest.starts_with("//") || first == "quorum" || known(first).is_some()).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc_macro2::Span;

    fn said(value: &str) -> Option<String> {
        backend(&LitStr::new(value, Span::call_site())).err().map(|error| error.to_string())
    }

    #[test]
    fn names_that_a_program_may_register_pass() {
        for name in [
            "redis",
            "zk",
            "sqlite",
            "postgres",
            "mysql",
            "memory",
            "cache",
            "db",
            "locks",
            "orders-eu",
            "shop.orders",
            "zookeeper-eu",
            "my redis",
        ] {
            assert_eq!(said(name), None, "{name}");
        }
    }

    #[test]
    fn another_name_of_a_backend_is_answered_with_its_name_here_and_the_way_to_it() {
        for (name, known) in [
            ("zookeeper", "zk"),
            ("ZK", "zk"),
            ("postgresql", "postgres"),
            ("pg", "postgres"),
            ("mariadb", "mysql"),
            ("sqlite3", "sqlite"),
            ("etcd3", "etcd"),
            ("valkey", "redis"),
            ("Redis", "redis"),
            ("in-memory", "memory"),
        ] {
            let text = said(name).unwrap_or_default();
            assert!(text.contains(&format!("write `backend = \"{known}\"`")), "{name}: {text}");
            assert!(text.contains(&format!("`locks = dlock::registered(\"{name}\")?`")), "{name}: {text}");
        }
    }

    #[test]
    fn a_url_is_answered_with_the_name_and_the_variable_for_it_and_not_repeated() {
        for (url, known) in [
            ("redis://:hunter2@h", "redis"),
            ("redis+sentinel://:hunter2@h/s", "redis"),
            ("rediss://:hunter2@h", "redis"),
            ("postgresql://u:hunter2@h/d", "postgres"),
            ("zk+tls://u:hunter2@h", "zk"),
            ("etcd+tls://u:hunter2@h", "etcd"),
            ("sqlite:///hunter2.db", "sqlite"),
            ("memory:", "memory"),
            ("sqlite:/hunter2.db", "sqlite"),
            ("redis+unix:/hunter2", "redis"),
            ("quorum:redis://:hunter2@a|redis://:hunter2@b", "orders"),
            ("http://u:hunter2@h", "orders"),
        ] {
            let text = said(url).unwrap_or_default();
            let variable = format!("DLOCK_{}_URL", known.to_uppercase());
            assert!(text.contains(&format!("`backend = \"{known}\"`")), "{url}: {text}");
            assert!(text.contains(&variable) && !text.contains("hunter2"), "{url}: {text}");
        }
    }

    #[test]
    fn what_may_be_a_part_of_a_url_is_refused_and_not_repeated() {
        for name in ["u:hunter2@h", "hunter2@h", "hunter2/db", "hunter2:6379"] {
            let text = said(name).unwrap_or_default();
            assert!(text.contains("no `:`, `/` or `@`") && !text.contains("hunter2"), "{name}: {text}");
        }
    }
}
