//! One leader of dlock's candidates and Curator's leader latches, or the elections of etcd's Go client.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use dlock_interop::peer::times;
use dlock_testkit::checkers::overlap;
use dlock_testkit::history::Op;

use crate::scene::{Scene, side_of};

const LEASE: Duration = Duration::from_secs(30);
/// A session that the server is rid of soon.
const SHORT_LEASE: Duration = Duration::from_secs(3);
const SECTIONS: usize = 20;

/// Each side names the leader of the other, and leads when that one leaves.
pub(crate) async fn seen(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let (mut rust, mut java) = act.pair().await?;
    java.ask("acquire latch seen_leader").await?;
    let theirs = java.ask("leader seen_leader").await?;
    ensure!(theirs.starts_with("java-"), "Curator names itself {theirs:?}");
    let ours = rust.ask("leader seen_leader").await?;
    ensure!(ours.contains(&theirs), "Curator says {theirs:?} leads, and dlock {ours:?}");
    rust.tell("acquire latch seen_leader").await?;
    scene.listened_to("seen_leader", 1).await?;
    let (left, _) = times(&java.ask("release latch seen_leader").await?)?;
    let (_, led) = times(&rust.answer().await?)?;
    ensure!(led > left, "both led");
    let ours = java.ask("leader seen_leader").await?;
    ensure!(ours.contains("pid=") && ours.contains("host="), "Curator names dlock's leader {ours:?}");
    java.tell("acquire latch seen_leader").await?;
    scene.listened_to("seen_leader", 1).await?;
    let (left, _) = times(&rust.ask("release latch seen_leader").await?)?;
    let (_, leads) = times(&java.answer().await?)?;
    ensure!(leads > left, "both led");
    java.ask("release latch seen_leader").await?;
    let took = Duration::from_nanos(led.saturating_sub(left).max(leads - left));
    Ok(format!("{theirs} and {ours:?}, the next one within {took:.2?}"))
}

/// As [`seen`], where the other side is the Election of etcd's Go client, which also tells an observer of each leader.
pub(crate) async fn observed(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let (mut rust, mut go) = act.pair().await?;
    let mut observer = act.worker("go").await?;
    observer.ask("observe seen_leader").await?;
    go.ask("acquire latch seen_leader").await?;
    let theirs = observer.ask("observed seen_leader go-").await?;
    let seen = rust.ask("leader seen_leader").await?;
    rust.tell("acquire latch seen_leader").await?;
    scene.listened_to("seen_leader", 1).await?;
    let (left, _) = times(&go.ask("release latch seen_leader").await?)?;
    let (_, led) = times(&rust.answer().await?)?;
    ensure!(led > left, "both led");
    let ours = observer.ask("observed seen_leader pid=").await?;
    let asked = go.ask("leader seen_leader").await?;
    ensure!(asked == ours && ours.contains("host="), "the observer saw {ours:?}, and {asked:?} leads");
    go.tell("acquire latch seen_leader").await?;
    scene.listened_to("seen_leader", 1).await?;
    let (left, _) = times(&rust.ask("release latch seen_leader").await?)?;
    let (_, leads) = times(&go.answer().await?)?;
    ensure!(leads > left, "both led");
    observer.ask("observed seen_leader go-").await?;
    go.ask("release latch seen_leader").await?;
    let took = Duration::from_nanos(led.saturating_sub(left).max(leads - left));
    Ok(format!("{theirs}, for dlock {seen:?}, and {ours:?}, the next one within {took:.2?}"))
}

/// Four of each side lead in turn, and add to one counter while they do.
pub(crate) async fn exclusion(scene: &Scene, each: usize) -> Result<String> {
    let act = scene.act(LEASE)?;
    let mut workers = Vec::new();
    for side in ["rust", scene.other()].iter().cycle().take(8) {
        workers.push(act.worker(side).await?);
    }
    for worker in &mut workers {
        worker.tell(&format!("sections latch terms terms {each} 0 1000")).await?;
    }
    for worker in &mut workers {
        worker.answer().await?;
    }
    let (count, believed) = (scene.counter("terms").await?, overlap(&act.events()?));
    ensure!(count == 8 * each, "{} of {} updates were lost", 8 * each - count, 8 * each);
    ensure!(believed.holds == 8 * each, "{} terms in the history", believed.holds);
    ensure!(believed.overlaps.is_empty(), "terms overlap: {:?}", believed.overlaps);
    Ok(format!("{count} terms, 0 updates lost, 0 overlaps"))
}

/// Two of each side, of which one is killed again and again, for this long.
pub(crate) async fn killed(scene: &Scene, length: Duration) -> Result<String> {
    let act = scene.act(SHORT_LEASE)?;
    let sides = ["rust", scene.other(), scene.other(), "rust"];
    let mut workers = Vec::new();
    for side in sides {
        workers.push(act.worker(side).await?);
    }
    let end = Instant::now() + length;
    let (mut kills, mut longest) = (0_usize, Duration::ZERO);
    while Instant::now() < end {
        let began = Instant::now();
        for worker in &mut workers {
            worker.tell(&format!("sections latch elected elected {SECTIONS} 5000 500")).await?;
        }
        let place = kills % sides.len();
        let victim = workers.remove(place);
        // Anywhere in its work.
        tokio::time::sleep(Duration::from_millis(40 + u64::try_from(kills * 67 % 200)?)).await;
        victim.kill().await?;
        kills += 1;
        for worker in &mut workers {
            worker.answer().await?;
        }
        longest = longest.max(began.elapsed());
        workers.insert(place, act.worker(sides[place]).await?);
    }
    let events = act.events()?;
    let believed = overlap(&events);
    ensure!(believed.overlaps.is_empty(), "terms overlap: {:?}", believed.overlaps);
    let mut found = format!("{kills} killed, {} terms, 0 overlaps", believed.holds);
    for side in ["rust", scene.other()] {
        let terms =
            events.iter().filter(|event| event.op == Op::Acquire && side_of(event.process) == side).count();
        ensure!(terms > 0, "nobody led in {side}");
        found += &format!(", {terms} in {side}");
    }
    Ok(format!("{found}; the longest round took {longest:.1?}"))
}
