//! The leader, as other processes see it.

use std::fmt;
use std::time::Duration;

use super::Election;
use crate::engine::Engine;
use crate::engine::looks::Looks;
use crate::error::Result;
use crate::fence::Fence;
use crate::holder::Holder;

const OFTENEST: Duration = Duration::from_millis(50);
const SELDOMEST: Duration = Duration::from_secs(3_600);

/// The leader of an [`Election`], as the backend reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    holder: Holder,
    is_us: bool,
}

impl Leader {
    pub(super) fn of(holder: Holder, engine: &Engine) -> Self {
        let is_us = holder.candidate.is_some()
            && holder.candidate.as_deref() == engine.identities.candidate.candidate();
        Self { holder, is_us }
    }

    /// Returns the number of its term; `None` on backends without fences.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.fence().map(Fence::get)
    }

    /// Returns the fencing token of its term; `None` on backends without fences.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.holder.fence
    }

    /// Returns `true` if it is this process: not merely one of the same host and process id. `false` where the backend
    /// does not keep the identity of processes.
    #[must_use]
    pub const fn is_this_process(&self) -> bool {
        self.is_us
    }

    /// Returns its holder: host, process, label, and the beginning of the term.
    #[must_use]
    pub const fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Is `true` for the same term, or where there are no fences the same candidate.
    fn is_same_term(&self, other: &Self) -> bool {
        let who = |leader: &Self| {
            let Holder { host, pid, label, candidate, fence, .. } = leader.holder.clone();
            // A fence identifies a term, and is equal in every answer. The nodes of a quorum have none, and each notes
            // the beginning of the hold by its own clock.
            (fence, fence.is_none().then_some((host, pid, label, candidate)))
        };
        who(self) == who(other)
    }
}

impl fmt::Display for Leader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.holder.fmt(f)
    }
}

/// Follows the leader of an [`Election`].
///
/// * **Notified**, where the backend [announces](crate::Capabilities::announces) terms: when a term begins, is resigned
///   or dropped, and when a lock is taken away by force. The observer then asks the backend at once, and sees the
///   change after one message and one request.
/// * **Polled**, in any case: the backend is also asked every second, or [as often as is wanted](Self::with_interval).
///   A change is seen that much later at most where nothing is announced, where an announcement is lost, and where a
///   lease runs out, which nothing announces; the term that follows is announced again.
///
/// A term that ends before its announcement is followed by the request may not be seen at all. On a quorum, which has
/// no fences, the next term of a candidate that led before is no change.
///
/// The subscription lasts from the first request until the observer is dropped, also while nothing is waited for.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
/// use dlock_core::{Locks, Memory};
///
/// let locks = Locks::new(Memory::new());
/// let mut changes = locks.election("billing").changes();
/// assert!(changes.next().await?.is_none(), "nobody leads at first");
/// let term = locks.election("billing").campaign().next().await.expect("nobody else stands");
/// let leader = changes.next().await?.expect("somebody leads now");
/// assert_eq!(leader.fence(), term.fence());
/// assert!(leader.is_this_process());
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing until its next change is waited for"]
pub struct LeaderChanges {
    election: Election,
    interval: Duration,
    /// The leader that was reported last; nothing at first, and after an error.
    known: Option<Option<Leader>>,
    /// Is `true` if the error that was reported last was a refusal, `None` if there was none. The kinds of an outage
    /// vary.
    failed: Option<bool>,
    looks: Looks,
}

impl LeaderChanges {
    pub(super) fn new(election: Election) -> Self {
        Self {
            election,
            interval: Duration::from_secs(1),
            known: None,
            failed: None,
            looks: Looks::default(),
        }
    }

    /// Sets the interval at which the backend is asked although nothing was announced. Default 1 s; 50 ms to 1 h.
    pub const fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Returns the leader, at first; after that, waits until there is another one, or none.
    ///
    /// # Errors
    ///
    /// Those of [`Election::leader`], and [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an interval
    /// out of bounds. Each can be followed by another call. An outage and a refusal are reported once; when they are
    /// over, this returns the leader of that time.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        if !(OFTENEST..=SELDOMEST).contains(&self.interval) {
            let what = format!("the interval is {:?}; use {OFTENEST:?} to {SELDOMEST:?}", self.interval);
            return Err(self.election.refuse(what));
        }
        loop {
            let Election { lock, .. } = &self.election;
            self.looks.due(lock.engine(), lock.checked(lock.options())?, self.interval).await;
            let found = self.election.leader().await;
            self.looks.ended(self.election.engine());
            match found {
                Ok(leader) if self.is_news(leader.as_ref()) => {
                    self.failed = None;
                    self.known = Some(leader.clone());
                    return Ok(leader);
                }
                Err(error)
                    if self.failed != Some(error.kind().is_refusal())
                        || !(error.is_retryable() || error.kind().is_refusal()) =>
                {
                    self.failed = Some(error.kind().is_refusal());
                    self.known = None;
                    return Err(error);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn is_news(&self, leader: Option<&Leader>) -> bool {
        match (&self.known, leader) {
            (Some(Some(known)), Some(leader)) => !known.is_same_term(leader),
            (Some(None), None) => false,
            _ => true,
        }
    }
}
