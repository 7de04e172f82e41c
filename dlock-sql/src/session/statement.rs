//! What is asked for on a connection that keeps locks.

use dlock_core::Fence;

use super::name::Name;
use super::protocol::{Freed, Opened, TakeError, Wanted};
use super::strategy::{Others, Strategy, alive, settle_names};
use crate::driver::{Conn, Driver};
use crate::protocol::Taken;

pub(super) struct Session<S: Driver> {
    pub(super) connection: Conn<S>,
    pub(super) id: i64,
    /// Nothing was asked for on it.
    pub(super) is_new: bool,
}

/// What is done on the connection.
pub(super) enum Statement {
    Ping,
    Take(Vec<Wanted>),
    /// Counts a grant of one that the session has.
    Count(Vec<Wanted>),
    Downgrade(Wanted, Option<Fence>),
    Release(Vec<Name>),
}

/// What came of it.
pub(super) enum Outcome {
    Alive,
    Taken(Vec<Taken>),
    Left(Vec<Freed>),
}

impl Statement {
    /// The session that has answered, and what.
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
                let asked = Opened { id: *id, is_new: std::mem::take(is_new) };
                let (session, taken) = match M::take(others, on, asked, wanted).await {
                    Err(TakeError::Refused(error)) if M::Server::is_of_old_rights(&error) => {
                        // Where the user has no right to the database any more, the locks of this connection stay.
                        M::Server::look_up_rights(on).await.map_err(TakeError::of)?;
                        M::take(others, on, asked, wanted).await?
                    }
                    taken => taken?,
                };
                Ok((session, Outcome::Taken(taken)))
            }
            Self::Count(wanted) => {
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
