//! One of the backends of a quorum, and whether it answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::dynamic::{DynBackend, DynClaim};
use crate::backend::{Backend, ClaimRequest, NodeState};
use crate::sync::plain::Mutex;

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
        Self::own(Box::new(backend))
    }
}

impl Node {
    pub(crate) fn own(backend: Box<dyn DynBackend>) -> Self {
        Self(NodeBackend::Own(backend))
    }

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

/// A node in its place.
#[derive(Debug)]
pub(super) struct Member {
    /// From 1, as errors say it.
    number: usize,
    node: Node,
    /// For how long it has to remember everything before it votes; nothing when it forgets nothing.
    pub(super) longest: Option<Duration>,
    /// What its marks say of the quorum.
    pub(super) settings: Arc<str>,
    /// They say something else.
    pub(super) disagrees: AtomicBool,
    /// The mark that was found last.
    pub(super) mark: AtomicUsize,
    pub(super) marking: AtomicBool,
    pub(super) tended: Mutex<Option<Instant>>,
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
    pub(super) fn new(number: usize, node: Node, longest: Option<Duration>, settings: Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            number,
            node,
            longest,
            settings,
            disagrees: AtomicBool::new(false),
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
        let mut probed = self.probed.lock();
        let is_due = probed.is_none_or(|last| last.elapsed() >= PROBING);
        if is_due {
            *probed = Some(Instant::now());
        }
        is_due
    }

    pub(super) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
        *self.answered.lock() = Some(Instant::now());
    }

    /// Whether it answered anybody of this process within the last `limit`.
    pub(super) fn has_answered_within(&self, limit: Duration) -> bool {
        let answered = self.answered.lock();
        answered.is_some_and(|at| at.elapsed() < limit)
    }

    pub(super) fn did_not_answer(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// What is known of it.
    pub(super) fn state(&self) -> NodeState {
        let answered = *self.answered.lock();
        NodeState {
            number: self.number,
            backend: self.backend().name(),
            answered: answered.map(|at| at.elapsed()),
            is_silent: self.unanswered.load(Ordering::Relaxed) >= SILENT_AFTER,
        }
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
}
