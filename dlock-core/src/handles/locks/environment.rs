//! Options that an operator changes, from the environment.

use std::env::VarError;

use super::LocksBuilder;
use crate::backend::UrlParts;
use crate::error::{Error, Failure, Operation, Result};
use crate::handles::options::Wait;

/// How a value is put in its place; what it should have been otherwise.
type Setter = fn(&mut LocksBuilder, &str) -> Result<(), &'static str>;

const A_TIME: &str = "a number with a unit, such as 500ms, 5s, 2m or 1h";

/// How the variables of all locks begin.
const PREFIX: &str = "DLOCK_";

/// In this order, since some bounds depend on the lease.
const VARIABLES: [(&str, Setter); 7] = [
    ("DLOCK_LEASE", |builder, text| {
        builder.options.lease = UrlParts::time(text).ok_or(A_TIME)?;
        Ok(())
    }),
    ("DLOCK_REQUEST_TIMEOUT", |builder, text| {
        builder.options.request_timeout = Some(UrlParts::time(text).ok_or(A_TIME)?);
        Ok(())
    }),
    ("DLOCK_WAIT", |builder, text| {
        builder.options.wait = match text {
            "0" => Wait::No,
            "forever" => Wait::Forever,
            text => Wait::For(
                UrlParts::time(text).ok_or("0, forever, or a number with a unit, such as 500ms, 5s or 2m")?,
            ),
        };
        Ok(())
    }),
    ("DLOCK_MAX_HOLD", |builder, text| {
        builder.options.max_hold = Some(UrlParts::time(text).ok_or(A_TIME)?);
        Ok(())
    }),
    ("DLOCK_RECHECKS", |builder, text| {
        builder.options.rechecks = Some(text.parse().map_err(|_| "a number from 0 to 10")?);
        Ok(())
    }),
    ("DLOCK_LABEL", |builder, text| {
        builder.label = Some(text.to_owned());
        if text.len() > 64 { Err("up to 64 bytes") } else { Ok(()) }
    }),
    ("DLOCK_PREFIX", |builder, text| {
        builder.prefix = Some(text.to_owned());
        if text.len() > 128 { Err("up to 128 bytes") } else { Ok(()) }
    }),
];

impl LocksBuilder {
    /// Takes options from environment variables, over what was set before. Nothing else in dlock's libraries reads the
    /// environment but `dlock::init`, which calls this; call it after the settings of the program, which are then the
    /// defaults.
    ///
    /// | variable | option | value |
    /// |---|---|---|
    /// | `DLOCK_LEASE` | [`with_lease`](Self::with_lease) | a time: 50ms to 24h |
    /// | `DLOCK_REQUEST_TIMEOUT` | [`with_request_timeout`](Self::with_request_timeout) | a time: 1ms to half the lease |
    /// | `DLOCK_WAIT` | [`with_wait`](Self::with_wait) | a time up to 24h, `0` or `forever` |
    /// | `DLOCK_MAX_HOLD` | [`with_max_hold`](Self::with_max_hold) | a time: the lease to 720h |
    /// | `DLOCK_RECHECKS` | [`with_rechecks`](Self::with_rechecks) | 0 to 10 |
    /// | `DLOCK_LABEL` | [`with_label`](Self::with_label) | up to 64 bytes |
    /// | `DLOCK_PREFIX` | [`with_prefix`](Self::with_prefix) | up to 128 bytes |
    ///
    /// A time is a whole number with one unit: `ms`, `s`, `m` or `h`. A variable that is empty counts as not set.
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
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) with the name of the variable, when its value is
    /// none of these.
    pub fn from_env(self) -> Result<Self> {
        self.with_variables(PREFIX, |name| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(VarError::NotPresent) => Ok(None),
            Err(VarError::NotUnicode(_)) => Err("UTF-8"),
        })
    }

    /// Takes options from variables that `get` reads, for `dlock::init`. Where one that begins with `own` is set, such
    /// as `DLOCK_ORDERS_LEASE` for `DLOCK_ORDERS_`, it counts in place of the one of all locks. What `get` reads is an
    /// error with what the value should have been, `None` when it is not set, and counts as not set when it is empty.
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
        let backend = self.backend.name();
        for (name, set) in VARIABLES {
            let (own, of_all) = (name.replacen(PREFIX, own, 1), name.to_owned());
            let of_own = get(&own);
            let is_set =
                !matches!(&of_own, Ok(None)) && !matches!(&of_own, Ok(Some(text)) if text.trim().is_empty());
            let (name, value) = if is_set { (own, of_own) } else { (of_all, get(name)) };
            let refuse = |what: String| {
                let failure = Failure::invalid_config(format!("the environment variable {name}: {what}"));
                Err(Error::new(Operation::Configure, failure).on(backend))
            };
            let set = match value {
                Ok(Some(text)) if !text.trim().is_empty() => set(&mut self, text.trim()),
                Ok(_) => continue,
                Err(wanted) => Err(wanted),
            };
            if let Err(wanted) = set {
                return refuse(format!("the value is wrong; use {wanted}"));
            }
            if let Err(failure) = self.options.check() {
                return refuse(failure.message().to_owned());
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            ("DLOCK_LABEL", "orders"),
            ("DLOCK_PREFIX", ""),
        ])
        .unwrap();
        assert_eq!(builder.options.lease, Duration::from_secs(10));
        assert_eq!(builder.options.wait, Wait::Forever);
        assert_eq!(builder.options.request_timeout, Some(Duration::from_secs(5)));
        assert_eq!(builder.options.max_hold, Some(Duration::from_secs(120)));
        assert_eq!(builder.options.rechecks, Some(0));
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
}
