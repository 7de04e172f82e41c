//! How many permits a semaphore has.

use std::io::{Write, stdout};

use dlock::Locks;
use serde_json::json;

use crate::Resize;
use crate::show::{self, printable};
use crate::trouble::Trouble;

/// Changes the number, and says what it was.
pub(crate) async fn resize(locks: &Locks, resize: &Resize, json: bool) -> Result<u8, Trouble> {
    let Resize { key, permits } = resize;
    let before = locks.resize_semaphore(key, *permits).await?;
    let mut out = stdout().lock();
    if json {
        let document = json!({ "key": key, "before": before, "permits": before.map(|_| permits) });
        writeln!(out, "{}", show::json(&document)?)?;
        return Ok(0);
    }
    let shown = printable(key);
    match before {
        Some(before) => writeln!(out, "{shown} has {permits} permits, and had {before}")?,
        None => writeln!(out, "there is no semaphore {shown}; its first user sets the number of permits")?,
    }
    Ok(0)
}
