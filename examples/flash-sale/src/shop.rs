//! The shop's own database: a stock that is read, worked on and written back, and the orders as the truth.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

/// The only product.
pub(crate) const SKU: &str = "voucher";

const TABLES: &str = "
    CREATE TABLE stock (
        sku TEXT PRIMARY KEY,
        available INTEGER NOT NULL,
        last_fence INTEGER NOT NULL DEFAULT 0
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
    /// Makes the shop with this much in stock.
    pub(crate) async fn create(path: &Path, stock: u32) -> Result<Self, sqlx::Error> {
        let shop = Self::connect(path, 1, true).await?;
        sqlx::raw_sql(TABLES).execute(&shop.0).await?;
        let stock = i64::from(stock);
        sqlx::query("INSERT INTO stock (sku, available) VALUES (?, ?)")
            .bind(SKU)
            .bind(stock)
            .execute(&shop.0)
            .await?;
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

    pub(crate) async fn look(&self, sku: &str, customer: u32) -> Result<Look, sqlx::Error> {
        const LOOK: &str =
            "SELECT available, EXISTS (SELECT 1 FROM orders WHERE customer = ?) FROM stock WHERE sku = ?";
        let (available, served) = sqlx::query_as(LOOK).bind(customer).bind(sku).fetch_one(&self.0).await?;
        Ok(Look { available, served })
    }

    /// Writes back the stock and enters the order. With a fence, the shop itself sees to it that no write is accepted
    /// after that of a later holder: what makes the sale exact however long a worker was frozen.
    pub(crate) async fn sell(
        &self,
        sku: &str,
        customer: u32,
        available: i64,
        fence: Option<u64>,
    ) -> Result<Write, sqlx::Error> {
        let fence = fence.map(u64::cast_signed);
        let mut sale = self.0.begin_with("BEGIN IMMEDIATE").await?;
        let written = match fence {
            None => sqlx::query("UPDATE stock SET available = ? WHERE sku = ?").bind(available).bind(sku),
            Some(fence) => {
                const FENCED: &str =
                    "UPDATE stock SET available = ?, last_fence = ? WHERE sku = ? AND last_fence <= ?";
                sqlx::query(FENCED).bind(available).bind(fence).bind(sku).bind(fence)
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
        const AUDIT: &str = "SELECT (SELECT COUNT(*) FROM orders), available FROM stock WHERE sku = ?";
        sqlx::query_as(AUDIT).bind(SKU).fetch_one(&self.0).await
    }

    pub(crate) async fn close(self) {
        self.0.close().await;
    }
}
