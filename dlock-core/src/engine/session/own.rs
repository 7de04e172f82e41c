//! The session of an engine: its record is a lock of an engine of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::{BoxedFuture, SignalSink, boxed};
use crate::clock::Timestamp;
use crate::engine::acquire::{Start, begin, only_share};
use crate::engine::cleanup::give_up;
use crate::engine::hold::{Condition, Hold};
use crate::engine::registry::{EngineHealth, HoldRegistry};
use crate::engine::release::Share;
use crate::engine::session::{OpensSession, Session, SessionId, SessionRecord};
use crate::engine::{Engine, Spec};
use crate::error::{Error, ErrorKind, Failure};
use crate::options::{MIN_LEASE, Options, Wait};
use crate::sync::Mutex;
use crate::telemetry::{Loss, Site};

/// The part of the timeout that is the lease of the record. One lease passes until the record is gone, and one more
/// until others act on that; the rest is for their requests.
const LEASE: f64 = 0.45;

/// The number of locks that are planned anew before other tasks of the keeper get their turn.
const TOGETHER: usize = 64;

/// The session of an engine.
pub(crate) struct OwnSession {
    /// The engine of the record.
    engine: Arc<Engine>,
    options: Options,
    current: Mutex<Option<Arc<Session>>>,
    /// Held while a session is opened, so that acquires that begin together open one.
    opening: tokio::sync::Mutex<()>,
}

impl OwnSession {
    /// Sets up the session of an engine, whose record is a lock of `engine`. Others free the locks of this process
    /// within `timeout` after its end.
    pub(crate) fn new(engine: Arc<Engine>, timeout: Duration) -> Self {
        let lease = timeout.mul_f64(LEASE).max(MIN_LEASE);
        let options = Options { lease, wait: Wait::No, handoff: false, session: false, ..Options::default() };
        Self { engine, options, current: Mutex::new(None), opening: tokio::sync::Mutex::const_new(()) }
    }

    async fn open(&self, of: &Arc<HoldRegistry>) -> Result<(), Failure> {
        let _opening = self.opening.lock().await;
        if self.live().is_some() {
            return Ok(());
        }
        let engine = &self.engine;
        let unnamed = || Failure::unavailable("the backend does not name the record of the session");
        let namespace = engine.sessions.namespace(&*engine.backend).ok_or_else(unnamed)?;
        let id = SessionId::new(self.options.lease, namespace, &engine.entropy.token()?.to_hex());
        let key = id.record()?;
        let spec = Spec { engine: Arc::clone(engine), key, site: Site::default(), options: self.options };
        let taking = begin(spec, Start::At(engine.timers.now())).map_err(no_record)?;
        let share = only_share(taking.await.map_err(no_record)?);
        let (hold, identity) = (Arc::clone(share.hold()), engine.identities.holder.of_session(&id.text));
        let session = Arc::new(Session {
            record: Box::new(Record { hold: Arc::clone(&hold), _share: share }),
            candidate: identity.to_candidate(),
            holder: identity,
            id,
        });
        engine.later(attend(Arc::downgrade(&session), hold, Arc::downgrade(of)));
        *self.current.lock() = Some(session);
        Ok(())
    }
}

fn no_record(error: Error) -> Failure {
    let kind = match error.kind() {
        // Of the lock itself nothing was asked. Another holder of a record that was drawn just now is a fault of the
        // backend.
        ErrorKind::Unknown | ErrorKind::TimedOut | ErrorKind::Busy => ErrorKind::Unavailable,
        kind => kind,
    };
    Failure::new(kind, "no record of the session could be written").with_source(error)
}

impl OpensSession for OwnSession {
    fn live(&self) -> Option<Arc<Session>> {
        self.current.lock().clone().filter(|session| session.is_live())
    }

    fn open<'a>(&'a self, of: &'a Arc<HoldRegistry>) -> BoxedFuture<'a, Result<(), Failure>> {
        boxed(self.open(of))
    }

    fn is(&self, id: &SessionId) -> bool {
        self.live().is_some_and(|session| session.id == *id)
    }

    fn health(&self) -> EngineHealth {
        self.engine.registry.health()
    }

    fn close(&self) -> BoxedFuture<'_, ()> {
        boxed(async {
            let registry = &self.engine.registry;
            registry.close();
            // Given up, and not only dropped: a guard that its owner keeps has a reference to the session too.
            drop(self.current.lock().take());
            for record in registry.held() {
                give_up(&record);
            }
            registry.settled().await;
        })
    }
}

/// The record, which is released when the last reference to its session goes.
struct Record {
    hold: Arc<Hold>,
    _share: Share,
}

impl SessionRecord for Record {
    fn is_held(&self) -> bool {
        self.hold.condition() == Condition::Held
    }

    fn is_at_risk(&self) -> bool {
        self.hold.is_at_risk()
    }

    fn at_risk(&self) -> BoxedFuture<'_, ()> {
        boxed(self.hold.at_risk())
    }

    fn deadline(&self) -> Timestamp {
        self.hold.deadline()
    }

    fn trusted_for(&self) -> Option<Duration> {
        self.hold.trusted_for()
    }
}

/// Loses the locks that a session keeps when its record ends. Until then, has them renewed after a renewal of the
/// record that failed: servers that were away may have forgotten what was granted last, and remember the record.
async fn attend(session: Weak<Session>, record: Arc<Hold>, of: Weak<HoldRegistry>) {
    loop {
        record.when(|record| record.is_at_risk() || record.has_ended()).await;
        record.when(|record| !record.is_at_risk() || record.has_ended()).await;
        if record.has_ended() {
            break;
        }
        verify(&session, &of).await;
    }
    drop(record);
    let (Some(session), Some(registry)) = (session.upgrade(), of.upgrade()) else { return };
    for hold in registry.held() {
        if hold.is_kept_by(&session) {
            hold.lose_by(Loss::Session);
        }
    }
}

/// Has the locks that a session keeps renewed within the time in which they would be without it.
async fn verify(session: &Weak<Session>, of: &Weak<HoldRegistry>) {
    let Some(held) = of.upgrade().map(|registry| registry.held()) else { return };
    for some in held.chunks(TOGETHER) {
        let Some(session) = session.upgrade() else { return };
        for hold in some.iter().filter(|hold| hold.is_kept_by(&session)) {
            // Spread: there may be a million of them.
            hold.renew_within((hold.usual_lease() / 3).mul_f64(hold.engine.entropy.fraction()));
        }
        drop(session);
        tokio::task::yield_now().await;
    }
}
