//! One round: a fresh shop, a fleet of workers, and what happens to them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::process::Signal;

use crate::Sale;
use crate::fleet::{Fleet, News};
use crate::protocol::{Command, Event, Job, Sale as Served};
use crate::report::Outcome;
use crate::screen::Screen;
use crate::shop::{SEGMENTS, Shop};

/// A round that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(180);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unlocked,
    Locked,
    /// Locked, while one worker is killed and another is frozen.
    Incidents,
    /// Locked in segments of the stock.
    Segments,
}

impl Kind {
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Unlocked => "no lock",
            Self::Locked => "locked",
            Self::Incidents => "locked, kill and freeze",
            Self::Segments => "locked, 20 segments",
        }
    }
}

/// What is done to a worker that is inside its critical section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    Kill,
    Freeze,
}

/// How far the incidents have come.
enum Plot {
    /// Until so many are sold.
    Wait {
        sold: u32,
        harm: Harm,
    },
    /// Every worker knows that the next one inside stays there.
    Park(Harm),
    /// It was done to `victim`, who held the lock with `fence`; the others have to take over.
    TakeOver {
        harm: Harm,
        victim: usize,
        fence: u64,
        since: Instant,
        thawed: bool,
    },
    End,
}

struct Round<'a> {
    sale: &'a Sale,
    kind: Kind,
    job: Job,
    screen: &'a Screen,
    fleet: Fleet,
    plot: Plot,
    sold: u32,
    served: u32,
    failed: u32,
    refused: u32,
    takeover: Option<Duration>,
    waits: Histogram<u64>,
}

/// Runs one round to its end, in a shop of its own.
pub(crate) async fn run(
    kind: Kind,
    sale: &Sale,
    locks: &str,
    dir: &Path,
    screen: &Screen,
) -> Result<Outcome> {
    let path = dir.join(format!("shop-{kind:?}.db").to_lowercase());
    let segments = if kind == Kind::Segments { SEGMENTS } else { 1 };
    let shop = Shop::create(&path, sale.stock, segments).await.context("cannot make the shop")?;
    let job = Job {
        shop: path,
        locks: (kind != Kind::Unlocked).then(|| locks.to_owned()),
        lease_ms: sale.lease,
        label: String::new(),
        buyers: sale.buyers,
        customers: Vec::new(),
        seed: sale.seed,
        work_ms: sale.work,
        regardless: kind == Kind::Incidents,
        segmented: kind == Kind::Segments,
    };
    let first = Plot::Wait { sold: sale.stock / 4, harm: Harm::Kill };
    let mut round = Round {
        sale,
        kind,
        job,
        screen,
        fleet: Fleet::new(),
        plot: if kind == Kind::Incidents { first } else { Plot::End },
        sold: 0,
        served: 0,
        failed: 0,
        refused: 0,
        takeover: None,
        waits: Histogram::new_with_max(3_600_000_000, 3)?,
    };
    let took = match tokio::time::timeout(PATIENCE, round.play()).await {
        Ok(took) => took?,
        Err(_) => bail!("it was not over after {PATIENCE:?}"),
    };
    let (orders, left) = shop.audit().await?;
    shop.close().await;
    Ok(Outcome {
        kind,
        stock: i64::from(sale.stock),
        customers: i64::from(sale.customers),
        sold: orders,
        left,
        refused: round.refused,
        failed: round.failed,
        throughput: f64::from(round.served) / took.as_secs_f64(),
        waits: round.waits,
        takeover: round.takeover,
    })
}

impl Round<'_> {
    /// From the start shot to the end of the last worker.
    async fn play(&mut self) -> Result<Duration> {
        for number in 0..self.sale.workers {
            let customers = (0..self.sale.customers).filter(|c| c % self.sale.workers == number).collect();
            self.hire(customers).await?;
        }
        let mut ready = 0;
        while ready < self.sale.workers {
            match self.fleet.next().await {
                (_, News::Said(Event::Ready)) => ready += 1,
                (number, News::Said(event)) => bail!("worker {number} began with {event:?}"),
                (number, News::Gone) => {
                    self.fleet.worker(number).ended().await?;
                    bail!("worker {number} ended before the sale");
                }
            }
        }
        let start = Instant::now();
        self.fleet.tell_all(&Command::Start, None).await;
        let mut at_work = self.sale.workers;
        while at_work > 0 {
            let thaw = self.thaw_at();
            let (number, news) = tokio::select! {
                news = self.fleet.next() => news,
                () = sleep_until(thaw) => {
                    self.thaw_anyway()?;
                    continue;
                }
            };
            match news {
                News::Said(Event::Ready) => self.fleet.tell(number, &Command::Start).await,
                News::Said(event) => at_work += self.note(number, event).await?,
                News::Gone => {
                    at_work -= 1;
                    let worker = self.fleet.worker(number);
                    worker.ended().await?;
                    worker.bar.end(if worker.killed { "killed" } else { "done" });
                }
            }
        }
        Ok(start.elapsed())
    }

    async fn hire(&mut self, customers: Vec<u32>) -> Result<usize> {
        let name = format!("worker {}", self.fleet.workers().count() + 1);
        let bar = self.screen.bar(name.clone(), customers.len());
        let job = Job { customers, label: name, ..self.job.clone() };
        self.fleet.hire(job, bar).await
    }

    /// Takes note of an event. How many workers were hired for it.
    async fn note(&mut self, number: usize, event: Event) -> Result<u32> {
        match event {
            Event::Served { customer, sale, wait_us, fence } => {
                let worker = self.fleet.worker(number);
                worker.bar.served();
                worker.waiting.remove(&customer);
                self.served += 1;
                if self.kind != Kind::Unlocked {
                    self.waits.saturating_record(wait_us);
                }
                if sale == Served::Sold {
                    self.sold += 1;
                    self.go_on(fence).await?;
                }
            }
            Event::Refused { fence, knew } => {
                self.refused += 1;
                let knew = if knew { "knew" } else { "did not know" };
                self.screen.note(&format!(
                    "  worker {} wrote with fence {fence}: refused by the shop as stale (its guard {knew} that the \
                     lock was lost)",
                    number + 1
                ));
            }
            Event::Again { why } => self.screen.note(&format!("  worker {} tries again: {why}", number + 1)),
            Event::Failed { customer, why } => {
                self.failed += 1;
                self.fleet.worker(number).waiting.remove(&customer);
                self.screen.note(&format!("  worker {} failed customer {customer}: {why}", number + 1));
            }
            Event::Inside { fence } => return self.harm(number, fence).await,
            Event::Ready => {}
        }
        Ok(0)
    }

    /// After each sale: whether it is time for an incident, or whether one is over.
    async fn go_on(&mut self, fence: Option<u64>) -> Result<()> {
        match self.plot {
            Plot::Wait { sold, harm } if self.sold >= sold => {
                self.fleet.tell_all(&Command::Park, None).await;
                self.plot = Plot::Park(harm);
            }
            Plot::TakeOver { harm, victim, fence: before, since, thawed } if fence > Some(before) => {
                let took = since.elapsed();
                let fence = fence.unwrap_or_default();
                match harm {
                    Harm::Kill => {
                        self.screen
                            .note(&format!("  the next sale came after {took:.2?}, with fence {fence}"));
                        self.takeover = Some(took);
                        self.plot = Plot::Wait { sold: self.sold + self.sale.stock / 4, harm: Harm::Freeze };
                    }
                    Harm::Freeze => {
                        self.screen.note(&format!(
                            "  others sell again since {took:.2?}, with fence {fence}; worker {} goes on",
                            victim + 1
                        ));
                        self.fleet.tell(victim, &Command::Go).await;
                        let worker = self.fleet.worker(victim);
                        worker.bar.say("goes on");
                        if !thawed {
                            worker.signal(Signal::CONT)?;
                        }
                        self.plot = Plot::End;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A worker is inside its critical section and stays there. How many workers were hired.
    async fn harm(&mut self, victim: usize, fence: u64) -> Result<u32> {
        let Plot::Park(harm) = self.plot else {
            self.fleet.tell(victim, &Command::Go).await;
            return Ok(0);
        };
        self.fleet.tell_all(&Command::Go, Some(victim)).await;
        let worker = self.fleet.worker(victim);
        let since = Instant::now();
        self.plot = Plot::TakeOver { harm, victim, fence, since, thawed: false };
        let name = victim + 1;
        match harm {
            Harm::Kill => {
                worker.signal(Signal::KILL)?;
                let customers: Vec<u32> = worker.waiting.iter().copied().collect();
                self.screen
                    .note(&format!("  worker {name} is killed inside its section, with fence {fence}"));
                // As an orchestrator does with a replica that died.
                self.hire(customers).await?;
                Ok(1)
            }
            Harm::Freeze => {
                worker.signal(Signal::STOP)?;
                worker.bar.say("frozen");
                self.screen
                    .note(&format!("  worker {name} is frozen inside its section, with fence {fence}"));
                Ok(0)
            }
        }
    }

    /// When a frozen worker is continued although nobody took over.
    fn thaw_at(&self) -> Option<Instant> {
        match self.plot {
            Plot::TakeOver { harm: Harm::Freeze, since, thawed: false, .. } => {
                Some(since + self.sale.lease() * 2 + Duration::from_secs(3))
            }
            _ => None,
        }
    }

    /// A process that is frozen in the middle of a transaction on a database file blocks that file for everybody. Its
    /// lease is over; its buyer stays inside until somebody has taken over.
    fn thaw_anyway(&mut self) -> Result<()> {
        if let Plot::TakeOver { victim, thawed, .. } = &mut self.plot {
            *thawed = true;
            self.screen.note(
                "  nobody could take over: a process frozen in a write blocks the file; it is continued",
            );
            self.fleet.worker(*victim).signal(Signal::CONT)?;
        }
        Ok(())
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
