//! One of the backends of a quorum, and what it remembers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::dynamic::{DynBackend, DynClaim};
use crate::backend::{Attempt, Backend, ClaimRequest, Entropy, Host, Mode};
use crate::error::{ErrorKind, Failure};
use crate::holder::Identity;
use crate::key::Key;
use crate::telemetry::Trace;
use crate::token::Token;

/// One of the backends of a [`Quorum`](super::Quorum): made of any [`Backend`], or of a [`Locks`](crate::Locks) (whose
/// defaults do not matter here).
pub struct Node(NodeBackend);

enum NodeBackend {
    Own(Box<dyn DynBackend>),
    /// Of somebody who also closes it.
    Lent(Box<dyn LendsBackend>),
}

/// Somebody who has a backend and lends it.
pub(crate) trait LendsBackend: Send + Sync + 'static {
    fn backend(&self) -> &dyn DynBackend;
}

impl<B: Backend> From<B> for Node {
    fn from(backend: B) -> Self {
        Self(NodeBackend::Own(Box::new(backend)))
    }
}

impl Node {
    pub(crate) fn lent(by: impl LendsBackend) -> Self {
        Self(NodeBackend::Lent(Box::new(by)))
    }

    pub(super) fn backend(&self) -> &dyn DynBackend {
        match &self.0 {
            NodeBackend::Own(backend) => &**backend,
            NodeBackend::Lent(by) => by.backend(),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.backend()).finish()
    }
}

/// How long a mark of memory lasts on a node. The marks of two names take turns, so that there is always one.
const MARK: Duration = Duration::from_secs(30 * 24 * 3_600);
/// How often to see to the other mark, when one is old.
const TENDING: Duration = Duration::from_secs(600);
/// How long a request about a mark may take.
const MARKING: Duration = Duration::from_secs(5);

static MARKS: LazyLock<[Option<Key>; 2]> =
    LazyLock::new(|| ["dlock-quorum-memory-1", "dlock-quorum-memory-2"].map(|name| Key::new(name).ok()));

/// Whether a key is that of a mark, and no lock of anybody.
pub(super) fn is_mark(key: &Key) -> bool {
    MARKS.iter().flatten().any(|mark| mark == key)
}

/// A node in its place.
#[derive(Debug)]
pub(super) struct Member {
    /// From 1, as errors say it.
    number: usize,
    node: Node,
    /// For how long it has to remember everything before it votes; nothing when it forgets nothing.
    longest: Option<Duration>,
    /// The mark that was found last.
    mark: AtomicUsize,
    marking: AtomicBool,
    tended: Mutex<Option<Instant>>,
    /// How many requests in a row it left without an answer.
    unanswered: AtomicU32,
    /// When it answered last.
    answered: Mutex<Option<Instant>>,
    /// When one that does not answer was asked last.
    probed: Mutex<Option<Instant>>,
}

/// After how many requests without an answer a node is not asked by everybody any more.
const SILENT_AFTER: u32 = 3;
/// How often such a node is asked whether it is back.
const PROBING: Duration = Duration::from_millis(250);

impl Member {
    pub(super) fn new(number: usize, node: Node, longest: Option<Duration>) -> Arc<Self> {
        Arc::new(Self {
            number,
            node,
            longest,
            mark: AtomicUsize::new(0),
            marking: AtomicBool::new(false),
            tended: Mutex::default(),
            unanswered: AtomicU32::new(0),
            answered: Mutex::default(),
            probed: Mutex::default(),
        })
    }

    pub(super) fn backend(&self) -> &dyn DynBackend {
        self.node.backend()
    }

    pub(super) fn claim(&self, request: ClaimRequest) -> Box<dyn DynClaim> {
        self.backend().claim(request)
    }

    /// Whether it may have forgotten what it granted, and has to be asked.
    pub(super) fn may_forget(&self) -> bool {
        self.longest.is_some()
    }

    /// From 1, as errors say it.
    pub(super) const fn number(&self) -> usize {
        self.number
    }

    /// Whether an attempt is to ask it: always, unless it has not answered lately, and then only now and then. A
    /// minority that hangs thus costs next to nothing.
    pub(super) fn is_asked(&self) -> bool {
        if self.unanswered.load(Ordering::Relaxed) < SILENT_AFTER {
            return true;
        }
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = probed.is_none_or(|last| last.elapsed() >= PROBING);
        if is_due {
            *probed = Some(Instant::now());
        }
        is_due
    }

    pub(super) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
        *self.answered.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether it answered anybody of this process within the last `limit`.
    pub(super) fn has_answered_within(&self, limit: Duration) -> bool {
        let answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        answered.is_some_and(|at| at.elapsed() < limit)
    }

    pub(super) fn did_not_answer(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// What it says, with its name.
    pub(super) fn says(&self, what: &dyn fmt::Display) -> String {
        format!("node {} ({}): {what}", self.number, self.backend().name())
    }

    /// Closes it, unless it belongs to other locks.
    pub(super) async fn close(&self) {
        if let NodeBackend::Own(backend) = &self.node.0 {
            backend.close().await;
        }
    }

    /// Whether it has forgotten nothing for so long that it may vote. Otherwise the failure says what is missing, and a
    /// mark is left from which its memory is counted.
    ///
    /// A mark is a lock with a long lease that nobody releases: what is left of the lease tells its age, measured by
    /// the node's own clock.
    pub(super) async fn remembers(self: &Arc<Self>, host: &Host) -> Result<(), Failure> {
        let Some(longest) = self.longest else { return Ok(()) };
        let first = self.mark.load(Ordering::Relaxed);
        let mut oldest = None;
        for mark in [first, 1 - first] {
            let Some(age) = self.age(mark).await? else { continue };
            if age >= longest {
                self.mark.store(mark, Ordering::Relaxed);
                if age > MARK / 2 {
                    self.tend(1 - mark, host)?;
                }
                return Ok(());
            }
            oldest = oldest.max(Some(age));
        }
        let missing = match oldest {
            Some(age) => longest - age,
            None => {
                self.leave_mark(first, host)?;
                longest
            }
        };
        Err(Failure::unavailable(format!(
            "it is new or has forgotten its locks, and does not vote for another {missing:.1?}"
        )))
    }

    /// How long ago a mark was left; `None` when it is not there.
    async fn age(&self, mark: usize) -> Result<Option<Duration>, Failure> {
        let Some(key) = &MARKS[mark] else { return Ok(None) };
        let Some(holder) = self.backend().inspect(key).await? else { return Ok(None) };
        match holder.expires_in {
            Some(left) => Ok(Some(MARK.saturating_sub(left))),
            None => Err(Failure::new(
                ErrorKind::Unsupported,
                "it does not tell how long a lease still runs, so that its memory cannot be checked; use nodes that \
                 are durable, and say so with `with_durable_nodes`",
            )),
        }
    }

    /// Leaves the other mark, now and then.
    fn tend(self: &Arc<Self>, mark: usize, host: &Host) -> Result<(), Failure> {
        {
            let mut tended = self.tended.lock().unwrap_or_else(PoisonError::into_inner);
            if tended.is_some_and(|last| last.elapsed() < TENDING) {
                return Ok(());
            }
            *tended = Some(Instant::now());
        }
        self.leave_mark(mark, host)
    }

    /// Leaves a mark, in the background.
    fn leave_mark(self: &Arc<Self>, mark: usize, host: &Host) -> Result<(), Failure> {
        if self.marking.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let member = Arc::clone(self);
        let marking = async move {
            // When this fails, the next check finds no mark and tries again.
            let _ = member.mark(mark, MARK).await;
            member.marking.store(false, Ordering::Release);
        };
        host.spawn(marking).inspect_err(|_| self.marking.store(false, Ordering::Release))
    }

    async fn mark(&self, mark: usize, lease: Duration) -> Result<(), Failure> {
        let Some(key) = MARKS[mark].clone() else { return Ok(()) };
        let request = ClaimRequest {
            mode: Mode::Exclusive,
            fair: false,
            key,
            token: Token::random()?,
            lease,
            request_timeout: MARKING,
            recheck: false,
            waits: false,
            identity: Identity::of_this_process(Some("dlock quorum".into())),
            entropy: Entropy::new(),
            trace: Trace::default(),
            host: Host::default(),
        };
        // Never released. When it is busy, somebody else has left it.
        let mut claim = self.claim(request);
        match tokio::time::timeout(MARKING, claim.attempt()).await {
            Ok(Ok(Attempt::Granted(_) | Attempt::Busy(_))) => Ok(()),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::unknown(format!("no answer within {MARKING:?}"))),
        }
    }

    /// Vouches that nobody holds a lock on this node yet: leaves a mark that counts as old enough.
    pub(super) async fn bootstrap(&self) -> Result<(), Failure> {
        match self.longest {
            Some(longest) => self.mark(0, MARK.saturating_sub(longest)).await,
            None => Ok(()),
        }
    }
}
