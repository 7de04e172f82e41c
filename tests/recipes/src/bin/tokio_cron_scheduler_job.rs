//! Writes a report each morning at six, on one of the replicas.

use std::time::Duration;

use dlock::{Error, Outcome, once};
use tokio_cron_scheduler::{Job, JobScheduler};

/// A little less than a day, so that a late start on one day does not skip the next.
#[once(key = "morning-report", every = "20h")]
async fn report() -> Result<u32, Error> {
    Ok(17) // pages
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backends = dlock::init().await?; // connects to what DLOCK_URL names
    let mut scheduler = JobScheduler::new().await?;
    let job = Job::new_async("0 0 6 * * *", |_id, _scheduler| {
        Box::pin(async {
            match report().await {
                Ok(Outcome::Ran(pages)) => println!("wrote {pages} pages"),
                Ok(Outcome::Skipped { by, .. }) => println!("written by {by}"),
                Err(error) => eprintln!("no report: {error}"),
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    tokio::signal::ctrl_c().await?;
    scheduler.shutdown().await?;
    if let Err(late) = backends.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}"); // an outage: what is left ends with its lease
    }
    Ok(())
}
