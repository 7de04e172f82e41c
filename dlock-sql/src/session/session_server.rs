//! The statements of locks that sessions and their transactions keep.

use std::time::Duration;

use dlock_core::{Fence, Key};

use super::name::Name;
use super::protocol::{Found, TakeError, Wanted};
use crate::driver::Conn;
use crate::protocol::SqlResult;
use crate::server::Server;
use crate::way::Way;

/// The sessions of a server, as far as all of them keep locks alike.
#[doc(hidden)]
pub trait SessionServer: Server {
    /// The number of bytes of a name's digest that the server gets.
    const DIGEST: usize;

    /// Returns the table, among all that a lock of a session may be of.
    fn place(&self) -> String;
    /// Returns `true` if grants of sessions and locked rows are counted.
    fn counts(&self) -> bool;
    /// Returns the names of a key's lock.
    fn name(&self, key: &Key) -> Name {
        Name::of(&self.place(), key)
    }

    /// Makes a new connection ready to keep locks: the server ends its session after this silence. Leaves no prepared
    /// statement.
    fn keep_alive(
        on: &mut Conn<Self>,
        silence: Duration,
        locks_rows: bool,
    ) -> impl Future<Output = SqlResult<()>> + Send;
    /// Cancels what a session is doing, if it is doing anything.
    fn cancel(&self, on: &mut Conn<Self>, session: i64) -> impl Future<Output = SqlResult<()>> + Send;
    /// Ends a session, if it is still there.
    fn end(&self, on: &mut Conn<Self>, session: i64) -> impl Future<Output = SqlResult<()>> + Send;
    /// Waits for the turn among all that wait for this name, or its row. Returns whether it came. The session has it
    /// until it leaves.
    fn queue(on: &mut Conn<Self>, name: &Name, is_row: bool) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Gives the turn to the next session.
    fn leave(on: &mut Conn<Self>, name: &Name, is_row: bool) -> impl Future<Output = SqlResult<()>> + Send;

    /// Returns the session of the connection, and whether a session has the turn among those that wait for this name,
    /// or its row.
    fn is_awaited(
        on: &mut Conn<Self>,
        name: &Name,
        is_row: bool,
    ) -> impl Future<Output = SqlResult<(i64, bool)>> + Send;

    /// Begins a transaction, and locks the row in it if no other session has it. Returns the session, and how the row
    /// was found. Ends the transaction when the row is locked, and when the server refuses. Nothing is prepared yet on
    /// a connection that `is_new`.
    fn lock_row(
        &self,
        on: &mut Conn<Self>,
        wanted: &Wanted,
        is_new: bool,
    ) -> impl Future<Output = SqlResult<(i64, Found)>> + Send;
    /// Makes the row that is to be locked. Returns whether it was missing.
    fn make_row(&self, on: &mut Conn<Self>, name: &Name) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Returns whether a transaction is open on a connection of a caller, or what is written on it is not committed at
    /// once. Leaves the transaction as it was.
    fn is_in_transaction(on: &mut Conn<Self>) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Counts a grant to a session, which has the lock in this way. Returns its fence, or the other way in which the
    /// key is held. The statement that took a session's name has not counted it: the key is moved, and only the session
    /// itself can do that.
    fn count(
        &self,
        on: &mut Conn<Self>,
        wanted: &Wanted,
        session: i64,
        way: Way,
    ) -> impl Future<Output = SqlResult<Result<Fence, Way>>> + Send;
    /// Confirms, after its grant was counted, that the transaction still has the row. Returns the session. Also writes
    /// down the reader, where [`count`](Self::count) does not.
    fn confirm(
        &self,
        on: &mut Conn<Self>,
        _: &Wanted,
        _session: i64,
        _: Fence,
    ) -> impl Future<Output = Result<i64, TakeError>> + Send {
        async move { self.ping(on).await.map_err(TakeError::of) }
    }
}
