//! Readers, writers, permits and those who wait in line, of dlock and a library of Java on the same names.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use dlock_interop::peer::{Peer, times};
use dlock_testkit::history::{Event, Op};

use crate::scene::{Act, Scene, in_java};

const LEASE: Duration = Duration::from_secs(30);
const SHORT_LEASE: Duration = Duration::from_secs(3);
/// How many permits there are for all.
const PERMITS: usize = 3;
/// How many of a side stand in line.
const IN_LINE: usize = 4;

/// From when to when a worker believed in a hold.
struct Held {
    process: u32,
    from: u64,
    to: u64,
}

/// The holds of a history, in the order in which they began.
fn held(events: &[Event]) -> Vec<Held> {
    let ended = |acquired: &Event| {
        let same = |event: &&Event| {
            event.op == Op::Check && (event.process, event.hold) == (acquired.process, acquired.hold)
        };
        events.iter().find(same).map_or(u64::MAX, |event| event.invoked)
    };
    let acquired = events.iter().filter(|event| event.op == Op::Acquire);
    let mut held: Vec<_> = acquired
        .map(|event| Held { process: event.process, from: event.returned, to: ended(event) })
        .collect();
    held.sort_by_key(|held| held.from);
    held
}

/// Has workers of both sides hold one name for so long, each in its way. Returns what they did, and how often those of
/// Java and of Rust held it in the first and in the other ways.
async fn hold(act: &Act<'_>, name: &str, ways: &[&str], length: Duration) -> Result<(Vec<Event>, Vec<u32>)> {
    let mut workers = Vec::new();
    for side in ["java", "rust"] {
        for way in ways {
            workers.push((*way, act.worker(side).await?));
        }
    }
    for (way, worker) in &mut workers {
        worker.tell(&format!("holds {way} {name} 1000 2000 {}", length.as_millis())).await?;
    }
    let mut counts = Vec::new();
    for (_, worker) in &mut workers {
        counts.push(worker.answer().await?.parse()?);
    }
    Ok((act.events()?, counts))
}

/// No writer is beside anybody.
pub(crate) async fn readers_and_writers(scene: &Scene, length: Duration) -> Result<String> {
    const WAYS: [&str; 3] = ["write", "read", "read"];
    let act = scene.act(LEASE)?;
    let (events, counts) = hold(&act, "read_and_written", &WAYS, length).await?;
    ensure!(counts.iter().all(|count| *count > 0), "somebody never got in: {counts:?}");
    // The workers of a side were started in the order of their ways.
    let writes = |process: u32| process % 1_000 == if in_java(process) { 0 } else { 3 };
    let held = held(&events);
    let (mut beside, mut together) = (0, 0);
    for (at, one) in held.iter().enumerate() {
        for other in held[at + 1..].iter().take_while(|other| other.from < one.to) {
            match writes(one.process) || writes(other.process) {
                true => beside += 1,
                false => together += 1,
            }
        }
    }
    ensure!(beside == 0, "a writer was beside somebody {beside} times in {} holds", held.len());
    ensure!(together > 0, "no two readers were inside at the same time");
    let [java_wrote, java_read, java_also, wrote, read, also] = counts[..] else { return Ok(String::new()) };
    Ok(format!(
        "0 writers beside anybody in {} holds, {together} times two readers inside; Java wrote {java_wrote} and read {} \
         times, Rust wrote {wrote} and read {} times",
        held.len(),
        java_read + java_also,
        read + also
    ))
}

/// Never more than there are permits.
pub(crate) async fn permits(scene: &Scene, length: Duration) -> Result<String> {
    let (act, way) = (scene.act(LEASE)?, format!("permits-{PERMITS}"));
    let (events, counts) = hold(&act, "limited", &[&*way; PERMITS], length).await?;
    ensure!(counts.iter().all(|count| *count > 0), "somebody never got in: {counts:?}");
    let (held, mut most) = (held(&events), 0);
    for one in &held {
        let inside =
            held.iter().take_while(|other| other.from <= one.from).filter(|other| other.to > one.from);
        most = most.max(inside.count());
    }
    ensure!(most <= PERMITS, "{most} had one of {PERMITS} permits at a time");
    let (java, rust) = counts.split_at(PERMITS);
    let sum = |counts: &[u32]| counts.iter().sum::<u32>();
    Ok(format!(
        "{most} of {PERMITS} at a time at the most; Java {} times, Rust {} times",
        sum(java),
        sum(rust)
    ))
}

/// Those who wait in line are served in the order in which they came.
pub(crate) async fn in_line(scene: &Scene, rounds: usize) -> Result<String> {
    let act = scene.act(LEASE)?;
    let mut workers = Vec::new();
    for number in 0..2 * IN_LINE {
        workers.push(act.worker(if number % 2 == 0 { "java" } else { "rust" }).await?);
    }
    for round in 0..rounds {
        let name = format!("line_{round}");
        // Each is in the line before the next one comes.
        for place in 0..workers.len() {
            let worker = (place + round) % workers.len();
            workers[worker].tell(&format!("acquire fair {name}")).await?;
            if place == 0 {
                workers[worker].answer().await?;
            } else {
                scene.stand_in_line(&name, place).await?;
            }
        }
        let mut last = 0;
        for place in 0..workers.len() {
            let worker = (place + round) % workers.len();
            if place > 0 {
                let (_, acquired) = times(&workers[worker].answer().await?)?;
                ensure!(acquired > last, "the one at place {place} of {name} was served out of turn");
            }
            (last, _) = times(&workers[worker].ask(&format!("release fair {name}")).await?)?;
        }
    }
    Ok(format!("{} waiters of both sides, each at its turn", rounds * (workers.len() - 1)))
}

/// What a killed process had is free after its lease.
pub(crate) async fn outlived(scene: &Scene, (held, wanted): (&str, &str)) -> Result<String> {
    let act = scene.act(SHORT_LEASE)?;
    let mut longest = Duration::ZERO;
    for killed in ["java", "rust"] {
        let (rust, java) = act.pair().await?;
        let (mut holder, mut heir): (Peer, Peer) = if killed == "java" { (java, rust) } else { (rust, java) };
        let name = format!("{held}_of_{killed}");
        holder.ask(&format!("acquire {held} {name}")).await?;
        ensure!(heir.ask(&format!("try {wanted} {name} 200")).await? == "false", "{name} was granted twice");
        heir.tell(&format!("acquire {wanted} {name}")).await?;
        let died = holder.kill().await?;
        let (_, acquired) = times(&heir.answer().await?)?;
        let took = Duration::from_nanos(acquired.checked_sub(died).context("it was taken before")?);
        ensure!(took <= SHORT_LEASE.mul_f64(1.5), "taken over after {took:.2?}");
        longest = longest.max(took);
    }
    Ok(format!("after {longest:.2?} of a lease of {SHORT_LEASE:?} at the most"))
}

/// Readers of dlock and a lock of the other side, which has no readers.
pub(crate) async fn readers_beside(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let (mut first, mut other) = act.pair().await?;
    let mut second = act.worker("rust").await?;
    let refused = async |peer: &mut Peer, kind: &str| {
        let answer = peer.ask(&format!("try {kind} beside 300")).await?;
        ensure!(answer == "false", "{kind} was granted beside another");
        anyhow::Ok(())
    };
    first.ask("acquire read beside").await?;
    second.ask("acquire read beside").await?;
    refused(&mut other, "mutex").await?;
    first.ask("release read beside").await?;
    refused(&mut other, "mutex").await?;
    second.ask("release read beside").await?;
    other.ask("acquire mutex beside").await?;
    refused(&mut first, "read").await?;
    other.ask("release mutex beside").await?;
    first.ask("acquire read beside").await?;
    first.ask("release read beside").await?;
    Ok("two readers at a time, none beside a lock of the other side".to_owned())
}
