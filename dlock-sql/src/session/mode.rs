//! The two ways in which a connection keeps locks.

use std::fmt;
use std::sync::Arc;

use dlock_core::{Failure, Holder, Key};

use super::act::{Count, MakeRow};
use super::{Found, Keeper, Name, SessionServer, Wanted};
use crate::failure::unchanged;
use crate::rows::Connections;
use crate::server::{Answer, Conn, Taken};

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
    /// Takes the locks that nobody has, with a fence each: the session, and what became of each. One lock at a time unless
    /// the connection is shared.
    #[doc(hidden)]
    fn take<'c>(
        &'c self,
        on: &'c mut Conn<Self::Server>,
        wanted: &'c [Wanted],
    ) -> impl Future<Output = Result<(i64, Vec<Taken>), Trouble>> + Send + 'c;
    /// Gives them back: the session, and whether it had each.
    #[doc(hidden)]
    fn leave<'c>(
        &'c self,
        on: &'c mut Conn<Self::Server>,
        names: &'c [Name],
    ) -> impl Future<Output = Answer<(i64, Vec<bool>)>> + Send + 'c;
    /// Who has it.
    #[doc(hidden)]
    fn holder<'c>(
        server: &'c Self::Server,
        on: &'c mut Conn<Self::Server>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Option<Holder>>> + Send + 'c;
    /// Which session has it.
    #[doc(hidden)]
    fn keeper<'c>(
        server: &'c Self::Server,
        on: &'c mut Conn<Self::Server>,
        name: &'c Name,
    ) -> impl Future<Output = Answer<Keeper>> + Send + 'c;
    /// What is held in the table at this place.
    #[doc(hidden)]
    fn held<'c>(
        server: &'c Self::Server,
        on: &'c mut Conn<Self::Server>,
    ) -> impl Future<Output = Answer<Vec<(Key, Holder)>>> + Send + 'c;
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

    async fn take(&self, on: &mut Conn<S>, wanted: &[Wanted]) -> Result<(i64, Vec<Taken>), Trouble> {
        let asked = match wanted {
            [one] => self.0.take_name(on, one).await.map(|asked| (asked.session, vec![asked.taken])),
            many => self.0.take_names(on, many).await,
        };
        match asked {
            Ok(asked) => Ok(asked),
            // The server may have given some locks, and failed with a fence.
            Err(error @ sqlx::Error::Database(_)) => {
                let names: Vec<_> = wanted.iter().map(|wanted| wanted.name.clone()).collect();
                match self.0.free_names(on, &names).await {
                    Ok(_) => Err(Trouble::Here(error)),
                    Err(_) => Err(Trouble::Doubt(error)),
                }
            }
            Err(error) => Err(Trouble::Doubt(error)),
        }
    }

    async fn leave(&self, on: &mut Conn<S>, names: &[Name]) -> Answer<(i64, Vec<bool>)> {
        match names {
            [one] => self.0.free_name(on, one).await.map(|(session, was_held)| (session, vec![was_held])),
            many => self.0.free_names(on, many).await,
        }
    }

    async fn holder(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Option<Holder>> {
        server.holder_of_name(on, name).await
    }

    async fn keeper(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Keeper> {
        server.keeper_of_name(on, name).await
    }

    async fn held(server: &S, on: &mut Conn<S>) -> Answer<Vec<(Key, Holder)>> {
        server.held_names(on).await
    }
}

const ONE: &str = "a connection locks one row at a time";

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

    async fn take(&self, on: &mut Conn<S>, wanted: &[Wanted]) -> Result<(i64, Vec<Taken>), Trouble> {
        let [wanted] = wanted else { return Err(Trouble::Elsewhere(Failure::invalid_config(ONE))) };
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
            Found::Locked(holder) => return Ok((session, vec![Taken::Busy(holder)])),
            Found::Missing => return Ok((session, vec![Taken::Busy(None)])),
        }
        match self.others.ask(Count(wanted.clone(), session), limit).await {
            Ok(fence) => Ok((session, vec![Taken::Granted(fence)])),
            Err(failure) => {
                self.server.free_row(on).await.map_err(Trouble::Doubt)?;
                Err(Trouble::Elsewhere(unchanged(failure)))
            }
        }
    }

    async fn leave(&self, on: &mut Conn<S>, names: &[Name]) -> Answer<(i64, Vec<bool>)> {
        Ok((self.server.free_row(on).await?, vec![true; names.len()]))
    }

    async fn holder(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Option<Holder>> {
        server.holder_of_row(on, name).await
    }

    async fn keeper(server: &S, on: &mut Conn<S>, name: &Name) -> Answer<Keeper> {
        server.keeper_of_row(on, name).await
    }

    async fn held(server: &S, on: &mut Conn<S>) -> Answer<Vec<(Key, Holder)>> {
        server.held_rows(on).await
    }
}

impl<S: SessionServer> fmt::Debug for ByRow<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ByRow").field(&self.server).finish()
    }
}
