//! The shop's own database: a stock that is read, worked on and written back, and the orders as the truth.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

/// The only product.
pub(crate) const SKU: &str = "voucher";
/// Into how many segments the stock is split where it is. The attribute on `buy_in_segments` says the same.
pub(crate) const SEGMENTS: u32 = 20;

const TABLES: &str = "
    CREATE TABLE stock (
        sku TEXT NOT NULL,
        segment INTEGER NOT NULL,
        available INTEGER NOT NULL,
        last_fence INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (sku, segment)
    ) STRICT;
    CREATE TABLE orders (customer INTEGER PRIMARY KEY, fence INTEGER) STRICT;
";

/// A connection to the shop.
#[derive(Clone, Debug)]
pub(crate) struct Shop(SqlitePool);

/// What a buyer sees before he decides.
pub(crate) struct Look {
    pub(crate) available: i64,
    /// This customer has an order already.
    pub(crate) served: bool,
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    Done,
    /// A later holder of the lock has written already.
    Stale,
}

impl Shop {
    /// Makes the shop with this much in stock, in so many segments of nearly the same size.
    pub(crate) async fn create(path: &Path, stock: u32, segments: u32) -> Result<Self, sqlx::Error> {
        let shop = Self::connect(path, 1, true).await?;
        sqlx::raw_sql(TABLES).execute(&shop.0).await?;
        for segment in 0..segments {
            let part = stock / segments + u32::from(segment < stock % segments);
            sqlx::query("INSERT INTO stock (sku, segment, available) VALUES (?, ?, ?)")
                .bind(SKU)
                .bind(segment)
                .bind(part)
                .execute(&shop.0)
                .await?;
        }
        Ok(shop)
    }

    pub(crate) async fn open(path: &Path, connections: u32) -> Result<Self, sqlx::Error> {
        Self::connect(path, connections, false).await
    }

    async fn connect(path: &Path, connections: u32, create: bool) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(create)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(30));
        Ok(Self(SqlitePoolOptions::new().max_connections(connections).connect_with(options).await?))
    }

    /// Looks at the stock; `None` when a later holder of the lock has been here already.
    ///
    /// The fence goes with this first access, although it only reads: from here on the shop accepts no write of an
    /// earlier holder, which would otherwise be built upon and then overwritten.
    pub(crate) async fn look(
        &self,
        (sku, segment): (&str, u32),
        customer: u32,
        fence: Option<u64>,
    ) -> Result<Option<Look>, sqlx::Error> {
        const SERVED: &str = "SELECT EXISTS (SELECT 1 FROM orders WHERE customer = ?)";
        let available = match fence.map(u64::cast_signed) {
            None => {
                const LOOK: &str = "SELECT available FROM stock WHERE sku = ? AND segment = ?";
                sqlx::query_scalar(LOOK).bind(sku).bind(segment)
            }
            Some(fence) => {
                const ENTER: &str = "UPDATE stock SET last_fence = ?1 WHERE sku = ?2 AND segment = ?3 \
                                     AND last_fence <= ?1 RETURNING available";
                sqlx::query_scalar(ENTER).bind(fence).bind(sku).bind(segment)
            }
        };
        let Some(available) = available.fetch_all(&self.0).await?.first().copied() else { return Ok(None) };
        let served = sqlx::query_scalar(SERVED).bind(customer).fetch_one(&self.0).await?;
        Ok(Some(Look { available, served }))
    }

    /// Writes back the stock and enters the order. With a fence, the shop itself sees to it that no write is accepted
    /// after that of a later holder: what makes the sale exact however long a worker was frozen.
    pub(crate) async fn sell(
        &self,
        (sku, segment): (&str, u32),
        customer: u32,
        available: i64,
        fence: Option<u64>,
    ) -> Result<Write, sqlx::Error> {
        let fence = fence.map(u64::cast_signed);
        let mut sale = self.0.begin_with("BEGIN IMMEDIATE").await?;
        let written = match fence {
            None => {
                const BARE: &str = "UPDATE stock SET available = ? WHERE sku = ? AND segment = ?";
                sqlx::query(BARE).bind(available).bind(sku).bind(segment)
            }
            Some(fence) => {
                const FENCED: &str = "UPDATE stock SET available = ?1, last_fence = ?4 WHERE sku = ?2 \
                                      AND segment = ?3 AND last_fence <= ?4";
                sqlx::query(FENCED).bind(available).bind(sku).bind(segment).bind(fence)
            }
        };
        if written.execute(&mut *sale).await?.rows_affected() == 0 {
            sale.rollback().await?;
            return Ok(Write::Stale);
        }
        let order =
            sqlx::query("INSERT INTO orders (customer, fence) VALUES (?, ?)").bind(customer).bind(fence);
        order.execute(&mut *sale).await?;
        sale.commit().await?;
        Ok(Write::Done)
    }

    /// How many orders there are, and what the stock says is left.
    pub(crate) async fn audit(&self) -> Result<(i64, i64), sqlx::Error> {
        const AUDIT: &str = "SELECT (SELECT COUNT(*) FROM orders), SUM(available) FROM stock WHERE sku = ?";
        sqlx::query_as(AUDIT).bind(SKU).fetch_one(&self.0).await
    }

    pub(crate) async fn close(self) {
        self.0.close().await;
    }
}
