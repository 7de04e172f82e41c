//! From the release by one client to the acquire by another that waits for it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dlock_bench::measure::runtime;
use dlock_bench::report::{Row, Spread};
use dlock_core::{Key, Locks, Token};
use dlock_rig::servers::postgres::PostgresServer;
use dlock_sql::sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use dlock_sql::sqlx::{ConnectOptions, PgConnection};
use dlock_sql::{BareRows, Postgres, PostgresOptions};

use crate::Bench;
use crate::bare::{BareLeases, Pg};
use crate::clients;

/// Hand-overs a round and client.
const EACH: usize = 100;
/// For how long the lock is held, so that both sides are at rest when it is released.
const HOLD: Duration = Duration::from_millis(5);
const KEY: &str = "handed";

pub(crate) fn postgres(bench: &Bench) -> Result<Vec<Row>> {
    runtime(true)?.block_on(measure(bench))
}

async fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let server = bench.postgres()?;
    let url = server.url();
    PostgresOptions::from_url(&url)?.migrate().await?;
    // As two processes would.
    let ours =
        [clients::dlock(Postgres::connect(&url).await?)?, clients::dlock(Postgres::connect(&url).await?)?];
    let rows = BareRows::new(&PostgresOptions::from_url(&url)?);
    let bare = BareLeases { connections: Pg::connect(&url, 0).await?, rows };
    let [mut told, mut handed, mut ratio] = [const { Vec::new() }; 3];
    for _ in 0..(bench.rounds / 6) | 1 {
        let bare = p50(by_hand(&server, &bare).await?);
        let dlock = p50(by_dlock(&server, &ours).await?);
        told.push(bare);
        handed.push(dlock);
        ratio.push(dlock / bare);
    }
    let ratio = Spread::of(ratio);
    Ok(vec![
        Row::spread("release with NOTIFY, heard, acquire: bare statements, p50", Spread::of(told), "ms"),
        Row::spread("handoff between two clients on PostgreSQL, p50: dlock", Spread::of(handed), "ms"),
        Row::spread("    dlock / bare statements", ratio, "x").at_most(ratio.median, 1.2, "x"),
    ])
}

fn p50(mut took: Vec<Duration>) -> f64 {
    took.sort_unstable();
    took.get(took.len() / 2).map_or(f64::NAN, |middle| middle.as_secs_f64() * 1e3)
}

/// The same statements and a listener, with nothing around them.
async fn by_hand(
    server: &PostgresServer,
    bare: &BareLeases<dlock_sql::PostgresServer>,
) -> Result<Vec<Duration>> {
    let options = server.url().parse::<PgConnectOptions>()?.disable_statement_logging();
    let (mut first, second): (PgConnection, PgConnection) =
        (options.connect().await?, options.connect().await?);
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options).await?;
    let mut ear = PgListener::connect_with(&pool).await?;
    let key = Key::new(KEY)?;
    ear.listen(&bare.rows.channel(&key)).await?;
    let mut took = Vec::new();
    let (mine, theirs) = (Token::random()?, Token::random()?);
    let mut waits = (ear, second);
    for _ in 0..EACH {
        bare.take(&mut first, &key, mine).await?;
        server.query(&format!("UPDATE dlock SET awaited = true WHERE key = '{KEY}'"));
        let (mut ear, mut second) = waits;
        let taking = async {
            ear.recv().await?;
            bare.take(&mut second, &key, theirs).await?;
            anyhow::Ok(Instant::now())
        };
        let releasing = async {
            tokio::time::sleep(HOLD).await;
            let start = Instant::now();
            bare.release(&mut first, &key, mine).await?;
            anyhow::Ok(start)
        };
        let (taken, start) = tokio::try_join!(taking, releasing)?;
        took.push(taken.saturating_duration_since(start));
        bare.release(&mut second, &key, theirs).await?;
        waits = (ear, second);
    }
    Ok(took)
}

async fn by_dlock(server: &PostgresServer, [ours, theirs]: &[Locks; 2]) -> Result<Vec<Duration>> {
    let awaited = format!("SELECT awaited FROM dlock WHERE key = '{KEY}'");
    let mut took = Vec::new();
    for _ in 0..EACH {
        let guard = ours.lock(KEY).acquire().await?;
        let lock = theirs.lock(KEY);
        let taking = tokio::spawn(async move { lock.acquire().await.map(|guard| (guard, Instant::now())) });
        while server.query(&awaited) != "t" {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(HOLD).await;
        let start = Instant::now();
        guard.release().await?;
        let (guard, taken) = taking.await.context("the waiter")??;
        took.push(taken.saturating_duration_since(start));
        guard.release().await?;
    }
    Ok(took)
}
