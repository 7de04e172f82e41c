//! What the locks cost, beside the same statements without them: `cargo bench -p dlock-sql --features sqlite`.
//!
//! Figures of one run compare with each other; each is the median of several rounds that take turns.

use std::time::{Duration, Instant};

use dlock_core::{Locks, Wait};
use dlock_sql::SqliteOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Row};

const ROUNDS: usize = 9;
const PAIRS: u32 = 3_000;

#[tokio::main]
async fn main() {
    pairs().await;
    handover().await;
    keeper().await;
}

/// Microseconds of one call, the median and the 99th percentile of a round.
struct Round(f64, f64);

fn round(mut times: Vec<Duration>) -> Round {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    Round(at(0.5), at(0.99))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Taking and giving back one lock, and the same two statements on one connection.
async fn pairs() {
    let directory = tempfile::tempdir().unwrap();
    let locks = Locks::new(SqliteOptions::new(directory.path().join("locks.db")).connect().await.unwrap());
    let mut raw = SqliteConnectOptions::new()
        .filename(directory.path().join("raw.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .disable_statement_logging()
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql(
        "CREATE TABLE lock (key BLOB NOT NULL PRIMARY KEY, token BLOB, fence INTEGER NOT NULL, boot BLOB NOT NULL,
         expires INTEGER NOT NULL, holder TEXT NOT NULL) STRICT, WITHOUT ROWID",
    )
    .execute(&mut raw)
    .await
    .unwrap();
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for n in 0..ROUNDS {
        let mut times = Vec::new();
        for i in 0..PAIRS {
            let started = Instant::now();
            let guard = locks.lock(format!("room_{}", i % 100)).acquire().await.unwrap();
            guard.release().await.unwrap();
            times.push(started.elapsed());
        }
        let our = round(times);
        let mut times = Vec::new();
        for i in 0..PAIRS {
            let started = Instant::now();
            let (key, token) = (format!("room_{}", i % 100).into_bytes(), vec![i.to_le_bytes()[0]; 16]);
            let rows = sqlx::query(
                "INSERT INTO lock AS held (key, token, fence, boot, expires, holder) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (key) DO UPDATE SET fence = max(held.fence + 1, excluded.fence), token = excluded.token,
                 boot = excluded.boot, expires = excluded.expires, holder = excluded.holder
                 WHERE held.token IS NULL OR held.token = ?2 OR held.boot <> ?4 OR held.expires <= ?7 RETURNING fence",
            )
            .bind(key.clone())
            .bind(token.clone())
            .bind(1_000_i64)
            .bind(b"the same boot, as a text of the usual length".to_vec())
            .bind(i64::from(i))
            .bind("host=somewhere pid=12345 since=1700000000000")
            .bind(i64::from(i))
            .fetch_all(&mut raw)
            .await
            .unwrap();
            assert_eq!(rows.len(), 1);
            let rows =
                sqlx::query("UPDATE lock SET token = NULL WHERE key = ?1 AND token = ?2 RETURNING expires")
                    .bind(key)
                    .bind(token)
                    .fetch_all(&mut raw)
                    .await
                    .unwrap();
            assert!(rows[0].try_get::<i64, _>(0).is_ok());
            times.push(started.elapsed());
        }
        let their = round(times);
        if n > 0 {
            ratios.push(our.0 / their.0);
            ours.push(our);
            theirs.push(their);
        }
    }
    let columns = |rounds: &[Round]| {
        let of = |pick: fn(&Round) -> f64| median(rounds.iter().map(pick).collect());
        (of(|round| round.0), of(|round| round.1))
    };
    let (our, their) = (columns(&ours), columns(&theirs));
    println!("acquire + release       p50 {:7.1} us   p99 {:7.1} us", our.0, our.1);
    println!("the two statements      p50 {:7.1} us   p99 {:7.1} us", their.0, their.1);
    println!("ratio of the medians    {:.2}", median(ratios));
}

/// From a release by one handle to the grant to another, as between processes.
async fn handover() {
    let directory = tempfile::tempdir().unwrap();
    let connect =
        async || Locks::new(SqliteOptions::new(directory.path().join("locks.db")).connect().await.unwrap());
    let (one, two) = (connect().await, connect().await);
    let mut times = Vec::new();
    for _ in 0..100 {
        let guard = one.lock("room").acquire().await.unwrap();
        let lock = two.lock("room").with_wait(Wait::Forever);
        let waiting = tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            (guard, Instant::now())
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, at) = waiting.await.unwrap();
        times.push(at.duration_since(released));
        guard.release().await.unwrap();
    }
    let Round(p50, p99) = round(times);
    println!("handover after 30 ms    p50 {:7.1} ms   p99 {:7.1} ms", p50 / 1e3, p99 / 1e3);
}

/// What holding ten thousand locks costs.
async fn keeper() {
    let directory = tempfile::tempdir().unwrap();
    let locks = Locks::new(SqliteOptions::new(directory.path().join("locks.db")).connect().await.unwrap());
    let mut guards = Vec::new();
    for n in 0..10_000 {
        guards.push(locks.lock(format!("room_{n}")).acquire().await.unwrap());
    }
    let before = (cpu(), locks.stats().renewals, Instant::now());
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (used, renewed, passed) = (cpu() - before.0, locks.stats().renewals - before.1, before.2.elapsed());
    println!(
        "10,000 locks held       {:.2} % of a core, {renewed} renewals in {passed:.0?}, {} lost",
        used.as_secs_f64() / passed.as_secs_f64() * 100.0,
        locks.stats().lost,
    );
}

/// The time of this process on all cores.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}
