//! What the nodes of a claim say unasked, and what comes of it.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::node::Member;
use dlock_core::Timestamp;
use dlock_core::backend::{Mutex, Signal};

/// What a vote is worth before a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteStanding {
    /// To be renewed.
    Leased,
    /// Kept by a session until this time.
    Session(Timestamp),
    /// A session that cannot be confirmed at the moment.
    Suspect,
    /// An attempt that was never answered may have taken it.
    Unsettled,
    /// The node does not have it for us.
    Missing,
}

/// A vote, as far as it counts.
pub(crate) trait CountedVote: Send + Sync {
    /// Returns what it is worth now, without asking.
    fn standing(&self) -> VoteStanding;
}

/// The votes of one claim, for what nodes say unasked.
#[derive(Default)]
pub(crate) struct VoteTally {
    votes: Mutex<Vec<Arc<dyn CountedVote>>>,
    needed: usize,
    signal: OnceLock<(Signal, Timestamp)>,
    /// What nodes wanted before there was a signal to pass it on by.
    early: Mutex<Wishes>,
    suspected: AtomicBool,
}

/// What nodes want of the holder.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) renew_by: Option<Timestamp>,
    pub(crate) release: bool,
}

impl Wishes {
    fn pass_on(&self, signal: &Signal, now: Timestamp) {
        if let Some(at) = self.renew_by {
            signal.renew_within(at.since(now));
        }
        if self.release {
            signal.release_requested();
        }
    }
}

impl VoteTally {
    pub(crate) fn new(needed: usize) -> Arc<Self> {
        Arc::new(Self { needed, ..Self::default() })
    }

    /// These are the votes from now on.
    pub(crate) fn seat<V: CountedVote + 'static>(&self, votes: &[Arc<V>]) {
        *self.votes.lock() = votes.iter().map(|vote| Arc::clone(vote) as Arc<dyn CountedVote>).collect();
    }

    /// Whom to tell, of a lock that was granted at `sent`.
    pub(crate) fn report_to(&self, signal: Signal, sent: Timestamp, now: Timestamp) {
        let wishes = {
            let mut early = self.early.lock();
            let _ = self.signal.set((signal.clone(), sent));
            std::mem::take(&mut *early)
        };
        wishes.pass_on(&signal, now);
        self.tell("a node took it back at once".into());
    }

    /// Passes on what a node wants, once there is somebody to ask for it.
    pub(crate) fn ask(&self, wishes: Wishes, now: Timestamp) {
        {
            let mut early = self.early.lock();
            if self.signal.get().is_none() {
                early.renew_by = early.renew_by.into_iter().chain(wishes.renew_by).min();
                early.release |= wishes.release;
                return;
            }
        }
        if let Some((signal, _)) = self.signal.get() {
            wishes.pass_on(signal, now);
        }
    }

    pub(crate) fn recount(&self, member: &Member, cause: Cow<'static, str>) {
        self.tell(format!("too few nodes are left that have it; {}", member.says(&cause)).into());
    }

    fn tell(&self, cause: Cow<'static, str>) {
        let Some((signal, sent)) = self.signal.get() else { return };
        let (mut sound, mut shaken) = (0, 0);
        for vote in &*self.votes.lock() {
            match vote.standing() {
                VoteStanding::Leased | VoteStanding::Session(_) => sound += 1,
                VoteStanding::Suspect => shaken += 1,
                VoteStanding::Unsettled | VoteStanding::Missing => {}
            }
        }
        if sound >= self.needed {
            // It is no longer than it was; only the doubt is over.
            if self.suspected.swap(false, Ordering::AcqRel) {
                signal.trust(*sent);
            }
        } else if sound + shaken >= self.needed {
            self.suspected.store(true, Ordering::Release);
            signal.suspect();
        } else {
            signal.lost(cause);
        }
    }
}
