//! The answer that grants a lock is lost.

use std::time::Duration;

use anyhow::Result;
use dlock_rig::proxy::Loss;
use futures_util::future::join_all;

use super::{Blocked, Cell, LIMIT, leases};
use crate::stage::Stage;

/// What came of one acquire whose answer was lost.
enum Outcome {
    /// The caller has the lock after this time.
    Got(Duration),
    /// The caller has it, and somebody else too.
    Twice,
    /// It failed; how long the key was blocked then, if it was.
    Failed(Blocked),
    /// Nothing was heard of it.
    Hangs,
}

pub(super) async fn measure(stage: &Stage<'_>, loss: Loss) -> Result<Cell> {
    // Each in a process of its own, all at the same time.
    let all = join_all((0..stage.volume.of(5, 1)).map(|_| once(stage, loss))).await;
    let outcomes = all.into_iter().collect::<Result<Vec<_>>>()?;
    let count = outcomes.len();
    let got: Vec<Duration> = outcomes
        .iter()
        .filter_map(|outcome| if let Outcome::Got(time) = outcome { Some(*time) } else { None })
        .collect();
    let mut parts = Vec::new();
    if let Some(last) = got.iter().max() {
        parts.push(format!("{} of {count} get it after {}", got.len(), leases(stage, *last)));
    }
    let failed: Vec<&Blocked> = outcomes
        .iter()
        .filter_map(|outcome| if let Outcome::Failed(blocked) = outcome { Some(blocked) } else { None })
        .collect();
    if !failed.is_empty() {
        let longest = failed.iter().max_by_key(|blocked| (blocked.beyond, blocked.longest));
        let blocked = failed.iter().filter(|blocked| blocked.count > 0).count();
        let time = longest.map(|longest| longest.time(stage)).unwrap_or_default();
        let blocked = if blocked == 0 { "key free".to_owned() } else { format!("key blocked for {time}") };
        parts.push(format!("{} of {count} fail, {blocked}", failed.len()));
    }
    let number = |which: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| which(outcome)).count();
    match number(|outcome| matches!(outcome, Outcome::Hangs)) {
        0 => {}
        hang => parts.push(format!("{hang} of {count} hang for more than {LIMIT}")),
    }
    match number(|outcome| matches!(outcome, Outcome::Twice)) {
        0 => {}
        twice => parts.push(format!("{twice} of {count} have it together with somebody else")),
    }
    Ok(Cell::Text(parts.join("; ")))
}

async fn once(stage: &Stage<'_>, loss: Loss) -> Result<Outcome> {
    let keys = stage.keys(1);
    let proxy = stage.proxy()?;
    let (mut subject, mut probe) = (stage.open_behind(&proxy).await?, stage.open().await?);
    // Connections, scripts and directories are there afterwards.
    for contender in [&mut probe, &mut subject] {
        for _ in 0..2 {
            let taken = contender.take(&keys, false).await?;
            contender.release(taken.into_iter().map(|(id, _)| id)).await?;
        }
    }
    proxy.lose_reply(1, stage.peer.store.grants(), loss);
    let mut call = subject.acquire(&keys[0], Duration::ZERO, false).await?;
    let said = call.answer(stage.lease * LIMIT).await;
    let mut next = probe.acquire(&keys[0], Duration::ZERO, false).await?;
    Ok(match said {
        None => Outcome::Hangs,
        Some(said) if said.is_acquired() => {
            let twice = next.answer(stage.lease / 6).await.is_some();
            subject.release([call.id]).await?;
            if twice { Outcome::Twice } else { Outcome::Got(said.at - call.given) }
        }
        Some(_) => Outcome::Failed(Blocked::of(stage, vec![next]).await),
    })
}
