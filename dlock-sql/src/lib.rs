//! Leased locks with fences in an SQL database, for [dlock](dlock_core).
//!
//! [`Sqlite`] locks between the processes of one host, in a file.

#![forbid(unsafe_code)]

#[cfg(not(feature = "sqlite"))]
compile_error!("dlock-sql locks nothing without a database: switch on its feature `sqlite`");

#[cfg(feature = "sqlite")]
mod sqlite;
mod table;

#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteClaim, SqliteOptions};
