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

/// The connections that keep no locks: for questions, and for what must stay when the connection that keeps a lock
/// breaks.
pub(crate) type Others<S> = Arc<Connections<S>>;

/// A way in which a connection keeps locks.
pub trait Strategy: Send + Sync + Sized + 'static {
    /// The kind of server.
    type Server: SessionServer;
    /// The name of the backend.
    const NAME: &'static str;
    /// The way in which the keys are locked.
    const WAY: Way;
    /// Is `true` if one connection keeps many locks.
    const SHARED: bool;
    /// Is `true` if the server answers all at once when a lock is taken. Several answers come to dlock's own thread
    /// sooner.
    const TAKES_AT_ONCE: bool;
    /// Is `true` if several may read.
    const READS: bool;
    /// Is `true` if a lock that is held alone can become a reader's.
    const DOWNGRADES: bool;

    /// Takes the locks that no session has, or those that are to be read and no session has alone, with a fence each.
    /// All are to be read, or none; one lock at a time unless the connection is shared. `session` is the one of this
    /// connection.
    #[doc(hidden)]
    fn take(
        others: &Others<Self::Server>,
        on: &mut Conn<Self::Server>,
        session: Opened,
        wanted: &[Wanted],
    ) -> impl Future<Output = TakeResult> + Send;
    /// Releases locks. Returns the session, and what it found of each.
    #[doc(hidden)]
    fn release(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        names: &[Name],
    ) -> impl Future<Output = SqlResult<(i64, Vec<Freed>)>> + Send;
    /// Makes a lock that the session holds alone, with this fence, that of the reader in the request. Returns the
    /// session. A refusal has left the lock as it was.
    #[doc(hidden)]
    fn downgrade(
        _: &Self::Server,
        _: &mut Conn<Self::Server>,
        _: &Wanted,
        _: Option<Fence>,
    ) -> impl Future<Output = Result<i64, TakeError>> + Send {
        ready(Err(TakeError::Elsewhere(Failure::invalid_config("no such lock becomes a reader's"))))
    }
    /// Waits until no session has the lock, or none alone where it is to be read, and leaves it alone. Returns whether
    /// that was so.
    #[doc(hidden)]
    fn wait(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Returns the sessions that have the lock, with what is known of the holders.
    #[doc(hidden)]
    fn owners(
        server: &Self::Server,
        on: &mut Conn<Self::Server>,
        name: &Name,
    ) -> impl Future<Output = SqlResult<Owners>> + Send;
    /// Lists the locks that are held in the table.
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
    // A reader without the turn would overtake the writer that waits. This is asked before the row is locked: with the
    // lock, the reader would already be in the writer's way.
    if wanted.name.is_read() && !wanted.has_turn {
        let (session, is_awaited) = S::is_awaited(on, &wanted.name, true).await.map_err(TakeError::of)?;
        if is_awaited {
            return Ok((session, vec![Taken::Busy(None)]));
        }
    }
    // The row is made only where it is missing: almost every lock finds its row, and saves a statement.
    let mut found = server.lock_row(on, wanted, opened.is_new).await.map_err(TakeError::of)?;
    if matches!(found.1, Found::Missing) {
        // On another connection, where it is committed at once and others find it.
        let made = others.ask(MakeRow(wanted.name.clone()), limit).await;
        made.map_err(|failure| TakeError::Elsewhere(unchanged(failure)))?;
        found = server.lock_row(on, wanted, false).await.map_err(TakeError::of)?;
    }
    let (session, found) = found;
    match found {
        // Counted by the statement that locked the row, or not at all.
        Found::Free(fence) if fence.is_some() || !server.counts() => {
            return Ok((session, vec![Taken::Granted(fence)]));
        }
        Found::Free(_) => {}
        Found::Locked(holder) => return Ok((session, vec![Taken::Busy(holder)])),
        Found::Missing => return Ok((session, vec![Taken::Busy(None)])),
    }
    // The row is locked first and counted then: the count looks at both rows of the key, and each move of the key looks
    // for this lock before.
    let counted = match others.ask(Count(wanted.clone(), session), limit).await {
        Ok(Err(theirs)) => Err(TakeError::Elsewhere(Way::Row.conflict(theirs))),
        // The session may have ended before its grant was counted: the fence of the next holder would be lower.
        Ok(Ok(fence)) => server.confirm(on, wanted, session, fence).await.map(|session| (session, fence)),
        Err(failure) => Err(TakeError::Elsewhere(unchanged(failure))),
    };
    match counted {
        Ok((session, fence)) => Ok((session, vec![Taken::Granted(Some(fence))])),
        // It is not known what the connection has: the caller closes it, and no release is sent.
        Err(TakeError::Unknown(error)) => Err(TakeError::Unknown(error)),
        // A lock that was not counted must not stay: no claim knows of it.
        Err(error) => {
            let freed = ByRow::<S>::release(server, on, std::slice::from_ref(&wanted.name)).await;
            freed.map_err(TakeError::Unknown)?;
            Err(error)
        }
    }
}

/// Decides on names that were asked for. Counts a grant of one alone that was not counted. Releases the name of a key
/// that is held in another way. After an error of the server it may have given some, and failed with a fence: these are
/// released.
pub(crate) async fn settle_names<M: Strategy>(
    server: &M::Server,
    on: &mut Conn<M::Server>,
    wanted: &[Wanted],
    mut asked: SqlResult<(i64, Vec<Taken>)>,
) -> TakeResult {
    // Counted with the name in hand: a move of the key to another way looks for such names, and where it has overlooked
    // this one the count finds the key moved.
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
            // The server has given the name before the count refused it. Without the release, no session could have the
            // key, and the way that holds it could not change.
            let refused = wanted.iter().zip(&taken).filter(|(_, taken)| matches!(taken, Taken::Elsewhere(_)));
            let refused: Vec<_> = refused.map(|(wanted, _)| wanted.name.clone()).collect();
            if !refused.is_empty() {
                M::release(server, on, &refused).await.map_err(TakeError::Unknown)?;
            }
            Ok((session, taken))
        }
        Err(error @ sqlx::Error::Database(_)) => {
            // The statement failed as a whole, but names are not part of a transaction: those that it took before it
            // failed stay. Releasing a name that the session does not have does nothing.
            let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
            match M::release(server, on, &names).await {
                Ok(_) => Err(TakeError::Refused(error)),
                Err(_) => Err(TakeError::Unknown(error)),
            }
        }
        Err(error) => Err(TakeError::Unknown(error)),
    }
}

/// Returns the session, if its server still takes writes. Otherwise another server may be the primary meanwhile, and
/// give out what this session keeps.
pub(super) async fn alive<S: Server>(server: &S, on: &mut Conn<S>) -> SqlResult<i64> {
    let session = server.ping(on).await?;
    if S::is_fit(on).await? { Ok(session) } else { Err(sqlx::Error::Configuration(READ_ONLY.into())) }
}
