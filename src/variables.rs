//! Environment variables: the variable with the URL of each backend, and their values.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fmt;

use dlock_core::{Error, Failure, Operation, Result};

/// The name of the backend whose URL is in `DLOCK_URL`.
pub(crate) const DEFAULT: &str = "default";

const PREFIX: &str = "DLOCK_";
const SUFFIX: &str = "URL";

/// Returns the character that stands in a variable for a byte of a name.
const fn symbol(byte: u8) -> Option<u8> {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => Some(byte.to_ascii_uppercase()),
        b'-' | b'_' | b'.' | b' ' => Some(b'_'),
        _ => None,
    }
}

/// Returns whether both names have the same variable. Allocates nothing, since every call of an annotated function may
/// come here.
pub(crate) fn is_same(one: &str, other: &str) -> bool {
    let mut pairs = one.bytes().zip(other.bytes());
    one.len() == other.len() && pairs.all(|(a, b)| symbol(a).is_some_and(|a| symbol(b) == Some(a)))
}

/// Returns the beginning of the variables of the backend `name`, such as `DLOCK_ORDERS_`; `None` for a name with
/// characters that have no place in a variable.
pub(crate) fn prefix_of(name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    if is_same(name, DEFAULT) {
        return Some(PREFIX.to_owned());
    }
    let part: String = name.bytes().map(|byte| symbol(byte).map(char::from)).collect::<Option<_>>()?;
    Some(format!("{PREFIX}{part}_"))
}

/// Returns the variable with the URL of the backend `name`, if there can be one.
pub(crate) fn variable_of(name: &str) -> Option<String> {
    prefix_of(name).map(|prefix| prefix + SUFFIX)
}

/// Returns the form in which errors show a name. A name that may be a URL is not shown, since it may hold a password.
pub(crate) fn shown(name: &str) -> String {
    if is_name(name) {
        format!("{name:?}")
    } else {
        "a name that is not shown, as it may be a URL".to_owned()
    }
}

/// Is `true` if the name is no URL, nor a part of one. The attribute refuses these too.
pub(crate) fn is_name(name: &str) -> bool {
    !name.contains([':', '/', '@'])
}

/// Returns whether `variable` has a value in the environment of this process.
pub(crate) fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.to_string_lossy().trim().is_empty())
}

/// A backend whose URL is in a variable.
pub(crate) struct Source {
    pub name: String,
    pub variable: String,
    pub url: String,
}

/// The variables that begin with `DLOCK_`, with their values, unless these are empty. The error is a value that is not
/// UTF-8.
pub(crate) struct Variables(BTreeMap<String, Result<String, OsString>>);

/// Shows the names alone: the values may hold passwords.
impl fmt::Debug for Variables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// Reads the variables of this process.
    pub(crate) fn of_process() -> Self {
        let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let ours = all.filter(|(name, _)| name.starts_with(PREFIX));
        let values = ours.map(|(name, value)| (name, value.into_string()));
        Self(values.filter(|(_, value)| !matches!(value, Ok(text) if text.trim().is_empty())).collect())
    }

    /// Takes these variables in place of those of the process.
    pub(crate) fn given(variables: &[(String, String)]) -> Result<Self> {
        let mut all = BTreeMap::new();
        for (name, value) in variables {
            if !name.starts_with(PREFIX) || value.trim().is_empty() {
                continue;
            }
            match all.entry(name.clone()) {
                Entry::Vacant(place) => place.insert(Ok(value.clone())),
                Entry::Occupied(_) => {
                    return Err(invalid(format!(
                        "the variable {name} is given twice; leave one of them out"
                    )));
                }
            };
        }
        Ok(Self(all))
    }

    /// Returns the value of a variable, in the form in which options are read.
    pub(crate) fn get(&self, variable: &str) -> Result<Option<String>, &'static str> {
        match self.0.get(variable) {
            Some(Ok(value)) => Ok(Some(value.clone())),
            Some(Err(_)) => Err("UTF-8"),
            None => Ok(None),
        }
    }

    /// Returns the backends of all variables with URLs.
    pub(crate) fn all(&self) -> Result<Vec<Source>> {
        let (mut sources, mut wrong) = (Vec::new(), Vec::new());
        for variable in self.0.keys() {
            let Some(rest) = variable.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX)) else {
                continue;
            };
            let name = match rest.strip_suffix('_') {
                _ if rest.is_empty() => DEFAULT.to_owned(),
                Some(name) => name.to_ascii_lowercase(),
                // Such as `DLOCK_CURL`, which only ends alike.
                None => continue,
            };
            let (expected, is_default) = (variable_of(&name), is_same(&name, DEFAULT));
            if expected.as_deref() != Some(variable.as_str()) {
                let wanted = match expected {
                    Some(_) if is_default => "the default backend is that of DLOCK_URL".to_owned(),
                    Some(expected) => format!("write {expected}"),
                    None => "write DLOCK_<NAME>_URL, with a name of letters, digits and `_`".to_owned(),
                };
                wrong.push(format!("no backend has the variable {variable}; {wanted}"));
                continue;
            }
            match self.source(name, variable.clone()) {
                Ok(source) => sources.push(source),
                Err(what) => wrong.push(what),
            }
        }
        none_of(&wrong).map(|()| sources)
    }

    /// Returns the backends of these names, each of which has to have its variable.
    pub(crate) fn only(&self, names: &[String]) -> Result<Vec<Source>> {
        if names.is_empty() {
            return Err(invalid(
                "`only` names no backend; name one, or leave it out for all that are set".into(),
            ));
        }
        let (mut sources, mut missing, mut wrong) = (Vec::<Source>::new(), Vec::new(), Vec::new());
        for name in names {
            let Some(variable) = variable_of(name) else {
                return Err(invalid(format!(
                    "no variable has the name {} in it; use ASCII letters, digits, `-`, `_`, `.` and spaces",
                    shown(name)
                )));
            };
            if let Some(other) = sources.iter().find(|other| other.variable == variable) {
                let other = &other.name;
                return Err(invalid(format!(
                    "{variable} is the variable of both {other:?} and {name:?}; leave one of them out of `only`"
                )));
            }
            match self.0.contains_key(&variable).then(|| self.source(name.clone(), variable.clone())) {
                Some(Ok(source)) => sources.push(source),
                Some(Err(what)) => wrong.push(what),
                None => missing.push(variable),
            }
        }
        if !missing.is_empty() {
            wrong.push(format!("not set: {}; set each to the URL of its backend", missing.join(", ")));
        }
        none_of(&wrong).map(|()| sources)
    }

    fn source(&self, name: String, variable: String) -> Result<Source, String> {
        match self.get(&variable) {
            Ok(url) => Ok(Source { name, variable, url: url.unwrap_or_default().trim().to_owned() }),
            Err(wanted) => Err(format!("the environment variable {variable} is not {wanted}")),
        }
    }
}

/// Returns one error for all mistakes, if there are any.
pub(crate) fn none_of(wrong: &[String]) -> Result<()> {
    if wrong.is_empty() { Ok(()) } else { Err(invalid(wrong.join("; "))) }
}

pub(crate) fn invalid(what: String) -> Error {
    Error::new(Operation::Configure, Failure::invalid_config(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_core::ErrorKind;

    fn given(variables: &[(&str, &str)]) -> Variables {
        let owned: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Variables::given(&owned).unwrap()
    }

    fn names(sources: &[Source]) -> Vec<(&str, &str, &str)> {
        sources.iter().map(|each| (&*each.name, &*each.variable, &*each.url)).collect()
    }

    #[test]
    fn a_name_has_one_variable_and_what_a_variable_cannot_hold_has_none() {
        for (name, variable) in [
            ("zk", "DLOCK_ZK_URL"),
            ("ZK", "DLOCK_ZK_URL"),
            ("shop-orders", "DLOCK_SHOP_ORDERS_URL"),
            ("shop_orders", "DLOCK_SHOP_ORDERS_URL"),
            ("Shop.Orders", "DLOCK_SHOP_ORDERS_URL"),
            ("shop orders", "DLOCK_SHOP_ORDERS_URL"),
            ("eu1", "DLOCK_EU1_URL"),
            ("url", "DLOCK_URL_URL"),
            ("lease", "DLOCK_LEASE_URL"),
            ("default", "DLOCK_URL"),
            ("Default", "DLOCK_URL"),
        ] {
            assert_eq!(variable_of(name).as_deref(), Some(variable), "{name}");
        }
        for name in ["", "bücher", "redis://h", "a/b", "a=b"] {
            assert_eq!(variable_of(name), None, "{name}");
            assert!(!is_same(name, name) || name.is_empty(), "{name}");
        }
        assert!(is_same("Shop-Orders", "shop_orders") && !is_same("shop", "shops") && !is_same("a", "b"));
    }

    #[test]
    fn variables_with_urls_are_told_from_options_and_from_what_is_empty() {
        let variables = given(&[
            ("DLOCK_URL", " memory:\n"),
            ("DLOCK_SHOP_ORDERS_URL", "sqlite:///x.db"),
            ("DLOCK_URL_URL", "a"),
            ("DLOCK_ZK_URL", " "),
            ("DLOCK_LEASE", "10s"),
            ("DLOCK_LABEL", "URL"),
            ("DLOCK_ORDERS_PREFIX", "x"),
            ("DLOCK_CURL", "x"),
            ("DLOCK_KEY", "room_7"),
            ("OTHER_URL", "x"),
            ("dlock_url", "x"),
        ]);
        let sources = variables.all().unwrap();
        assert_eq!(
            names(&sources),
            [
                ("shop_orders", "DLOCK_SHOP_ORDERS_URL", "sqlite:///x.db"),
                ("default", "DLOCK_URL", "memory:"),
                ("url", "DLOCK_URL_URL", "a"),
            ]
        );
        assert_eq!(variables.get("DLOCK_LEASE"), Ok(Some("10s".to_owned())));
        assert_eq!(variables.get("DLOCK_ZK_URL"), Ok(None));
        assert!(!format!("{variables:?}").contains("sqlite:"), "{variables:?}");
    }

    #[test]
    fn a_variable_that_two_spellings_could_stand_for_is_refused_with_the_one_to_write() {
        for (variable, wanted) in [
            ("DLOCK_zk_URL", "write DLOCK_ZK_URL"),
            ("DLOCK_SHOP-ORDERS_URL", "write DLOCK_SHOP_ORDERS_URL"),
            ("DLOCK_DEFAULT_URL", "DLOCK_URL"),
            ("DLOCK__URL", "DLOCK_<NAME>_URL"),
            ("DLOCK_BÜCHER_URL", "DLOCK_<NAME>_URL"),
        ] {
            let error = given(&[(variable, "redis://:hunter2@h")]).all().map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            let text = error.to_string();
            assert!(text.contains(variable) && text.contains(wanted) && !text.contains("hunter2"), "{text}");
        }
        let text = given(&[("DLOCK_zk_URL", "a"), ("DLOCK_DEFAULT_URL", "b")])
            .all()
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(text.contains("DLOCK_zk_URL") && text.contains("DLOCK_DEFAULT_URL"), "all of them: {text}");
        let twice = [("DLOCK_URL", "memory:"), ("DLOCK_URL", "redis://:hunter2@h")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let error = Variables::given(&twice).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(error.to_string().contains("DLOCK_URL is given twice"), "{error}");
    }

    #[test]
    fn some_names_are_read_in_the_spelling_given_and_the_other_variables_are_not_looked_at() {
        let variables =
            given(&[("DLOCK_URL", "memory:"), ("DLOCK_SHOP_ORDERS_URL", "b"), ("DLOCK_zk_URL", "c")]);
        let only = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            variables.only(&names)
        };
        let sources = only(&["shop-orders", "default"]).unwrap();
        assert_eq!(
            names(&sources),
            [("shop-orders", "DLOCK_SHOP_ORDERS_URL", "b"), ("default", "DLOCK_URL", "memory:")]
        );
        for (asked, says) in [
            (&["shop-orders", "shop_orders"][..], "both \"shop-orders\" and \"shop_orders\""),
            (&["zk", "default", "redis"], "not set: DLOCK_ZK_URL, DLOCK_REDIS_URL"),
            (&["bücher"], "no variable"),
            (&[""], "no variable"),
            (&[], "names no backend"),
        ] {
            let error = only(asked).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_value_that_is_no_text_is_an_error_with_the_name_of_its_variable() {
        use std::os::unix::ffi::OsStringExt;
        let variables = Variables(
            [("DLOCK_ZK_URL".to_owned(), Err(OsString::from_vec(vec![0xff])))].into_iter().collect(),
        );
        let text = variables.all().map(drop).unwrap_err().to_string();
        assert!(text.contains("DLOCK_ZK_URL is not UTF-8"), "{text}");
        assert_eq!(variables.get("DLOCK_ZK_URL"), Err("UTF-8"));
    }
}
