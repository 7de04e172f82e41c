//! The statements on a connection that keeps locks.

use dlock_core::Fence;

use super::name::Name;
use super::protocol::{Freed, Opened, TakeError, Wanted};
use super::strategy::{Others, Strategy, alive, settle_names};
use crate::driver::{Conn, Driver};
use crate::protocol::Taken;

pub(super) struct Session<S: Driver> {
    pub(super) connection: Conn<S>,
    pub(super) id: i64,
    /// Set as long as nothing was asked for on it.
    pub(super) is_new: bool,
}

/// A statement on the connection.
pub(super) enum Statement {
    Ping,
    Take(Vec<Wanted>),
    /// Counts a grant of a lock that the session has.
    Count(Vec<Wanted>),
    Downgrade(Wanted, Option<Fence>),
    Release(Vec<Name>),
}

/// The outcome of a statement.
pub(super) enum Outcome {
    Alive,
    Taken(Vec<Taken>),
    Left(Vec<Freed>),
}

impl Statement {
    /// Returns the session that has answered, and the outcome.
    pub(super) async fn answer<M: Strategy>(
        &self,
        others: &Others<M::Server>,
        session: &mut Session<M::Server>,
    ) -> Result<(i64, Outcome), TakeError> {
        let Session { connection: on, id, is_new } = session;
        match self {
            Self::Ping => {
                let session = alive(&**others.server(), on).await.map_err(TakeError::Unknown)?;
                Ok((session, Outcome::Alive))
            }
            Self::Take(wanted) => {
                // New only for the first one, whether it is answered or not.
                let asked = Opened { id: *id, is_new: std::mem::take(is_new) };
                let (session, taken) = match M::take(others, on, asked, wanted).await {
                    Err(TakeError::Refused(error)) if M::Server::is_of_old_rights(&error) => {
                        // Looked up once more on this connection: where the user has no right to the database any more,
                        // the locks that are on it stay.
                        M::Server::look_up_rights(on).await.map_err(TakeError::of)?;
                        M::take(others, on, asked, wanted).await?
                    }
                    taken => taken?,
                };
                Ok((session, Outcome::Taken(taken)))
            }
            Self::Count(wanted) => {
                // The name was taken before; the answer to that is the input of the count.
                let uncounted = Ok((*id, vec![Taken::Uncounted]));
                let (session, taken) = settle_names::<M>(others.server(), on, wanted, uncounted).await?;
                Ok((session, Outcome::Taken(taken)))
            }
            Self::Downgrade(wanted, fence) => {
                Ok((M::downgrade(others.server(), on, wanted, *fence).await?, Outcome::Alive))
            }
            Self::Release(names) => {
                let freed = M::release(others.server(), on, names).await;
                let (session, freed) = freed.map_err(TakeError::Unknown)?;
                Ok((session, Outcome::Left(freed)))
            }
        }
    }
}
