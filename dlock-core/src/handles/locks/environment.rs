//! Options that an operator changes, from the environment.

use std::env::VarError;
use std::time::Duration;

use super::LocksBuilder;
use crate::backend::UrlParts;
use crate::engine::session;
use crate::error::{Error, Failure, Operation, Result};
use crate::options::{MAX_LEASE, MIN_LEASE, Options, Wait};

/// Puts a value in its place; the error is what the value should have been.
type Setter = fn(&mut Settings, &str) -> Result<(), &'static str>;

/// The settings that variables set.
#[derive(Clone, Default)]
struct Settings {
    options: Options,
    session: Option<Duration>,
    label: Option<String>,
    prefix: Option<String>,
}

const A_TIME: &str = "a number with a unit, such as 500ms, 5s, 2m or 1h";

/// The beginning of the variables of all locks.
const PREFIX: &str = "DLOCK_";

const LEASE: &str = "DLOCK_LEASE";

/// In this order, since some bounds depend on the lease.
const VARIABLES: [(&str, Setter); 8] = [
    (LEASE, |settings, text| {
        settings.options.lease = UrlParts::time(text).ok_or(A_TIME)?;
        Ok(())
    }),
    ("DLOCK_REQUEST_TIMEOUT", |settings, text| {
        settings.options.request_timeout = Some(UrlParts::time(text).ok_or(A_TIME)?);
        Ok(())
    }),
    ("DLOCK_WAIT", |settings, text| {
        settings.options.wait = match text {
            "0" => Wait::No,
            "forever" => Wait::Forever,
            text => Wait::For(
                UrlParts::time(text).ok_or("0, forever, or a number with a unit, such as 500ms, 5s or 2m")?,
            ),
        };
        Ok(())
    }),
    ("DLOCK_MAX_HOLD", |settings, text| {
        settings.options.max_hold = Some(UrlParts::time(text).ok_or(A_TIME)?);
        Ok(())
    }),
    ("DLOCK_RECHECKS", |settings, text| {
        settings.options.rechecks = Some(text.parse().map_err(|_| "a number from 0 to 10")?);
        Ok(())
    }),
    ("DLOCK_SESSION", |settings, text| {
        let timeout = UrlParts::time(text).filter(|timeout| session::TIMEOUTS.contains(timeout));
        settings.session = Some(timeout.ok_or("a time from 300ms to 1h")?);
        Ok(())
    }),
    ("DLOCK_LABEL", |settings, text| {
        settings.label = Some(text.to_owned());
        if text.len() > 64 { Err("up to 64 bytes") } else { Ok(()) }
    }),
    ("DLOCK_PREFIX", |settings, text| {
        settings.prefix = Some(text.to_owned());
        if text.len() > 128 { Err("up to 128 bytes") } else { Ok(()) }
    }),
];

impl Settings {
    /// Sets one thing, unless that is wrong. Where the lease is not known, since it is wrong itself, no bound counts
    /// that depends on it.
    fn set(&mut self, set: Setter, text: &str, lease_is_known: bool) -> Result<(), String> {
        let mut with = if lease_is_known { self.clone() } else { Self::default() };
        set(&mut with, text).map_err(wrong_value)?;
        let under = |lease| Options { lease, ..with.options }.check();
        let checked = match lease_is_known {
            true => with.options.check(),
            false => under(MIN_LEASE).or_else(|_| under(MAX_LEASE)),
        };
        checked.map_err(|failure| failure.message().to_owned())?;
        *self = with;
        Ok(())
    }
}

fn wrong_value(wanted: &str) -> String {
    format!("the value is wrong; use {wanted}")
}

impl LocksBuilder {
    /// Takes options from environment variables, over what was set before: call it after the settings of the program,
    /// which are then the defaults. What is set for one [`Lock`](crate::Lock) or in an attribute counts over both. The
    /// variables are read once, by this call. Nothing else in dlock's libraries reads the environment but
    /// `dlock::init`, which takes these for every backend that it connects to, and `DLOCK_<NAME>_LEASE` and so on, in
    /// place of these, for the backend of `DLOCK_<NAME>_URL`.
    ///
    /// | variable | option | value |
    /// |---|---|---|
    /// | `DLOCK_LEASE` | [`with_lease`](Self::with_lease) | a time: 50ms to 24h |
    /// | `DLOCK_REQUEST_TIMEOUT` | [`with_request_timeout`](Self::with_request_timeout) | a time: 1ms to half the lease |
    /// | `DLOCK_WAIT` | [`with_wait`](Self::with_wait) | a time up to 24h, `0` or `forever` |
    /// | `DLOCK_MAX_HOLD` | [`with_max_hold`](Self::with_max_hold) | a time: the lease to 720h |
    /// | `DLOCK_RECHECKS` | [`with_rechecks`](Self::with_rechecks) | 0 to 10 |
    /// | `DLOCK_SESSION` | [`with_session`](Self::with_session) | a time: 300ms to 1h |
    /// | `DLOCK_LABEL` | [`with_label`](Self::with_label) | up to 64 bytes |
    /// | `DLOCK_PREFIX` | [`with_prefix`](Self::with_prefix) | up to 128 bytes |
    ///
    /// A time is a whole number with one unit: `ms`, `s`, `m` or `h`. Blanks around a value are left out, and a
    /// variable that is empty, or blank, counts as not set. Options without a variable are the program's alone: they
    /// change what its code may rely on.
    ///
    /// ```
    /// # fn main() -> Result<(), dlock_core::Error> {
    /// use std::time::Duration;
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::builder(Memory::new()).with_lease(Duration::from_secs(10)).from_env()?.build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) with the names of all variables whose values are
    /// none of these, or no UTF-8, and with what they should be. A bound counts with the lease as it is then, set by
    /// the program or by its variable.
    pub fn from_env(self) -> Result<Self> {
        self.with_variables(PREFIX, |name| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err("UTF-8"),
        })
    }

    /// Takes options from variables as [`take_variables`](Self::take_variables) does.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    #[doc(hidden)]
    pub fn with_variables(
        mut self,
        own: &str,
        get: impl Fn(&str) -> Result<Option<String>, &'static str>,
    ) -> Result<Self> {
        let wrong = self.take_variables(own, get);
        if wrong.is_empty() {
            return Ok(self);
        }
        let failure = Failure::invalid_config(wrong.join("; "));
        Err(Error::new(Operation::Configure, failure).on(self.backend.name()))
    }

    /// Takes options from variables that `get` reads, for `dlock::init`, and returns what is wrong, with the name of
    /// each variable. A variable that is set and begins with `own`, such as `DLOCK_ORDERS_LEASE` for `DLOCK_ORDERS_`,
    /// counts in place of the variable of all locks. `get` returns an error with what the value should have been,
    /// `None` when it is not set; an empty value counts as not set.
    #[doc(hidden)]
    pub fn take_variables(
        &mut self,
        own: &str,
        get: impl Fn(&str) -> Result<Option<String>, &'static str>,
    ) -> Vec<String> {
        let (label, prefix) = (self.label.take(), self.prefix.take());
        let mut settings = Settings { options: self.options, session: self.session, label, prefix };
        let (mut wrong, mut lease_is_known) = (Vec::new(), true);
        for (of_all, set) in VARIABLES {
            let own = of_all.replacen(PREFIX, own, 1);
            let of_own = get(&own);
            let is_set =
                !matches!(&of_own, Ok(None)) && !matches!(&of_own, Ok(Some(text)) if text.trim().is_empty());
            let (name, value) = if is_set { (own, of_own) } else { (of_all.to_owned(), get(of_all)) };
            let taken = match value {
                Ok(Some(text)) if !text.trim().is_empty() => settings.set(set, text.trim(), lease_is_known),
                Ok(_) => continue,
                Err(wanted) => Err(wrong_value(wanted)),
            };
            if let Err(what) = taken {
                lease_is_known &= of_all != LEASE;
                wrong.push(format!("the environment variable {name}: {what}"));
            }
        }
        Settings { options: self.options, session: self.session, label: self.label, prefix: self.prefix } =
            settings;
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Locks, Memory};

    fn from(variables: &[(&str, &str)]) -> Result<LocksBuilder> {
        let find =
            |name: &str| variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned());
        Locks::builder(Memory::new())
            .with_lease(Duration::from_secs(10))
            .with_variables("DLOCK_ORDERS_", |name| Ok(find(name)))
    }

    #[test]
    fn a_variable_of_one_of_several_locks_counts_in_place_of_that_of_all() {
        let builder = from(&[
            ("DLOCK_LEASE", "1m"),
            ("DLOCK_ORDERS_LEASE", "20s"),
            ("DLOCK_STOCK_LEASE", "5s"),
            ("DLOCK_ORDERS_LABEL", " "),
            ("DLOCK_LABEL", "all"),
            // More than half of the lease of all, were it not for the own one.
            ("DLOCK_REQUEST_TIMEOUT", "30s"),
            ("DLOCK_ORDERS_REQUEST_TIMEOUT", "10s"),
        ])
        .unwrap();
        assert_eq!(builder.options.lease, Duration::from_secs(20));
        assert_eq!(builder.options.request_timeout, Some(Duration::from_secs(10)));
        assert_eq!(builder.label.as_deref(), Some("all"));
        for (name, value) in [("DLOCK_ORDERS_LEASE", "1"), ("DLOCK_ORDERS_RECHECKS", "11")] {
            let text = from(&[("DLOCK_LEASE", "1m"), (name, value)]).map(drop).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn what_is_set_wins_over_the_program_and_what_is_not_set_or_empty_does_not() {
        let builder = from(&[
            ("DLOCK_WAIT", "forever"),
            ("DLOCK_REQUEST_TIMEOUT", " 5s "),
            ("DLOCK_MAX_HOLD", "2m"),
            ("DLOCK_RECHECKS", "0"),
            ("DLOCK_SESSION", "10s"),
            ("DLOCK_LABEL", "orders"),
            ("DLOCK_PREFIX", ""),
        ])
        .unwrap();
        assert_eq!(builder.options.lease, Duration::from_secs(10));
        assert_eq!(builder.options.wait, Wait::Forever);
        assert_eq!(builder.options.request_timeout, Some(Duration::from_secs(5)));
        assert_eq!(builder.options.max_hold, Some(Duration::from_secs(120)));
        assert_eq!(builder.options.rechecks, Some(0));
        assert_eq!(builder.session, Some(Duration::from_secs(10)));
        assert_eq!((builder.label.as_deref(), &builder.prefix), (Some("orders"), &None));
        builder.build().unwrap();
        // The bounds that depend on it are those of the new lease.
        let builder =
            from(&[("DLOCK_LEASE", "1h"), ("DLOCK_REQUEST_TIMEOUT", "30m"), ("DLOCK_WAIT", "0")]).unwrap();
        assert_eq!((builder.options.lease, builder.options.wait), (Duration::from_secs(3_600), Wait::No));
    }

    #[test]
    fn a_bad_value_is_an_error_with_the_name_of_its_variable() {
        let long = "x".repeat(129);
        for (name, value) in [
            ("DLOCK_LEASE", "30"),
            ("DLOCK_LEASE", "1ms"),
            ("DLOCK_LEASE", "25h"),
            ("DLOCK_LEASE", "1.5s"),
            ("DLOCK_LEASE", "-1s"),
            ("DLOCK_LEASE", "s"),
            ("DLOCK_LEASE", "99999999999999999999s"),
            ("DLOCK_LEASE", "9999999999999999999h"),
            ("DLOCK_REQUEST_TIMEOUT", "6s"),
            ("DLOCK_WAIT", "never"),
            ("DLOCK_WAIT", "25h"),
            ("DLOCK_MAX_HOLD", "1s"),
            ("DLOCK_RECHECKS", "11"),
            ("DLOCK_RECHECKS", "many"),
            ("DLOCK_SESSION", "299ms"),
            ("DLOCK_SESSION", "61m"),
            ("DLOCK_SESSION", "yes"),
            ("DLOCK_LABEL", &long),
            ("DLOCK_PREFIX", &long),
        ] {
            let error = from(&[(name, value)]).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(name), "{value}: {error}");
        }
        let error =
            Locks::builder(Memory::new()).with_variables(PREFIX, |_| Err("UTF-8")).map(drop).unwrap_err();
        assert!(error.to_string().contains("DLOCK_LEASE") && error.to_string().contains("UTF-8"), "{error}");
    }

    #[test]
    fn all_bad_values_are_in_one_error_and_no_good_one_is_for_its_neighbour() {
        let error = from(&[
            ("DLOCK_LEASE", "60"),
            // Right under the lease that was meant, and wrong under the program's.
            ("DLOCK_REQUEST_TIMEOUT", "20s"),
            ("DLOCK_MAX_HOLD", "5s"),
            ("DLOCK_WAIT", "never"),
            ("DLOCK_RECHECKS", "11"),
            ("DLOCK_LABEL", "orders"),
        ]);
        let error = error.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let text = error.to_string();
        for (name, is_wrong) in [
            ("DLOCK_LEASE", true),
            ("DLOCK_WAIT", true),
            ("DLOCK_RECHECKS", true),
            ("DLOCK_REQUEST_TIMEOUT", false),
            ("DLOCK_MAX_HOLD", false),
            ("DLOCK_LABEL", false),
        ] {
            assert_eq!(text.contains(name), is_wrong, "{name}: {text}");
        }
        // A value that no lease allows is wrong whatever the lease is.
        let text =
            from(&[("DLOCK_LEASE", "60"), ("DLOCK_MAX_HOLD", "721h")]).map(drop).unwrap_err().to_string();
        assert!(text.contains("DLOCK_LEASE") && text.contains("DLOCK_MAX_HOLD"), "{text}");
    }
}
