//! The leases of claims. What is asked of the servers about them is in `proof.rs`.
//!
//! Each claim has a lease of its own. If all shared one, a key that is left over (by a waiter that nobody polls, by a
//! request that arrives late, by a withdrawal that never gets through) would stay for as long as anything else of the
//! process does. So it is gone after one lease, and revoking the lease settles what may still arrive: a later put under
//! it is refused. A lease whose claim ended well goes to a pool, so that a claim need not make one: an acquire without
//! contention is then one step, as that of Go's mutex with its session. Nothing keeps a lease in the pool alive.
//!
//! ```text
//!  granted --> of a claim --the claim ended, nothing of it may arrive--> in the pool --taken in time--> of a claim
//!                  |                                                         |
//!                  +--something may arrive--> revoked                        +--not taken--> ends by itself
//! ```

use std::time::Duration;

use dlock_core::backend::Mutex;
use dlock_core::{Clock, Timestamp};
use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::sync::OwnedSemaphorePermit;

/// The most leases in the pool.
const MOST: usize = 64;

/// A lease on the servers.
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// In seconds, as it was asked for.
    pub(crate) ttl: i64,
    /// The time from which it certainly runs in full, by the clock of the machine: the send of the last step that
    /// proved it.
    pub(crate) proven_at: Option<Timestamp>,
    /// The stream of its keep-alives, while none is under way: an answer that was not read must not count for the next.
    /// Of a few leases only, since servers may bound the streams of a connection.
    pub(crate) stream: Option<(LeaseKeeper, LeaseKeepAliveStream, OwnedSemaphorePermit)>,
}

impl Lease {
    /// Returns how long it certainly runs on.
    pub(crate) fn left(&self) -> Duration {
        // A lease that was never proven counts as ended: what is left of it is not known.
        let age = self.proven_at.map_or(Duration::MAX, |proven_at| Clock::system().now().since(proven_at));
        Duration::from_secs(self.ttl.unsigned_abs()).saturating_sub(age)
    }

    /// Returns how long it certainly runs on before a third of it has passed, after which it is to be renewed.
    pub(crate) fn left_of_third(&self) -> Duration {
        self.left().saturating_sub(Duration::from_secs(self.ttl.unsigned_abs()) * 2 / 3)
    }
}

/// Returns the length in whole seconds that is no shorter.
pub(crate) fn seconds(length: Duration) -> i64 {
    let whole = length.as_secs() + u64::from(length.subsec_nanos() > 0);
    // A length of zero makes a lease of a second: one of zero would count as ended at once.
    i64::try_from(whole).unwrap_or(i64::MAX).max(1)
}

/// Leases that no claim has.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Lease>>);

impl Pool {
    pub(crate) fn put(&self, lease: Lease) {
        let mut leases = self.0.lock();
        if leases.len() == MOST {
            // The oldest, which has the least time left. It ends by itself.
            leases.remove(0);
        }
        leases.push(lease);
    }

    /// Takes the youngest lease of this length that certainly runs for half of it.
    pub(crate) fn take(&self, ttl: i64) -> Option<Lease> {
        let mut leases = self.0.lock();
        leases.retain(|lease| lease.left() > Duration::from_secs(lease.ttl.unsigned_abs()) / 2);
        // Only of the very length: a longer one would keep the key of a claim that is gone for longer than its lease
        // says.
        let at = leases.iter().rposition(|lease| lease.ttl == ttl)?;
        Some(leases.remove(at))
    }

    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
