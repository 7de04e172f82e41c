//! Leased locks with fences in an SQL database, for [dlock](dlock_core).
//!
#![cfg_attr(
    feature = "sqlite",
    doc = "* [`Sqlite`] locks between the processes of one host, in a file (feature `sqlite`)."
)]
#![cfg_attr(
    feature = "postgres",
    doc = "* [`Postgres`] locks in a PostgreSQL database (feature `postgres`)."
)]
#![cfg_attr(feature = "mysql", doc = "* [`Mysql`] locks in a MariaDB or MySQL database (feature `mysql`).")]
#![forbid(unsafe_code)]

#[cfg(not(any(feature = "mysql", feature = "postgres", feature = "sqlite")))]
compile_error!(
    "dlock-sql locks nothing without a database: switch on its feature `sqlite`, `postgres` or `mysql`"
);

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod dialect;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod digest;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod failure;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod fenced;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod optimistic;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod renewals;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod rows;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod session;
#[cfg(feature = "sqlite")]
mod sqlite;
mod table;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod text;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod tx;

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use dialect::Dialect;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use fenced::{FenceColumn, FencedCell};
#[cfg(feature = "mysql")]
pub use mysql::{Mysql, MysqlClaim, MysqlOptions, MysqlRowLocks, MysqlSessions};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use optimistic::{Optimistic, OptimisticError};
#[cfg(feature = "postgres")]
pub use postgres::{Postgres, PostgresClaim, PostgresOptions, PostgresRowLocks, PostgresSessions};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use session::{SessionClaim, Sessions};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteClaim, SqliteOptions};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use sqlx;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use tx::{Locking, Patience, RowKey, TransactionLocks, lock_query, lock_row};
