//! The worker in Rust, which hands locks on by the library.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use dlock_core::{Baton, ErrorKind, Fence, Guard, Locks};
use dlock_redis::Redis;
use dlock_sql::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use dlock_sql::sqlx::{self, ConnectOptions as _, Connection as _, PgConnection, SqliteConnection};
use dlock_sql::{Postgres, Sqlite};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

use super::clock;

/// Does what standard input says, until it ends. The journal gets a line when a belief begins and before it ends. The
/// values lie beside the locks, at a URL of their own, since no proxy is to lose what is answered of them.
///
/// ```text
/// hop KEY BATON|- MILLIS    passed FENCE BEGUN ENDED written|stale BATON, or refused
/// write KEY FENCE           written|stale
/// ```
///
/// A hop takes over the baton, or acquires the lock where there is none and nobody has it; writes; and hands the lock
/// over for so many milliseconds. An answer that begins with `failed` tells what went wrong.
pub(crate) async fn serve(url: &str, lease: &str, journal: &str, values: &str) -> Result<()> {
    let lease = Duration::from_millis(lease.parse()?);
    let locks = match scheme(url) {
        "redis" => Locks::builder(Redis::connect(url).await?),
        "postgres" => Locks::builder(Postgres::connect(url).await?),
        "sqlite" => Locks::builder(Sqlite::connect(url).await?),
        other => bail!("no store {other}"),
    };
    let mut worker = Worker {
        locks: locks.with_lease(lease).build()?,
        lease,
        values: Values::open(values).await?,
        journal: File::options().create(true).append(true).open(journal)?,
    };
    println!("ready");
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        let words: Vec<&str> = command.split(' ').collect();
        let answer = match worker.answer(&words).await {
            Ok(answer) => answer,
            Err(error) => format!("failed {error:#}").replace('\n', " "),
        };
        println!("{answer}");
    }
    Ok(())
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

struct Worker {
    locks: Locks,
    lease: Duration,
    values: Values,
    journal: File,
}

impl Worker {
    async fn answer(&mut self, words: &[&str]) -> Result<String> {
        match words {
            ["hop", key, text, millis] => self.hop(key, text, Duration::from_millis(millis.parse()?)).await,
            ["write", key, fence] => Ok(self.values.write(key, fence.parse()?).await?.to_owned()),
            _ => bail!("no command: {words:?}"),
        }
    }

    async fn hop(&mut self, key: &str, text: &str, time: Duration) -> Result<String> {
        let sent = clock();
        let Some(guard) = self.taken(key, text).await? else { return Ok("refused".to_owned()) };
        let fence = guard.fence().context("no fence")?.get();
        let begun = clock();
        self.note("begin", key, fence, begun)?;
        let written = self.values.write(key, fence).await?;
        let check = guard.check();
        // A lease is counted from when it was asked for.
        let ended = clock().min(sent + u64::try_from(self.lease.as_nanos())?);
        self.note("end", key, fence, ended)?;
        check?;
        let baton = guard.hand_over().for_at_most(time).await?.to_text();
        Ok(format!("passed {fence} {begun} {ended} {written} {baton}"))
    }

    async fn taken(&self, key: &str, text: &str) -> Result<Option<Guard>> {
        if text == "-" {
            return Ok(self.locks.lock(key).try_acquire().await?);
        }
        match self.locks.take_over(&text.parse::<Baton>()?).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::NotHeld => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn note(&mut self, what: &str, key: &str, fence: u64, when: u64) -> Result<()> {
        Ok(self.journal.write_all(format!("{what} {key} {fence} {when}\n").as_bytes())?)
    }
}

/// What is written under the locks, by whoever has the higher fence.
enum Values {
    Redis(Redis),
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Values {
    async fn open(url: &str) -> Result<Self> {
        Ok(match scheme(url) {
            "redis" => Self::Redis(Redis::connect(url).await?),
            "postgres" => Self::Postgres(PgConnection::connect(url).await?),
            _ => Self::Sqlite(sqlite(url).await?),
        })
    }

    async fn write(&mut self, key: &str, fence: u64) -> Result<&'static str> {
        const STATEMENT: &str = "UPDATE ring SET writer = 'rust', fence = $1 WHERE key = $2 AND fence < $1";
        let number = i64::try_from(fence)?;
        let written = match self {
            Self::Redis(redis) => {
                redis.fenced_set(&format!("value:{key}"), "rust", Fence::new(fence)).await?
            }
            Self::Postgres(on) => {
                sqlx::query(STATEMENT).bind(number).bind(key).execute(on).await?.rows_affected() == 1
            }
            Self::Sqlite(on) => {
                sqlx::query(STATEMENT).bind(number).bind(key).execute(on).await?.rows_affected() == 1
            }
        };
        Ok(if written { "written" } else { "stale" })
    }
}

/// Opens the database with the values, which lie in a file of their own.
pub(super) async fn sqlite(url: &str) -> Result<SqliteConnection> {
    let options: SqliteConnectOptions = url.parse()?;
    let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    let options = options.synchronous(SqliteSynchronous::Normal).busy_timeout(Duration::from_secs(30));
    Ok(options.connect().await?)
}
