//! Sessions: one record for each process, which keeps all of its locks.
//!
//! With [`LocksBuilder::with_session`](crate::LocksBuilder::with_session) the process holds a lock of its own, the
//! *record*, under a key that nobody else uses. The exclusive locks that it takes name that record in the line about
//! their holder. A lock is the process's for as long as the record is, and its own lease. The record ends within
//! seconds where the process is gone, and then any other process frees the locks that name it. So these may have a
//! lease of hours, and are renewed as rarely; only the record is renewed often.
//!
//! ```text
//!                         every third of its lease
//!                          ┌────── renewed ──────┐
//!                          ▼                     │
//!   open ── granted ──▶  live  ──────────────────┘
//!    ▲                     │
//!    │                     └── its lease has ended, or it is gone ──▶ over: every lock that it keeps is lost
//!    └───────────────────────────── the next acquire ─────────────────────┘
//! ```
//!
//! A record never comes back: each has an id of its own, and renewal never re-creates. So a process that finds it gone
//! may act on that later. It waits for one more lease of the record first ([`watch`]): the holder, which may not have
//! heard of the end of its record, counts its locks as lost by then. That also covers a store that forgot the record,
//! and a clock of a server that was set.
//!
//! | the record is gone because | the holder relies on it until | others free its locks |
//! |---|---|---|
//! | the process was killed, or is paused | its own deadline, before the end of the lease | a lease after they saw that it is gone |
//! | the server's clock was set forward | its own deadline: at most a lease after the last renewal | likewise |
//! | the store lost it, or it was deleted | its next renewal, or its own deadline | likewise |
//! | the process released it, by a shutdown | nothing is held any more | likewise |
//!
//! The record is an ordinary lock of an engine of its own on the same backend, so that its renewal, its loss and its
//! release are those of any lock.

pub(crate) mod own;
pub(super) mod watch;
mod watching;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::backend::dynamic::DynBackend;
use crate::backend::{BoxedFuture, Capabilities};
use crate::clock::Timestamp;
use crate::engine::registry::{EngineHealth, HoldRegistry};
use crate::error::{ErrorKind, Failure};
use crate::guarded::guard;
use crate::holder::Identity;
use crate::key::{Key, start_of};
use crate::options::{MIN_LEASE, Options};
pub(super) use watching::{Found, Watching};

/// The longest lease by which requests of a lock that a session keeps are measured: that of locks by default.
const LONGEST_USUAL_LEASE: Duration = Duration::from_secs(30);

/// Returns the lease by which requests of a lock are measured that a session keeps. Its own lease is no measure for how
/// long a request may be on its way, or be tried again: a session is there to let it be hours.
pub(super) fn usual_lease(lease: Duration) -> Duration {
    lease.min(LONGEST_USUAL_LEASE)
}

/// The shortest and the longest time after which the locks of a process that is gone are free.
pub(crate) const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(300)..=Duration::from_secs(3_600);

/// The key of the record is this and the id of the session.
const RECORD: &str = "dlock-session-";

/// Checks the time after which the locks of a process that is gone are free, and that the backend can keep a record.
pub(crate) fn check(timeout: Duration, capabilities: &Capabilities) -> Result<(), Failure> {
    if capabilities.session_kept {
        let what = "a session keeps its locks already; leave out `with_session`";
        return Err(Failure::new(ErrorKind::Unsupported, what));
    }
    if !capabilities.session_records {
        return Err(Failure::unsupported("keep locks by the record of a session"));
    }
    if TIMEOUTS.contains(&timeout) {
        return Ok(());
    }
    Err(Failure::invalid_config(format!("the session timeout is {timeout:?}; use 300 ms to 1 h")))
}

/// The names among which a process finds records: by another prefix, the same lock has a holder whose record is
/// elsewhere, and whose absence here means nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace(u32);

impl Namespace {
    /// Returns the names that this backend gives to keys; `None` where no session has a record.
    fn of(backend: &dyn DynBackend) -> Option<Self> {
        if !backend.capabilities().session_records {
            return None;
        }
        let key = Key::new(RECORD).ok()?;
        // A backend that panics here has locks all the same.
        let id = guard(|| backend.lock_id(&key)).ok()?;
        // The name alone, and not the place: one server has several addresses.
        let [a, b, c, d, ..] = <[u8; 32]>::from(Sha256::digest(id.name()));
        Some(Self(u32::from_be_bytes([a, b, c, d])))
    }
}

/// The number of digits of a [`Namespace`] in an id.
const NAMESPACE: usize = 8;

/// The id of a session: the lease of its record in milliseconds, and 32 digits. The first of these are the
/// [`Namespace`] of the record, and the others random.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionId {
    text: Arc<str>,
    lease: Duration,
}

impl SessionId {
    fn new(lease: Duration, Namespace(namespace): Namespace, random: &str) -> Self {
        let random = start_of(random, 32 - NAMESPACE);
        Self { text: format!("{}-{namespace:08x}{random}", lease.as_millis()).into(), lease }
    }

    /// Is `true` if its record is found by this process, if it is there.
    pub(super) fn is_in(&self, namespace: Namespace) -> bool {
        let digits = self.text.split_once('-').map(|(_, digits)| start_of(digits, NAMESPACE));
        digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()) == Some(namespace.0)
    }

    /// Reads an id from a store; `None` if no version of dlock has written it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (lease, random) = text.split_once('-')?;
        let lease = Duration::from_millis(lease.parse().ok()?);
        let is_random = random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bounds = MIN_LEASE..=*TIMEOUTS.end();
        (is_random && bounds.contains(&lease)).then(|| Self { text: text.into(), lease })
    }

    pub(super) const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns the key of the record.
    pub(super) fn record(&self) -> Result<Key, Failure> {
        Key::new([RECORD, &self.text].concat())
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The record of a session, as a lock that is held.
pub(super) trait SessionRecord: Send + Sync {
    /// Is `true` if it is held, by a local test.
    fn is_held(&self) -> bool;
    /// Is `true` if its last renewal failed.
    fn is_at_risk(&self) -> bool;
    /// Resolves when a renewal has failed, or it is lost.
    fn at_risk(&self) -> BoxedFuture<'_, ()>;
    /// Returns the time at which it ends unless it is renewed before.
    fn deadline(&self) -> Timestamp;
    /// Returns for how long it is valid from one confirmation to the next.
    fn trusted_for(&self) -> Option<Duration>;
}

/// The session of a process, whose record was held at least once.
pub(crate) struct Session {
    id: SessionId,
    record: Box<dyn SessionRecord>,
    /// The descriptions of this process that are stored with the locks that it keeps.
    holder: Arc<Identity>,
    candidate: Arc<Identity>,
}

impl Session {
    /// Is `true` if the locks that it keeps are held, and others may be taken under it.
    pub(super) fn is_live(&self) -> bool {
        self.record.is_held()
    }

    /// Is `true` if its last renewal failed.
    pub(super) fn is_at_risk(&self) -> bool {
        self.record.is_at_risk()
    }

    /// Resolves when a renewal has failed, or it is lost.
    pub(super) fn at_risk(&self) -> BoxedFuture<'_, ()> {
        self.record.at_risk()
    }

    /// Returns the time at which it ends unless it is renewed before.
    pub(super) fn deadline(&self) -> Timestamp {
        self.record.deadline()
    }

    /// Returns for how long it is valid from one confirmation to the next.
    pub(super) fn trusted_for(&self) -> Option<Duration> {
        self.record.trusted_for()
    }

    /// Returns the description that is stored with a lock of this session.
    pub(super) const fn identity(&self, leads: bool) -> &Arc<Identity> {
        if leads { &self.candidate } else { &self.holder }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Session").field(&self.id).finish()
    }
}

/// The session of an engine, which is opened when it is needed.
pub(crate) trait OpensSession: Send + Sync {
    /// Returns the session, if it is live.
    fn live(&self) -> Option<Arc<Session>>;

    /// Opens the session, unless it is live. `of` has the locks that it keeps.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await: a record that was taken is released.
    fn open<'a>(&'a self, of: &'a Arc<HoldRegistry>) -> BoxedFuture<'a, Result<(), Failure>>;

    /// Is `true` if this is the id of the session, which is live.
    fn is(&self, id: &SessionId) -> bool;

    /// Returns the health of the engine of the record.
    fn health(&self) -> EngineHealth;

    /// Releases the record, and opens no other one.
    fn close(&self) -> BoxedFuture<'_, ()>;
}

/// The sessions that an engine has to do with: its own, and those of the holders in its way.
pub(crate) struct Sessions {
    own: Option<Box<dyn OpensSession>>,
    /// Asked for when it is needed: few processes meet a session.
    namespace: OnceLock<Option<Namespace>>,
    pub(super) watching: Watching,
}

impl Sessions {
    pub(super) fn new(own: Option<Box<dyn OpensSession>>) -> Self {
        Self { own, namespace: OnceLock::new(), watching: Watching::default() }
    }

    /// Returns the names among which records are found at this backend, which is the engine's.
    pub(super) fn namespace(&self, backend: &dyn DynBackend) -> Option<Namespace> {
        *self.namespace.get_or_init(|| Namespace::of(backend))
    }

    /// Is `true` if a session keeps the locks with these options.
    pub(super) fn keep(&self, options: &Options) -> bool {
        self.own.is_some() && options.may_be_kept_by_session()
    }

    /// Returns the session that keeps locks with these options, if there is one at the moment.
    pub(super) fn live(&self, options: &Options) -> Option<Arc<Session>> {
        self.own.as_ref().filter(|_| options.may_be_kept_by_session())?.live()
    }

    /// Opens the session of the engine, unless it is live.
    pub(super) async fn open(&self, of: &Arc<HoldRegistry>) -> Result<(), Failure> {
        match &self.own {
            Some(own) => own.open(of).await,
            None => Ok(()),
        }
    }

    /// Is `true` if this is the session of the engine, and live.
    pub(super) fn is_own(&self, id: &SessionId) -> bool {
        self.own.as_ref().is_some_and(|own| own.is(id))
    }

    /// Returns the health as the renewals of the record show it.
    pub(crate) fn health(&self) -> Option<EngineHealth> {
        self.own.as_ref().map(|own| own.health())
    }

    /// Releases the record, at the end of a shutdown: every lock that it kept was released before.
    pub(super) async fn close(&self) {
        if let Some(own) = &self.own {
            own.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Entropy, boxed};
    use crate::engine::acquire::{Start, begin};
    use crate::engine::tenure::HandoffLimits;
    use crate::engine::{Own, Spec, keeper};
    use crate::options::Wait;
    use crate::runtime::tasks::Tasks;
    use crate::telemetry::{Site, Telemetry};
    use crate::{Locks, Memory};

    #[test]
    fn an_id_is_read_back_and_no_other_text_is_one() {
        let random = "0123456789abcdef0123456789abcdef";
        let namespace = Namespace(0x0123_4567);
        let id = SessionId::new(Duration::from_millis(4_500), namespace, "89abcdef0123456789abcdef76543210");
        let read = SessionId::parse(&format!("4500-{random}")).unwrap();
        assert!(read.is_in(namespace) && !read.is_in(Namespace(0x89ab_cdef)));
        assert_eq!((read.lease(), &read), (Duration::from_millis(4_500), &id));
        assert_eq!(read.record().unwrap().as_str(), format!("dlock-session-4500-{random}"));
        let short = "0123456789abcdef";
        let wrong = ["", "-", "4500", "4500-", &format!("4500-{short}"), &format!("49-{random}"), "x-y"];
        let wrong = wrong.into_iter().map(str::to_owned).chain([
            format!("3600001-{random}"),
            format!("-4500-{random}"),
            format!("4500-{}", random.replace('a', "g")),
            format!("99999999999999999999-{random}"),
        ]);
        for text in wrong {
            assert_eq!(SessionId::parse(&text), None, "{text}");
        }
    }

    #[test]
    fn a_backend_that_cannot_keep_a_record_and_a_timeout_out_of_bounds_are_refused() {
        let records = Capabilities::basic().with_session_records();
        let (least, most) = (*TIMEOUTS.start(), *TIMEOUTS.end());
        for timeout in [least, most] {
            check(timeout, &records).unwrap();
        }
        for timeout in [Duration::ZERO, least / 2, most * 2, Duration::MAX] {
            let failure = check(timeout, &records).unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::InvalidConfig);
            assert!(failure.message().contains("300 ms to 1 h"), "{failure}");
        }
        for (capabilities, says) in [
            (Capabilities::basic(), "this backend cannot"),
            (Capabilities::basic().with_session(), "leave out `with_session`"),
        ] {
            let failure = check(least, &capabilities).unwrap_err();
            assert_eq!(failure.kind(), ErrorKind::Unsupported);
            assert!(failure.message().contains(says), "{failure}");
        }
    }

    /// Opens sessions that are over at once.
    struct ShortLived;

    impl OpensSession for ShortLived {
        fn live(&self) -> Option<Arc<Session>> {
            None
        }

        fn open<'a>(&'a self, _: &'a Arc<HoldRegistry>) -> BoxedFuture<'a, Result<(), Failure>> {
            boxed(async { Ok(()) })
        }

        fn is(&self, _: &SessionId) -> bool {
            false
        }

        fn health(&self) -> EngineHealth {
            unreachable!("it is not asked for")
        }

        fn close(&self) -> BoxedFuture<'_, ()> {
            boxed(async {})
        }
    }

    /// It would have a lease of hours, and nothing that ends it before.
    #[tokio::test]
    async fn no_lock_is_taken_under_a_session_that_was_over_as_soon_as_it_was_opened() {
        let memory = Memory::new();
        let own = Own {
            label: None,
            entropy: Entropy::new(),
            limits: HandoffLimits::default(),
            audit: None,
            session: Some(Box::new(ShortLived)),
        };
        let telemetry = Arc::new(Telemetry::new("memory", None, false, false, None));
        let engine = keeper::start(Arc::new(memory.clone()), telemetry, Tasks::new(None).unwrap(), own);
        let options = Options { wait: Wait::No, ..Options::default() };
        let spec = Spec { engine, key: Key::new("k").unwrap(), site: Site::default(), options };
        let refused = begin(spec, Start::Now).unwrap().await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("session was over"), "{refused}");
        assert!(Locks::new(memory).lock("k").try_acquire().await.unwrap().is_some());
    }
}
