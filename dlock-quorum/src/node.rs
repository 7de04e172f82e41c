//! One of the backends of a quorum, and whether it answers.
//!
//! ```text
//!   asked ── three requests in a row without an answer ──▶ silent: asked every 250 ms ── an answer ──▶ asked
//! ```

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::Node;
use dlock_core::backend::{Mutex, NodeState};
use tokio::time::Instant;

/// A node in its place.
#[derive(Debug)]
pub(crate) struct Member {
    /// The number of the node, from 1, as in errors.
    number: usize,
    node: Node,
    /// The time for which it has to remember everything before it votes; nothing when it forgets nothing.
    pub(crate) longest: Option<Duration>,
    /// The settings of the quorum that its marks should have.
    pub(crate) settings: Arc<str>,
    /// Is `true` if they have others.
    pub(crate) disagrees: AtomicBool,
    /// The mark that was found last.
    pub(crate) mark: AtomicUsize,
    pub(crate) marking: AtomicBool,
    pub(crate) tended: Mutex<Option<Instant>>,
    /// The number of requests in a row that it left without an answer.
    unanswered: AtomicU32,
    /// The time of its last answer.
    answered: Mutex<Option<Instant>>,
    /// The time at which it was asked last while it did not answer.
    probed: Mutex<Option<Instant>>,
}

/// The number of requests without an answer after which not every attempt asks a node any more.
const SILENT_AFTER: u32 = 3;
/// The pause between the attempts that ask whether such a node is back.
const PROBING: Duration = Duration::from_millis(250);

impl Member {
    pub(crate) fn new(number: usize, node: Node, longest: Option<Duration>, settings: Arc<str>) -> Arc<Self> {
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

    pub(crate) const fn node(&self) -> &Node {
        &self.node
    }

    /// Is `true` if it may have forgotten what it granted, and has to be asked.
    pub(crate) fn may_forget(&self) -> bool {
        self.longest.is_some()
    }

    /// Returns the number of the node, from 1, as in errors.
    pub(crate) const fn number(&self) -> usize {
        self.number
    }

    /// Returns whether an attempt is to ask it: always, unless it has not answered lately, and then only now and then.
    /// A minority that hangs thus costs next to nothing.
    pub(crate) fn is_asked(&self) -> bool {
        if self.unanswered.load(Ordering::Relaxed) < SILENT_AFTER {
            return true;
        }
        // One attempt of all that come within the pause asks: it takes the turn under the lock.
        let mut probed = self.probed.lock();
        let is_due = probed.is_none_or(|last| last.elapsed() >= PROBING);
        if is_due {
            *probed = Some(Instant::now());
        }
        is_due
    }

    pub(crate) fn answered(&self) {
        // One answer is enough: a node that is back is asked by all at once, which costs no more than any node.
        self.unanswered.store(0, Ordering::Relaxed);
        *self.answered.lock() = Some(Instant::now());
    }

    /// Is `true` if it answered any request of this process within the last `limit`.
    pub(crate) fn has_answered_within(&self, limit: Duration) -> bool {
        let answered = self.answered.lock();
        answered.is_some_and(|at| at.elapsed() < limit)
    }

    pub(crate) fn did_not_answer(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns its state, as far as it is known.
    pub(crate) fn state(&self) -> NodeState {
        let answered = *self.answered.lock();
        let is_silent = self.unanswered.load(Ordering::Relaxed) >= SILENT_AFTER;
        NodeState::new(self.number, self.node.name(), answered.map(|at| at.elapsed()), is_silent)
    }

    /// Returns a message of the node, with its number and name.
    pub(crate) fn says(&self, what: &dyn fmt::Display) -> String {
        format!("node {} ({}): {what}", self.number, self.node().name())
    }
}
