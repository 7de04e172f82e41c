//! The locks that the URL names.

use std::path::Path;

use dlock::sql::SqliteOptions;
use dlock::{Locks, LocksBuilder};

use crate::trouble::Trouble;

/// What this process calls itself to others.
const LABEL: &str = "dlock-cli";

/// To take locks; makes a database that is missing.
pub(crate) async fn open(url: &str) -> Result<Locks, Trouble> {
    build(dlock::from_url(refuse_memory(url)?).await?)
}

/// To look and to release; makes nothing, so that a mistyped path is not a new and empty store.
pub(crate) async fn look_into(url: &str) -> Result<Locks, Trouble> {
    let builder = match refuse_memory(url)? {
        url if url.starts_with("sqlite:") => Locks::builder(SqliteOptions::from_url(url)?.open().await?),
        url => dlock::from_url(url).await?,
    };
    build(builder)
}

/// The first line of a file.
pub(crate) fn read_url(path: &Path) -> Result<String, Trouble> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Trouble::usage(format!("{} cannot be read: {error}", path.display())))?;
    // Some editors put a mark of the byte order before everything.
    match text.trim_start_matches('\u{feff}').lines().next().map(str::trim) {
        Some(url) if !url.is_empty() => Ok(url.to_owned()),
        _ => Err(Trouble::usage(format!("{} has no URL in its first line", path.display()))),
    }
}

fn refuse_memory(url: &str) -> Result<&str, Trouble> {
    if url.starts_with("memory:") {
        return Err(Trouble::usage("`memory:` is only for the process itself; use another URL"));
    }
    Ok(url)
}

fn build(builder: LocksBuilder) -> Result<Locks, Trouble> {
    Ok(builder.with_label(LABEL).build()?)
}
