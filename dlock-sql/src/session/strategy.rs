//! The two ways in which a connection keeps locks, on each server.

use std::future::ready;
use std::marker::PhantomData;
use std::sync::Arc;

use dlock_core::{Failure, Fence, Holder, Key};

use super::name::Name;
use super::protocol::{Found, Freed, Opened, Owners, TakeError, TakeResult, Wanted};
use super::session_server::SessionServer;
use super::steps::{Count, MakeRow};
use crate::driver::Conn;
use crate::failure::{READ_ONLY, unchanged};
use crate::gateway::Connections;
use crate::protocol::{SqlResult, Taken};
use crate::server::Server;
use crate::way::Way;

/// The connections that keep no locks: for questions, and for what must stay when the one that keeps a lock breaks.
pub(crate) type Others<S> = Arc<Connections<S>>;

/// How a connection keeps locks.
pub trait Strategy: Send + Sync + Sized + 'static {
    /// Where.
    type Server: SessionServer;
    /// The backend's name.
    const NAME: &'static str;
    /// The way in which it keeps them.
    const WAY: Way;
    /// Whether one connection keeps many.
    const SHARED: bool;
    /// Whether the server answers all at once when a lock is taken. Several answers come to dlock's own thread sooner.
    const TAKES_AT_ONCE: bool;
    /// Whether several may read.
    const READS: bool;
    /// Whether a lock that is held alone can become a reader's.
    const DOWNGRADES: bool;

    /// Takes the locks that nobody has, or those that are to be read and nobody has alone, with a fence each. All are
    /// to be read, or none; one lock at a time unless the connection is shared. `session` is the one of this
    /// connection.
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
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        names: &[Name],
    ) -> impl Future<Output = SqlResult<(i64, Vec<Freed>)>> + Send;
    /// Has a lock that the session holds alone, with this fence, read by the reader who is wanted: the session. What
    /// was refused has left the lock as it was.
    #[doc(hidden)]
    fn downgrade(
        _: &Self::Server,
        _: &mut Conn<Self::Server>,
        _: &Wanted,
        _: Option<Fence>,
    ) -> impl Future<Output = Result<i64, TakeError>> + Send {
        ready(Err(TakeError::Elsewhere(Failure::invalid_config("no such lock becomes a reader's"))))
    }
    /// Waits until nobody has the lock, or nobody alone where it is to be read, and leaves it alone; whether that was
    /// so.
    #[doc(hidden)]
    fn wait(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Which sessions have it, and what is known of who that is.
    #[doc(hidden)]
    fn owners(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<Owners>> + Send;
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
    if wanted.name.is_read() && !wanted.has_turn {
        let (session, is_awaited) = S::is_awaited(on, &wanted.name, true).await.map_err(TakeError::of)?;
        if is_awaited {
            return Ok((session, vec![Taken::Busy(None)]));
        }
    }
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
    let counted = match others.ask(Count(wanted.clone(), session), limit).await {
        Ok(Err(theirs)) => Err(TakeError::Elsewhere(Way::Row.conflict(theirs))),
        // The session may have ended before its grant was counted: the fence of whoever has the row since is lower.
        Ok(Ok(fence)) => server.confirm(on, wanted, session, fence).await.map(|session| (session, fence)),
        Err(failure) => Err(TakeError::Elsewhere(unchanged(failure))),
    };
    match counted {
        Ok((session, fence)) => Ok((session, vec![Taken::Granted(Some(fence))])),
        Err(TakeError::Unknown(error)) => Err(TakeError::Unknown(error)),
        Err(error) => {
            let freed = ByRow::<S>::release(server, on, std::slice::from_ref(&wanted.name)).await;
            freed.map_err(TakeError::Unknown)?;
            Err(error)
        }
    }
}

/// What became of names that were asked for. A grant of one alone that was not counted is counted. The name of a key
/// that is held in another way is released. After an error of the server it may have given some, and failed with a
/// fence: these are released.
pub(crate) async fn settle_names<M: Strategy>(
    server: &M::Server,
    on: &mut Conn<M::Server>,
    wanted: &[Wanted],
    mut asked: SqlResult<(i64, Vec<Taken>)>,
) -> TakeResult {
    if let (Ok((session, taken)), [one]) = (&mut asked, wanted)
        && let [taken @ Taken::Uncounted] = &mut taken[..]
    {
        match server.count(on, one, *session, M::WAY).await {
            Ok(counted) => {
                *taken = counted.map_or_else(Taken::Elsewhere, |fence| Taken::Granted(Some(fence)));
            }
            Err(error) => asked = Err(error),
        }
    }
    match asked {
        Ok((session, taken)) => {
            let refused = wanted.iter().zip(&taken).filter(|(_, taken)| matches!(taken, Taken::Elsewhere(_)));
            let refused: Vec<_> = refused.map(|(wanted, _)| wanted.name.clone()).collect();
            if !refused.is_empty() {
                M::release(server, on, &refused).await.map_err(TakeError::Unknown)?;
            }
            Ok((session, taken))
        }
        Err(error @ sqlx::Error::Database(_)) => {
            let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
            match M::release(server, on, &names).await {
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
