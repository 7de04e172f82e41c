//! A service that exports what it does with locks, for the tests to look at.
//!
//! It goes on after it has printed some of its lines only when it reads one.

#![forbid(unsafe_code)]
// The tour is one future around all that dlock does; its layout nests deeper than the default of 128.
#![recursion_limit = "256"]

mod noticing;
mod spy;
mod telemetry;
mod tour;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Stdin};
use tracing::{Instrument, info_span};

/// What the tests say to go on.
struct Turn(BufReader<Stdin>);

impl Turn {
    async fn take(&mut self) -> Result<()> {
        let mut line = String::new();
        anyhow::ensure!(self.0.read_line(&mut line).await? > 0, "nobody is there any more");
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (scenario, place) = (args.next().context("which scenario?")?, args.next().context("where?")?);
    if scenario == "notice" {
        return noticing::notice(&place).await;
    }
    let exported = telemetry::start()?;
    let mut turn = Turn(BufReader::new(tokio::io::stdin()));
    match scenario.as_str() {
        "hold" => hold(&place, &mut turn).instrument(info_span!("request", role = "holder")).await?,
        "wait" => wait(&place).instrument(info_span!("request", role = "waiter")).await?,
        "each" => tour::each_span(&place).instrument(info_span!("request")).await?,
        "tour" => tour::take(&place, &exported, &mut turn).await?,
        other => bail!("there is no scenario {other}"),
    }
    // What cannot be exported is no reason for a service to fail.
    if let Err(error) = exported.end().await {
        println!("not exported: {}", error.to_string().lines().next().unwrap_or_default());
    }
    println!("end");
    Ok(())
}

/// Holds the lock until it is asked to go on.
async fn hold(place: &str, turn: &mut Turn) -> Result<()> {
    let (url, key) = place.split_once('|').context("url|key")?;
    let locks = dlock::connect(url).await?;
    let body = async {
        info_span!("work").in_scope(|| println!("held"));
        turn.take().await
    };
    locks.lock_named("room_<id>", key).run(body).await??;
    locks.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

async fn wait(place: &str) -> Result<()> {
    let (url, key) = place.split_once('|').context("url|key")?;
    let locks = dlock::connect(url).await?;
    let mut notices = telemetry::notices();
    let told = tokio::spawn(async move {
        notices.busy().await;
        println!("busy");
    });
    locks.lock_named("room_<id>", key).run(async {}).await?;
    told.await?;
    locks.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}
