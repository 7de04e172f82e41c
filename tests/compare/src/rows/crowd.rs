//! Very many waiters for one key.

use std::time::{Duration, Instant};

use anyhow::Result;
use dlock_rig::proxy::Proxy;
use tokio::time::sleep;

use super::Cell;
use crate::stage::Stage;

/// Long enough that nothing has to be renewed in between, also by those that do not renew.
const LEASE: Duration = Duration::from_secs(60);

/// How long all of them may take to have had their turns.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn measure(stage: &Stage<'_>) -> Result<Cell> {
    let stage = stage.with_lease(LEASE);
    let count = stage.volume.of(1_000, 20);
    let second = Duration::from_secs(if stage.volume.quick { 1 } else { 3 });
    let keys = stage.keys(1);
    let proxy = stage.proxy()?;
    let (mut holder, mut waiters) = (stage.open().await?, stage.open_behind(&proxy).await?);
    let taken = holder.take(&keys, false).await?;
    let mut turns = waiters.order(&format!("turns {} {count}", keys[0])).await?;
    // All of them wait, as far as can be seen from outside.
    sleep(second * 3).await;
    let before = requests(&proxy);
    sleep(second).await;
    let (waiting, since) = (requests(&proxy), Instant::now());
    holder.release(taken.into_iter().map(|(id, _)| id)).await?;
    let connections = proxy.traffic().open;
    let Some(said) = turns.answer(LIMIT).await else {
        return Ok(Cell::Text(format!("not done after {} s", LIMIT.as_secs())));
    };
    let turned = (requests(&proxy) - waiting) as f64 / count as f64;
    let idle = (waiting - before) as f64 / second.as_secs_f64();
    let mut text = format!("{turned:.1}; {idle:.0}; {connections}");
    if said.words != "turned 0" {
        text += &format!(" ({})", said.words.replace("turned", "failures:"));
    }
    Ok(Cell::Timed(said.at - since, text))
}

/// What clients have asked for so far.
fn requests(proxy: &Proxy) -> u64 {
    proxy.requests().values().sum()
}
