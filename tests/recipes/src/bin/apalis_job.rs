//! Sends invoices at each full hour, on one of the replicas for each hour.

use std::time::Duration;

use apalis::prelude::{BoxDynError, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use dlock::{Error, Outcome, once};

/// The key names the firing, and is kept for longer than a replica may be late.
#[once(key = "invoices:<fire_at>", keep = "2h")]
async fn send_invoices(fire_at: u64) -> Result<(), Error> {
    println!("sends the invoices of {fire_at}");
    Ok(())
}

async fn on_tick(tick: Tick) -> Result<(), BoxDynError> {
    if let Outcome::Skipped { by, .. } = send_invoices(tick.get_timestamp()).await? {
        println!("sent by {by}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = dlock::init().await?; // connects to what DLOCK_URL names
    let schedule: cron::Schedule = "0 0 * * * *".parse()?;
    let worker = WorkerBuilder::new("invoices").backend(CronScheduler::new(schedule)).build(on_tick);
    tokio::select! {
        ended = worker.run() => ended?,
        _ = tokio::signal::ctrl_c() => {}
    }
    if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}"); // an outage: what is left ends with its lease
    }
    Ok(())
}
