//! Holders that are cut off or killed, and who holds the lock next.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use super::{Cell, LIMIT, answers, leases, spread, wait_for};
use crate::contender::Said;
use crate::stage::Stage;

/// The holder's process is killed.
pub(super) async fn killed(stage: &Stage<'_>) -> Result<Cell> {
    let mut times = Vec::new();
    let (rounds, each) = (stage.volume.of(3, 1), 5);
    let mut random = fastrand::Rng::with_seed(stage.volume.seed);
    let mut next = stage.open().await?;
    for _ in 0..rounds {
        let keys = stage.keys(each);
        let mut holder = stage.open().await?;
        holder.take(&keys, false).await?;
        let mut waits = wait_for(&mut next, &keys, false).await?;
        sleep(stage.lease.mul_f64(0.3 + 0.5 * random.f64())).await;
        let since = Instant::now();
        holder.kill().await?;
        times.extend(took(&answers(&mut waits, since, stage.lease * LIMIT).await, since));
    }
    Ok(Cell::Text(spread(stage, times, rounds * each)))
}

/// Nothing passes between the holder and the server any more, and no connection is closed.
pub(super) async fn cut_off(stage: &Stage<'_>) -> Result<Cell> {
    let keys = stage.keys(5);
    let proxy = stage.proxy()?;
    let (mut holder, mut next) = (stage.open_behind(&proxy).await?, stage.open().await?);
    let taken = holder.take(&keys, false).await?;
    let mut watches = Vec::new();
    let mut deaf = false;
    for (id, _) in &taken {
        let mut watch = holder.order(&format!("watch {id}")).await?;
        let said = watch.answer(stage.lease).await;
        deaf |= said.is_none_or(|said| said.words != "watching");
        watches.push(watch);
    }
    let mut waits = wait_for(&mut next, &keys, false).await?;
    sleep(stage.lease / 2).await;
    let since = Instant::now();
    proxy.black_hole();
    let limit = stage.lease * LIMIT;
    let (told, got) = tokio::join!(
        async { if deaf { Vec::new() } else { answers(&mut watches, since, limit).await } },
        answers(&mut waits, since, limit),
    );
    let never = format!("not within {LIMIT}");
    let of = |said: &[Option<Said>]| {
        let times = took(said, since);
        times.iter().max().filter(|_| times.len() == said.len()).map(|last| leases(stage, *last))
    };
    if deaf {
        // Who has nothing to listen to can still ask, when the next one has it.
        let asked = holder.order(&format!("check {}", taken[0].0)).await?.answer(stage.lease).await;
        let says = match asked.as_ref().map(|said| &*said.words) {
            Some("gone") => "says so when asked",
            Some("held") => "says \"held\" when asked",
            _ => "no answer when asked",
        };
        let next = of(&got).unwrap_or(never);
        return Ok(Cell::Text(format!("nothing tells, {says}; {next}")));
    }
    let knows = of(&told).unwrap_or_else(|| never.clone());
    let mut text = format!("{knows}; {}", of(&got).unwrap_or(never));
    let late = told.iter().zip(&got).filter_map(|(told, got)| {
        let got = got.as_ref()?.at;
        Some(told.as_ref().map_or(limit, |told| told.at.saturating_duration_since(got)))
    });
    if let Some(late) = late.max().filter(|late| !late.is_zero()) {
        let time = if late == limit { String::new() } else { format!(" for {}", leases(stage, late)) };
        text += &format!("; **two holders{time}**");
    }
    Ok(Cell::Text(text))
}

fn took(said: &[Option<Said>], since: Instant) -> Vec<Duration> {
    said.iter().flatten().map(|said| said.at.saturating_duration_since(since)).collect()
}
