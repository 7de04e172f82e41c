//! A hot key: three processes of two tasks each, which take it for a moment again and again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dlock_bench::measure::runtime;
use dlock_bench::report::{Row, Spread};
use dlock_core::Locks;
use dlock_rig::servers::mysql::MysqlServer;
use dlock_sql::{Mysql, MysqlOptions, Postgres, PostgresOptions};

use crate::Bench;
use crate::clients;

/// As many processes as there are backends.
const PROCESSES: usize = 3;
const TASKS: usize = 2;
const HOLD: Duration = Duration::from_millis(1);
const KEY: &str = "hot";
/// For how long they take it in one round.
const ROUND: Duration = Duration::from_secs(4);

/// What came of one round.
struct Crowd {
    /// The longest wait, in milliseconds.
    worst: f64,
    acquired: f64,
    /// Statements of all for each acquire.
    statements: f64,
}

pub(crate) fn postgres(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(async {
        let server = bench.postgres()?;
        let url = &*server.url();
        PostgresOptions::from_url(url)?.migrate().await?;
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(clients::dlock(Postgres::connect(url).await?)?);
        }
        rounds(bench, "PostgreSQL", &processes, || Ok(f64::NAN)).await
    })
}

pub(crate) fn mysql(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(async {
        let server = bench.mysql()?;
        let url = &*server.url();
        MysqlOptions::from_url(url)?.migrate().await?;
        let mut processes = Vec::new();
        for _ in 0..PROCESSES {
            processes.push(clients::dlock(Mysql::connect(url).await?)?);
        }
        rounds(bench, "MariaDB", &processes, || questions(&server)).await
    })
}

fn questions(server: &MysqlServer) -> Result<f64> {
    let answer = server.query("SHOW GLOBAL STATUS LIKE 'Questions'");
    answer.split_whitespace().last().context("no count of statements")?.parse().context("a count")
}

async fn rounds(
    bench: &Bench,
    server: &str,
    processes: &[Locks],
    asked: impl Fn() -> Result<f64>,
) -> Result<Vec<Row>> {
    let (mut worst, mut rate, mut statements) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..(bench.rounds / 6) | 1 {
        let before = asked()?;
        let mut crowd = round(processes).await?;
        crowd.statements = (asked()? - before) / crowd.acquired;
        worst.push(crowd.worst);
        rate.push(crowd.acquired / ROUND.as_secs_f64());
        statements.push(crowd.statements);
    }
    let what = format!("{PROCESSES} processes of {TASKS} tasks that take one lease row on {server}");
    let mut rows = vec![
        Row::spread(format!("{what}: the longest wait"), Spread::of(worst), "ms"),
        Row::spread("    acquires a second", Spread::of(rate), ""),
    ];
    if statements.iter().all(|count| !count.is_nan()) {
        rows.push(Row::spread("    statements an acquire", Spread::of(statements), ""));
    }
    Ok(rows)
}

async fn round(processes: &[Locks]) -> Result<Crowd> {
    let start = Instant::now();
    let tasks = processes.iter().flat_map(|locks| std::iter::repeat_n(locks, TASKS)).map(|locks| {
        let lock = locks.lock(KEY);
        tokio::spawn(async move {
            let mut waits = Vec::new();
            while start.elapsed() < ROUND {
                let asked = Instant::now();
                let guard = lock.acquire().await?;
                waits.push(asked.elapsed());
                tokio::time::sleep(HOLD).await;
                guard.release().await?;
            }
            anyhow::Ok(waits)
        })
    });
    let mut waits = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        waits.extend(task.await??);
    }
    let worst = waits.iter().max().context("nobody got it")?.as_secs_f64() * 1e3;
    Ok(Crowd { worst, acquired: waits.len() as f64, statements: f64::NAN })
}
