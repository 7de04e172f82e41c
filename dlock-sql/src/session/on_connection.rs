//! A lock on a connection of the caller's own.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::SystemTime;

use dlock_core::backend::{Backoff, sleep};
use dlock_core::{Error, ErrorKind, Failure, Fence, Identity, Key, Operation, Result};
use tokio::time::Instant;

use super::Sessions;
use super::name::Name;
use super::protocol::{Opened, POLLING, TakeError, Wanted};
use super::session_server::SessionServer;
use super::strategy::{ByName, Strategy, alive};
use crate::driver::Conn;
use crate::failure::unchanged;
use crate::limits::QUESTION;
use crate::protocol::Taken;
use crate::tx::Patience;
use crate::way::Way;

const IN_TRANSACTION: &str = "the connection is in a transaction, or its `autocommit` is off, and what becomes of the \
                              lock would depend on that; commit first, or lock in the transaction by \
                              `TransactionLocks`";

/// A lock that a connection of the caller's own keeps. The connection can be used through it.
///
/// See [`Sessions::lock_on`].
#[must_use = "the connection keeps the lock, and only release() gives it back"]
pub struct ConnectionLock<'c, S: SessionServer> {
    server: Arc<S>,
    connection: &'c mut Conn<S>,
    name: Name,
    key: Key,
    fence: Option<Fence>,
    session: i64,
}

impl<S: SessionServer> Sessions<ByName<S>>
where
    ByName<S>: Strategy<Server = S>,
{
    /// Takes a lock on a connection of the caller's own, which keeps it until [`ConnectionLock::release`], or until the
    /// connection ends. It excludes, and is excluded by, all locks of this key by these sessions, and is listed like
    /// them.
    ///
    /// dlock does not renew it, and does not report its loss: the lock is lost when a statement on the connection fails
    /// because the connection broke. The server's limits for sessions that are idle (`idle_session_timeout`,
    /// `wait_timeout`) end it with its session. The connection must be one to the database of these sessions, and no
    /// proxy may share it. Under [`Patience::AtMost`] and [`Patience::OfServer`], which here has no end, a lock that is
    /// held is asked for every 5 to 150 ms, and a process that takes the lock again and again does not leave it to this
    /// caller. One connection takes a key once: a key that it has already may be granted to it again. A connection with
    /// an open transaction is refused, and the transaction stays as it was: begin it when the lock is held, and release
    /// the lock after it has ended. A connection of a pool whose connections lease rows use
    /// ([`LeaseRows::from_pool`](crate::LeaseRows::from_pool)) must not return to it with the lock: on PostgreSQL a
    /// lease that is asked for on that connection is granted, since the server takes the lock for its own.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use dlock_sql::{Patience, PostgresSessions, sqlx};
    /// use sqlx::Connection;
    ///
    /// let url = "postgres://app:password@db.internal/shop";
    /// let sessions = PostgresSessions::connect(url).await?;
    /// let mut connection = sqlx::PgConnection::connect(url).await?;
    /// let mut lock = sessions.lock_on(&mut connection, "room_7", Patience::No).await?;
    /// sqlx::query("UPDATE rooms SET booked = true WHERE id = 7").execute(&mut *lock).await?;
    /// lock.release().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] and [`ErrorKind::TimedOut`] as the [`Patience`] says; [`ErrorKind::InvalidKey`];
    /// [`ErrorKind::Conflict`] where the key is held in another way; [`ErrorKind::InvalidConfig`] in a transaction, or
    /// where `autocommit` is off; otherwise as [`connect`](Self::connect). After [`ErrorKind::Unknown`] close the
    /// connection: it may have the lock.
    ///
    /// # Cancel safety
    ///
    /// If dropped, close the connection, and return it to no pool: it may have the lock.
    pub async fn lock_on<'c>(
        &self,
        connection: &'c mut Conn<S>,
        key: &str,
        patience: Patience,
    ) -> Result<ConnectionLock<'c, S>> {
        let fail = |failure| Error::new(Operation::Acquire, failure).on(ByName::<S>::NAME);
        let key = Key::new(key).map_err(fail)?;
        let fail = |failure| fail(failure).of(&key);
        self.handles.ready(QUESTION).await.map_err(fail)?;
        let server = self.others.server();
        let name = server.name(&key);
        let holder = Identity::describe_process(SystemTime::now());
        let wanted = [Wanted { name: name.clone(), holder, limit: QUESTION, has_turn: false }];
        let end = match patience {
            Patience::AtMost(limit) => Instant::now().checked_add(limit),
            Patience::No | Patience::OfServer => None,
        };
        let unchanged = |error| fail(unchanged(server.fault(error).failure));
        // Before anything is asked for: the transaction's end could take the count of the grant back, and leave the
        // lock.
        if S::is_in_transaction(connection).await.map_err(unchanged)? {
            return Err(fail(Failure::invalid_config(IN_TRANSACTION)));
        }
        let session = alive(&**server, connection).await.map_err(unchanged)?;
        let mut backoff = Backoff::new(POLLING.0, POLLING.1);
        loop {
            let taken =
                ByName::<S>::take(&self.others, connection, Opened { id: session, is_new: false }, &wanted)
                    .await;
            // This caller stands in no queue: it is not seen to wait, and asks again until its patience ends.
            let (session, taken) = taken.map_err(|error| fail(failure_of(&**server, error)))?;
            match taken.into_iter().next() {
                Some(Taken::Granted(fence)) => {
                    let server = Arc::clone(server);
                    return Ok(ConnectionLock { server, connection, name, key, fence, session });
                }
                Some(Taken::Elsewhere(theirs)) => return Err(fail(Way::Session.conflict(theirs))),
                _ => {}
            }
            if patience == Patience::No {
                return Err(fail(Failure::new(ErrorKind::Busy, "somebody else has it")));
            }
            let pause = backoff.next_pause();
            // Before the pause: an attempt after the end would be one more than the caller has asked for.
            if end.is_some_and(|end| Instant::now() + pause > end) {
                return Err(fail(Failure::new(ErrorKind::TimedOut, "somebody else has it")));
            }
            sleep(pause).await;
        }
    }
}

fn failure_of<S: SessionServer>(server: &S, error: TakeError) -> Failure {
    match error {
        // The server has refused, so that nothing was taken; an attempt whose outcome is open is the last arm.
        TakeError::Refused(error) | TakeError::Again(error) => unchanged(server.fault(error).failure),
        TakeError::Elsewhere(failure) => failure,
        TakeError::Unknown(error) => server.fault(error).failure,
    }
}

impl<S: SessionServer> ConnectionLock<'_, S>
where
    ByName<S>: Strategy<Server = S>,
{
    /// Returns the fence of this grant, unless fences are switched off.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] when the connection did not have it any more; [`ErrorKind::Unknown`] when the connection
    /// broke, with which the lock ends.
    ///
    /// # Cancel safety
    ///
    /// If dropped, close the connection: it may have the lock.
    pub async fn release(self) -> Result<()> {
        let Self { server, connection, name, key, session, .. } = self;
        let fail = |failure| Error::new(Operation::Release, failure).on(ByName::<S>::NAME).of(&key);
        match ByName::<S>::release(&server, connection, &[name]).await {
            // An answer of another session says nothing about the lock, even if it released something.
            Ok((by, freed)) if by == session && freed.iter().all(|freed| freed.held) => Ok(()),
            Ok(_) => Err(fail(Failure::new(ErrorKind::Lost, "the connection did not have it any more"))),
            Err(error) => Err(fail(
                Failure::unknown("the connection broke, and the lock ends with it").with_source(error),
            )),
        }
    }
}

impl<S: SessionServer> Deref for ConnectionLock<'_, S> {
    type Target = Conn<S>;

    fn deref(&self) -> &Conn<S> {
        self.connection
    }
}

impl<S: SessionServer> DerefMut for ConnectionLock<'_, S> {
    fn deref_mut(&mut self) -> &mut Conn<S> {
        self.connection
    }
}

impl<S: SessionServer> fmt::Debug for ConnectionLock<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionLock")
            .field("key", &self.key)
            .field("fence", &self.fence)
            .finish_non_exhaustive()
    }
}
