//! Locks in a SQLite database, against the bare statements.

use std::cell::RefCell;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Row};
use tempfile::TempDir;

use crate::measure::{self, Settings};
use dlock::{Error, Wait};
use dlock_bench::report::{Row as Line, Spread};

pub(crate) fn url(dir: &TempDir) -> String {
    format!("sqlite://{}", dir.path().join("locks.db").display())
}

/// What a lock costs besides its two statements. Theirs is a table of the same shape in a file of its own, on one
/// connection with the same settings.
pub(crate) fn pair(settings: &Settings) -> Result<Vec<Line>> {
    let runtime = measure::runtime()?;
    let (dir, calls) = (tempfile::tempdir()?, settings.short_calls);
    let locks = runtime.block_on(async { dlock::connect(&url(&dir)).await })?;
    let lock = locks.lock("room_7");
    let bare = RefCell::new(runtime.block_on(Bare::connect(&dir))?);
    let comparison = measure::compare(
        settings.short_rounds,
        || {
            measure::wall_time(calls, || {
                runtime.block_on(async {
                    for _ in 0..calls {
                        lock.acquire().await?.release().await?;
                    }
                    Ok(())
                })
            })
        },
        || {
            let mut bare = bare.try_borrow_mut()?;
            measure::wall_time(calls, || {
                runtime.block_on(async {
                    for _ in 0..calls {
                        bare.take().await?;
                        bare.release().await?;
                    }
                    Ok(())
                })
            })
        },
    )?;
    Ok(comparison.rows("sqlite: acquire and release", "its two statements, bare", 1.25))
}

/// From a release by one handle to the grant to another that has waited for a while, as between processes.
pub(crate) fn handoff(settings: &Settings) -> Result<Vec<Line>> {
    let dir = tempfile::tempdir()?;
    let took = measure::runtime()?.block_on(async {
        let (giving, taking) = (dlock::connect(&url(&dir)).await?, dlock::connect(&url(&dir)).await?);
        let mut took = Vec::new();
        for _ in 0..settings.short_rounds {
            let guard = giving.lock("room_7").acquire().await?;
            let lock = taking.lock("room_7").with_wait(Wait::Forever);
            let waiting =
                tokio::spawn(async move { Ok::<_, Error>((lock.acquire().await?, Instant::now())) });
            tokio::time::sleep(Duration::from_millis(30)).await;
            let released = Instant::now();
            guard.release().await?;
            let (guard, granted) = waiting.await??;
            took.push(granted.saturating_duration_since(released).as_secs_f64() * 1e3);
            guard.release().await?;
        }
        anyhow::Ok(took)
    })?;
    Ok(vec![Line::spread("sqlite: handoff after a wait of 30 ms", Spread::of(took), "ms")])
}

/// One connection, and nothing around it.
struct Bare {
    connection: SqliteConnection,
    key: Vec<u8>,
    token: Vec<u8>,
    boot: Vec<u8>,
    holder: String,
}

const TABLE: &str = "
    CREATE TABLE locks (
        key BLOB NOT NULL PRIMARY KEY,
        token BLOB,
        fence INTEGER NOT NULL,
        boot BLOB NOT NULL,
        expires INTEGER NOT NULL,
        holder TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO locks (key, token, fence, boot, expires, holder) VALUES (x'', NULL, 0, x'', 0, '');
";

/// As dlock's own, see dlock-sql/src/sqlite/statements.rs.
const TAKE: &str = "
    INSERT INTO locks AS held (key, token, fence, boot, expires, holder)
    VALUES (?1, ?2, max(?3, (SELECT mark.fence + 1 FROM locks AS mark WHERE mark.key = x'')), ?4, ?5, ?6)
    ON CONFLICT (key) DO UPDATE SET
        fence = CASE WHEN held.token = ?2 AND held.boot = ?4 AND held.expires > ?7 THEN held.fence
                ELSE max(held.fence + 1, excluded.fence) END,
        token = excluded.token, boot = excluded.boot, expires = excluded.expires, holder = excluded.holder
    WHERE held.token IS NULL OR held.token = ?2 OR held.boot <> ?4 OR held.expires <= ?7
    RETURNING fence";

/// As dlock's own.
const RELEASE: &str = "
    UPDATE locks SET token = NULL WHERE key = ?1 AND token = ?2 RETURNING boot = ?3 AND expires > ?4";

impl Bare {
    async fn connect(dir: &TempDir) -> Result<Self> {
        let mut connection = SqliteConnectOptions::new()
            .filename(dir.path().join("bare.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .disable_statement_logging()
            .connect()
            .await?;
        sqlx::raw_sql(TABLE).execute(&mut connection).await?;
        Ok(Self {
            connection,
            key: b"room_7".to_vec(),
            token: vec![7; 16],
            boot: vec![1; 16],
            holder: "host=bench pid=1 label= since=2026-01-01T00:00:00Z".to_owned(),
        })
    }

    async fn take(&mut self) -> Result<i64> {
        let now = now()?;
        let rows = sqlx::query(TAKE)
            .bind(self.key.clone())
            .bind(self.token.clone())
            .bind(now)
            .bind(self.boot.clone())
            .bind(now + 30_000_000)
            .bind(self.holder.clone())
            .bind(now)
            .fetch_all(&mut self.connection)
            .await?;
        rows.first().context("it is free")?.try_get(0).context("no fence")
    }

    async fn release(&mut self) -> Result<()> {
        let query = sqlx::query(RELEASE).bind(self.key.clone()).bind(self.token.clone());
        let rows = query.bind(self.boot.clone()).bind(now()?).fetch_all(&mut self.connection).await?;
        rows.first().map(drop).context("it is ours")
    }
}

fn now() -> Result<i64> {
    let micros = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    i64::try_from(micros).context("no such time")
}
