//! The worker's side.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dlock_core::{Campaign, Error, Guard, Held, Locks, LocksBuilder, OnCrash, Wait};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Order, Report, work};
use crate::register::RegisterClient;
use dlock_testkit::now_ns;

/// How often one that leads looks whether it does.
const STEP: Duration = Duration::from_millis(2);

/// The main function of a worker: takes orders from the standard input until it ends, and reports on the standard
/// output.
///
/// `connect` opens the backend of a URL. The worker runs on a current-thread runtime, so that an order to block it
/// blocks all of it but dlock's own thread.
///
/// # Errors
///
/// Those of the pipes and of the runtime. What an order comes to is a report.
pub fn serve(connect: impl AsyncFn(String) -> dlock_core::Result<LocksBuilder>) -> io::Result<()> {
    let (send, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if send.send(line).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(take_orders(orders, connect))
}

async fn take_orders(
    mut orders: mpsc::UnboundedReceiver<String>,
    connect: impl AsyncFn(String) -> dlock_core::Result<LocksBuilder>,
) -> io::Result<()> {
    let mut worker = WorkerState::default();
    while let Some(line) = orders.recv().await {
        let report = match serde_json::from_str(&line)? {
            Order::Open { url, lease_ms } => {
                let builder = connect(url).await;
                let lease = Duration::from_millis(lease_ms);
                match builder.and_then(|builder| builder.with_lease(lease).build()) {
                    Ok(locks) => {
                        worker.locks = Some(locks);
                        Report::Done
                    }
                    Err(error) => failed(&error),
                }
            }
            order => worker.carry_out(order).await.unwrap_or_else(|report| report),
        };
        tell(&report)?;
    }
    Ok(())
}

#[derive(Default)]
struct WorkerState {
    locks: Option<Locks>,
    guard: Option<Guard>,
    stop: Arc<AtomicBool>,
    work: Option<JoinHandle<io::Result<(u64, u64)>>>,
}

impl WorkerState {
    fn guard(&self) -> Result<&Guard, Report> {
        self.guard.as_ref().ok_or_else(|| out_of_order("no lock is held"))
    }

    fn locks(&self) -> Result<&Locks, Report> {
        self.locks.as_ref().ok_or_else(|| out_of_order("nothing was opened"))
    }

    async fn carry_out(&mut self, order: Order) -> Result<Report, Report> {
        Ok(match order {
            Order::Open { .. } => return Err(out_of_order("it is open")),
            Order::Acquire { key, wait_ms } => {
                let wait = if wait_ms == 0 { Wait::No } else { Wait::For(Duration::from_millis(wait_ms)) };
                let acquired = self.locks()?.lock(key).with_wait(wait).acquire().await;
                let at = now_ns();
                let guard = acquired.map_err(|error| failed(&error))?;
                let fence = guard.fence().map(dlock_core::Fence::get);
                self.guard = Some(guard);
                Report::Acquired { fence, at }
            }
            Order::Take { key, permits, of } => {
                let acquired = self.locks()?.semaphore(key, of).take(permits).acquire().await;
                let at = now_ns();
                let guard = acquired.map_err(|error| failed(&error))?;
                let fence = guard.fence().map(dlock_core::Fence::get);
                self.guard = Some(guard);
                Report::Acquired { fence, at }
            }
            Order::Check => Report::Checked { held: self.guard()?.check().is_ok() },
            Order::Release => {
                let guard = self.guard.take().ok_or_else(|| out_of_order("no lock is held"))?;
                guard.release().await.map_err(|error| failed(&error))?;
                Report::Done
            }
            Order::Lead { key } => {
                tokio::spawn(lead(self.locks()?.election(&key).campaign()));
                Report::Done
            }
            Order::Fire { key, window_ms, run_ms, skip_after_crash } => {
                let window = Duration::from_millis(window_ms);
                let on_crash = if skip_after_crash { OnCrash::Skip } else { OnCrash::Rerun };
                let job = self.locks()?.once(&key).with_window(window).with_on_crash(on_crash);
                let body = async {
                    let _ = tell(&Report::Began);
                    tokio::time::sleep(Duration::from_millis(run_ms)).await;
                    let _ = tell(&Report::Ended);
                    Ok::<_, Error>(())
                };
                let outcome = job.run(body).await.map_err(|error| failed(&error))?;
                Report::Fired { ran: !outcome.is_skipped() }
            }
            Order::Block { ms } => {
                std::thread::sleep(Duration::from_millis(ms));
                Report::Checked { held: self.guard.as_ref().is_some_and(|guard| guard.check().is_ok()) }
            }
            Order::Watch { gap_ms } => {
                let held = self.guard()?.held();
                let signal = held.clone();
                tokio::spawn(async move {
                    signal.lost().await;
                    let _ = tell(&Report::Lost { at: now_ns() });
                });
                let (checked, first) = tokio::sync::oneshot::channel();
                std::thread::spawn(move || watch(&held, gap_ms * 1_000_000, checked));
                let _ = first.await;
                Report::Done
            }
            Order::Read { register } => {
                let fence = self.fence()?;
                let answer = ask(register, async |client| client.read(fence).await).await?;
                Report::Value(answer)
            }
            Order::Write { register, read, value } => {
                let fence = self.fence()?;
                let answer = ask(register, async |client| client.write(fence, read, value).await).await?;
                Report::Value(answer)
            }
            Order::Work(task) => {
                let (locks, stop) = (self.locks()?.clone(), Arc::clone(&self.stop));
                self.work = Some(tokio::spawn(async move { work(&locks, &task, &stop).await }));
                Report::Done
            }
            Order::Stop => {
                self.stop.store(true, Ordering::SeqCst);
                let work = self.work.take().ok_or_else(|| out_of_order("nothing to stop"))?;
                match work.await {
                    Ok(Ok((sections, failed))) => Report::Worked { sections, failed },
                    Ok(Err(error)) => return Err(io_failed(&error)),
                    Err(error) => return Err(out_of_order(&error.to_string())),
                }
            }
        })
    }

    fn fence(&self) -> Result<u64, Report> {
        let fence = self.guard()?.fence();
        fence.map(dlock_core::Fence::get).ok_or_else(|| out_of_order("the backend has no fences"))
    }
}

async fn ask(
    register: std::net::SocketAddr,
    ask: impl AsyncFnOnce(&mut RegisterClient) -> io::Result<Result<u64, dlock_testkit::register::Stale>>,
) -> Result<Option<u64>, Report> {
    let mut client = RegisterClient::connect(register).await.map_err(|error| io_failed(&error))?;
    let answer = ask(&mut client).await.map_err(|error| io_failed(&error))?;
    Ok(answer.ok())
}

/// Leads whenever it can, and tells of it.
async fn lead(mut campaign: Campaign) {
    while let Some(term) = campaign.next().await {
        let (number, at) = (term.number().unwrap_or_default(), now_ns());
        let believed = Arc::new(AtomicU64::new(at));
        let (held, checked) = (term.held(), Arc::clone(&believed));
        let checks = std::thread::spawn(move || {
            loop {
                let began = now_ns();
                if !held.is_held() {
                    return;
                }
                checked.fetch_max(began, Ordering::SeqCst);
                std::thread::sleep(STEP);
            }
        });
        let _ = tell(&Report::Leads { term: number, at });
        let body = async {
            loop {
                // A step may stand still in its middle, and is then no belief.
                let began = now_ns();
                if term.check().is_ok() {
                    believed.fetch_max(began, Ordering::SeqCst);
                }
                tokio::time::sleep(STEP).await;
            }
        };
        let _: Option<()> = term.run(body).await;
        let _ = checks.join();
        let _ = tell(&Report::Left { term: number, believed_until: believed.load(Ordering::SeqCst) });
    }
}

/// Checks the lock until it is not held any more, and tells of pauses of the process and of the end.
fn watch(held: &Held, gap_ns: u64, first: tokio::sync::oneshot::Sender<()>) {
    let mut first = Some(first);
    let mut last = now_ns();
    loop {
        let began = now_ns();
        let fine = held.is_held();
        if let Some(first) = first.take() {
            let _ = first.send(());
        }
        let paused = began.saturating_sub(last);
        // One that was not fine and began before the pause ended after it.
        let tells = paused > gap_ns || !fine;
        let told = !tells || tell(&Report::Paused { for_ns: paused, held: fine }).is_ok();
        if !fine || !told {
            return;
        }
        last = began;
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn tell(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes())?;
    out.flush()
}

fn failed(error: &Error) -> Report {
    Report::Failed { kind: error.kind().as_str().to_owned(), error: error.to_string() }
}

fn io_failed(error: &io::Error) -> Report {
    Report::Failed { kind: "io".to_owned(), error: error.to_string() }
}

fn out_of_order(why: &str) -> Report {
    Report::Failed { kind: "order".to_owned(), error: why.to_owned() }
}
