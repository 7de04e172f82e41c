//! The two ways in which a connection keeps locks, on each server.

use std::marker::PhantomData;
use std::sync::Arc;

use dlock_core::{Failure, Holder, Key};

use super::name::Name;
use super::protocol::{Found, Freed, Opened, Owner, TakeError, TakeResult, Wanted};
use super::session_server::SessionServer;
use super::steps::{Count, MakeRow};
use crate::driver::Conn;
use crate::failure::{READ_ONLY, unchanged};
use crate::gateway::Connections;
use crate::protocol::{SqlResult, Taken};
use crate::server::Server;

/// The connections that keep no locks: for questions, and for what must stay when the one that keeps a lock breaks.
pub(crate) type Others<S> = Arc<Connections<S>>;

/// How a connection keeps locks.
pub trait Strategy: Send + Sync + Sized + 'static {
    /// Where.
    type Server: SessionServer;
    /// The backend's name.
    const NAME: &'static str;
    /// Whether one connection keeps many.
    const SHARED: bool;
    /// Whether the server answers all at once when a lock is taken. Several answers come to dlock's own thread sooner.
    const TAKES_AT_ONCE: bool;

    /// Takes the locks that nobody has, with a fence each. One lock at a time unless the connection is shared.
    /// `session` is the one of this connection.
    #[doc(hidden)]
    fn take(
        others: &Others<Self::Server>,
        on: &mut Conn<Self::Server>,
        session: Opened,
        wanted: &[Wanted],
    ) -> impl Future<Output = TakeResult> + Send;
    /// Gives them back: the session, and what it found of each.
    #[doc(hidden)]
    fn release(
        on: &mut Conn<Self::Server>,
        names: &[Name],
    ) -> impl Future<Output = SqlResult<(i64, Vec<Freed>)>> + Send;
    /// Waits until nobody has the lock, and leaves it alone; whether that was so.
    #[doc(hidden)]
    fn wait(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Which session has it, and what is known of who that is.
    #[doc(hidden)]
    fn owner(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<Owner>> + Send;
    /// What is held in the table.
    #[doc(hidden)]
    fn held(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
    ) -> impl Future<Output = SqlResult<Vec<(Key, Holder)>>> + Send;
}

/// Named locks of a session, all of a process on one connection.
#[derive(Debug)]
pub struct ByName<S>(PhantomData<S>);

/// Rows that are locked in a transaction, each on a connection of its own.
#[derive(Debug)]
pub struct ByRow<S>(PhantomData<S>);

const ONE: &str = "a connection locks one row at a time";

/// Takes a locked row. Its fence is counted on another connection, where it stays when this transaction is rolled back.
pub(crate) async fn take_row<S: SessionServer>(
    others: &Others<S>,
    on: &mut Conn<S>,
    opened: Opened,
    wanted: &[Wanted],
) -> TakeResult
where
    ByRow<S>: Strategy<Server = S>,
{
    let [wanted] = wanted else { return Err(TakeError::Elsewhere(Failure::invalid_config(ONE))) };
    let (server, limit) = (others.server(), wanted.limit);
    let mut found = server.lock_row(on, wanted, opened.is_new).await.map_err(TakeError::of)?;
    if matches!(found.1, Found::Missing) {
        let made = others.ask(MakeRow(wanted.name.clone()), limit).await;
        made.map_err(|failure| TakeError::Elsewhere(unchanged(failure)))?;
        found = server.lock_row(on, wanted, false).await.map_err(TakeError::of)?;
    }
    let (session, found) = found;
    match found {
        Found::Free(fence) if fence.is_some() || !server.counts() => {
            return Ok((session, vec![Taken::Granted(fence)]));
        }
        Found::Free(_) => {}
        Found::Locked(holder) => return Ok((session, vec![Taken::Busy(holder)])),
        Found::Missing => return Ok((session, vec![Taken::Busy(None)])),
    }
    match others.ask(Count(wanted.clone(), session), limit).await {
        // The row was locked until after the count, or its next holder has a lower fence than this.
        Ok(fence) => match server.ping(on).await {
            Ok(_) => Ok((session, vec![Taken::Granted(Some(fence))])),
            Err(error) => Err(TakeError::Unknown(error)),
        },
        Err(failure) => {
            ByRow::<S>::release(on, &[]).await.map_err(TakeError::Unknown)?;
            Err(TakeError::Elsewhere(unchanged(failure)))
        }
    }
}

/// What became of names that were asked for. After an error of the server it may have given some, and failed with a
/// fence: these are released.
pub(crate) async fn settle_names<M: Strategy>(
    on: &mut Conn<M::Server>,
    wanted: &[Wanted],
    asked: SqlResult<(i64, Vec<Taken>)>,
) -> TakeResult {
    match asked {
        Ok(asked) => Ok(asked),
        Err(error @ sqlx::Error::Database(_)) => {
            let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
            match M::release(on, &names).await {
                Ok(_) => Err(TakeError::Refused(error)),
                Err(_) => Err(TakeError::Unknown(error)),
            }
        }
        Err(error) => Err(TakeError::Unknown(error)),
    }
}

/// The session, if it is one of a server that still writes. Another one may be the primary meanwhile, and give out what
/// this session keeps.
pub(super) async fn alive<S: Server>(server: &S, on: &mut Conn<S>) -> SqlResult<i64> {
    let session = server.ping(on).await?;
    if S::is_fit(on).await? { Ok(session) } else { Err(sqlx::Error::Configuration(READ_ONLY.into())) }
}
