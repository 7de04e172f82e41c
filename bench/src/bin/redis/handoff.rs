//! From the release in one process to the acquire in another that waits for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dlock_interop::peer::{Peer, Setting};
use dlock_interop::{handoffs, percentile, read_all};
use dlock_testkit::checkers::overlap;
use tokio::process::Command;

use crate::Bench;
use crate::clients::{self, LEASE};
use crate::contend::Part;
use dlock_bench::measure::runtime;
use dlock_bench::report::{Row, Spread};

/// One client.
struct Client {
    /// As it is started.
    name: &'static str,
    /// In the table.
    title: &'static str,
    /// Its part of the handoffs of a round.
    part: u64,
    /// How many milliseconds the lock is held. After it, the process leaves the lock alone for 60 % of that: long
    /// enough for the other one to take it, and short enough to be waiting again when the other one releases it.
    hold: u64,
}

const CLIENTS: [Client; 4] = [
    Client { name: "dlock", title: "dlock", part: 1, hold: 5 },
    Client { name: "java", title: "Redisson", part: 1, hold: 5 },
    Client { name: "polling", title: "SET NX PX asked every 10 ms", part: 2, hold: 20 },
    Client { name: "rslock", title: "rslock, which asks every 0 to 200 ms", part: 8, hold: 350 },
];

pub(crate) fn between_processes(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let round_trip = round_trip(&bench.server.url()).await?;
    let rounds = bench.settings.handoff_rounds;
    let mut took = vec![(Vec::new(), Vec::new(), 0); CLIENTS.len()];
    for round in 0..rounds {
        for (client, took) in CLIENTS.iter().zip(&mut took) {
            let key = format!("handed_{}_{round}", client.name);
            let some = hand_to_and_fro(bench, client, &key).await?;
            took.0.push(millis(percentile(&some, 50)));
            took.1.push(millis(percentile(&some, 99)));
            took.2 += some.len();
        }
    }
    let mut rows = vec![Row::new("a round trip (PING)", round_trip * 1e3, "us")];
    let limit = 2.0 * round_trip + 1.0;
    for (client, (p50, p99, count)) in CLIENTS.iter().zip(took) {
        let (p50, p99) = (Spread::of(p50), Spread::of(p99));
        let row = Row::spread(format!("handoff between processes, p50: {}", client.title), p50, "ms");
        rows.push(if client.name == "dlock" { row.at_most(p50.median, limit, "ms") } else { row });
        rows.push(Row::spread(format!("    p99 ({count} handoffs)"), p99, "ms"));
    }
    Ok(rows)
}

/// From the release in one process to the acquire in the other one, in microseconds, the median.
pub(crate) async fn of_fair_locks(bench: &Bench, key: &str) -> Result<f64> {
    let client = Client { name: "fair", title: "fair", part: 1, hold: 5 };
    Ok(millis(percentile(&hand_to_and_fro(bench, &client, key).await?, 50)) * 1e3)
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Milliseconds, the median.
async fn round_trip(url: &str) -> Result<f64> {
    let mut connection = clients::connection(url).await?;
    let mut took = Vec::new();
    for _ in 0..2_000 {
        let start = Instant::now();
        redis::cmd("PING").exec_async(&mut connection).await?;
        took.push(start.elapsed());
    }
    took.sort();
    Ok(millis(percentile(&took, 50)))
}

async fn hand_to_and_fro(bench: &Bench, client: &Client, key: &str) -> Result<Vec<Duration>> {
    let (url, histories) = (bench.server.url(), tempfile::tempdir()?);
    // Each of the two processes hands it over half of the times.
    let each = bench.settings.handoffs / client.part / 2;
    let (hold, pause) = (client.hold * 1_000, client.hold * 600);
    if client.name == "java" {
        let setting = |process| Setting { url: &url, lease: LEASE, process, histories: histories.path() };
        let mut workers =
            [Peer::java(&bench.jar, &[], setting(0)).await?, Peer::java(&bench.jar, &[], setting(1)).await?];
        for worker in &mut workers {
            worker.tell(&format!("sections rlock {key} counter {each} {hold} {pause}")).await?;
        }
        for worker in &mut workers {
            worker.answer().await?;
        }
    } else {
        let mut processes = Vec::new();
        for process in [0, 1] {
            let part = Part {
                client: client.name.to_owned(),
                url: url.clone(),
                key: key.to_owned(),
                process,
                count: each,
                hold,
                pause,
                history: histories.path().join(process.to_string()),
            };
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("contend").args(part.arguments()).kill_on_drop(true);
            processes.push(command.spawn().context("cannot start a process of this program")?);
        }
        for mut process in processes {
            ensure!(process.wait().await?.success(), "a process of {} failed", client.name);
        }
    }
    let events = read_all(histories.path())?;
    ensure!(overlap(&events).overlaps.is_empty(), "two processes had {key} at the same time");
    Ok(handoffs(&events, key, |_| true, |_| true))
}
