//! One worker process: buyers who sell vouchers to customers, under a lock or without.

use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use dlock::{ErrorKind, Held, Requirement, Wait, distributed_lock};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::protocol::{Command, Event, Job, Sale};
use crate::shop::{SKU, Shop, Write};

/// How often a customer tries before he gives up.
const TRIES: u32 = 5;

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Lock(#[from] dlock::Error),
    #[error("the shop: {0}")]
    Shop(#[from] sqlx::Error),
}

/// A sale that came to an end, and how long its buyer waited for the lock.
struct Served {
    result: Result<Sale, Refused>,
    wait: Duration,
    fence: Option<u64>,
}

/// The shop refused a write as stale.
struct Refused {
    /// Whether the lock had told so, had the buyer asked.
    knew: bool,
}

/// The counter at which one buyer stands.
struct Counter {
    shop: Shop,
    /// Whether the next one inside the critical section shall stay there.
    park: watch::Receiver<bool>,
    seed: u64,
    work_ms: u64,
    /// Every segment was found empty, which does not change any more.
    sold_out: AtomicBool,
}

/// This is all it takes: one caller at a time for each product, over all processes.
#[distributed_lock(key = "stock_<sku>", guard = held)]
async fn buy(counter: &Counter, sku: &str, customer: u32, asked: Instant) -> Result<Served, Trouble> {
    counter.sell((sku, 0), customer, asked, Some(held)).await
}

/// The stock split into segments, each with a lock of its own: as many buyers work at a time.
#[distributed_lock(key = "stock_<sku>", segments = 20, guard = segment)]
async fn buy_in_segments(
    counter: &Counter,
    sku: &str,
    customer: u32,
    asked: Instant,
) -> Result<Served, Trouble> {
    let place = (sku, segment.number());
    let served = counter.sell(place, customer, asked, Some(segment.held().clone())).await?;
    match served.result {
        // Perhaps there is one left in another segment.
        Ok(Sale::SoldOut) => Err(segment.exhausted().into()),
        _ => Ok(served),
    }
}

/// As `buy`, but it goes on when the lock is lost. Nobody should: it stands for what a process can do in the
/// moment between its last look at the lock and its write, which no lock can take back and only the fence stops.
#[distributed_lock(key = "stock_<sku>", guard = held, on_lost = "continue")]
async fn buy_regardless(
    counter: &Counter,
    sku: &str,
    customer: u32,
    asked: Instant,
) -> Result<Served, Trouble> {
    counter.sell((sku, 0), customer, asked, Some(held)).await
}

impl Counter {
    /// Reads the stock, works for a while, and writes the stock back.
    async fn sell(
        &self,
        place: (&str, u32),
        customer: u32,
        asked: Instant,
        held: Option<Held>,
    ) -> Result<Served, Trouble> {
        let wait = asked.elapsed();
        let fence = held.as_ref().and_then(Held::fence).map(dlock::Fence::get);
        let served = |result| Ok(Served { result, wait, fence });
        let refused = |held: Option<Held>| Refused { knew: held.is_some_and(|held| !held.is_held()) };
        let Some(look) = self.shop.look(place, customer, fence).await? else {
            return served(Err(refused(held)));
        };
        if look.served {
            return served(Ok(Sale::Already));
        }
        if look.available <= 0 {
            return served(Ok(Sale::SoldOut));
        }
        self.stay_if_told(fence).await;
        self.work(customer).await;
        match self.shop.sell(place, customer, look.available - 1, fence).await? {
            Write::Done => served(Ok(Sale::Sold)),
            Write::Stale => served(Err(refused(held))),
        }
    }

    /// Sells from any segment that has something left.
    async fn sell_in_segments(&self, sku: &str, customer: u32, asked: Instant) -> Result<Served, Trouble> {
        if !self.sold_out.load(Ordering::Relaxed) {
            match buy_in_segments(self, sku, customer, asked).await {
                Err(Trouble::Lock(error)) if error.kind() == ErrorKind::Exhausted => {
                    self.sold_out.store(true, Ordering::Relaxed);
                }
                served => return served,
            }
        }
        Ok(Served { result: Ok(Sale::SoldOut), wait: asked.elapsed(), fence: None })
    }

    async fn work(&self, customer: u32) {
        let mut random = fastrand::Rng::with_seed(self.seed.wrapping_add(u64::from(customer)));
        tokio::time::sleep(Duration::from_micros(random.u64(self.work_ms * 500..self.work_ms * 1_500))).await;
    }

    async fn stay_if_told(&self, fence: Option<u64>) {
        let mut park = self.park.clone();
        if let Some(fence) = fence
            && *park.borrow_and_update()
        {
            say(&Event::Inside { fence });
            // An error means that the parent is gone, and this process about to end.
            let _ = park.wait_for(|park| !park).await;
        }
    }
}

/// Works off one job that the parent sends over standard input.
pub(crate) async fn work() -> Result<()> {
    die_with_parent();
    let mut commands = commands();
    let Some(Command::Job(job)) = commands.recv().await.transpose()? else {
        bail!("a worker is started by its parent only")
    };
    if let Some(url) = &job.locks {
        let builder = dlock::from_url(url).await?;
        let lease = Duration::from_millis(job.lease_ms);
        let wait = Wait::For(Duration::from_secs(120));
        // Without fences a frozen worker's write could not be refused.
        let builder = builder.require(Requirement::Fencing);
        let locks = builder.with_lease(lease).with_wait(wait).with_label(&job.label).build()?;
        dlock::register("shop", locks)?;
    }
    let shop = Shop::open(&job.shop, job.buyers.min(8)).await.context("cannot open the shop")?;
    say(&Event::Ready);
    let Some(Command::Start) = commands.recv().await.transpose()? else { return Ok(()) };

    let (park, parked) = watch::channel(false);
    let counter = Arc::new(Counter {
        shop,
        park: parked,
        seed: job.seed,
        work_ms: job.work_ms,
        sold_out: AtomicBool::new(false),
    });
    let queue = Arc::new(Mutex::new(VecDeque::from(job.customers.clone())));
    let mut buyers = JoinSet::new();
    for _ in 0..job.buyers {
        buyers.spawn(serve(Arc::clone(&counter), Arc::clone(&queue), Locking::of(&job)));
    }
    let served = async {
        while buyers.join_next().await.transpose()?.is_some() {}
        anyhow::Ok(())
    };
    tokio::select! {
        served = served => served?,
        gone = obey(&mut commands, &park) => gone?,
    }
    if let Ok(locks) = dlock::registered("shop")
        && let Err(late) = locks.shutdown(Duration::from_secs(5)).await
    {
        eprintln!("{late}");
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Locking {
    None,
    Normal,
    Regardless,
    Segments,
}

impl Locking {
    const fn of(job: &Job) -> Self {
        match (&job.locks, job.regardless, job.segmented) {
            (None, ..) => Self::None,
            (Some(_), _, true) => Self::Segments,
            (Some(_), true, false) => Self::Regardless,
            (Some(_), false, false) => Self::Normal,
        }
    }
}

/// One buyer: serves one customer after the other.
async fn serve(counter: Arc<Counter>, queue: Arc<Mutex<VecDeque<u32>>>, locking: Locking) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(customer) = next else { return };
        let mut tries = 0;
        while !serve_one(&counter, customer, locking, tries + 1 == TRIES).await {
            tries += 1;
        }
    }
}

/// One try. Whether the customer is done with.
async fn serve_one(counter: &Counter, customer: u32, locking: Locking, last: bool) -> bool {
    let asked = Instant::now();
    let served = match locking {
        Locking::None => counter.sell((SKU, 0), customer, asked, None).await,
        Locking::Normal => buy(counter, SKU, customer, asked).await,
        Locking::Regardless => buy_regardless(counter, SKU, customer, asked).await,
        Locking::Segments => counter.sell_in_segments(SKU, customer, asked).await,
    };
    let (event, done) = match served {
        Ok(Served { result: Ok(sale), wait, fence }) => {
            let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
            (Event::Served { customer, sale, wait_us, fence }, true)
        }
        Ok(Served { result: Err(refused), fence, .. }) => {
            (Event::Refused { fence: fence.unwrap_or_default(), knew: refused.knew }, false)
        }
        Err(Trouble::Lock(error)) if error.is_retryable() && !last => {
            (Event::Again { why: error.to_string() }, false)
        }
        Err(error) => (Event::Failed { customer, why: error.to_string() }, true),
    };
    say(&event);
    done
}

async fn obey(commands: &mut Commands, park: &watch::Sender<bool>) -> Result<()> {
    loop {
        match commands.recv().await.transpose()? {
            Some(Command::Park) => park.send_replace(true),
            Some(Command::Go) => park.send_replace(false),
            Some(other) => bail!("the parent sent {other:?} while the sale is on"),
            None => bail!("the parent is gone"),
        };
    }
}

type Commands = mpsc::UnboundedReceiver<Result<Command>>;

/// What the parent says, read by a thread of its own: a process does not wait for it at its end, as it does for the
/// blocking read of `tokio::io::stdin`.
fn commands() -> Commands {
    let (commands, inbox) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let line = line.context("cannot read what the parent says");
            let command =
                line.and_then(|line| serde_json::from_str(&line).context("the parent sent no command"));
            if commands.send(command).is_err() {
                return;
            }
        }
    });
    inbox
}

/// One line, written at once and whole. A parent that is gone is noticed on the other pipe.
fn say(event: &Event) {
    if let Ok(mut line) = serde_json::to_string(event) {
        line.push('\n');
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }
}

/// A frozen worker cannot notice that its parent is gone; the kernel does.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
