//! One of the backends of a quorum, and whether it answers.

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
    /// From 1, as errors say it.
    number: usize,
    node: Node,
    /// For how long it has to remember everything before it votes; nothing when it forgets nothing.
    pub(crate) longest: Option<Duration>,
    /// What its marks say of the quorum.
    pub(crate) settings: Arc<str>,
    /// They say something else.
    pub(crate) disagrees: AtomicBool,
    /// The mark that was found last.
    pub(crate) mark: AtomicUsize,
    pub(crate) marking: AtomicBool,
    pub(crate) tended: Mutex<Option<Instant>>,
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

    /// Whether it may have forgotten what it granted, and has to be asked.
    pub(crate) fn may_forget(&self) -> bool {
        self.longest.is_some()
    }

    /// From 1, as errors say it.
    pub(crate) const fn number(&self) -> usize {
        self.number
    }

    /// Whether an attempt is to ask it: always, unless it has not answered lately, and then only now and then. A
    /// minority that hangs thus costs next to nothing.
    pub(crate) fn is_asked(&self) -> bool {
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

    pub(crate) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
        *self.answered.lock() = Some(Instant::now());
    }

    /// Whether it answered anybody of this process within the last `limit`.
    pub(crate) fn has_answered_within(&self, limit: Duration) -> bool {
        let answered = self.answered.lock();
        answered.is_some_and(|at| at.elapsed() < limit)
    }

    pub(crate) fn did_not_answer(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// What is known of it.
    pub(crate) fn state(&self) -> NodeState {
        let answered = *self.answered.lock();
        let is_silent = self.unanswered.load(Ordering::Relaxed) >= SILENT_AFTER;
        NodeState::new(self.number, self.node.name(), answered.map(|at| at.elapsed()), is_silent)
    }

    /// What it says, with its name.
    pub(crate) fn says(&self, what: &dyn fmt::Display) -> String {
        format!("node {} ({}): {what}", self.number, self.node().name())
    }
}
