//! The checks. Each returns what it found, in words.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dlock_interop::peer::times;
use dlock_interop::{handoffs, percentile};
use dlock_testkit::checkers::{fence_order, overlap};
use dlock_testkit::history::{Event, Op};
use dlock_testkit::now_ns;

use crate::scene::{Act, Scene, side_of};

const LEASE: Duration = Duration::from_secs(30);
/// For checks that wait until it ends.
const SHORT_LEASE: Duration = Duration::from_secs(3);

/// Four workers a side on one lock, which all add to one counter. Returns the counter and what they did.
async fn contend(scene: &Scene, act: &Act<'_>, kind: &str, each: usize) -> Result<(usize, Vec<Event>)> {
    let (name, counter) = (contended(kind), format!("counter_{kind}"));
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(act.worker(scene.other()).await?);
        workers.push(act.worker("rust").await?);
    }
    for worker in &mut workers {
        worker.tell(&format!("sections {kind} {name} {counter} {each} 0 1000")).await?;
    }
    for worker in &mut workers {
        worker.answer().await?;
    }
    Ok((scene.counter(&counter).await?, act.events()?))
}

fn contended(kind: &str) -> String {
    format!("contended_{kind}")
}

pub(crate) async fn control(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let (count, events) = contend(scene, &act, "none", 100).await?;
    let overlaps = overlap(&events).overlaps.len();
    ensure!(count < 800 && overlaps > 0, "nothing was lost ({count} of 800), so the counter proves nothing");
    Ok(format!("{} of 800 updates lost, {overlaps} overlaps", 800 - count))
}

pub(crate) async fn exclusion(scene: &Scene, kind: &str, each: usize) -> Result<String> {
    let (_, found) = excluded(scene, kind, each).await?;
    Ok(found)
}

/// What the workers did, and what there is to say of it.
async fn excluded(scene: &Scene, kind: &str, each: usize) -> Result<(Vec<Event>, String)> {
    let act = scene.act(LEASE)?;
    let (count, events) = contend(scene, &act, kind, each).await?;
    let believed = overlap(&events);
    ensure!(count == 8 * each, "the counter is {count} after {} critical sections", 8 * each);
    ensure!(believed.holds == 8 * each, "{} holds in the history", believed.holds);
    ensure!(believed.overlaps.is_empty(), "believed holds overlap: {:?}", believed.overlaps);
    // A plain lock of Redisson has no fences; those of a fenced one are of one row with ours.
    let other = scene.other();
    let (in_other, in_rust) = (|process| side_of(process) == other, |process| side_of(process) == "rust");
    let fences = fence_order(&events);
    let fenced = if kind == "fenced" { 8 * each } else { 4 * each };
    ensure!(fences.grants == fenced, "{} of {fenced} grants had a fence", fences.grants);
    ensure!(fences.inversions.is_empty(), "fences out of order: {:?}", fences.inversions);
    let mut found = format!("{count} critical sections, counter exact, 0 overlaps, fences in order");
    for (to, took) in [
        (other, handoffs(&events, &contended(kind), in_rust, in_other)),
        ("rust", handoffs(&events, &contended(kind), in_other, in_rust)),
    ] {
        ensure!(!took.is_empty(), "no waiter in {to} ever took over from the other side");
        let (p50, p99) = (percentile(&took, 50), percentile(&took, 99));
        found += &format!("; {} handoffs to {to}, p50 {p50:.2?}, p99 {p99:.2?}", took.len());
    }
    Ok((events, found))
}

/// Of ZooKeeper and etcd, where a fence tells when the place in the queue was taken.
pub(crate) async fn in_line(scene: &Scene, each: usize) -> Result<String> {
    let (events, found) = excluded(scene, "fenced", each).await?;
    let mut grants: Vec<_> = events
        .iter()
        .filter(|event| event.op == Op::Acquire)
        .filter_map(|event| Some((event.returned, event.fence?)))
        .collect();
    grants.sort_unstable();
    let passed = grants.windows(2).filter(|pair| pair[0].1 >= pair[1].1).count();
    ensure!(grants.len() == 8 * each, "{} grants have a place in the queue", grants.len());
    ensure!(passed == 0, "{passed} grants of {} were out of turn", grants.len());
    Ok(format!("{found}; 0 of {} grants out of turn", grants.len()))
}

pub(crate) async fn wakes(scene: &Scene) -> Result<String> {
    const ROUNDS: usize = 20;
    let kind = scene.kind();
    // The other side asks again when the lease ends, if at all, and dlock when its safety net says so. The wait has
    // only just begun when the lock is released, so what is faster than half of either was a message.
    let slowest_message = [(scene.other(), LEASE / 2), ("rust", scene.safety_net().await? / 2)];
    let act = scene.act(LEASE)?;
    let (mut rust, mut other) = act.pair().await?;
    let mut found = Vec::new();
    for (waiting, limit) in slowest_message {
        let (holder, waiter) =
            if waiting == "rust" { (&mut other, &mut rust) } else { (&mut rust, &mut other) };
        let mut took = Vec::new();
        for round in 0..ROUNDS {
            let name = format!("woken_{waiting}_{round}");
            holder.ask(&format!("acquire {kind} {name}")).await?;
            waiter.tell(&format!("acquire {kind} {name}")).await?;
            scene.listened_to(&name, 1).await?;
            let (released, _) = times(&holder.ask(&format!("release {kind} {name}")).await?)?;
            let (_, acquired) = times(&waiter.answer().await?)?;
            waiter.ask(&format!("release {kind} {name}")).await?;
            took.push(Duration::from_nanos(acquired.saturating_sub(released)));
        }
        took.sort();
        let messages = took.iter().filter(|took| **took < limit).count();
        ensure!(
            messages == ROUNDS,
            "only {messages} of {ROUNDS} waiters in {waiting} were woken: {took:.1?}"
        );
        found.push(format!(
            "{messages} of {ROUNDS} in {waiting} within {limit:.1?}, p50 {:.2?}, p99 {:.2?}",
            percentile(&took, 50),
            percentile(&took, 99)
        ));
    }
    Ok(found.join("; "))
}

pub(crate) async fn tagged(scene: &Scene) -> Result<String> {
    const NAMES: [&str; 5] = ["order:{42}", "{42}", "item:{42}:part", "100%", "%7B42%7D"];
    let act = scene.act(LEASE)?;
    let (mut rust, mut java) = act.pair().await?;
    for name in NAMES {
        for java_holds in [false, true] {
            let (holder, other) = if java_holds { (&mut java, &mut rust) } else { (&mut rust, &mut java) };
            holder.ask(&format!("acquire rlock {name}")).await?;
            ensure!(
                other.ask(&format!("try rlock {name} 100")).await? == "false",
                "{name} was granted twice"
            );
            holder.ask(&format!("release rlock {name}")).await?;
        }
    }
    Ok(format!("{} names, each held by either side and refused to the other", NAMES.len()))
}

/// The answer to `query`.
#[derive(Debug, PartialEq)]
struct Seen {
    locked: bool,
    ttl: i64,
    count: u32,
    mine: bool,
}

fn seen(answer: &str) -> Result<Seen> {
    match answer.split(' ').collect::<Vec<_>>()[..] {
        [locked, ttl, count, mine] => Ok(Seen {
            locked: locked.parse()?,
            ttl: ttl.parse()?,
            count: count.parse()?,
            mine: mine.parse()?,
        }),
        _ => bail!("an answer to query has four parts: {answer}"),
    }
}

const FREE: Seen = Seen { locked: false, ttl: -2, count: 0, mine: false };

fn is_held(seen: &Seen, lease: Duration, count: u32) -> Result<()> {
    let expected = seen.locked && seen.count == count && seen.mine == (count > 0);
    let lease = i64::try_from(lease.as_millis())?;
    // It is renewed at a third of the lease; a machine may be slow to do so.
    ensure!(expected && (lease / 3..=lease).contains(&seen.ttl), "{seen:?}");
    Ok(())
}

pub(crate) async fn rust_holds(scene: &Scene) -> Result<String> {
    let act = scene.act(SHORT_LEASE)?;
    let (mut rust, mut java) = act.pair().await?;
    ensure!(seen(&java.ask("query shown").await?)? == FREE, "it is not free at first");
    rust.ask("acquire rlock shown").await?;
    let mut lowest = i64::MAX;
    // Longer than the lease, so that the renewals show.
    for _ in 0..40 {
        let seen = seen(&java.ask("query shown").await?)?;
        is_held(&seen, SHORT_LEASE, 0)?;
        lowest = lowest.min(seen.ttl);
        tokio::time::sleep(SHORT_LEASE / 30).await;
    }
    ensure!(java.ask("try rlock shown 300").await? == "false", "Redisson took it");
    rust.ask("release rlock shown").await?;
    let after = seen(&java.ask("query shown").await?)?;
    ensure!(after == FREE, "after the release: {after:?}");
    ensure!(java.ask("try rlock shown 300").await? == "true", "Redisson cannot take what was released");
    Ok(format!("isLocked, getHoldCount and remainTimeToLive ({lowest} ms at least) are right"))
}

pub(crate) async fn java_holds(scene: &Scene) -> Result<String> {
    let act = scene.act(SHORT_LEASE)?;
    let (mut rust, mut java) = act.pair().await?;
    ensure!(seen(&rust.ask("query seen").await?)? == FREE, "it is not free at first");
    java.ask("acquire rlock seen").await?;
    java.ask("acquire rlock seen").await?;
    is_held(&seen(&java.ask("query seen").await?)?, SHORT_LEASE, 2)?;
    let theirs = seen(&rust.ask("query seen").await?)?;
    is_held(&theirs, SHORT_LEASE, 0)?;
    let busy = rust.ask("busy seen").await?;
    ensure!(busy.starts_with("busy "), "dlock took it: {busy}");
    java.ask("release rlock seen").await?;
    ensure!(rust.ask("try rlock seen 300").await? == "false", "dlock took what is held once more");
    java.ask("release rlock seen").await?;
    ensure!(rust.ask("try rlock seen 300").await? == "true", "dlock cannot take what was released");
    Ok(format!("{} ms left while held twice; {busy}", theirs.ttl))
}

pub(crate) async fn take_over(scene: &Scene, killed: &str) -> Result<String> {
    let (act, kind) = (scene.act(SHORT_LEASE)?, scene.kind());
    let (rust, other) = act.pair().await?;
    let (mut holder, mut heir) = if killed == "rust" { (rust, other) } else { (other, rust) };
    let name = format!("orphan_of_{killed}");
    holder.ask(&format!("acquire {kind} {name}")).await?;
    heir.tell(&format!("acquire {kind} {name}")).await?;
    scene.listened_to(&name, 1).await?;
    // Past the first lease, so that it was renewed.
    tokio::time::sleep(SHORT_LEASE * 4 / 3).await;
    let died = holder.kill().await?;
    let (_, acquired) = times(&heir.answer().await?)?;
    ensure!(acquired > died, "it was taken while its holder lived");
    let took = Duration::from_nanos(acquired - died);
    ensure!(took <= SHORT_LEASE.mul_f64(1.05) + scene.late(), "taken over after {took:.2?}");
    // A third of the lease has passed at most since the last renewal, unless the machine was slow.
    ensure!(took >= SHORT_LEASE / 3, "taken over after {took:.2?}, before the lease can have ended");
    Ok(format!("after {took:.2?} of a lease of {SHORT_LEASE:?}"))
}

/// `share` of a lease is how long the loss may take to be noticed.
pub(crate) async fn forced(scene: &Scene, share: f64) -> Result<String> {
    let act = scene.act(SHORT_LEASE)?;
    let (mut rust, mut other) = act.pair().await?;
    rust.ask(&format!("acquire {} forced", scene.kind())).await?;
    let before = now_ns();
    ensure!(other.ask("force forced").await? == "true", "there was nothing to unlock");
    let lost: u64 = rust.ask("lost forced").await?.parse().context("when it was lost")?;
    let took = Duration::from_nanos(lost - before);
    ensure!(took <= SHORT_LEASE.mul_f64(share), "lost only after {took:.2?}");
    ensure!(!seen(&rust.ask("query forced").await?)?.mine, "check still says that it is held");
    Ok(format!("after {took:.2?} of a lease of {SHORT_LEASE:?}"))
}

pub(crate) async fn participants(scene: &Scene) -> Result<String> {
    let act = scene.act(LEASE)?;
    let (mut holder, mut java) = act.pair().await?;
    let mut waiter = act.worker("rust").await?;
    ensure!(java.ask("participants listed").await?.is_empty(), "somebody is there at first");
    holder.ask("acquire mutex listed").await?;
    java.tell("acquire mutex listed").await?;
    scene.listened_to("listed", 1).await?;
    waiter.tell("acquire mutex listed").await?;
    scene.listened_to("listed", 2).await?;
    let mut onlooker = act.worker("java").await?;
    let (theirs, places) = (onlooker.ask("participants listed").await?, scene.places("listed")?);
    ensure!(theirs.split(',').eq(&places), "Curator lists {theirs}, and the server has {places:?}");
    holder.ask("release mutex listed").await?;
    java.answer().await?;
    java.ask("release mutex listed").await?;
    waiter.answer().await?;
    Ok(format!("{} in order", places.len()))
}

/// What nobody owns is removed by the process that left it, and when that was killed by one that stands in the queue.
pub(crate) async fn left(scene: &Scene) -> Result<String> {
    const LEFT: Duration = Duration::from_secs(2);
    let act = scene.act(LEASE)?;
    let mut waiters = Vec::new();
    let mut sides = scene.sides();
    sides.rotate_left(1);
    for side in sides {
        waiters.push(act.worker(side).await?);
    }
    let mut longest = Duration::ZERO;
    for lives in [true, false] {
        let (name, mut holder) = (format!("left_{lives}"), act.worker("rust").await?);
        let (_, granted) = times(&holder.ask(&format!("acquire left {name}")).await?)?;
        for (place, waiter) in waiters.iter_mut().enumerate() {
            waiter.tell(&format!("acquire mutex {name}")).await?;
            scene.listened_to(&name, place + 1).await?;
        }
        holder.ask(&format!("release left {name}")).await?;
        ensure!(scene.is_left(&name)?, "it was released too late to leave anything");
        if !lives {
            holder.kill().await?;
        }
        for waiter in &mut waiters {
            let (_, acquired) = times(&waiter.answer().await?)?;
            let passed = Duration::from_nanos(acquired.saturating_sub(granted));
            ensure!(passed >= LEFT, "taken {passed:.2?} after the grant, in {LEFT:?}");
            longest = longest.max(passed - LEFT);
            waiter.ask(&format!("release mutex {name}")).await?;
        }
    }
    Ok(format!("all in order, {longest:.2?} after its end at the longest"))
}
