//! Everything that can happen to a lock, each thing a known number of times.

use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dlock::{
    Batch, Error, ErrorKind, Guard, Lock, Locks, ManualClock, Memory, Quorum, Wait, distributed_lock,
};
use tracing::{Instrument, info_span};

use crate::Turn;
use crate::spy::Spy;
use crate::telemetry::{Exported, notices};

const LEASE: Duration = Duration::from_secs(60);
/// A renewal is due after a third of the lease.
const THIRD: Duration = Duration::from_secs(21);
const SHORT: Duration = Duration::from_millis(20);

struct Tour {
    clock: ManualClock,
    memory: Memory,
    locks: Locks,
    /// What all keys contain.
    mark: String,
}

#[distributed_lock(key = "room_<mark>_<id>", locks = locks)]
async fn book(locks: &Locks, mark: &str, id: u64) -> Result<u64, Error> {
    tokio::task::yield_now().await;
    Ok(id)
}

/// What came of it, for the tests to compare.
fn say(what: &str, outcome: impl Debug) {
    println!("{what}: {outcome:?}");
}

fn kind<T>(result: Result<T, Error>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|error| error.kind())
}

/// `mark` is a part of every key.
pub(crate) async fn take(mark: &str, exported: &Exported, turn: &mut Turn) -> Result<()> {
    let clock = ManualClock::stopped();
    let memory = Memory::with_clock(clock.clock());
    let spy = Spy::on(memory.clone());
    let locks = Locks::builder(spy.clone()).with_lease(LEASE).build()?;
    let tour = Tour { clock, memory, locks, mark: mark.to_owned() };
    tour.wanted().instrument(info_span!("wanted")).await?;
    tour.in_doubt().instrument(info_span!("in_doubt")).await?;
    tour.renewed().instrument(info_span!("renewed")).await?;
    tour.lost().instrument(info_span!("lost")).await?;
    tour.led().instrument(info_span!("led")).await?;
    tour.abandoned().instrument(info_span!("abandoned")).await?;
    tour.composed().instrument(info_span!("composed")).await?;
    tour.secret().await;
    tour.waiting(exported, turn).await?;
    for token in spy.tokens() {
        println!("token {token}");
    }
    Ok(())
}

/// Each span at least once, with all of its fields. The server is at `url`.
pub(crate) async fn each_span(url: &str) -> Result<()> {
    let clock = ManualClock::stopped();
    let locks =
        Locks::builder(Spy::redis(Memory::with_clock(clock.clock()), url)).with_lease(LEASE).build()?;
    let lock = locks.lock_named("room_<id>", "room_7").with_function("shop::book");
    let renewed = async {
        clock.advance(THIRD);
        while locks.stats().renewals == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // Without the scope, since it would enter the lock again.
        let other = lock.clone().with_wait(Wait::No);
        say("busy", kind(tokio::spawn(async move { other.acquire().await }).await?));
        Ok::<_, anyhow::Error>(())
    };
    lock.run(renewed).await??;
    locks.lock("plain").run(async {}).await?;
    Batch::of(["one", "two"].map(|key| locks.lock_named("both_<id>", key))).run(async {}).await?;
    locks.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

impl Tour {
    fn lock(&self, name: &str) -> Lock {
        self.locks.lock_named(format!("{name}_<id>"), format!("{name}_{}", self.mark))
    }

    async fn held(&self, name: &str) -> Result<Guard> {
        Ok(self.lock(name).acquire().await?)
    }

    /// Waits for what the keeper does.
    async fn until(&self, done: impl Fn(&dlock::Stats) -> bool) {
        while !done(&self.locks.stats()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn wanted(&self) -> Result<()> {
        for id in 0..3 {
            say("booked", kind(book(&self.locks, &self.mark, id).await));
        }
        let guard = self.held("wanted").await?;
        say("asked once", self.lock("wanted").try_acquire().await.map(|guard| guard.is_some()).ok());
        say("waited", kind(self.lock("wanted").with_wait(SHORT).acquire().await));
        let gone = tokio::time::timeout(SHORT, self.lock("wanted").acquire()).await;
        say("went away", gone.is_err());
        guard.release().await?;
        let guard = self.held("passed").await?;
        let section = || async { self.lock("passed").run(async {}).await };
        // The first of two who wait has fences reserved, and passes the lock on to the second.
        let (first, second, released) = tokio::join!(section(), section(), async {
            tokio::task::yield_now().await;
            guard.release().await
        });
        say("passed on", (kind(first), kind(second), kind(released)));
        let nested = self.lock("nested");
        say("nested", kind(nested.run(async { nested.run(async {}).await }).await));
        Ok(())
    }

    async fn led(&self) -> Result<()> {
        let election = self.locks.election(format!("leads_{}", self.mark)).with_template("leads_<id>");
        let mut campaign = election.campaign();
        let term = campaign.next().await.context("nobody else stands")?;
        say("led", term.run(async {}).await.is_some());
        campaign.eligibility().set(false);
        say("not eligible", kind(term.resign().await));
        campaign.eligibility().set(true);
        let term = campaign.next().await.context("nobody else stands")?;
        say("resigned", kind(term.resign().await));
        Ok(())
    }

    async fn in_doubt(&self) -> Result<()> {
        self.memory.faults().drop_replies(1);
        let guard = self.held("doubted").await;
        say("asked again", guard.is_ok());
        guard?.release().await?;
        self.memory.faults().set_unavailable(true);
        say("nobody there", kind(self.lock("down").with_wait(Wait::No).acquire().await));
        self.memory.faults().set_unavailable(false);
        // What may be there of it is withdrawn in the background.
        self.until(|stats| stats.background == 0).await;
        Ok(())
    }

    async fn renewed(&self) -> Result<()> {
        let guard = self.held("renewed").await?;
        self.clock.advance(THIRD);
        self.until(|stats| stats.renewals == 1).await;
        self.memory.faults().set_unavailable(true);
        self.clock.advance(THIRD);
        // By then the next one is planned.
        guard.held().at_risk().await;
        self.memory.faults().set_unavailable(false);
        self.clock.advance(LEASE / 12);
        self.until(|stats| stats.renewals == 2).await;
        say("renewed", kind(guard.release().await));
        Ok(())
    }

    async fn lost(&self) -> Result<()> {
        let guard = self.held("taken").await?;
        ensure!(self.memory.lose(guard.key()));
        guard.lost().await;
        say("taken away", kind(guard.release().await));

        let guard = self.held("deleted").await?;
        ensure!(self.memory.delete(guard.key()));
        self.clock.advance(THIRD);
        guard.lost().await;
        say("deleted", kind(guard.release().await));

        let guard = self.held("expired").await?;
        self.clock.advance(LEASE);
        guard.lost().await;
        say("expired", kind(guard.release().await));

        let renewals = self.locks.stats().renewals;
        let guard = self.lock("capped").with_max_hold(LEASE).acquire().await?;
        self.clock.advance(THIRD);
        self.until(|stats| stats.renewals > renewals).await;
        self.clock.advance(LEASE);
        guard.lost().await;
        say("held for too long", kind(guard.release().await));

        let lock = self.lock("stopped");
        let body = lock.run(async {
            self.memory.lose(&format!("stopped_{}", self.mark));
            std::future::pending::<()>().await;
        });
        say("a body was stopped", kind(body.await));

        let others = Locks::builder(self.memory.clone()).build()?;
        let guard = others.lock_named("shut_<id>", format!("shut_{}", self.mark)).acquire().await?;
        let leave = async {
            guard.lost().await;
            drop(guard);
        };
        say("shut down", kind(tokio::join!(others.shutdown(Duration::from_secs(10)), leave).0));
        Ok(())
    }

    async fn abandoned(&self) -> Result<()> {
        let guard = self.held("abandoned").await?;
        let before = self.locks.stats().failed_withdrawals;
        self.memory.faults().set_unavailable(true);
        drop(guard);
        self.until(|stats| stats.failed_withdrawals > before).await;
        // A request that was under way could begin a lease when it arrives.
        self.clock.advance(LEASE * 2);
        self.until(|stats| stats.abandoned == 1).await;
        self.memory.faults().set_unavailable(false);
        say("abandoned", self.locks.stats().abandoned);
        Ok(())
    }

    /// Several locks as one: a batch, segments, a quorum.
    async fn composed(&self) -> Result<()> {
        let batch = Batch::of(["one", "two", "three"].map(|name| self.lock(name)));
        say("together", kind(batch.acquire().await?.release().await));

        let divided = self.lock("divided").segmented(3);
        let nothing_left = divided.run(|segment| async move { Err::<(), _>(segment.exhausted()) });
        say("exhausted", kind(nothing_left.await));

        let nodes = [Memory::new(), Memory::new(), Memory::new()];
        nodes[2].faults().set_unavailable(true);
        let quorum = Quorum::builder(nodes).with_durable_nodes().build()?;
        // A clean-up goes on for as long as a lease, and the export waits for its span.
        let quorum = Locks::builder(quorum).with_lease(Duration::from_secs(1)).build()?;
        let voted = quorum.lock_named("voted_<id>", format!("voted_{}", self.mark));
        let guard = voted.acquire().await?;
        say("taken from a quorum", voted.try_acquire().await.map(|guard| guard.is_some()).ok());
        say("two of three", kind(guard.release().await));
        Ok(())
    }

    /// A server that is not there, with a password in its address.
    async fn secret(&self) {
        let url = format!("redis://user:password-{}@127.0.0.1:1/", self.mark);
        let unreachable = async {
            let locks = dlock::connect(&url).await?;
            locks.lock(format!("secret_{}", self.mark)).with_wait(Wait::No).acquire().await.map(drop)
        };
        let outcome = unreachable.instrument(info_span!("secret")).await;
        say("unreachable", kind(outcome));
    }

    /// One holds, and one waits, while the metrics are looked at.
    async fn waiting(&self, exported: &Exported, turn: &mut Turn) -> Result<()> {
        let guard = self.held("shown").await?;
        let mut notices = notices();
        let lock = self.lock("shown");
        let mut waiter = pin!(async move { lock.acquire().await?.release().await });
        // In one task: when it learns that the lock is busy, the waiter has begun to wait.
        tokio::select! {
            biased;
            gone = &mut waiter => bail!("it did not wait: {gone:?}"),
            () = notices.busy() => {}
        }
        say("shown", exported.flush().await.is_ok());
        turn.take().await?;
        guard.release().await?;
        waiter.await?;
        Ok(())
    }
}
