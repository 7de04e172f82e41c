//! The lock table of a server: its place, its fitness for locks, and its making.

use std::sync::Arc;

use dlock_core::{Failure, Key};

use crate::connector::Connector;
use crate::driver::{Conn, Driver};
use crate::failure::Fault;
use crate::findings::{Facts, Judge};
use crate::protocol::{Schemas, SqlResult};
use crate::releases::Releases;
use crate::settings::Settings;
use crate::table::TableName;

/// The lock table of a server. Statements on it are transactions by themselves, and run to their end even if no caller
/// waits for the answer any more, unless the connection breaks.
#[doc(hidden)]
pub trait Server: Driver {
    /// The character that names are quoted with.
    const QUOTE: char;
    /// The judgements on the settings. A setting that the server does not have is left out.
    const SETTINGS: &'static [(&'static str, Judge)];

    /// Creates the statements on a table. `connector` opens connections for listening.
    fn on_table(table: &TableName, connector: &Arc<Connector<Self>>, settings: &Settings) -> Self;
    /// Returns the table.
    fn table(&self) -> &TableName;
    /// Returns all schemas with a table of this name, which was named without one; on MariaDB and MySQL the database of
    /// the connection. Leaves no prepared statement.
    fn schemas_of(on: &mut Conn<Self>, table: &TableName) -> impl Future<Output = SqlResult<Schemas>> + Send;
    /// Makes the failure of a table that is in none.
    fn nowhere(table: &TableName) -> Failure;

    /// Returns `true` if the error says that the table is missing.
    fn is_missing(error: &sqlx::Error) -> bool;
    /// Returns the mark of the lock table, if it has one. Fails where the table or a right to it is missing.
    fn mark(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<Option<String>>> + Send;
    /// Makes the table and the mark where they are missing.
    fn make(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;
    /// Has the server know the statement that releases before it is needed, where statements are prepared.
    fn prepare(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<()>> + Send;

    /// Returns the settings, and how many `connections` there are. Leaves no prepared statement.
    fn facts(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<Facts>> + Send;
    /// Returns the session. Leaves no prepared statement.
    fn ping(&self, on: &mut Conn<Self>) -> impl Future<Output = SqlResult<i64>> + Send;

    /// Notifies observers of a key that its holder has changed. Leaves no prepared statement.
    fn announce(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<()>> + Send {
        let _ = (on, key);
        std::future::ready(Ok(()))
    }
    /// Returns the notifications of releases and of announcements, where the server has them.
    fn releases(&self) -> Option<&Releases> {
        None
    }

    /// Returns the table as it stands in a statement.
    fn quoted(&self) -> String {
        self.table().quoted(Self::QUOTE)
    }
    /// Returns the meaning of an error of a statement on the table.
    fn fault(&self, error: sqlx::Error) -> Fault {
        Self::classify(error, self.table())
    }
}
