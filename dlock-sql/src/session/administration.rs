//! Who has what, and taking a lock away. Asked on other connections than those that keep locks.

use std::marker::PhantomData;
use std::time::Duration;

use dlock_core::backend::{Administration, BoxedFuture, Forced, boxed, sleep};
use dlock_core::{Failure, Holder, Key};

use super::Sessions;
use super::protocol::{Owner, OwningSession};
use super::session_server::SessionServer;
use super::steps::End;
use super::strategy::Strategy;
use crate::driver::Conn;
use crate::failure::unchanged;
use crate::gateway::Step;
use crate::limits::QUESTION;
use crate::protocol::SqlResult;
use crate::question::asked;

/// How long a list may take.
const LISTING: Duration = Duration::from_secs(25);
/// The pauses before it is asked again whether a session has ended.
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
    pub(super) async fn holder(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.handles.ready(QUESTION).await?;
        let owner = self.owner(key).await.map_err(unchanged)?;
        Ok(owner.map(|(_, holder)| holder))
    }

    async fn list(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.handles.ready(QUESTION).await?;
        self.others.ask(List::<M>(PhantomData), LISTING).await.map_err(unchanged)
    }

    async fn owner(&self, key: &Key) -> Result<Owner, Failure> {
        self.others.ask(Inspect::<M>(key.clone(), PhantomData), QUESTION).await
    }

    /// Ends the session that keeps the lock, or only if its holder was seen, and waits until the server has done so.
    async fn force(&self, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
        self.handles.ready(QUESTION).await?;
        let Some((session, holder)) = self.owner(key).await.map_err(unchanged)? else {
            return Ok(Forced::Free);
        };
        if let Some(answer) = seen.and_then(|seen| Forced::without_release(&[holder], seen)) {
            return Ok(answer);
        }
        let session = match session {
            OwningSession::Known(session) => session,
            OwningSession::Hidden => {
                return Err(Failure::denied(
                    "this user may not see which session keeps the lock; do it as the user who holds it, or as one with \
                     the right PROCESS (MariaDB, MySQL), or end the prepared transaction that has the row (PostgreSQL)",
                ));
            }
        };
        self.others.ask(End(session), QUESTION).await?;
        let mut pause = PAUSES.0;
        let is_there = |owner: &(OwningSession, Holder)| owner.0 == OwningSession::Known(session);
        while self.owner(key).await.map_err(|_| half_done(session))?.as_ref().is_some_and(is_there) {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        Ok(Forced::Released)
    }
}

fn half_done(session: i64) -> Failure {
    Failure::unknown(format!(
        "session {session} was asked to end, and it is not known whether it has; look who holds the lock"
    ))
}

/// Says who has a lock.
struct Inspect<M>(Key, PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for Inspect<M> {
    type Reply = Owner;
    const ASKS: bool = true;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Owner> {
        M::owner(server, on, &server.name(&self.0)).await
    }
}

/// Lists what is held.
struct List<M>(PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for List<M> {
    type Reply = Vec<(Key, Holder)>;
    const ASKS: bool = true;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Self::Reply> {
        M::held(server, on).await
    }
}
