//! Listing of holders, and taking a lock away. Both ask on other connections than those that keep locks.

use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::time::Duration;

use dlock_core::backend::{Administration, BoxedFuture, Forced, boxed, sleep};
use dlock_core::{Failure, Holder, Key};

use super::Sessions;
use super::protocol::{Owners, OwningSession};
use super::session_server::SessionServer;
use super::steps::End;
use super::strategy::Strategy;
use crate::driver::Conn;
use crate::failure::unchanged;
use crate::gateway::Step;
use crate::limits::QUESTION;
use crate::protocol::SqlResult;
use crate::question::asked;

/// The time for a list.
const LISTING: Duration = Duration::from_secs(25);
/// The pauses between the questions whether a session has ended.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl<M: Strategy> Administration for Sessions<M> {
    fn holders(&self) -> BoxedFuture<'_, Result<Vec<(Key, Holder)>, Failure>> {
        let sessions = self.clone();
        boxed(asked(async move { sessions.list().await }))
    }

    fn force_release(&self, key: Key, seen: Option<Vec<Holder>>) -> BoxedFuture<'_, Result<Forced, Failure>> {
        let sessions = self.clone();
        boxed(asked(async move { sessions.force(&key, seen.as_deref()).await }))
    }
}

impl<M: Strategy> Sessions<M> {
    pub(super) async fn holders_of(&self, key: &Key) -> Result<Vec<Holder>, Failure> {
        self.handles.ready(QUESTION).await?;
        let owners = self.owners(key).await.map_err(unchanged)?;
        Ok(owners.into_iter().map(|(_, holder)| holder).collect())
    }

    async fn list(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.handles.ready(QUESTION).await?;
        self.others.ask(List::<M>(PhantomData), LISTING).await.map_err(unchanged)
    }

    async fn owners(&self, key: &Key) -> Result<Owners, Failure> {
        self.others.ask(Inspect::<M>(key.clone(), PhantomData), QUESTION).await
    }

    /// Ends the sessions that keep the lock, or only if all its holders were seen, and waits until the server has done
    /// so.
    async fn force(&self, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
        self.handles.ready(QUESTION).await?;
        let (owners, holders): (Vec<_>, Vec<_>) =
            self.owners(key).await.map_err(unchanged)?.into_iter().unzip();
        let answer = match seen {
            Some(seen) => Forced::without_release(&holders, seen),
            None => holders.is_empty().then_some(Forced::Free),
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        let mut sessions = BTreeSet::new();
        for owner in owners {
            let OwningSession::Known(session) = owner else {
                return Err(Failure::denied(
                    "this user may not see which session keeps the lock; do it as the user who holds it, or as one with \
                     the right PROCESS (MariaDB, MySQL); on PostgreSQL, end the prepared transaction that has the \
                     row, or the sessions of other programs that share it",
                ));
            };
            sessions.insert(session);
        }
        // After the first session was ended a failure can no longer say that nothing was changed.
        let half_done = |_| {
            let what = format!(
                "sessions {sessions:?} were to be ended, and it is not known which have; look who holds the lock"
            );
            Failure::unknown(what)
        };
        for (ended, session) in sessions.iter().enumerate() {
            let end = self.others.ask(End(*session), QUESTION).await;
            end.map_err(|failure| if ended == 0 { failure } else { half_done(failure) })?;
        }
        let is_there = |(owner, _): &(OwningSession, Holder)| matches!(owner, OwningSession::Known(session) if sessions.contains(session));
        let mut pause = PAUSES.0;
        // The server ends a session some time after it was asked to: until then the lock is still held.
        while self.owners(key).await.map_err(half_done)?.iter().any(is_there) {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        Ok(Forced::Released)
    }
}

/// Lists the holders of a lock.
struct Inspect<M>(Key, PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for Inspect<M> {
    type Reply = Owners;
    const ASKS: bool = true;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Owners> {
        M::owners(server, on, &server.name(&self.0)).await
    }
}

/// Lists the locks that are held.
struct List<M>(PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for List<M> {
    type Reply = Vec<(Key, Holder)>;
    const ASKS: bool = true;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Self::Reply> {
        M::held(server, on).await
    }
}
