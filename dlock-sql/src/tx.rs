//! Locks that the caller's own transaction holds.

use std::time::Duration;

use dlock_core::{ErrorKind, Failure, Key, Operation, Result};
use sqlx::{Encode, QueryBuilder, Transaction, Type};

use crate::dialect::{Dialect, Meaning, NAMES, failure_of, meaning_of, quoted, refused};

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

/// The time that a statement waits while another transaction has the row, or the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Patience {
    /// Wait for as long as the server lets a statement wait (PostgreSQL: without end unless `lock_timeout` is set;
    /// MariaDB and MySQL: `innodb_lock_wait_timeout`, 50 s).
    #[default]
    OfServer,
    /// Do not wait: [`ErrorKind::Busy`].
    No,
    /// Wait this long at the most, then [`ErrorKind::TimedOut`]. MariaDB and MySQL count whole seconds; it is rounded
    /// up.
    AtMost(Duration),
}

/// A database whose transactions can lock rows and names: sqlx's `Postgres`, and `MySql` (also for MariaDB).
pub trait Locking: Dialect {
    /// Runs the locking statement under this patience, and leaves no setting changed. The error of a row that stayed
    /// locked leaves the transaction as it was.
    #[doc(hidden)]
    fn lock(
        on: &mut Self::Connection,
        lock: LockStatement<Self>,
        patience: Patience,
    ) -> impl Future<Output = Result<Vec<Self::Row>, sqlx::Error>> + Send;
    /// Locks a name under this patience. Returns whether it is locked. An error of a name that stayed locked leaves the
    /// transaction as it was.
    #[doc(hidden)]
    fn lock_name(
        on: &mut Self::Connection,
        set: &str,
        name: &Key,
        patience: Patience,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;
    /// Deletes the names that no transaction has, and returns how many.
    #[doc(hidden)]
    fn prune_names(
        on: &mut Self::Connection,
        set: &str,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    /// Makes the table that locking names needs.
    #[doc(hidden)]
    fn prepare(on: &mut Self::Connection, set: &str) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// A statement that locks.
#[doc(hidden)]
#[allow(missing_debug_implementations)]
pub struct LockStatement<D: Dialect> {
    query: QueryBuilder<D>,
    /// Is `true` if it is a `SELECT ... FOR UPDATE`, to whose end `NOWAIT` can be added.
    selects: bool,
}

/// The columns by which a row of the user's table is found, and their values.
#[must_use = "lock_row() uses it"]
pub struct RowKey<D: Dialect>(Vec<(String, Push<D>)>);

type Push<D> = Box<dyn FnOnce(&mut QueryBuilder<D>) + Send + Sync>;

impl<D: Dialect> RowKey<D> {
    /// Creates a key of one column, whose value is of any type that sqlx can send as the column's.
    pub fn new<V>(column: &str, value: V) -> Self
    where
        V: for<'q> Encode<'q, D> + Type<D> + Send + Sync + 'static,
    {
        Self(Vec::new()).and(column, value)
    }

    /// Adds a column.
    pub fn and<V>(mut self, column: &str, value: V) -> Self
    where
        V: for<'q> Encode<'q, D> + Type<D> + Send + Sync + 'static,
    {
        let push = Box::new(move |query: &mut QueryBuilder<D>| {
            query.push_bind(value);
        });
        self.0.push((column.to_owned(), push));
        self
    }
}

impl<D: Dialect> std::fmt::Debug for RowKey<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(column, _)| column)).finish()
    }
}

/// Locks a row of the user's own table (`SELECT ... FOR UPDATE`) until the caller's transaction ends.
///
/// No other transaction can change the row, or lock it, before the commit or the rollback: there is no moment between
/// unlock and commit. The row is found by its `key`; use all columns of the primary key or of a unique index, else
/// MariaDB and MySQL lock more than that row. `table` may be written `schema.table`; names have 1 to 63 ASCII letters,
/// digits and underscores and are taken as they are written. Read the row's columns after that, in the same
/// transaction.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use dlock_sql::{Patience, RowKey, lock_row};
///
/// let mut transaction = pool.begin().await?;
/// let row = RowKey::new("shop", 7_i64).and("article", "shirt");
/// lock_row(&mut transaction, "stock", row, Patience::AtMost(Duration::from_secs(2))).await?;
/// let sold = "UPDATE stock SET count = count - 1 WHERE shop = 7 AND article = 'shirt'";
/// sqlx::query(sold).execute(&mut *transaction).await?;
/// transaction.commit().await?; // here it is free again
/// # Ok(()) }
/// ```
///
/// A connection is in use for as long as the transaction lasts, and a transaction that hangs blocks the row: set the
/// server's limit for idle transactions. On MariaDB and MySQL only InnoDB locks rows: in a table of another engine,
/// such as MyISAM, this locks nothing. SQLite has no such locks: a transaction that begins with `BEGIN IMMEDIATE` locks
/// the database.
///
/// # Errors
///
/// [`ErrorKind::Busy`] and [`ErrorKind::TimedOut`] as the [`Patience`] says: nothing is locked, and the transaction can
/// go on (on MariaDB and MySQL unless `innodb_rollback_on_timeout` is on). [`ErrorKind::NotHeld`] when there is no such
/// row: nothing is locked. [`ErrorKind::Unavailable`] after a deadlock or a serialization failure: roll back and run
/// the whole transaction again. [`ErrorKind::InvalidConfig`] and [`ErrorKind::Denied`] for wrong names and missing
/// rights (`SELECT` and `UPDATE`).
///
/// # Cancel safety
///
/// If dropped, roll the transaction back: dropping it does.
pub async fn lock_row<D: Locking>(
    on: &mut Transaction<'_, D>,
    table: &str,
    key: RowKey<D>,
    patience: Patience,
) -> Result<()> {
    let fail = |failure| refused::<D>(Operation::Acquire, failure);
    let select = select(table, key).map_err(fail)?;
    let rows = D::lock(on, select, patience).await;
    let rows = rows.map_err(|error| fail(failure_under::<D>(error, &format!("table {table}"), patience)))?;
    if rows.is_empty() {
        let missing = format!("table {table} has no such row; nothing is locked");
        return Err(fail(Failure::new(ErrorKind::NotHeld, missing)));
    }
    Ok(())
}

/// Locks the rows that the user's own `SELECT` finds, until the caller's transaction ends, and returns them.
///
/// `query` is everything before `FOR UPDATE`. With names or aliases of tables in `of` only their rows are locked
/// (`FOR UPDATE OF stock`), for a query that joins others; PostgreSQL and MySQL 8 have that, MariaDB does not.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_sql::{Patience, lock_query};
/// use sqlx::{QueryBuilder, Row};
///
/// let mut transaction = pool.begin().await?;
/// let all = "SELECT stock.count FROM stock JOIN shops ON shops.id = stock.shop WHERE shops.name = ";
/// let mut query = QueryBuilder::new(all);
/// query.push_bind("north");
/// for row in lock_query(&mut transaction, query, &["stock"], Patience::No).await? {
///     println!("{}", row.try_get::<i64, _>("count")?);
/// }
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// As [`lock_row`], except that finding no row is none. Where the database has no `OF`, or a name is wrong,
/// [`ErrorKind::InvalidConfig`].
///
/// # Cancel safety
///
/// If dropped, roll the transaction back: dropping it does.
pub async fn lock_query<D: Locking>(
    on: &mut Transaction<'_, D>,
    query: QueryBuilder<D>,
    of: &[&str],
    patience: Patience,
) -> Result<Vec<D::Row>> {
    let fail = |failure| refused::<D>(Operation::Acquire, failure);
    let select = select_of(query, of).map_err(fail)?;
    D::lock(on, select, patience)
        .await
        .map_err(|error| fail(failure_under::<D>(error, "the tables of the query", patience)))
}

fn select_of<D: Locking>(mut query: QueryBuilder<D>, of: &[&str]) -> Result<LockStatement<D>, Failure> {
    let of = of.iter().map(|name| quoted::<D>(name)).collect::<Result<Vec<_>, _>>()?;
    query.push(" FOR UPDATE");
    if !of.is_empty() {
        query.push(format!(" OF {}", of.join(", ")));
    }
    Ok(LockStatement { query, selects: true })
}

fn select<D: Locking>(table: &str, key: RowKey<D>) -> Result<LockStatement<D>, Failure> {
    let mut query = QueryBuilder::new(format!("SELECT 1 FROM {} WHERE ", quoted::<D>(table)?));
    for (place, (column, push)) in key.0.into_iter().enumerate() {
        let and = if place == 0 { "" } else { " AND " };
        query.push(format!("{and}{} = ", quoted::<D>(&column)?));
        push(&mut query);
    }
    select_of(query, &[])
}

/// Named locks that belong to the caller's transaction: taken in it, and released by its commit or rollback.
///
/// No other process gets the lock between the unlock and the commit, which a lock that is released by itself cannot
/// promise. All programs that take a name must use a set of one name, in one database. Another process waits in the
/// server, first come first served as far as the server does that.
///
/// * PostgreSQL: `pg_advisory_xact_lock` on 64 bits of a digest of the set's name and the key. Two names with the same
///   digest only wait for each other. No table is needed.
/// * MariaDB, MySQL: rows of a table with the set's name, which [`migrate`](Self::migrate) makes; one per name. The
///   table has to stay one of InnoDB.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use dlock_sql::{Patience, TransactionLocks};
///
/// let locks = TransactionLocks::<sqlx::Postgres>::new("dlock_transactions")?;
/// let mut transaction = pool.begin().await?;
/// locks.lock(&mut transaction, "invoice numbers", Patience::OfServer).await?;
/// // ... one transaction at a time is here, fleet-wide ...
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// There is no fence and no lease: the transaction is both. If its connection breaks, the server rolls it back with the
/// lock. Under `REPEATABLE READ` and `SERIALIZABLE` take the lock as the first statement of the transaction, since
/// later reads may show the state from before it was taken.
pub struct TransactionLocks<D> {
    set: String,
    database: std::marker::PhantomData<fn() -> D>,
}

impl<D: Locking> TransactionLocks<D> {
    /// Creates the set of this name: 1 to 63 ASCII letters, digits and underscores, not starting with a digit;
    /// `schema.name` is possible.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] when the name is not allowed.
    pub fn new(set: &str) -> Result<Self> {
        let set = quoted::<D>(set).map_err(|failure| refused::<D>(Operation::Configure, failure))?;
        Ok(Self { set, database: std::marker::PhantomData })
    }

    /// Makes the table where there has to be one and it is missing. On PostgreSQL there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] without the right to, and others of the database.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe: the table is made or not.
    pub async fn migrate(&self, on: &mut D::Connection) -> Result<()> {
        let made = D::prepare(on, &self.set).await;
        made.map_err(|error| refused::<D>(Operation::Configure, failure_of::<D>(error, &self.table(), NAMES)))
    }

    /// Takes the lock for the rest of the transaction. Taking it again in the same transaction does nothing.
    ///
    /// # Errors
    ///
    /// As [`lock_row`]; [`ErrorKind::InvalidKey`] when the key is empty, too long or contains a NUL. On MySQL 8 (not
    /// MariaDB) [`Patience::No`] waits for up to a second.
    ///
    /// # Cancel safety
    ///
    /// If dropped, roll the transaction back: dropping it does.
    pub async fn lock(&self, on: &mut Transaction<'_, D>, key: &str, patience: Patience) -> Result<()> {
        let key = Key::new(key).map_err(|failure| refused::<D>(Operation::Acquire, failure))?;
        let failure = match D::lock_name(on, &self.set, &key, patience).await {
            Ok(true) => return Ok(()),
            Ok(false) => Failure::new(ErrorKind::Busy, "another transaction has it locked"),
            Err(error) => failure_under::<D>(error, &self.table(), patience),
        };
        Err(refused::<D>(Operation::Acquire, failure).of(&key))
    }

    /// Deletes the names that no transaction has at this moment, and returns how many: on MariaDB and MySQL each name
    /// that was ever locked has a row of about 100 bytes. On PostgreSQL there is nothing to do. Call it outside of a
    /// transaction; it needs the right to `DELETE`, and delays other transactions by one row at a time at the most.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Denied`] without the right to, and others of the database. Some names may have been deleted.
    ///
    /// # Cancel safety
    ///
    /// If dropped midway, close the connection: a transaction may be open.
    pub async fn prune(&self, on: &mut D::Connection) -> Result<u64> {
        let pruned = D::prune_names(on, &self.set).await;
        pruned
            .map_err(|error| refused::<D>(Operation::Configure, failure_of::<D>(error, &self.table(), NAMES)))
    }

    fn table(&self) -> String {
        format!("table {}", self.set)
    }
}

impl<D> Clone for TransactionLocks<D> {
    fn clone(&self) -> Self {
        Self { set: self.set.clone(), database: std::marker::PhantomData }
    }
}

impl<D> std::fmt::Debug for TransactionLocks<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TransactionLocks").field(&self.set).finish()
    }
}

fn failure_under<D: Dialect>(error: sqlx::Error, table: &str, patience: Patience) -> Failure {
    if meaning_of::<D>(&error) == Meaning::Locked && patience != Patience::No {
        return Failure::new(ErrorKind::TimedOut, "another transaction has it locked").with_source(error);
    }
    failure_of::<D>(error, table, NAMES)
}
