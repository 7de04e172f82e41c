//! Draws the dashboard and a trace, of a run of the example `rooms` on a real Redis that stands still for a while,
//! through the real collector and a real Prometheus.
//!
//! ```text
//! cargo xtask pictures
//! ```
//!
//! Writes `dashboard.svg` and `trace.svg` to docs/pictures. Needs Go, `redis-server` and `prometheus`.

#![forbid(unsafe_code)]

mod dashboard;
mod prometheus;
mod trace;

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use clap::Parser;
use dlock_interop::collector::{Collector, build, build_rooms, of_the_project};
use dlock_rig::servers::redis::RedisServer;
use tokio::process::Command;

use crate::prometheus::Prometheus;

/// How long Redis stands still, and after how long. Shorter than a request waits for a lock.
const OUTAGE: Duration = Duration::from_secs(4);
const BEFORE: Duration = Duration::from_secs(15);

#[derive(Debug, Parser)]
#[command(about = "Draws the dashboard and a trace of a real run")]
struct Cli {
    /// Requests to the service in all
    #[arg(long, default_value_t = 15_000)]
    requests: u32,
    /// Where to put the pictures [default: docs/pictures]
    #[arg(long)]
    into: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match draw(&Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn draw(cli: &Cli) -> Result<()> {
    let into = cli.into.clone().unwrap_or_else(|| of_the_project("docs/pictures"));
    std::fs::create_dir_all(&into)?;
    let (program, rooms) = (build().await?, build_rooms().await?);
    let redis = RedisServer::start()?;
    let collector = Collector::start(&program).await?;
    let prometheus = Prometheus::start(collector.prometheus()).await?;

    let began = SystemTime::now();
    let served = Command::new(rooms)
        .args(["--replicas", "3", "--night", "2000", "--requests", &cli.requests.to_string()])
        .env("DLOCK_URL", redis.url())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.otlp())
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "1000")
        .stdin(Stdio::null())
        .status();
    let outage = async {
        tokio::time::sleep(BEFORE).await;
        redis.pause();
        tokio::time::sleep(OUTAGE).await;
        redis.resume();
    };
    let (status, ()) = tokio::join!(served, outage);
    let status = status?;
    ensure!(status.success(), "rooms ended with {status}");
    // The last of it is fetched a second after it has arrived.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let panels = dashboard::panels(&prometheus, (began, SystemTime::now())).await?;
    let picture = into.join("dashboard.svg");
    dashboard::draw(&picture, &panels)?;
    println!("{}: {} panels", picture.display(), panels.len());

    let (spans, _) = collector.stop().await?;
    let picture = into.join("trace.svg");
    println!("{}: {}", picture.display(), trace::draw(&picture, &spans)?);
    Ok(())
}
