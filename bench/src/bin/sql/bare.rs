//! The bare driver: no waiting, no renewal, no clean-up, no local validity.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dlock_bench::measure::Pairs;
use dlock_sql::sqlx::mysql::MySqlConnectOptions;
use dlock_sql::sqlx::postgres::PgConnectOptions;
use dlock_sql::sqlx::{self, ConnectOptions, MySqlConnection, PgConnection, Row};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, MutexGuard, oneshot};

use crate::statements::Statements;

/// The lease of every client.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// How many fences a grant reserves while nobody waits for the lock.
pub(crate) const FENCES: i64 = 1;
/// As long as what dlock writes into its rows.
pub(crate) const HOLDER: &str = r#"{"host":"host.example","pid":12345,"label":"","since":1234567890123456}"#;

/// Some connections: one for each task, or one for all of them.
pub(crate) struct Each<C>(Vec<Mutex<C>>);

/// One for each task, or one for all of them.
pub(crate) type Pg = Each<PgConnection>;
/// One for each task, or one for all of them.
pub(crate) type My = Each<MySqlConnection>;

impl Pg {
    pub(crate) async fn connect(url: &str, count: usize) -> Result<Self> {
        let options = url.parse::<PgConnectOptions>()?.disable_statement_logging();
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Mutex::new(options.connect().await?));
        }
        Ok(Self(all))
    }
}

impl Pg {
    /// The same, with another thread that watches their sockets and wakes who waits for an answer: what any client of
    /// this driver costs whose connections do not end with the runtime of a caller.
    pub(crate) async fn connect_elsewhere(url: &str, count: usize) -> Result<Self> {
        let (url, (opened, connected)) = (url.to_owned(), oneshot::channel());
        std::thread::Builder::new().name("watches".to_owned()).spawn(move || {
            let Ok(runtime) = Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let _ = opened.send(Self::connect(&url, count).await);
                std::future::pending::<()>().await;
            });
        })?;
        connected.await?
    }
}

impl My {
    pub(crate) async fn connect(url: &str, count: usize) -> Result<Self> {
        let options = url.parse::<MySqlConnectOptions>()?.disable_statement_logging();
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(Mutex::new(options.connect().await?));
        }
        Ok(Self(all))
    }
}

/// The number of the task that locks `key`.
pub(crate) fn task(key: &str) -> usize {
    key.rsplit('_').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

impl<C> Each<C> {
    pub(crate) async fn of(&self, key: &str) -> Result<MutexGuard<'_, C>> {
        let place = self.0.get(task(key) % self.0.len().max(1)).context("no connection")?;
        Ok(place.lock().await)
    }
}

fn lease() -> i64 {
    i64::try_from(LEASE.as_micros()).unwrap_or(i64::MAX)
}

fn token() -> [u8; 16] {
    fastrand::u128(..).to_ne_bytes()
}

/// Lease rows on PostgreSQL.
pub(crate) struct BarePostgres {
    pub(crate) connections: Pg,
    pub(crate) statements: Statements,
}

impl BarePostgres {
    pub(crate) async fn take(&self, on: &mut PgConnection, key: &str, token: &[u8]) -> Result<()> {
        let take = sqlx::query(self.statements.take.clone());
        let rows = take.bind(key.as_bytes()).bind(token).bind(lease()).bind(HOLDER).bind(FENCES);
        let rows = rows.fetch_all(on).await?;
        ensure!(rows.first().context("no answer")?.try_get::<Option<i64>, _>(1)?.is_none(), "it was taken");
        Ok(())
    }

    pub(crate) async fn release(
        &self,
        on: &mut PgConnection,
        key: &str,
        token: &[u8],
        channel: &str,
    ) -> Result<()> {
        let release = sqlx::query(self.statements.release.clone());
        let rows = release.bind(key.as_bytes()).bind(token).bind(channel).fetch_all(on).await?;
        ensure!(rows.len() == 1, "it was lost");
        Ok(())
    }
}

impl Pairs for BarePostgres {
    async fn pair(&self, key: &str) -> Result<()> {
        let (mut on, token) = (self.connections.of(key).await?, token());
        self.take(&mut on, key, &token).await?;
        self.release(&mut on, key, &token, "dlock_0123456789abcdef").await
    }
}

/// Lease rows on MariaDB.
pub(crate) struct BareMysql {
    pub(crate) connections: My,
    pub(crate) statements: Statements,
}

impl Pairs for BareMysql {
    async fn pair(&self, key: &str) -> Result<()> {
        let (mut on, token) = (self.connections.of(key).await?, token());
        let token = token.as_slice();
        let take = sqlx::query(self.statements.take.clone()).bind(token).bind(FENCES).bind(FENCES);
        let take = take.bind(token).bind(FENCES).bind(HOLDER.as_bytes()).bind(token).bind(lease());
        let take = take.bind(key.as_bytes()).bind(token);
        let taken = take.execute(&mut *on).await?;
        ensure!(taken.rows_affected() == 1 && taken.last_insert_id() > 0, "it was taken");
        let release = sqlx::query(self.statements.release.clone()).bind(key.as_bytes()).bind(token);
        ensure!(release.execute(&mut *on).await?.rows_affected() == 1, "it was lost");
        Ok(())
    }
}
