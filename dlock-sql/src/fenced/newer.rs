//! Writes that refuse data that is not newer.

use std::fmt;
use std::marker::PhantomData;

use dlock_core::{DataVersion, Error, ErrorKind, Failure, Fence, Key, Operation, Result, VersionCheck};
use sqlx::{Encode, QueryBuilder, Transaction, Type};

use super::{FencedCell, VERSIONED, number_of, stale};
use crate::dialect::{Dialect, quoted, refused};

/// The state of a resource, as its row remembers it.
struct Known {
    number: i64,
    version: Option<DataVersion>,
    fence: Option<i64>,
}

impl<D: Dialect> FencedCell<D> {
    /// Admits a writer to `resource` for the rest of the transaction if the version of its data is newer than all that
    /// were admitted before: the order is that of the data, and not that of the grants.
    ///
    /// With a `fence`, both are checked: the fence must not be lower than one before, and the version must be higher.
    /// Without a lock, `None`: the row of the resource, which stays locked until the transaction ends, keeps two
    /// writers apart. Otherwise it is as [`admit`](Self::admit), and waits as that does. Write only after
    /// [`VersionCheck::Accepted`]; after the others roll back, or commit a transaction that has written nothing.
    ///
    /// ```no_run
    /// # async fn example(pool: sqlx::PgPool, read_at: std::time::SystemTime) -> Result<(), Box<dyn std::error::Error>>
    /// { use dlock_core::{DataVersion, VersionCheck}; use dlock_sql::FencedCell;
    ///
    /// let prices = FencedCell::<sqlx::Postgres>::new("dlock_fences")?;
    /// let mut transaction = pool.begin().await?;
    /// match prices.admit_newer(&mut transaction, "price:42", DataVersion::at(read_at)?, None).await? {
    ///     VersionCheck::Accepted => {
    ///         sqlx::query("UPDATE price SET amount = 17 WHERE id = 42").execute(&mut *transaction).await?;
    ///         transaction.commit().await?;
    ///     }
    ///     VersionCheck::AlreadyThere => {} // a repetition, or another writer came to the same version first
    ///     VersionCheck::Older { stored } => println!("{stored} is there already"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A resource is written with fences alone ([`admit`](Self::admit)), with versions alone, or with both; the first
    /// admission that is committed decides. That is seen within one table, so use one for all. Programs with earlier
    /// versions of dlock that ask with a fence for a resource with versions are refused as stale
    /// ([`ErrorKind::Lost`]). It costs three statements, two where nothing is admitted.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the fence is stale, whatever the version. [`ErrorKind::Conflict`] when the resource is
    /// written in another of the three ways. [`ErrorKind::InvalidConfig`] where the table is from before versions: run
    /// [`migrate`](Self::migrate). [`ErrorKind::Unavailable`] and [`ErrorKind::Busy`] as for [`admit`](Self::admit).
    /// When the outcome of your commit is unknown, run the whole transaction again: [`VersionCheck::AlreadyThere`] says
    /// that it was committed.
    ///
    /// # Cancel safety
    ///
    /// If dropped, roll the transaction back: dropping it does.
    pub async fn admit_newer(
        &self,
        on: &mut Transaction<'_, D>,
        resource: &str,
        version: DataVersion,
        fence: Option<Fence>,
    ) -> Result<VersionCheck> {
        let name = Key::new(resource).map_err(|failure| refused::<D>(Operation::Hold, failure))?;
        let fail = |failure| Error::new(Operation::Hold, failure).on(D::BACKEND).of(&name);
        let number = fence.map(number_of).transpose().map_err(fail)?;
        let known = self.known(on, &name).await.map_err(|error| fail(self.failure(error)))?;
        let is_new = known.version.is_none() && known.number == VERSIONED;
        if !is_new && (known.version.is_none() || known.fence.is_some() != number.is_some()) {
            return Err(fail(self.mixed()));
        }
        if let Some(fence) = fence.filter(|_| number < known.fence) {
            return Err(fail(stale(fence)));
        }
        let check = VersionCheck::of(version, known.version);
        if check.is_accepted() {
            let written = self.remember(on, &name, version, number).await;
            written.map_err(|error| fail(self.failure(error)))?;
        }
        Ok(check)
    }

    /// Reports that the resource is written in another way.
    pub(super) fn mixed(&self) -> Failure {
        let message = format!(
            "the row of the resource in table {} was written in another way (with fences alone, with versions alone, or \
             with both); write it in that way, or delete its row when nobody writes it, to begin anew; roll this \
             transaction back",
            self.table
        );
        Failure::new(ErrorKind::Conflict, message)
    }

    /// Locks the row of the resource, which it makes where it is missing, and reads it.
    async fn known(&self, on: &mut D::Connection, name: &Key) -> std::result::Result<Known, sqlx::Error> {
        let table = &self.table;
        self.upsert(&mut *on, name, VERSIONED, format!("number = {table}.number")).await?;
        let row = self.row(on, name, "number, version, fence").await?;
        Ok(Known {
            number: D::number(&row, "number")?.unwrap_or_default(),
            version: D::number(&row, "version")?.map(DataVersion::new),
            fence: D::number(&row, "fence")?,
        })
    }

    async fn remember(
        &self,
        on: &mut D::Connection,
        name: &Key,
        version: DataVersion,
        fence: Option<i64>,
    ) -> std::result::Result<(), sqlx::Error> {
        let mut query = QueryBuilder::<D>::new(format!("UPDATE {} SET version = ", self.table));
        D::bind_number(&mut query, version.get());
        if let Some(fence) = fence {
            query.push(", fence = ");
            D::bind_number(&mut query, fence);
        }
        query.push(" WHERE name = ");
        D::bind_bytes(&mut query, name.as_str().as_bytes().to_vec());
        D::execute(on, &mut query).await.map(drop)
    }
}

/// A column of the user's own table that holds the version of the row's data, a number or a time: an SQL predicate and
/// an assignment for the user's own `UPDATE`, which then changes nothing unless its data is newer.
///
/// The value is one of a type that sqlx binds for this column, such as
/// [`DataVersion::get`](dlock_core::DataVersion::get) for a 64-bit integer, or a time where sqlx's features for times
/// are on. The database compares. The column has to hold the value exactly: a time in a column with fewer digits
/// (`DATETIME` for `DATETIME(6)`, `timestamptz(0)`) is rounded when it is stored, and then compares as older or newer
/// than it was. A row whose version is null accepts every version.
///
/// No row is changed when the data is not newer, when this very version is there, or when there is no such row: read
/// the version to tell. With a lock, push the predicate of a [`FenceColumn`](super::FenceColumn), too.
///
/// ```
/// use dlock_core::DataVersion;
/// use dlock_sql::VersionColumn;
///
/// # #[cfg(feature = "sqlite")] fn example() -> dlock_core::Result<()> {
/// let version = VersionColumn::<sqlx::Sqlite>::new("as_of")?;
/// let read = DataVersion::new(1_795_762_800_000_000).get();
/// let mut update = sqlx::QueryBuilder::new("UPDATE price SET amount = 17, ");
/// version.push_assignment(&mut update, read);
/// update.push(" WHERE id = ").push_bind(42).push(" AND ");
/// version.push_predicate(&mut update, read);
/// assert_eq!(
///     update.sql().as_str(),
///     r#"UPDATE price SET amount = 17, "as_of" = ? WHERE id = ? AND ("as_of" IS NULL OR "as_of" < ?)"#
/// );
/// # Ok(()) }
/// # #[cfg(feature = "sqlite")] example().unwrap();
/// ```
pub struct VersionColumn<D> {
    column: String,
    database: PhantomData<fn() -> D>,
}

impl<D: Dialect> VersionColumn<D> {
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

    /// Adds `column = version`, for the list after `SET`.
    pub fn push_assignment<V>(&self, query: &mut QueryBuilder<D>, version: V)
    where
        V: for<'q> Encode<'q, D> + Type<D>,
    {
        query.push(&self.column).push(" = ").push_bind(version);
    }

    /// Adds the condition that no data of this version or a newer one has been written, for the `WHERE`.
    pub fn push_predicate<V>(&self, query: &mut QueryBuilder<D>, version: V)
    where
        V: for<'q> Encode<'q, D> + Type<D>,
    {
        let column = &self.column;
        query.push(format!("({column} IS NULL OR {column} < ")).push_bind(version).push(")");
    }
}

impl<D> Clone for VersionColumn<D> {
    fn clone(&self) -> Self {
        Self { column: self.column.clone(), database: PhantomData }
    }
}

impl<D> fmt::Debug for VersionColumn<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VersionColumn").field(&self.column).finish()
    }
}
