//! The settings that all database servers have.

use std::time::Duration;

use dlock_core::Failure;
use dlock_core::backend::UrlParts;
use percent_encoding::percent_decode_str;

use crate::table::TableName;

/// The settings of a backend that are not the driver's.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) table: TableName,
    pub(crate) max_connections: u32,
    pub(crate) connect_timeout: Duration,
    /// Is `true` if the table is made where it is missing.
    pub(crate) makes: bool,
    /// Is `true` if waiters are notified of releases, where the server can do that.
    pub(crate) notified: bool,
    /// Is `true` if statements are sent whole, where the server has that choice.
    pub(crate) simple: bool,
    /// Is `true` if grants of sessions and locked rows are counted.
    pub(crate) fences: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            table: TableName::default(),
            max_connections: 8,
            connect_timeout: Duration::from_secs(2),
            makes: false,
            notified: true,
            simple: false,
            fences: true,
        }
    }
}

impl Settings {
    pub(crate) fn connections(&self) -> usize {
        usize::try_from(self.max_connections).unwrap_or(usize::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !(1..=1_000).contains(&self.max_connections) {
            return Err(Failure::invalid_config(format!(
                "max_connections is {}; use 1 to 1000",
                self.max_connections
            )));
        }
        if !(Duration::from_millis(1)..=Duration::from_secs(60)).contains(&self.connect_timeout) {
            return Err(Failure::invalid_config(format!(
                "the connect timeout is {:?}; use 1 ms to 60 s",
                self.connect_timeout
            )));
        }
        Ok(())
    }

    /// Takes a parameter of a URL. Returns whether it is one of dlock's.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, Failure> {
        let wrong = |wanted: &str| {
            Failure::invalid_config(format!("the parameter {name} of the URL is not {wanted}"))
        };
        match name {
            "table" => {
                let table = TableName::qualified(value);
                self.table = table.map_err(|_| {
                    wrong("1 to 63 ASCII letters, digits and underscores, not starting with a digit")
                })?;
            }
            "max_connections" => self.max_connections = value.parse().map_err(|_| wrong("a number"))?,
            "statements" => {
                self.simple = match value {
                    "simple" => true,
                    "prepared" => false,
                    _ => return Err(wrong("simple or prepared")),
                };
                self.notified = !self.simple;
            }
            "fences" => self.fences = value.parse().map_err(|_| wrong("true or false"))?,
            "migrate" => self.makes = value.parse().map_err(|_| wrong("true or false"))?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Divides a URL into dlock's settings and the part for the driver, which knows the parameters `known`. No failure
/// repeats anything of it but the name of a known parameter: it may contain a password.
pub(crate) fn split(url: &str, known: &[&str], form: &str) -> Result<(Settings, String), Failure> {
    let wrong = |what: &str| Failure::invalid_config(format!("{what}; write {form}"));
    let parts = UrlParts::of(url)?;
    let query = parts.query;
    // A NUL ends a text in the messages to the servers. A password is hashed.
    let (user, hosts) = parts.authority.rsplit_once('@').unwrap_or(("", parts.authority));
    let user = user.split(':').next().unwrap_or_default();
    if [user, hosts, parts.path, query].iter().any(|part| percent_decode_str(part).any(|byte| byte == 0)) {
        return Err(wrong("the URL has a NUL (%00)"));
    }
    let place = url.split_once('?').map_or(url, |(place, _)| place);
    let mut settings = Settings::default();
    let mut rest = Vec::new();
    for (name, written) in UrlParts::parameters(query) {
        let value = percent_decode_str(written)
            .decode_utf8()
            .map_err(|_| wrong("a parameter of the URL is not UTF-8"))?;
        let ours = name != "statements" || known.contains(&name);
        if ours && settings.take(name, &value)? {
            continue;
        }
        if !known.contains(&name) {
            return Err(wrong(&format!(
                "the URL has an unknown parameter; known are table, migrate, max_connections, fences, {}, and to \
                 `dlock::connect` mode and connect=lazy",
                known.join(", ")
            )));
        }
        rest.push(format!("{name}={written}"));
    }
    let driver = if rest.is_empty() { place.to_owned() } else { format!("{place}?{}", rest.join("&")) };
    Ok((settings, driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_parameters_are_taken_out_of_the_url_and_unknown_ones_refused() {
        let known = ["sslmode"];
        let url = "x://u:p%40@h/d?table=locks&sslmode=require&max_connections=3&migrate=true";
        let (settings, rest) = split(url, &known, "x://").unwrap();
        assert_eq!(rest, "x://u:p%40@h/d?sslmode=require");
        assert_eq!((settings.table.to_string().as_str(), settings.max_connections), ("locks", 3));
        assert!(settings.makes);
        let (settings, rest) = split("x://h", &known, "x://").unwrap();
        assert_eq!((rest.as_str(), settings.makes), ("x://h", false));
        for wrong in [
            "x://u:hunter2@h?b=1",
            "x://u:hunter2@h?table=a%20b",
            "x://u:hunter2@h?migrate=1",
            "x://u:hunter2@h#",
        ] {
            let failure = split(wrong, &known, "x://").unwrap_err();
            assert_eq!(failure.kind(), dlock_core::ErrorKind::InvalidConfig);
            assert!(!failure.to_string().contains("hunter2"), "{failure}");
        }
    }

    #[test]
    fn settings_out_of_bounds_are_refused() {
        let wrong = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            settings.check().unwrap();
            change(&mut settings);
            settings.check().unwrap_err()
        };
        assert!(wrong(|settings| settings.max_connections = 0).message().contains("1 to 1000"));
        assert!(wrong(|settings| settings.connect_timeout = Duration::ZERO).message().contains("60 s"));
    }
}
