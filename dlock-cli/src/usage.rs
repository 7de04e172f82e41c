//! Arguments of several commands, and suggestions in place of what is refused.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use dlock::{MAX_LEASE, MIN_LEASE, Wait};

use crate::trouble::Trouble;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The key of a lock, as an argument or an option.
#[derive(Debug, Default, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct KeyOf {
    /// The key of the lock
    #[arg(value_name = "KEY")]
    plain: Option<String>,
    /// The key, in place of the argument KEY
    #[arg(short, long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
}

impl KeyOf {
    pub(crate) fn get(&self) -> Result<&str, Trouble> {
        match (&self.plain, &self.key) {
            (Some(plain), Some(_)) => Err(twice(plain)),
            (Some(key), None) | (None, Some(key)) => Ok(key),
            (None, None) => Err(Trouble::usage("which lock? give its key")),
        }
    }
}

/// A key and a file; with `--key` the only argument is the file.
#[derive(Debug, Args)]
pub(crate) struct KeyAndFile {
    /// The key of the lock
    #[arg(value_name = "KEY")]
    first: PathBuf,
    /// The file that the baton is written to; `-` is the standard output
    #[arg(value_name = "FILE")]
    second: Option<PathBuf>,
    /// The key, in place of the argument KEY
    #[arg(short, long, value_name = "KEY", allow_hyphen_values = true)]
    key: Option<String>,
}

impl KeyAndFile {
    pub(crate) fn get(self) -> Result<(String, PathBuf), Trouble> {
        match (self.second, self.key) {
            (Some(_), Some(_)) => Err(twice(&self.first.to_string_lossy())),
            (None, Some(key)) => Ok((key, self.first)),
            (Some(file), None) => match self.first.into_os_string().into_string() {
                Ok(key) => Ok((key, file)),
                Err(_) => Err(Trouble::usage("the key is not UTF-8")),
            },
            (None, None) => Err(Trouble::usage("give a key and a file: dlock baton acquire KEY FILE")),
        }
    }
}

fn twice(plain: &str) -> Trouble {
    Trouble::usage(format!(
        "the key is given twice; leave out --key, or the argument {:?}",
        plain.chars().take(64).collect::<String>()
    ))
}

/// The time to wait for a lock.
#[derive(Debug, Args)]
pub(crate) struct Waiting {
    /// Wait for the lock for so long: a time such as 5s, 0, or `forever` [default: 30s]
    ///
    /// The default of `dlock run --once` is to wait until the command that runs elsewhere has ended.
    #[arg(short, long, value_name = "TIME", value_parser = wait, conflicts_with = "no_wait")]
    wait: Option<Wait>,
    /// Do not wait, as --wait 0
    #[arg(short, long)]
    no_wait: bool,
}

impl Waiting {
    pub(crate) fn get(&self) -> Option<Wait> {
        if self.no_wait { Some(Wait::No) } else { self.wait }
    }
}

/// Parses a time with its unit, as everywhere in dlock. A bare number is refused, since programs differ in the unit
/// that they assume.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|_| match text.parse::<u64>() {
        Ok(number) => format!("write a unit: {number}s for seconds, or ms, m, h"),
        Err(_) => "write a whole number with a unit, such as 500ms, 5s or 2m".to_owned(),
    })
}

pub(crate) fn grace(text: &str) -> Result<Duration, String> {
    within(duration(text)?, Duration::ZERO, DAY, "use up to 24h")
}

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    within(duration(text)?, MIN_LEASE, MAX_LEASE, "use 50ms to 24h")
}

/// Parses the error of a wall clock.
pub(crate) fn clock_error(text: &str) -> Result<Duration, String> {
    within(duration(text)?, Duration::ZERO, Duration::from_secs(3600), "use up to 1h")
}

/// Parses the pause between two looks. A shorter one would burden the store and show nothing more to an eye.
pub(crate) fn pause(text: &str) -> Result<Duration, String> {
    within(duration(text)?, Duration::from_millis(10), Duration::from_secs(3600), "use 10ms to 1h")
}

/// Parses the window of a job.
pub(crate) fn window(text: &str) -> Result<Duration, String> {
    within(duration(text)?, Duration::from_millis(1), DAY * 30, "use 1ms to 30days")
}

/// Parses a prefix of keys. A URL in its place is refused: it would be shown with its password where no key begins with
/// it.
pub(crate) fn prefix(text: &str) -> Result<String, String> {
    let schemes =
        ["redis", "rediss", "zk", "etcd", "postgres", "postgresql", "mysql", "mariadb", "sqlite", "quorum"];
    let is_url = text.contains("://") || text.contains('@');
    let scheme = text.split([':', '+']).next().unwrap_or_default();
    match is_url && schemes.contains(&scheme) {
        true => Err("this is a URL; write --locks before it".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn within(time: Duration, least: Duration, most: Duration, wanted: &str) -> Result<Duration, String> {
    if (least..=most).contains(&time) { Ok(time) } else { Err(wanted.to_owned()) }
}

fn wait(text: &str) -> Result<Wait, String> {
    match text {
        "0" => Ok(Wait::No),
        "forever" => Ok(Wait::Forever),
        text => match duration(text) {
            Ok(Duration::ZERO) => Ok(Wait::No),
            Ok(limit) => Ok(Wait::For(limit)),
            Err(wanted) => Err(format!("{wanted}; or 0 to try once, or forever")),
        },
    }
}

/// Adds to the error a tip about what the user probably meant.
pub(crate) fn advise(error: &mut clap::Error) {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let tip = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let known = word(ContextKind::InvalidSubcommand).and_then(in_place_of);
            let is_alike = error.get(ContextKind::SuggestedSubcommand).is_some();
            known.or(if is_alike { None } else { Some(OF_ANY) })
        }
        ErrorKind::UnknownArgument if takes_a_command(error) => {
            // Everything behind `--` is the command, whatever it begins with.
            let tip = "write `--` before the command, as in dlock run KEY -- COMMAND";
            let is_option = word(ContextKind::InvalidArg).is_some_and(|word| word.starts_with('-'));
            if is_option {
                error.remove(ContextKind::Suggested);
            }
            if is_option { None } else { Some(tip) }
        }
        _ => None,
    };
    if let Some(tip) = tip {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

/// Is `true` if the usage of the command that was called ends with a command to run.
fn takes_a_command(error: &clap::Error) -> bool {
    match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string().contains("-- COMMAND"),
        _ => false,
    }
}

/// The suggestion for a command that resembles no other one.
const OF_ANY: &str = "dlock run KEY -- COMMAND runs a command under a lock; dlock --help lists all commands";

/// Returns the suggestion for a command that other programs have.
fn in_place_of(word: &str) -> Option<&'static str> {
    match word {
        "lock" | "acquire" | "exec" => Some("dlock run KEY -- COMMAND runs a command under a lock"),
        "unlock" | "free" | "delete" | "rm" | "kill" => {
            Some("dlock release --force KEY takes a lock from its holder")
        }
        "list" | "holders" | "ps" => Some("dlock ls lists the locks that are held"),
        "show" | "info" | "status" | "get" => Some("dlock inspect KEY shows one lock, and dlock ls all"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_none_endless_or_a_time_with_a_unit() {
        assert_eq!(wait("0"), Ok(Wait::No));
        assert_eq!(wait("0s"), Ok(Wait::No));
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("500ms"), Ok(Wait::For(Duration::from_millis(500))));
        for wrong in ["", "5", "five", "-1s", "never"] {
            assert!(wait(wrong).is_err(), "{wrong:?}");
        }
        assert!(wait("5").is_err_and(|wanted| wanted.contains("5s for seconds")));
    }
}
