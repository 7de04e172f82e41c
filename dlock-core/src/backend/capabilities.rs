//! The abilities of a backend.

use std::time::Duration;

use crate::backend::Administration;
use crate::guarded::guard;
use crate::key::Key;

/// The abilities of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Every grant carries a [`Fence`](crate::Fence).
    pub fencing: bool,
    /// The backend keeps waiters in a queue, first come first served; those of one process in the order of their first
    /// attempts ([`Turns`](crate::backend::Turns) keeps it where requests overtake each other). Otherwise the engine
    /// lets one waiter per key and process ask at a time, in their order.
    pub fair: bool,
    /// The backend keeps the waiters of a lock in a queue where the [request](crate::backend::ClaimRequest::fair) asks
    /// for it, as for [`fair`](Self::fair).
    pub fair_on_request: bool,
    /// [`Claim::changed`](crate::Claim::changed) is notified of releases by other processes.
    pub notified: bool,
    /// A session keeps the lock, instead of a lease that is renewed.
    pub session_kept: bool,
    /// The servers do not forget a grant that they confirmed, also when they fail over or are started again.
    pub durable: bool,
    /// The holders of all locks can be listed, and a lock can be freed by force. The backend has an [`Administration`]:
    /// this is found out when [`Locks`](crate::Locks) are built over it, whatever the backend sets here.
    pub administered: bool,
    /// The waiters for a lock can be listed. Found out likewise, by [`Administration::waiters`].
    pub shows_waiters: bool,
    /// Several may read at a time: [`Mode::Shared`](crate::backend::Mode::Shared).
    pub shared: bool,
    /// An exclusive lock can become a reader's in one step: [`Claim::downgrade`](crate::Claim::downgrade). Only where
    /// several may read.
    pub downgrades: bool,
    /// There are semaphores: [`Mode::Permits`](crate::backend::Mode::Permits).
    pub permits: bool,
    /// A release can leave the key taken for a time: [`Claim::leave`](crate::Claim::leave).
    pub leaves: bool,
    /// A key that was left can be taken over with its token:
    /// [`ClaimRequest::takes_over`](crate::backend::ClaimRequest::takes_over). Only where a release can leave a key.
    pub hands_over: bool,
    /// The share of a reader and permits can be taken over too, not only an exclusive lock.
    pub hands_over_shares: bool,
    /// Requests of a process for one key need not wait for each other's answers, and cost the server little. A grant to
    /// a reader then has the readers that wait in its process ask together; otherwise they ask one after the other.
    pub pipelined: bool,
    /// A lock can be kept by the record of a session
    /// ([`LocksBuilder::with_session`](crate::LocksBuilder::with_session)): the backend has leases, stores the line
    /// about the holder, reports it with [`Busy`](crate::backend::Busy), and [frees](Administration::force_release) a
    /// lock of the holder that was seen in one step of the server.
    pub session_records: bool,
    /// Terms of an election are [announced](crate::Backend::announce) to its observers.
    pub announces: bool,
    /// The whole backend is in this process, and no server is asked: waits are measured with tokio's clock where a test
    /// pauses that. A backend that asks servers goes on in real time.
    pub in_process: bool,
    /// The shortest useful pause between two polls of a busy lock, of at least 1 ms.
    pub poll_from: Duration,
    /// The longest pause between two polls, of at most an hour. With notifications this is only the safety net.
    pub poll_to: Duration,
}

impl Capabilities {
    /// Creates the capabilities of a leased lock without fences that is polled every 10 ms to 250 ms, which the least
    /// backend has.
    #[must_use]
    pub const fn basic() -> Self {
        Self {
            fencing: false,
            fair: false,
            fair_on_request: false,
            notified: false,
            session_kept: false,
            durable: false,
            administered: false,
            shows_waiters: false,
            shared: false,
            downgrades: false,
            permits: false,
            leaves: false,
            hands_over: false,
            hands_over_shares: false,
            pipelined: false,
            session_records: false,
            announces: false,
            in_process: false,
            poll_from: Duration::from_millis(10),
            poll_to: Duration::from_millis(250),
        }
    }

    /// Bounds the pauses, so that they neither spin nor last longer than a clock can show.
    pub(crate) fn within_bounds(mut self) -> Self {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(3_600));
        self.poll_from = self.poll_from.clamp(least, most);
        self.poll_to = self.poll_to.clamp(self.poll_from, most);
        self
    }

    /// Returns the time after which a waiter elsewhere has asked for a lock that is left to it: `notified` where the
    /// backend notifies, and otherwise the longest pause between two polls, but no more than `most`.
    pub(crate) fn time_to_ask(&self, notified: Duration, most: Duration) -> Duration {
        if self.notified { notified } else { self.poll_to.min(most) }
    }

    /// Sets the abilities for operators from the administration of the backend, if it has one.
    pub(crate) fn administered_by(mut self, administration: Option<&dyn Administration>) -> Self {
        let any_key = Key::new("dlock-ping").ok();
        let shows_waiters =
            |(administration, key): (&dyn Administration, _)| administration.waiters(key).is_some();
        let waiters = guard(|| administration.zip(any_key).is_some_and(shows_waiters));
        self.administered = administration.is_some();
        self.shows_waiters = waiters.unwrap_or(false);
        self
    }

    /// Adds fences.
    #[must_use]
    pub const fn with_fencing(mut self) -> Self {
        self.fencing = true;
        self
    }

    /// Adds a queue on the server.
    #[must_use]
    pub const fn with_fairness(mut self) -> Self {
        self.fair = true;
        self
    }

    /// Adds a queue on the server for the locks that ask for it.
    #[must_use]
    pub const fn with_fairness_on_request(mut self) -> Self {
        self.fair_on_request = true;
        self
    }

    /// Adds notifications, and a poll every `safety_net` in case one is lost.
    #[must_use]
    pub const fn with_notifications(mut self, safety_net: Duration) -> Self {
        self.notified = true;
        self.poll_to = safety_net;
        self
    }

    /// Marks that a session keeps the lock.
    #[must_use]
    pub const fn with_session(mut self) -> Self {
        self.session_kept = true;
        self
    }

    /// Marks that a lock can be kept by the record of a session.
    #[must_use]
    pub const fn with_session_records(mut self) -> Self {
        self.session_records = true;
        self
    }

    /// Marks that confirmed grants are not forgotten.
    #[must_use]
    pub const fn with_durability(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Adds read locks, which several hold at a time.
    #[must_use]
    pub const fn with_sharing(mut self) -> Self {
        self.shared = true;
        self
    }

    /// Adds that an exclusive lock can become a reader's.
    #[must_use]
    pub const fn with_downgrading(mut self) -> Self {
        self.downgrades = true;
        self
    }

    /// Adds semaphores.
    #[must_use]
    pub const fn with_permits(mut self) -> Self {
        self.permits = true;
        self
    }

    /// Marks that a release can leave the key taken for a time.
    #[must_use]
    pub const fn with_leaving(mut self) -> Self {
        self.leaves = true;
        self
    }

    /// Marks that a key that a release left can be taken over by its token.
    #[must_use]
    pub const fn with_handing_over(mut self) -> Self {
        self.hands_over = true;
        self
    }

    /// Marks that the share of a reader, or permits, that were left can be taken over too.
    #[must_use]
    pub const fn with_handing_over_of_shares(mut self) -> Self {
        self.hands_over_shares = true;
        self
    }

    /// Marks that requests need not wait for each other's answers.
    #[must_use]
    pub const fn with_pipelining(mut self) -> Self {
        self.pipelined = true;
        self
    }

    /// Marks that terms of elections are announced.
    #[must_use]
    pub const fn with_announcements(mut self) -> Self {
        self.announces = true;
        self
    }

    /// Marks that the whole backend is in this process.
    #[must_use]
    pub const fn without_servers(mut self) -> Self {
        self.in_process = true;
        self
    }

    /// Sets the least and the longest pause between two polls.
    #[must_use]
    pub const fn with_polling(mut self, from: Duration, to: Duration) -> Self {
        self.poll_from = from;
        self.poll_to = to;
        self
    }
}
