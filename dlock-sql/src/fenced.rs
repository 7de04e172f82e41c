//! Writes that refuse stale fences.

mod newer;

use std::fmt;
use std::marker::PhantomData;

use dlock_core::{Error, ErrorKind, Failure, Fence, Key, Operation, Result};
use sqlx::{QueryBuilder, Transaction};

pub use newer::VersionColumn;

use crate::dialect::{Dialect, failure_of, quoted, refused};

/// The number in the place of the highest fence where a resource has versions: a writer with a fence alone is refused,
/// also by an earlier version of this crate.
const VERSIONED: i64 = i64::MAX;

/// The remedy where the table is not as [`FencedCell`] makes it.
const REMEDY: &str = "run FencedCell::migrate, which makes the table and its columns";

/// A table that remembers the highest fence that wrote to each resource, and refuses lower ones.
///
/// Ask it first in the transaction that writes: it lets the transaction go on, or reports that a holder with a higher
/// fence has written. From then until the commit or the rollback no other fence is admitted to the resource. That holds
/// whatever pauses, delays or clocks do, as long as all writers of the resource ask, with fences of one lock.
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
///
/// A fence orders writers by their grants. Where the data itself has a time or a number, and older data must not follow
/// newer whichever process has the lock, see [`admit_newer`](Self::admit_newer).
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

    /// Makes the table where it is missing, and its columns for [`admit_newer`](Self::admit_newer) where it is from
    /// before them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] without the right to, and others of the database.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: each of them is made or not.
    pub async fn migrate(&self, on: &mut D::Connection) -> Result<()> {
        self.make(on).await.map_err(|failure| refused::<D>(Operation::Configure, failure))
    }

    async fn make(&self, on: &mut D::Connection) -> Result<(), Failure> {
        let table = &self.table;
        let mut query =
            QueryBuilder::<D>::new(format!("CREATE TABLE IF NOT EXISTS {table} {}", D::NAMED_NUMBERS));
        D::execute(&mut *on, &mut query).await.map_err(|error| self.failure(error))?;
        for column in ["version", "fence"] {
            if !self.lacks(&mut *on, column).await.map_err(|error| self.failure(error))? {
                continue;
            }
            let mut query = QueryBuilder::<D>::new(format!("ALTER TABLE {table} ADD {column} bigint"));
            let Err(error) = D::execute(&mut *on, &mut query).await else { continue };
            // Another process may have been faster. After some errors that cannot be asked in the same transaction.
            match self.lacks(&mut *on, column).await {
                Ok(false) => {}
                Ok(true) => return Err(self.failure(error)),
                Err(unseen) => {
                    let failure = self.failure(error);
                    let message = format!(
                        "the column {column} was not added to table {table}, and whether another process has added it \
                         cannot be seen ({unseen})"
                    );
                    return Err(Failure::new(failure.kind(), message).with_source(failure));
                }
            }
        }
        Ok(())
    }

    async fn lacks(&self, on: &mut D::Connection, column: &str) -> Result<bool, sqlx::Error> {
        Ok(D::columns(on, &self.table).await?.iter().all(|name| name != column))
    }

    /// Admits a writer with this fence to `resource` for the rest of the transaction, unless a higher fence was
    /// admitted before. A fence is admitted any number of times. Waits while another transaction is
    /// admitted, as long as the server lets statements wait. `resource` is any text of 1 to 512 bytes; the key of the
    /// lock for example.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the fence is stale: the lock went to another holder. Roll back. So do after
    /// [`ErrorKind::Unavailable`] (a deadlock, a serialization failure, SQLite busy), and run the whole transaction
    /// again. [`ErrorKind::Busy`] when the server's limit for waiting ended it. [`ErrorKind::Conflict`] when the
    /// resource is written with versions.
    ///
    /// # Cancel safety
    ///
    /// If dropped, roll the transaction back: dropping it does.
    pub async fn admit(&self, on: &mut Transaction<'_, D>, resource: &str, fence: Fence) -> Result<()> {
        let name = Key::new(resource).map_err(|failure| refused::<D>(Operation::Hold, failure))?;
        let fail = |failure| Error::new(Operation::Hold, failure).on(D::BACKEND).of(&name);
        let number = number_of(fence).map_err(fail)?;
        let highest = self.raise(on, &name, number).await.map_err(|error| fail(self.failure(error)))?;
        if highest == number {
            return Ok(());
        }
        Err(fail(if highest == VERSIONED { self.mixed() } else { stale(fence) }))
    }

    fn failure(&self, error: sqlx::Error) -> Failure {
        failure_of::<D>(error, &format!("table {}", self.table), REMEDY)
    }

    /// Remembers the fence if it is the highest, and returns the highest.
    async fn raise(&self, on: &mut D::Connection, name: &Key, fence: i64) -> Result<i64, sqlx::Error> {
        let table = &self.table;
        // MariaDB and MySQL take no condition, and do not report what they did. They do lock the row.
        let (set, tells) = match D::BACKEND {
            "mysql" => ("number = GREATEST(number, VALUES(number))".to_owned(), false),
            _ => (format!("number = excluded.number WHERE {table}.number <= excluded.number"), true),
        };
        if self.upsert(&mut *on, name, fence, set).await? == 1 && tells {
            return Ok(fence);
        }
        let row = self.row(on, name, "number").await?;
        Ok(D::number(&row, "number")?.unwrap_or_default())
    }

    /// Makes the row of a resource with this number, or locks it and makes the assignments of `set`.
    async fn upsert(
        &self,
        on: &mut D::Connection,
        name: &Key,
        number: i64,
        set: String,
    ) -> Result<u64, sqlx::Error> {
        let mut query = QueryBuilder::<D>::new(format!("INSERT INTO {} (name, number) VALUES (", self.table));
        D::bind_bytes(&mut query, name.as_str().as_bytes().to_vec());
        query.push(", ");
        D::bind_number(&mut query, number);
        let there =
            if D::BACKEND == "mysql" { "DUPLICATE KEY UPDATE" } else { "CONFLICT (name) DO UPDATE SET" };
        query.push(format!(") ON {there} {set}"));
        D::execute(on, &mut query).await
    }

    /// Reads the row of a resource, which is locked.
    async fn row(&self, on: &mut D::Connection, name: &Key, columns: &str) -> Result<D::Row, sqlx::Error> {
        let mut query = QueryBuilder::<D>::new(format!("SELECT {columns} FROM {} WHERE name = ", self.table));
        D::bind_bytes(&mut query, name.as_str().as_bytes().to_vec());
        if D::BACKEND == "mysql" {
            // The state that is committed now, not that of when this transaction began.
            query.push(" FOR UPDATE");
        }
        D::fetch(on, &mut query).await?.pop().ok_or(sqlx::Error::RowNotFound)
    }
}

/// Returns the number of a fence, as a row has it.
fn number_of(fence: Fence) -> Result<i64, Failure> {
    let number = i64::try_from(fence.get()).ok().filter(|number| *number != VERSIONED);
    number.ok_or_else(|| {
        Failure::invalid_config(format!(
            "the fence {fence} is above {}, the highest that a row can have; use the fences of the lock's grants",
            VERSIONED - 1
        ))
    })
}

/// Reports that a later holder of the lock has written.
fn stale(fence: Fence) -> Failure {
    let message =
        format!("the fence {fence} is stale: a later holder has written; roll this transaction back");
    Failure::new(ErrorKind::Lost, message)
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

/// Returns the number of a fence: no backend gives fences above the numbers of SQL.
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
