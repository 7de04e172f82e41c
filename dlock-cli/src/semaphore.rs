//! Changing the number of permits of a semaphore.

use dlock::Locks;
use serde_json::json;

use crate::Resize;
use crate::report::changed;
use crate::show::printable;
use crate::trouble::Trouble;

/// Changes the number of permits, and prints the previous one.
pub(crate) async fn resize(locks: &Locks, resize: &Resize, json: bool) -> Result<u8, Trouble> {
    let Resize { key, permits } = resize;
    let before = locks.resize_semaphore(key, *permits).await?;
    let document = json!({ "key": key, "before": before, "permits": before.map(|_| permits) });
    let shown = printable(key);
    let text = match before {
        Some(before) => format!("{shown} has {permits} permits, and had {before}"),
        None => format!("there is no semaphore {shown}; its first user sets the number of permits"),
    };
    Ok(changed(json, &document, &text))
}
