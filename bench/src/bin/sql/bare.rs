//! The bare driver: no waiting, no renewal, no clean-up, no local validity.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dlock_bench::measure::Pairs;
use dlock_core::{Key, Token};
use dlock_sql::sqlx::mysql::MySqlConnectOptions;
use dlock_sql::sqlx::postgres::PgConnectOptions;
use dlock_sql::sqlx::{ConnectOptions, Database, MySqlConnection, PgConnection};
use dlock_sql::{BareRows, LeaseTable};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, MutexGuard, oneshot};

/// The lease of every client.
pub(crate) const LEASE: Duration = Duration::from_secs(30);
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

/// Lease rows, by the statements of dlock.
pub(crate) struct BareLeases<S: LeaseTable> {
    pub(crate) connections: Each<<S::Database as Database>::Connection>,
    pub(crate) rows: BareRows<S>,
}

impl<S: LeaseTable> BareLeases<S> {
    pub(crate) async fn take(
        &self,
        on: &mut <S::Database as Database>::Connection,
        key: &Key,
        token: Token,
    ) -> Result<()> {
        ensure!(self.rows.take(on, key, token, LEASE, HOLDER).await?, "it was taken");
        Ok(())
    }

    pub(crate) async fn release(
        &self,
        on: &mut <S::Database as Database>::Connection,
        key: &Key,
        token: Token,
    ) -> Result<()> {
        ensure!(self.rows.release(on, key, token).await?, "it was lost");
        Ok(())
    }
}

impl<S: LeaseTable> Pairs for BareLeases<S> {
    async fn pair(&self, key: &str) -> Result<()> {
        let (mut on, token, key) = (self.connections.of(key).await?, Token::random()?, Key::new(key)?);
        self.take(&mut on, &key, token).await?;
        self.release(&mut on, &key, token).await
    }
}
