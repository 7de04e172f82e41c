//! The two ways in which a connection keeps locks.

use std::fmt;
use std::sync::Arc;

use dlock_core::{Failure, Holder};

use super::act::{Count, MakeRow};
use super::{Answer, Asked, Found, Name, SessionServer, Wanted};
use crate::failure::unchanged;
use crate::rows::{Conn, Connections, Taken};

/// Why a lock could not be asked for.
#[derive(Debug)]
pub enum Trouble {
    /// The statement failed and took nothing.
    Here(sqlx::Error),
    /// What had to be done on another connection failed; this one is as it was.
    Elsewhere(Failure),
    /// Nobody can tell what this connection has now.
    Doubt(sqlx::Error),
}

/// How a connection keeps locks.
pub trait Mode: fmt::Debug + Send + Sync + Sized + 'static {
    /// Where.
    type Server: SessionServer;
    /// The backend's name.
    const NAME: &'static str;
    /// Whether one connection keeps many.
    const SHARED: bool;

    #[doc(hidden)]
    fn new(server: Arc<Self::Server>, others: Arc<Connections<Self::Server>>) -> Self;
    #[doc(hidden)]
    fn server(&self) -> &Arc<Self::Server>;
    /// Takes the lock if nobody has it, with a fence.
    #[doc(hidden)]
    fn take<'c>(
        &'c self,
        on: &'c mut Conn<Self::Server>,
        wanted: &'c Wanted,
    ) -> impl Future<Output = Result<Asked, Trouble>> + Send + 'c;
    /// Gives it back: the session, and whether it had the lock.
    #[doc(hidden)]
    fn leave<'c>(
        &'c self,
        on: &'c mut Conn<Self::Server>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<(i64, bool)>> + Send + 'c;
    /// Who has it.
    #[doc(hidden)]
    fn holder<'c>(
        server: &'c Self::Server,
        on: &'c mut Conn<Self::Server>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
}

/// Named locks of a session, all of a process on one connection.
#[derive(Debug)]
pub struct ByName<S>(Arc<S>);

impl<S: SessionServer> Mode for ByName<S> {
    type Server = S;

    const NAME: &'static str = S::SESSIONS;
    const SHARED: bool = true;

    fn new(server: Arc<S>, _: Arc<Connections<S>>) -> Self {
        Self(server)
    }

    fn server(&self) -> &Arc<S> {
        &self.0
    }

    async fn take(&self, on: &mut Conn<S>, wanted: &Wanted) -> Result<Asked, Trouble> {
        match self.0.take_name(on, wanted).await {
            Ok(asked) => Ok(asked),
            // The server may have given the lock, and failed with the fence.
            Err(error @ sqlx::Error::Database(_)) => match self.0.free_name(on, &wanted.name).await {
                Ok(_) => Err(Trouble::Here(error)),
                Err(_) => Err(Trouble::Doubt(error)),
            },
            Err(error) => Err(Trouble::Doubt(error)),
        }
    }

    async fn leave(&self, on: &mut Conn<S>, name: &Name) -> Answer<(i64, bool)> {
        self.0.free_name(on, name).await
    }

    async fn holder(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Option<Holder>> {
        server.holder_of_name(on, name).await
    }
}

/// Rows that are locked in a transaction, each on a connection of its own.
pub struct ByRow<S: SessionServer> {
    server: Arc<S>,
    /// For fences, which must stay when the transaction is rolled back with its connection.
    others: Arc<Connections<S>>,
}

impl<S: SessionServer> Mode for ByRow<S> {
    type Server = S;

    const NAME: &'static str = S::LOCKED_ROWS;
    const SHARED: bool = false;

    fn new(server: Arc<S>, others: Arc<Connections<S>>) -> Self {
        Self { server, others }
    }

    fn server(&self) -> &Arc<S> {
        &self.server
    }

    async fn take(&self, on: &mut Conn<S>, wanted: &Wanted) -> Result<Asked, Trouble> {
        let limit = wanted.limit;
        let mut found = self.server.lock_row(on, &wanted.name).await.map_err(Trouble::Doubt)?;
        if matches!(found.1, Found::Missing) {
            let made = self.others.ask(MakeRow(wanted.name.clone()), limit).await;
            made.map_err(|failure| Trouble::Elsewhere(unchanged(failure)))?;
            found = self.server.lock_row(on, &wanted.name).await.map_err(Trouble::Doubt)?;
        }
        let (session, found) = found;
        match found {
            Found::Free => {}
            Found::Locked(holder) => return Ok(Asked { session, taken: Taken::Busy(holder) }),
            Found::Missing => return Ok(Asked { session, taken: Taken::Busy(None) }),
        }
        match self.others.ask(Count(wanted.clone(), session), limit).await {
            Ok(fence) => Ok(Asked { session, taken: Taken::Granted(fence) }),
            Err(failure) => {
                self.server.free_row(on).await.map_err(Trouble::Doubt)?;
                Err(Trouble::Elsewhere(unchanged(failure)))
            }
        }
    }

    async fn leave(&self, on: &mut Conn<S>, _: &Name) -> Answer<(i64, bool)> {
        Ok((self.server.free_row(on).await?, true))
    }

    async fn holder(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Option<Holder>> {
        server.holder_of_row(on, name).await
    }
}

impl<S: SessionServer> fmt::Debug for ByRow<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByRow").field(&self.server).finish()
    }
}
