//! What a kind of database server has of its own, whatever is stored there: how it is named, and connections to it.

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

    /// The backend's name.
    const NAME: &'static str;
    /// What a URL begins with; the first is the one that the driver knows.
    const SCHEMES: &'static [&'static str];
    /// The parameters of a URL that are the driver's.
    const PARAMETERS: &'static [&'static str];

    /// The options of a connection of our own: what the driver would set by itself is not, and the host has no brackets
    /// around it that do not belong to it.
    fn own(options: &DriverOptions<Self>) -> DriverOptions<Self>;
    /// The options with another host.
    fn with_host(options: DriverOptions<Self>, host: &str) -> DriverOptions<Self>;
    /// The options with another password.
    fn with_password(options: DriverOptions<Self>, password: &str) -> DriverOptions<Self>;
    /// The server and the database, without a password.
    fn address(options: &DriverOptions<Self>) -> String;

    /// Makes a connection of our own what the statements rely on. Leaves no prepared statement, and nothing behind on a
    /// proxy.
    fn settle(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Whether a connection is still good for writing.
    fn is_fit(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Refuses a connection of a pool on which a statement would not be a transaction by itself.
    fn check_pooled(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;

    /// Whether the error says that the server opens no connection more, or none more of this user.
    fn has_no_room(error: &sqlx::Error) -> bool;
    /// Whether the server has not carried out a statement because it was prepared for a table that was altered since,
    /// or is not prepared any more.
    fn is_outdated(_: &sqlx::Error) -> bool {
        false
    }
    /// Whether a right is missing that the user may have been granted since the connection was opened: the server
    /// remembers some rights for a connection.
    fn is_of_old_rights(_: &sqlx::Error) -> bool {
        false
    }
    /// Has the server look up anew the rights that it remembers for this connection, as far as it does so.
    fn look_up_rights(_: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send {
        async { Ok(()) }
    }
    /// What an error means.
    fn classify(error: sqlx::Error, table: &TableName) -> Fault;
}
