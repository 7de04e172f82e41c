//! One replica: two schedulers, and a job for each.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use apalis::prelude::{BoxDynError, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use dlock::{Error, ErrorKind, Outcome, once};
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::Service;

/// The key names the firing, so that each has one winner. It is kept for longer than a replica may be late.
#[once(key = "invoices:<fire_at>", keep = "10m")]
async fn send_invoices(fire_at: u64) -> Result<()> {
    println!("begins invoices at {fire_at}");
    work(300).await;
    Ok(())
}

#[once(key = "report:<fire_at>", keep = "10m")]
async fn write_report(fire_at: u64) -> Result<()> {
    println!("begins report at {fire_at}");
    work(200).await;
    Ok(())
}

/// So that it is in the middle of a job that a replica is killed, however slow the machine is.
async fn work(millis: u64) {
    replicas::may_go_on().await;
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Serves until it is asked to stop.
pub(crate) async fn serve(service: &Service) -> Result<()> {
    let url = service.locks.as_deref().context("a replica is given --locks")?;
    let lease = Duration::from_millis(service.lease);
    let locks = dlock::from_url(url).await?.with_lease(lease).with_label(replicas::name()).build()?;
    // The only registered backend is the default one of the attributes.
    dlock::register("jobs", locks.clone())?;

    let every = service.every;
    let schedule = format!("0/{every} * * * * *");
    let mut scheduler = JobScheduler::new().await.context("tokio-cron-scheduler")?;
    let job = Job::new_async(schedule.as_str(), move |_, _| {
        Box::pin(async move {
            let fire_at = fired_at(every);
            say("invoices", fire_at, send_invoices(fire_at).await);
        })
    });
    scheduler.add(job.context("tokio-cron-scheduler")?).await.context("tokio-cron-scheduler")?;
    scheduler.start().await.context("tokio-cron-scheduler")?;

    let schedule: cron::Schedule = schedule.parse().context("apalis")?;
    let worker = WorkerBuilder::new("report").backend(CronScheduler::new(schedule)).build(on_tick);
    let stopped = async {
        replicas::asked_to_stop().await;
        // Jobs that run come to their end before the schedulers do; those that wait are left to others.
        locks.drain(Duration::from_secs(10)).await
    };
    tokio::select! {
        ended = worker.run() => ended.context("apalis")?,
        stopped = stopped => stopped?,
    }
    scheduler.shutdown().await.context("tokio-cron-scheduler")?;
    if let Err(late) = locks.shutdown(Duration::from_secs(5)).await {
        eprintln!("{late}");
    }
    Ok(())
}

/// apalis says which firing it is.
async fn on_tick(tick: Tick) -> Result<(), BoxDynError> {
    let fire_at = tick.get_timestamp();
    say("report", fire_at, write_report(fire_at).await);
    Ok(())
}

/// tokio-cron-scheduler does not say which firing it is: the last time of the schedule, since it is late by half a
/// second at the most, and never early. A replica whose clock is behind finds the same one, only later.
fn fired_at(every: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now - now % every
}

fn say(job: &str, fire_at: u64, outcome: Result<Outcome<()>>) {
    match outcome {
        Ok(Outcome::Ran(())) => println!("ran {job} at {fire_at}"),
        Ok(Outcome::Skipped { by, .. }) => {
            println!("skips {job} at {fire_at}, done by {}", by.label.as_deref().unwrap_or("another one"));
        }
        Err(error) if is(&error, ErrorKind::Closed) => println!("leaves {job} at {fire_at}"),
        // Its replica stood still for a lease: the body was dropped, and another replica runs the job.
        Err(error) if is(&error, ErrorKind::Lost) => println!("loses {job} at {fire_at}"),
        Err(error) => println!("fails {job} at {fire_at}, {error:#}"),
    }
}

fn is(error: &anyhow::Error, kind: ErrorKind) -> bool {
    error.downcast_ref::<Error>().is_some_and(|error| error.kind() == kind)
}
