//! Writes that refuse stale fences.

use std::fmt;
use std::marker::PhantomData;

use dlock_core::{Error, ErrorKind, Failure, Fence, Key, Operation, Result};
use sqlx::{QueryBuilder, Transaction};

use crate::dialect::{Dialect, failure_of, quoted, refused};

/// A table that remembers the highest fence that wrote to each resource, and refuses lower ones.
///
/// Ask it first in the transaction that writes: it lets the transaction go on, or says that somebody with a newer lock
/// has been here. From then until the commit or the rollback no other fence is admitted to the resource. That holds
/// whatever pauses, delays or clocks do, as long as everybody who writes the resource asks, with fences of the same
/// lock.
///
/// ```no_run
/// # async fn example(locks: dlock_core::Locks, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_sql::FencedCell;
///
/// let stock = FencedCell::<sqlx::Postgres>::new("dlock_fences")?;
/// stock.migrate(&mut *pool.acquire().await?).await?; // once, at deployment
///
/// let guard = locks.lock("stock:42").acquire().await?;
/// let mut transaction = pool.begin().await?;
/// stock.admit(&mut transaction, "stock:42", guard.fence().expect("a backend with fences")).await?;
/// sqlx::query("UPDATE stock SET count = count - 1 WHERE id = 42").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// It costs one statement (MariaDB, MySQL: two), and a row per resource. Where the resource is one row that can have a
/// column for its fence, [`FenceColumn`] costs nothing extra.
pub struct FencedCell<D> {
    table: String,
    database: PhantomData<fn() -> D>,
}

impl<D: Dialect> FencedCell<D> {
    /// Creates a cell in this table, which may be written `schema.table`. Names have 1 to 63 ASCII letters, digits and
    /// underscores, do not start with a digit, and are taken as they are written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the name is not allowed.
    pub fn new(table: &str) -> Result<Self> {
        let table = quoted::<D>(table).map_err(|failure| refused::<D>(Operation::Configure, failure))?;
        Ok(Self { table, database: PhantomData })
    }

    /// Makes the table where it is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] without the right to, and others of the database.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the table is made or not.
    pub async fn migrate(&self, on: &mut D::Connection) -> Result<()> {
        let mut query = QueryBuilder::<D>::new("CREATE TABLE IF NOT EXISTS ");
        query.push(&self.table).push(" ").push(D::NAMED_NUMBERS);
        let made = D::execute(on, &mut query).await;
        made.map(drop).map_err(|error| refused::<D>(Operation::Configure, failure_of::<D>(error)))
    }

    /// Admits a writer with this fence to `resource` for the rest of the transaction, unless one with a higher fence
    /// was admitted before. The same fence is admitted any number of times. Waits while another transaction is
    /// admitted, as long as the server lets statements wait. `resource` is any text of 1 to 512 bytes; the key of the
    /// lock for example.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the fence is stale: the lock went to somebody else. Roll back. So do after
    /// [`ErrorKind::Unavailable`] (a deadlock, a serialization failure, SQLite busy), and run the whole transaction
    /// again. [`ErrorKind::Busy`] when the server's limit for waiting ended it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, roll the transaction back: dropping it does.
    pub async fn admit(&self, on: &mut Transaction<'_, D>, resource: &str, fence: Fence) -> Result<()> {
        let name = Key::new(resource).map_err(|failure| refused::<D>(Operation::Hold, failure))?;
        let fail = |failure| Error::new(Operation::Hold, failure).on(D::BACKEND).of(&name);
        let number = i64::try_from(fence.get())
            .map_err(|_| fail(Failure::invalid_config("the fence is above the numbers of SQL")))?;
        let admitted = self.raise(on, &name, number).await;
        if admitted.map_err(|error| fail(failure_of::<D>(error)))? {
            return Ok(());
        }
        Err(fail(Failure::new(
            ErrorKind::Lost,
            format!("{fence} is stale: a later holder has written; roll this transaction back"),
        )))
    }

    /// Whether the fence is the highest; then it is remembered.
    async fn raise(&self, on: &mut D::Connection, name: &Key, fence: i64) -> Result<bool, sqlx::Error> {
        let table = &self.table;
        let mut query = QueryBuilder::<D>::new(format!("INSERT INTO {table} (name, number) VALUES ("));
        D::bind_bytes(&mut query, name.as_str().as_bytes().to_vec());
        query.push(", ");
        D::bind_number(&mut query, fence);
        if D::BACKEND != "mysql" {
            query.push(format!(
                ") ON CONFLICT (name) DO UPDATE SET number = excluded.number WHERE {table}.number <= excluded.number"
            ));
            return Ok(D::execute(on, &mut query).await? == 1);
        }
        // There the upsert takes no condition, and does not say what it did. It does lock the row.
        query.push(") ON DUPLICATE KEY UPDATE number = GREATEST(number, VALUES(number))");
        D::execute(on, &mut query).await?;
        let mut query = QueryBuilder::<D>::new(format!("SELECT number FROM {table} WHERE name = "));
        D::bind_bytes(&mut query, name.as_str().as_bytes().to_vec());
        // What is committed now, not what was when this transaction began.
        query.push(" FOR UPDATE");
        let rows = D::fetch(on, &mut query).await?;
        rows.first().map_or(Ok(false), |row| Ok(D::number(row, "number")? == fence))
    }
}

impl<D> Clone for FencedCell<D> {
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), database: PhantomData }
    }
}

impl<D> fmt::Debug for FencedCell<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FencedCell").field(&self.table).finish()
    }
}

/// A column of the user's own table that holds the fence of the row's last writer: an SQL predicate and an assignment
/// for the user's own `UPDATE`.
///
/// The column is a 64-bit integer, null or 0 at first. An update with a stale fence changes no row: look at the number
/// of rows, which is 0 also when there is no such row.
///
/// ```
/// use dlock_core::Fence;
/// use dlock_sql::FenceColumn;
///
/// # #[cfg(feature = "sqlite")] fn example() -> dlock_core::Result<()> {
/// let fence = FenceColumn::<sqlx::Sqlite>::new("fence")?;
/// let mut update = sqlx::QueryBuilder::new("UPDATE stock SET count = count - 1, ");
/// fence.push_assignment(&mut update, Fence::new(7));
/// update.push(" WHERE id = ").push_bind(42).push(" AND ");
/// fence.push_predicate(&mut update, Fence::new(7));
/// assert_eq!(
///     update.sql().as_str(),
///     r#"UPDATE stock SET count = count - 1, "fence" = ? WHERE id = ? AND ("fence" IS NULL OR "fence" <= ?)"#
/// );
/// # Ok(()) }
/// # #[cfg(feature = "sqlite")] example().unwrap();
/// ```
pub struct FenceColumn<D> {
    column: String,
    database: PhantomData<fn() -> D>,
}

impl<D: Dialect> FenceColumn<D> {
    /// Creates the column of this name, which may be written `table.column` where the database allows that in an
    /// assignment.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the name is not allowed, see [`FencedCell::new`].
    pub fn new(column: &str) -> Result<Self> {
        let column = quoted::<D>(column).map_err(|failure| refused::<D>(Operation::Configure, failure))?;
        Ok(Self { column, database: PhantomData })
    }

    /// Adds `column = fence`, for the list after `SET`.
    pub fn push_assignment(&self, query: &mut QueryBuilder<D>, fence: Fence) {
        query.push(&self.column).push(" = ");
        D::bind_number(query, number(fence));
    }

    /// Adds the condition that no higher fence has written, for the `WHERE`.
    pub fn push_predicate(&self, query: &mut QueryBuilder<D>, fence: Fence) {
        query.push("(").push(&self.column).push(" IS NULL OR ").push(&self.column).push(" <= ");
        D::bind_number(query, number(fence));
        query.push(")");
    }
}

/// No backend gives fences above the numbers of SQL.
fn number(fence: Fence) -> i64 {
    i64::try_from(fence.get()).unwrap_or(i64::MIN)
}

impl<D> Clone for FenceColumn<D> {
    fn clone(&self) -> Self {
        Self { column: self.column.clone(), database: PhantomData }
    }
}

impl<D> fmt::Debug for FenceColumn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FenceColumn").field(&self.column).finish()
    }
}
