//! Acquires that are given up while a request is on its way, or while they wait.

use std::time::{Duration, Instant};

use anyhow::Result;
use dlock_rig::proxy::{Direction, Flow};

use super::{Blocked, Cell, answers, leases};
use crate::stage::Stage;

/// How long a request, and how long an answer takes.
const WAY: Duration = Duration::from_millis(20);

/// The latest time at which an acquire is given up.
const LATEST: u64 = 100;

/// Half of the keys are free, half are held by another process, which releases them afterwards.
pub(super) async fn measure(stage: &Stage<'_>, cancelled: bool) -> Result<Cell> {
    let keys = stage.keys(stage.volume.of(100, 10));
    let proxy = stage.proxy()?;
    let (mut subject, mut other) = (stage.open_behind(&proxy).await?, stage.open().await?);
    // Connections and directories are there afterwards.
    let taken = subject.take(&keys, false).await?;
    subject.release(taken.into_iter().map(|(id, _)| id)).await?;
    let held = other.take(&keys[keys.len() / 2..], false).await?;
    proxy.set(Direction::ToServer, Flow::Delay(WAY));
    proxy.set(Direction::ToClient, Flow::Delay(WAY));

    let mut random = fastrand::Rng::with_seed(stage.volume.seed);
    let mut calls = Vec::new();
    let mut ends = Vec::new();
    for key in &keys {
        let after = Duration::from_millis(random.u64(1..=LATEST));
        let wait = if cancelled { Duration::ZERO } else { after };
        let call = subject.acquire(key, wait, false).await?;
        ends.push((call.given + after, call.id));
        calls.push(call);
    }
    if cancelled {
        ends.sort();
        for (at, id) in ends {
            tokio::time::sleep_until(at.into()).await;
            drop(subject.order(&format!("cancel {id}")).await?);
        }
    }
    let said = answers(&mut calls, Instant::now(), stage.lease / 2).await;
    if said.iter().flatten().any(|said| said.words == "unsupported") {
        return Ok(Cell::none("not offered"));
    }
    let hung = said.iter().filter(|said| said.is_none()).count();
    let won =
        calls.iter().zip(&said).filter(|(_, said)| said.as_ref().is_some_and(|said| said.is_acquired()));
    let won: Vec<u64> = won.map(|(call, _)| call.id).collect();
    let given_up = keys.len() - won.len();
    proxy.mend();
    subject.release(won).await?;
    other.release(held.into_iter().map(|(id, _)| id)).await?;

    let blocked = Blocked::look(stage, &keys).await?;
    let mut text = format!("{} of {given_up}", blocked.count);
    if blocked.count > 0 {
        text += &format!(
            ", for {}",
            if blocked.beyond { blocked.time(stage) } else { leases(stage, blocked.longest) }
        );
    }
    if hung > 0 {
        text += &format!("; {hung} did not return");
    }
    Ok(Cell::Text(text))
}
