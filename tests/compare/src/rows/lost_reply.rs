//! The answer that grants a lock is lost.

use std::time::Duration;

use anyhow::{Result, ensure};
use dlock_rig::proxy::{Loss, Proxy};
use futures_util::future::join_all;
use tokio::sync::Mutex;

use super::{Blocked, Cell, LIMIT, leases};
use crate::contender::Contender;
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
    let keys = stage.keys(stage.volume.of(5, 1));
    let mut probe = stage.open().await?;
    let mut subjects = Vec::new();
    // Connections, scripts and directories are there afterwards.
    for key in &keys {
        let proxy = stage.proxy()?;
        let mut subject = stage.open_behind(&proxy).await?;
        for contender in [&mut probe, &mut subject] {
            for _ in 0..2 {
                let taken = contender.take(std::slice::from_ref(key), false).await?;
                contender.release(taken.into_iter().map(|(id, _)| id)).await?;
            }
        }
        subjects.push((key, proxy, subject));
    }
    let probe = Mutex::new(probe);
    let all = join_all(subjects.into_iter().map(|(key, proxy, mut subject)| {
        let probe = &probe;
        async move { once(stage, key, &proxy, &mut subject, probe, loss).await }
    }));
    let outcomes = all.await.into_iter().collect::<Result<Vec<_>>>()?;
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

/// One acquire, by a process of its own.
async fn once(
    stage: &Stage<'_>,
    key: &str,
    proxy: &Proxy,
    subject: &mut Contender,
    probe: &Mutex<Contender>,
    loss: Loss,
) -> Result<Outcome> {
    proxy.lose_reply(1, stage.peer.store.grants(), loss);
    let mut call = subject.acquire(key, Duration::ZERO, false).await?;
    let said = call.answer(stage.lease * LIMIT).await;
    let mut next = probe.lock().await.acquire(key, Duration::ZERO, false).await?;
    ensure!(proxy.lost() == 1, "no reply was lost");
    Ok(match said {
        None => Outcome::Hangs,
        Some(said) if said.is_acquired() => {
            let twice = next.answer(stage.lease / 6).await.is_some();
            // It may have been lost since.
            drop(subject.order(&format!("release {}", call.id)).await?.answer(stage.lease).await);
            if twice { Outcome::Twice } else { Outcome::Got(said.at - call.given) }
        }
        Some(_) => Outcome::Failed(Blocked::of(stage, vec![next]).await),
    })
}
