//! Who has what, and taking a lock away. Asked on other connections than those that keep locks.

use std::marker::PhantomData;
use std::time::Duration;

use dlock_core::{Failure, Holder, Key};

use super::{Name, OwningSession, SessionServer, Sessions, Strategy};
use crate::failure::unchanged;
use crate::rows::{QUESTION, Step};
use crate::server::{Conn, SqlResult};

/// How long a list may take.
const LISTING: Duration = Duration::from_secs(25);
/// The pauses before it is asked again whether a session has ended.
const PAUSES: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

impl<M: Strategy> Sessions<M> {
    pub(super) async fn holder(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.handles.check()?;
        self.others.ask(Inspect::<M>(key.clone(), PhantomData), QUESTION).await.map_err(unchanged)
    }

    pub(super) async fn list(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.handles.check()?;
        self.others.ask(List::<M>(PhantomData), LISTING).await.map_err(unchanged)
    }

    async fn owner(&self, key: &Key) -> Result<OwningSession, Failure> {
        self.others.ask(Find::<M>(key.clone(), PhantomData), QUESTION).await
    }

    /// Ends the session that keeps the lock, and waits until the server has done so.
    pub(super) async fn force(&self, key: &Key) -> Result<bool, Failure> {
        self.handles.check()?;
        let session = match self.owner(key).await.map_err(unchanged)? {
            OwningSession::Nobody => return Ok(false),
            OwningSession::Session(session) => session,
            OwningSession::Hidden => {
                return Err(Failure::denied(
                    "this user may not see which session keeps the lock; do it as the user who holds it, or as one with \
                     the right PROCESS (MariaDB, MySQL), or end the prepared transaction that has the row (PostgreSQL)",
                ));
            }
        };
        self.others.ask(End(session), QUESTION).await?;
        let mut pause = PAUSES.0;
        while self.owner(key).await.map_err(|_| half_done(session))? == OwningSession::Session(session) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
        Ok(true)
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
    type Reply = Option<Holder>;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Option<Holder>> {
        M::holder(server, on, &Name::of(&server.place(), &self.0)).await
    }
}

/// Says which session keeps a lock.
struct Find<M>(Key, PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for Find<M> {
    type Reply = OwningSession;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<OwningSession> {
        M::owner(server, on, &Name::of(&server.place(), &self.0)).await
    }
}

/// Lists what is held.
struct List<M>(PhantomData<fn() -> M>);

impl<M: Strategy> Step<M::Server> for List<M> {
    type Reply = Vec<(Key, Holder)>;

    async fn perform(&self, server: &M::Server, on: &mut Conn<M::Server>) -> SqlResult<Self::Reply> {
        M::held(server, on).await
    }
}

/// Cancels what a session is doing.
pub(super) struct Cancel(pub(super) i64);

impl<S: SessionServer> Step<S> for Cancel {
    type Reply = ();

    async fn perform(&self, _: &S, on: &mut Conn<S>) -> SqlResult<()> {
        S::cancel(on, self.0).await
    }
}

/// Ends a session.
pub(super) struct End(pub(super) i64);

impl<S: SessionServer> Step<S> for End {
    type Reply = ();

    async fn perform(&self, _: &S, on: &mut Conn<S>) -> SqlResult<()> {
        S::end(on, self.0).await
    }
}
