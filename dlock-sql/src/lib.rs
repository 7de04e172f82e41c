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
#![cfg_attr(
    feature = "tx",
    doc = "* [`FencedCell`], [`Optimistic`] and others belong to a transaction of the caller's own (feature `tx`)."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(any(feature = "mysql", feature = "postgres", feature = "sqlite")))]
compile_error!(
    "dlock-sql locks nothing without a database: switch on its feature `sqlite`, `postgres` or `mysql`"
);

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod address;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod bare;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod connector;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod diagnosis;
#[cfg(feature = "tx")]
mod dialect;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod digest;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod driver;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod failure;
#[cfg(feature = "tx")]
mod fenced;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod findings;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod gateway;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod keeper_task;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod lease_rows;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod limits;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod opening;
#[cfg(feature = "tx")]
mod optimistic;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod options;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod protocol;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod question;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod questions;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod releases;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod renewals;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod rows;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod server;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod session;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod settings;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod stored;
mod table;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod text;
#[cfg(all(feature = "tx", any(feature = "mysql", feature = "postgres")))]
mod tx;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod way;

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use bare::BareRows;
#[cfg(feature = "tx")]
pub use dialect::Dialect;
#[cfg(feature = "tx")]
pub use fenced::{FenceColumn, FencedCell, VersionColumn};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use lease_rows::LeaseRows;
#[cfg(feature = "mysql")]
pub use mysql::{Mysql, MysqlClaim, MysqlOptions, MysqlRowLocks, MysqlServer, MysqlSessions};
#[cfg(feature = "tx")]
pub use optimistic::{Optimistic, OptimisticError};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use options::ServerOptions;
#[cfg(feature = "postgres")]
pub use postgres::{
    Postgres, PostgresClaim, PostgresOptions, PostgresRowLocks, PostgresServer, PostgresSessions,
};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use rows::{LeaseTable, RowClaim};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use server::Server;
#[cfg(all(feature = "tx", any(feature = "mysql", feature = "postgres")))]
pub use session::ConnectionLock;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub use session::{SessionClaim, Sessions};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteClaim, SqliteOptions};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use sqlx;
#[cfg(all(fuzzing, any(feature = "mysql", feature = "postgres", feature = "sqlite")))]
#[doc(hidden)]
pub use stored::hostile::holders_in;
#[cfg(all(feature = "tx", any(feature = "mysql", feature = "postgres")))]
pub use tx::{Locking, Patience, RowKey, TransactionLocks, lock_query, lock_row};
