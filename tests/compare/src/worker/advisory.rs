//! sqlx's `PgAdvisoryLock`, on connections of a pool.

use std::time::Duration;

use anyhow::Result;
use dlock::sql::sqlx::PgPool;
use dlock::sql::sqlx::Postgres;
use dlock::sql::sqlx::pool::PoolConnection;
use dlock::sql::sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPoolOptions};

/// A connection for each lock that is held or waited for.
const CONNECTIONS: u32 = 1_100;

/// Long enough to open all of them.
const OPENING: Duration = Duration::from_secs(300);

pub(super) struct Advisory(PgPool);

impl Advisory {
    pub(super) fn open(url: &str) -> Result<Self> {
        Ok(Self(
            PgPoolOptions::new().max_connections(CONNECTIONS).acquire_timeout(OPENING).connect_lazy(url)?,
        ))
    }

    pub(super) async fn acquire(&self, key: &str) -> Result<AdvisoryLock> {
        let connection = self.0.acquire().await?;
        Ok(AdvisoryLock(PgAdvisoryLock::new(key).acquire(connection).await?))
    }
}

pub(super) struct AdvisoryLock(PgAdvisoryLockGuard<PoolConnection<Postgres>>);

impl AdvisoryLock {
    pub(super) async fn release(self) -> Result<()> {
        self.0.release_now().await?;
        Ok(())
    }
}
