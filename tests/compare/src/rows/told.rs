//! Locks that are gone on the server, and when their holder knows.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use super::{Cell, LIMIT, spread};
use crate::contender::Contender;
use crate::stage::Stage;

/// Somebody deletes the lock.
pub(super) async fn of_a_deletion(stage: &Stage<'_>) -> Result<Cell> {
    let (rounds, each) = (stage.volume.of(3, 1), 5);
    let mut random = fastrand::Rng::with_seed(stage.volume.seed);
    let mut times = Vec::new();
    let mut holder = stage.open().await?;
    for _ in 0..rounds {
        let keys = stage.keys(each);
        let taken = holder.take(&keys, false).await?;
        sleep(stage.lease.mul_f64(0.2 + 0.5 * random.f64())).await;
        let mut watched = Vec::new();
        for ((id, _), key) in taken.iter().zip(&keys) {
            let mut watch = holder.order(&format!("watch {id}")).await?;
            let listens = watch.answer(stage.lease).await.is_some_and(|said| said.words == "watching");
            if !stage.delete(key)? {
                return Ok(Cell::none("see the next line"));
            }
            if !listens {
                return Ok(Cell::Text(format!("nothing tells; {}", asked(&mut holder, *id).await?)));
            }
            watched.push((watch, Instant::now()));
        }
        for (mut watch, since) in watched {
            let said =
                watch.answer((since + stage.lease * LIMIT).saturating_duration_since(Instant::now())).await;
            times.extend(said.map(|said| said.at.saturating_duration_since(since)));
        }
        if times.is_empty() {
            return Ok(Cell::Text(format!("not within {LIMIT}; {}", asked(&mut holder, taken[0].0).await?)));
        }
    }
    Ok(Cell::Text(spread(stage, times, rounds * each)))
}

/// The server ends the session.
pub(super) async fn of_the_sessions_end(stage: &Stage<'_>) -> Result<Cell> {
    let rounds = stage.volume.of(5, 1);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let keys = stage.keys(1);
        let mut holder = stage.open().await?;
        let (id, _) = holder.take(&keys, false).await?[0];
        let mut watch = holder.order(&format!("watch {id}")).await?;
        let listens = watch.answer(stage.lease).await.is_some_and(|said| said.words == "watching");
        let since = Instant::now();
        stage.end_sessions();
        if !stage.peer.renews() {
            return Ok(Cell::none("not promised: does not renew"));
        }
        if !stage.peer.has_sessions() {
            // As long as a lease, it has to be renewed over another connection.
            sleep(stage.lease.mul_f64(1.2)).await;
            let holds = holder.ask(&format!("release {id}")).await?.words == "released";
            return Ok(Cell::none(if holds { "keeps the lock" } else { "loses the lock" }));
        }
        if !listens {
            return Ok(Cell::Text(format!("nothing tells; {}", asked(&mut holder, id).await?)));
        }
        let said = watch.answer(stage.lease * LIMIT).await;
        times.extend(said.map(|said| said.at.saturating_duration_since(since)));
    }
    Ok(Cell::Text(spread(stage, times, rounds)))
}

/// What the library answers when the holder asks, a moment later.
async fn asked(holder: &mut Contender, id: u64) -> Result<&'static str> {
    sleep(Duration::from_millis(100)).await;
    let gone = holder.ask(&format!("check {id}")).await?.words == "gone";
    Ok(if gone { "says so when asked" } else { "says \"held\" when asked" })
}
