//! The locks that a URL names.

use std::env::VarError;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use dlock::sql::SqliteOptions;
use dlock::{Locks, LocksBuilder};

use crate::trouble::Trouble;

/// The most bytes of a file with a URL, whatever else is in it.
const LONGEST_FILE: u64 = 1024 * 1024;

/// The label by which other processes see this one.
const LABEL: &str = "dlock-cli";

/// Opens the locks of a URL to take them. A database that is missing is made.
pub(crate) async fn open(url: &str) -> Result<Locks, Trouble> {
    build(dlock::from_url(refuse_memory(url)?).await?)
}

/// Opens the locks of a URL to look and to release. Nothing is made, so that a mistyped path is not a new and empty
/// store.
pub(crate) async fn look_into(url: &str) -> Result<Locks, Trouble> {
    let builder = match refuse_memory(url)? {
        url if url.starts_with("sqlite:") => Locks::builder(SqliteOptions::from_url(url)?.open().await?),
        url => dlock::from_url(url).await?,
    };
    build(builder)
}

/// Reads the URL in the first line of a file.
pub(crate) fn read_url(path: &Path) -> Result<String, Trouble> {
    let shown = path.to_string_lossy();
    if shown.contains("://") || shown.contains('@') && !path.exists() {
        return Err(Trouble::usage("this is a URL and not the path of a file; write --locks before it"));
    }
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text));
    read.map_err(|error| Trouble::usage(format!("{shown} cannot be read: {error}")))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(Trouble::usage(format!("{shown} is too long for a file with a URL")));
    }
    // Some editors begin a file with a byte order mark.
    match text.trim_start_matches('\u{feff}').lines().next().map(str::trim) {
        Some(url) if !url.is_empty() => Ok(url.to_owned()),
        _ => Err(Trouble::usage(format!("{shown} has no URL in its first line"))),
    }
}

/// Removes the variables with URLs, which may hold passwords, from the environment of a command: `DLOCK_URL`, and
/// `DLOCK_<NAME>_URL` of services with several backends.
pub(crate) fn hide_urls(command: &mut Command) {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| has_url(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
}

fn has_url(variable: &[u8]) -> bool {
    variable.starts_with(b"DLOCK_") && variable.ends_with(b"_URL")
}

fn refuse_memory(url: &str) -> Result<&str, Trouble> {
    if url.starts_with("memory:") {
        return Err(Trouble::usage("`memory:` is only for the process itself; use another URL"));
    }
    Ok(url)
}

/// Builds the locks with the prefix of services that begin with `dlock::init()` in this environment. The other
/// variables are those of services: here they are options of the command line.
fn build(builder: LocksBuilder) -> Result<Locks, Trouble> {
    let prefix = |name: &str| match std::env::var(name) {
        Ok(value) if name == "DLOCK_PREFIX" => Ok(Some(value)),
        Err(VarError::NotUnicode(_)) if name == "DLOCK_PREFIX" => Err("UTF-8"),
        _ => Ok(None),
    };
    Ok(builder.with_label(LABEL).with_variables("DLOCK_", prefix)?.build()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_with_urls_are_those_of_the_default_and_of_each_name() {
        for variable in ["DLOCK_URL", "DLOCK_ORDERS_URL", "DLOCK_zk_URL", "DLOCK__URL"] {
            assert!(has_url(variable.as_bytes()), "{variable}");
        }
        for variable in ["DLOCK_CURL", "DLOCK_LEASE", "OTHER_URL", "DLOCK_URL_FILE", "URL"] {
            assert!(!has_url(variable.as_bytes()), "{variable}");
        }
    }
}
