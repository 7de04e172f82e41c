//! The reports of nodes on the votes of a claim, and the report to its holder that follows from them.
//!
//! | votes that are leased or kept by a session | with those that are suspect | report |
//! |---|---|---|
//! | a majority | | trusted again, if it was suspected |
//! | less | a majority | suspected |
//! | less | less | lost |

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::node::Member;
use dlock_core::Timestamp;
use dlock_core::backend::{Mutex, Signal};

/// The value of a vote before a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VoteStanding {
    /// A lease, to be renewed.
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
    /// Returns the value of the vote now, without a request.
    fn standing(&self) -> VoteStanding;
}

/// The votes of one claim, for the reports that nodes make on them.
#[derive(Default)]
pub(crate) struct VoteTally {
    votes: Mutex<Vec<Arc<dyn CountedVote>>>,
    needed: usize,
    signal: OnceLock<(Signal, Timestamp)>,
    /// The wishes of nodes that came before there was a signal to pass them on by.
    early: Mutex<Wishes>,
    suspected: AtomicBool,
}

/// The wishes of nodes to the holder.
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

    /// Replaces the votes.
    pub(crate) fn seat<V: CountedVote + 'static>(&self, votes: &[Arc<V>]) {
        *self.votes.lock() = votes.iter().map(|vote| Arc::clone(vote) as Arc<dyn CountedVote>).collect();
    }

    /// Sets the signal by which reports go to the holder of a lock that was granted at `sent`.
    pub(crate) fn report_to(&self, signal: Signal, sent: Timestamp, now: Timestamp) {
        let wishes = {
            // Set under the lock of the early wishes: each wish is either among these, or is passed on by the signal.
            let mut early = self.early.lock();
            let _ = self.signal.set((signal.clone(), sent));
            std::mem::take(&mut *early)
        };
        wishes.pass_on(&signal, now);
        // A node may have taken its vote back before there was a signal.
        self.tell("a node took it back at once".into());
    }

    /// Passes on a wish of a node, now or once there is a signal.
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
        // Before the grant there is no hold to report to: `report_to` counts once more.
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
            // The grant lasts no longer than before; only the doubt is over.
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
