#![deny(warnings)]

use dlock::{Baton, Error, Locks, Memory, distributed_lock, leader, once};

#[distributed_lock(key = "plain")]
async fn plain() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(
    key = "room_<id>",
    backend = "memory",
    wait = "1500ms",
    lease = "30s",
    on_lost = "abort",
    on_busy = Err::<u64, Error>(Error::from(busy(id)?)),
    on_unavailable = "error",
    guard = held,
    recheck = true,
    handoff = true,
    crate = ::dlock,
)]
async fn all(id: u64) -> Result<u64, Error> {
    held.check()?;
    Ok(id)
}

fn busy(id: u64) -> Result<Error, Error> {
    if id == 0 { unreachable!() } else { unreachable!() }
}

#[distributed_lock(keys = ["from_<from>", "to_<to>",], requires = "fencing", guard = held)]
async fn several(from: u64, to: u64) -> Result<u64, Error> {
    held.check()?;
    Ok(from + to)
}

#[distributed_lock(keys = { ids }, requires = ["fencing", "notified"], on_unavailable = "run")]
async fn any_number(ids: &[u64]) -> Result<usize, Error> {
    Ok(ids.len())
}

#[distributed_lock(key = "stock_<sku>", segments = 20, wait = "no", on_busy = Ok(0), guard = segment)]
async fn in_segments(sku: &str) -> Result<u32, Error> {
    if sku.is_empty() {
        return Err(segment.exhausted());
    }
    Ok(segment.number())
}

#[distributed_lock(lease = "24h", wait = "no", on_lost = "continue", recheck = false, handoff = false, key = { id }, locks = locks)]
async fn others(id: u64, locks: &Locks) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(from = baton, guard = held, requires = "hand_over", mode = "write")]
async fn from_a_reference(baton: &Baton) -> Result<Baton, Error> {
    held.hand_over().await
}

#[distributed_lock(key = "order_<id>", from = baton, wait = "5s", lease = "10s", hold_at_least = "1s")]
async fn from_a_baton(id: u64, baton: Baton) -> Result<u64, Error> {
    Ok(id)
}

#[distributed_lock(from = job.batons[0], locks = locks)]
async fn from_a_place(job: Job, locks: &Locks) -> Result<usize, Error> {
    Ok(job.batons.len())
}

struct Job {
    batons: Vec<Baton>,
}

#[distributed_lock(from = baton.parse::<Baton>()?)]
async fn from_a_text(baton: &str) -> Result<usize, Error> {
    Ok(baton.len())
}

#[distributed_lock(key = "forever", wait = "forever", lease = "50ms", on_unavailable = "run")]
async fn forever() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "diverging", wait = "2m", on_busy = panic!("busy"))]
async fn diverging() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(key = "shared", locks = std::sync::Arc::new(Locks::new(Memory::new())))]
async fn shared() -> Result<(), Error> {
    Ok(())
}

const WAIT: std::time::Duration = std::time::Duration::from_millis(1500);

#[distributed_lock(key = "of_<id>_<N>", wait = { WAIT }, lease = { WAIT * factor })]
async fn computed<const N: usize>(id: u64, factor: u32) -> Result<usize, Error> {
    Ok(N + id as usize)
}

#[distributed_lock(key = "shown", wait = { if WAIT.is_zero() { dlock::Wait::No } else { WAIT.into() } })]
async fn shown() -> Result<Box<dyn Iterator<Item = impl std::fmt::Display>>, Error> {
    Ok(Box::new([1, 2].into_iter()))
}

// What the compiler says to `backend = "zookeeper"`, where locks have that name on purpose.
#[distributed_lock(key = "by_name", locks = dlock::registered("zookeeper")?)]
async fn by_another_name(id: u64) -> Result<u64, Error> {
    Ok(id)
}

#[leader(key = "leads", locks = dlock::registered("zookeeper")?)]
async fn leads_by_another_name() -> Result<u64, Error> {
    Ok(7)
}

#[once(key = "once", every = "1h", locks = dlock::registered("zookeeper")?)]
async fn once_by_another_name() -> Result<u64, Error> {
    Ok(7)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let locks = Locks::new(Memory::new());
    dlock::register("memory", locks.clone())?;
    dlock::register("zookeeper", Locks::new(Memory::new()))?;
    dlock::set_default("memory")?;
    assert_eq!(by_another_name(7).await?, leads_by_another_name().await?);
    assert!(!once_by_another_name().await?.is_skipped());
    plain().await?;
    assert_eq!(all(1).await? + others(2, &locks).await?, 3);
    assert_eq!(several(1, 2).await? + any_number(&[1, 2]).await? as u64, 5);
    assert!(in_segments("x").await? < 20);
    forever().await?;
    diverging().await?;
    assert_eq!(computed::<3>(4, 2).await?, 7);
    assert_eq!(shown().await?.map(|shown| shown.to_string()).collect::<String>(), "12");
    shared().await?;
    let baton = async |key| locks.lock(key).acquire().await?.hand_over().await;
    let again = from_a_reference(&baton("order_7").await?).await?;
    assert_eq!(from_a_baton(7, again).await?, 7);
    let job = Job { batons: vec![baton("order_8").await?] };
    assert_eq!(from_a_place(job, &locks).await?, 1);
    from_a_text(&baton("order_9").await?.to_text()).await?;
    Ok(())
}
