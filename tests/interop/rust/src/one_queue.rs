//! One queue of dlock, Curator, kazoo and go-zookeeper; and one of dlock and etcd's Go client.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use dlock_interop::peer::{Peer, times};
use dlock_testkit::checkers::{fence_order, overlap};
use dlock_testkit::history::Op;

use crate::scene::{Scene, side_of};

const LEASE: Duration = Duration::from_secs(30);
/// How long one that does not wait may take from its node to its grant.
const NOT_WAITED: Duration = Duration::from_millis(50);
/// Critical sections that a worker goes through at a time.
const SECTIONS: usize = 10;

/// Each of the sides waits behind each other one.
pub(crate) async fn behind_each_other(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let mut workers = Vec::new();
    let sides = scene.sides();
    for &side in &sides {
        workers.push((side, act.worker(side).await?, act.worker(side).await?));
    }
    let mut pairs = 0;
    for first in 0..sides.len() {
        for second in (0..sides.len()).filter(|second| *second != first) {
            let name = format!("{}_before_{}", sides[first], sides[second]);
            workers[first].1.ask(&format!("acquire mutex {name}")).await?;
            workers[second].2.tell(&format!("acquire mutex {name}")).await?;
            scene.listened_to(&name, 1).await?;
            // One that does not wait would have it by then.
            tokio::time::sleep(NOT_WAITED).await;
            let (released, _) = times(&workers[first].1.ask(&format!("release mutex {name}")).await?)?;
            let (_, acquired) = times(&workers[second].2.answer().await?)?;
            ensure!(acquired > released, "{name}: it did not wait");
            workers[second].2.ask(&format!("release mutex {name}")).await?;
            pairs += 1;
        }
    }
    Ok(format!("{pairs} pairs of {}", sides.join(", ")))
}

/// Eight workers on one lock, as many of each side, which all add to one counter for this long.
pub(crate) async fn all_at_once(scene: &Scene, length: Duration) -> Result<String> {
    let act = scene.act(LEASE)?;
    let mut workers = Vec::new();
    let sides = scene.sides();
    for side in sides.iter().cycle().take(8) {
        workers.push(act.worker(side).await?);
    }
    let end = Instant::now() + length;
    let work = async |mut worker: Peer| {
        let mut sections = 0;
        while Instant::now() < end {
            worker.ask(&format!("sections fenced one_queue one_queue {SECTIONS} 0 500")).await?;
            sections += SECTIONS;
        }
        anyhow::Ok(sections)
    };
    let [a, b, c, d, e, f, g, h] = <[Peer; 8]>::try_from(workers).ok().context("eight workers")?;
    let done = tokio::try_join!(work(a), work(b), work(c), work(d), work(e), work(f), work(g), work(h))?;
    let total: usize = <[usize; 8]>::from(done).iter().sum();
    let count = scene.counter("one_queue").await?;
    ensure!(count == total, "{} of {total} updates were lost", total.abs_diff(count));
    let events = act.events()?;
    let believed = overlap(&events);
    ensure!(believed.holds == total, "{} holds in the history of {total}", believed.holds);
    ensure!(believed.overlaps.is_empty(), "believed holds overlap: {:?}", believed.overlaps);
    // A fence is the transaction that made the node, so that their order is that of the queue.
    let fences = fence_order(&events);
    ensure!(fences.grants == total, "{} of {total} grants had a fence", fences.grants);
    ensure!(fences.inversions.is_empty(), "grants out of turn: {:?}", fences.inversions);
    let mut found = format!("{total} critical sections, 0 updates lost, 0 grants out of turn");
    for side in sides {
        let grants = events.iter().filter(|event| event.op == Op::Acquire && side_of(event.process) == side);
        found += &format!(", {} by {side}", grants.count());
    }
    Ok(found)
}
