//! Locks in a SQLite database, against the bare statements.

use anyhow::Result;

use crate::measure::Settings;
use crate::report::Row;

pub(crate) fn url(dir: &tempfile::TempDir) -> String {
    format!("sqlite://{}", dir.path().join("locks.db").display())
}

pub(crate) fn pair(_settings: &Settings) -> Result<Vec<Row>> {
    Ok(Vec::new())
}
