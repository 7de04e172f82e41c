//! The parts that a kind of database server has of its own, whatever is stored there: its name, and connections to it.

use std::fmt;
use std::str::FromStr;

use sqlx::database::HasStatementCache;
use sqlx::{Connection, Database};

use crate::failure::Fault;
use crate::protocol::SqlResult;
use crate::table::TableName;

/// A connection to a server.
pub(crate) type Conn<S> = <<S as Driver>::Database as Database>::Connection;
/// The driver's options of a connection.
pub(crate) type DriverOptions<S> = <Conn<S> as Connection>::Options;

/// A kind of database server, PostgreSQL, or MariaDB and MySQL, and the connections to it.
#[doc(hidden)]
pub trait Driver: fmt::Debug + Send + Sync + Sized + 'static {
    /// The driver.
    type Database: Database<Connection: Connection<Options: FromStr<Err = sqlx::Error>>> + HasStatementCache;

    /// The name of the backend.
    const NAME: &'static str;
    /// The prefixes of URLs; the driver knows the first.
    const SCHEMES: &'static [&'static str];
    /// The parameters of a URL that are the driver's.
    const PARAMETERS: &'static [&'static str];

    /// Returns the options of a connection of dlock's own: nothing is set that the driver would set by itself, and the
    /// host has no brackets around it that do not belong to it.
    fn own(options: &DriverOptions<Self>) -> DriverOptions<Self>;
    /// Returns the options with another host.
    fn with_host(options: DriverOptions<Self>, host: &str) -> DriverOptions<Self>;
    /// Returns the options with another password.
    fn with_password(options: DriverOptions<Self>, password: &str) -> DriverOptions<Self>;
    /// Returns the address of the server and the database, without a password.
    fn address(options: &DriverOptions<Self>) -> String;

    /// Brings a connection of dlock's own into the state on which the statements rely. Leaves no prepared statement,
    /// and nothing behind on a proxy.
    fn settle(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Returns `true` if a connection is still good for writing.
    fn is_fit(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Refuses a connection of a pool on which a statement would not be a transaction by itself.
    fn check_pooled(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;

    /// Returns `true` if the error says that the server opens no connection more, or none more of this user.
    fn has_no_room(error: &sqlx::Error) -> bool;
    /// Returns `true` if the server has not carried out a statement because it was prepared for a table that was
    /// altered since, or is not prepared any more.
    fn is_outdated(_: &sqlx::Error) -> bool {
        false
    }
    /// Returns `true` if a right is missing that the user may have been granted since the connection was opened: the
    /// server remembers some rights for a connection.
    fn is_of_old_rights(_: &sqlx::Error) -> bool {
        false
    }
    /// Has the server look up anew the rights that it remembers for this connection, as far as it does so.
    fn look_up_rights(_: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send {
        async { Ok(()) }
    }
    /// Returns the meaning of an error.
    fn classify(error: sqlx::Error, table: &TableName) -> Fault;
}
