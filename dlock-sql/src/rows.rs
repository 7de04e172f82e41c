//! Lease rows on a database server.
//!
//! A row is one key. It is free when its token is null or its lease has ended by the server's clock; it stays after a
//! release, since it keeps the key's fence. The row of the empty key, which no lock can have, is the table's mark: its
//! version, and the highest fence of all rows that were pruned.
//!
//! | `token` of the row | the key is |
//! |---|---|
//! | null, or any with a lease that has ended | free |
//! | that of a claim | held by it |
//! | [`TURN`](crate::stored::TURN) | for the first waiter in line |
//! | [`SHARED`](crate::stored::SHARED) | held by several, of whom each has a row beside it |
//! | [`ELSEWHERE`](crate::way::ELSEWHERE) | of sessions or locked rows |
//! | that of a claim, marked as left behind | taken until its lease ends, or its baton is brought |
//!
//! All that servers have in common is here; a [`LeaseTable`] has the statements.

pub(crate) mod claim;
mod lease_table;
pub(crate) mod line;
pub(crate) mod shares;
mod steps;
mod together;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{Forced, LockId, Mode, Occupancy, by_then};
use dlock_core::{Failure, Holder, Key};
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub use claim::RowClaim;
pub use lease_table::LeaseTable;
pub(crate) use lease_table::ShareTable;

use crate::failure::{closed, not_reached, unchanged};
use crate::gateway::{Connections, Kind};
use crate::limits::QUESTION;
use crate::protocol::Lease;
use crate::questions::Questions;
use crate::renewals::{Extended, Renew, Renewal, Renewals, shortest_limit};
use crate::way::Way;
use shares::Resized;
use steps::{
    Force, Identify, List, Occupy, Prune, Read, Renew as RenewLeases, RenewShares, Resize, TakeBack,
};

/// The time that deleting some rows may take.
const PRUNING: Duration = Duration::from_secs(60);
/// The number of times that a lock is looked at that changes hands meanwhile.
const LOOKS: u32 = 4;

/// The state that the claims of a backend share.
pub(crate) struct Rows<S: LeaseTable> {
    pub(crate) connections: Arc<Connections<S>>,
    pub(crate) renewals: Renewals,
    pub(crate) questions: Questions,
    /// Set once the table and the rights were looked at.
    verified: OnceCell<()>,
}

impl<S: LeaseTable> Rows<S> {
    pub(crate) fn start(connections: Arc<Connections<S>>) -> Result<Arc<Self>, Failure> {
        let (renewals, inbox) = Renewals::new();
        let rows = Arc::new(Self {
            connections,
            renewals,
            questions: Questions::default(),
            verified: OnceCell::new(),
        });
        crate::renewals::look_after(&rows, inbox)?;
        Ok(rows)
    }

    pub(crate) fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(self.connections.address(), key.as_str())
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.connections.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Looks at the table and the rights, unless that was done.
    pub(crate) async fn ready(&self, limit: Duration) -> Result<(), Failure> {
        self.check()?;
        if self.verified.initialized() {
            return Ok(());
        }
        let verifying = Box::pin(self.verified.get_or_try_init(|| self.connections.verify()));
        match by_then(Instant::now() + limit, verifying).await {
            Some(verified) => verified.map(drop),
            None => Err(not_reached(limit)),
        }
    }

    /// Returns the holder of a lock.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.ready(QUESTION).await?;
        let holder = self.connections.ask(Read(key.clone()), QUESTION).await.map_err(unchanged)?;
        if holder.as_ref().is_none_or(|holder| holder.mode == Mode::Exclusive) {
            return Ok(holder);
        }
        Ok(self.occupancy(key).await?.holders.into_iter().next())
    }

    /// Returns all locks that are held, in order.
    pub(crate) async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.ready(QUESTION).await?;
        // By pages, in the order of the keys: one statement over a large table would take long.
        let mut all: Vec<(Key, Holder)> = Vec::new();
        let mut after = Vec::new();
        loop {
            let some = self.connections.ask(List(after), QUESTION).await.map_err(unchanged)?;
            let Some((last, _)) = some.last() else { return Ok(all) };
            after = last.clone();
            for (key, holder) in some {
                // A row with another key is not dlock's, or stands beside that of a key.
                let Some(key) = std::str::from_utf8(&key).ok().and_then(|key| Key::new(key).ok()) else {
                    continue;
                };
                if holder.mode == Mode::Exclusive {
                    all.push((key, holder));
                    continue;
                }
                let several = self.occupancy(&key).await?.holders;
                all.extend(several.into_iter().map(|holder| (key.clone(), holder)));
            }
        }
    }

    /// Returns all holders of a key.
    pub(crate) async fn occupancy(&self, key: &Key) -> Result<Occupancy, Failure> {
        self.ready(QUESTION).await?;
        let occupancy = self.connections.ask(Occupy(key.clone()), QUESTION).await;
        occupancy.map_err(unchanged)
    }

    /// Changes the number of permits. Returns the number before.
    pub(crate) async fn resize(&self, key: &Key, permits: u32) -> Result<Option<u32>, Failure> {
        self.ready(QUESTION).await?;
        match self.connections.ask(Resize(key.clone(), permits), QUESTION).await? {
            Resized::Missing => Ok(None),
            Resized::Was(before) => Ok(Some(before)),
            Resized::IsLock => {
                let conflict = Mode::Permits { of: permits, take: 1 }.conflict(&Mode::Shared);
                conflict.map_or(Ok(None), Err)
            }
            Resized::Elsewhere => {
                let held = self.connections.ask(TakeBack(key.clone()), QUESTION).await.map_err(unchanged)?;
                held.map_or(Ok(None), |theirs| Err(Way::Lease.conflict(theirs)))
            }
        }
    }

    /// Frees the lock of any holder, or only if all its holders were seen. Every grant changes the row of the key,
    /// which is read first then, and compared with in the statement that frees it.
    pub(crate) async fn force(&self, key: &Key, seen: Option<&[Holder]>) -> Result<Forced, Failure> {
        self.ready(QUESTION).await?;
        let Some(seen) = seen else {
            let held = self.connections.ask(Force(key.clone(), None), QUESTION).await?;
            return Ok(if held { Forced::Released } else { Forced::Free });
        };
        // A lock that changes hands at each look is held by others than those that were seen.
        for _ in 0..LOOKS {
            // The row before the holders: a grant that comes between the two changes the row, and nothing is freed.
            let identity = self.connections.ask(Identify(key.clone()), QUESTION).await.map_err(unchanged)?;
            let now = self.occupancy(key).await?.holders;
            if let Some(answer) = Forced::without_release(&now, seen) {
                return Ok(answer);
            }
            // If it is not freed, it has changed hands between the looks.
            if identity.is_some() && self.connections.ask(Force(key.clone(), identity), QUESTION).await? {
                return Ok(Forced::Released);
            }
        }
        Ok(Forced::HeldByOthers)
    }

    /// Deletes free rows.
    pub(crate) async fn prune(&self, unused: Duration) -> Result<u64, Failure> {
        self.ready(QUESTION).await?;
        // A row that was in use a moment ago may be taken right now by a claim that has read its last fence.
        let unused = unused.max(Duration::from_secs(60));
        let (mut count, mut after) = (0, Vec::new());
        loop {
            // On from the last key that was looked at, whether it was deleted or not.
            let pruned = self.connections.ask(Prune(unused, after), PRUNING).await?;
            count += pruned.count;
            match pruned.last {
                Some(last) => after = last,
                None => return Ok(count),
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.connections.close().await;
    }
}

impl<S: LeaseTable> Renew for Rows<S> {
    const AT_ONCE: usize = S::RENEWED_AT_ONCE;

    async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
        self.check()?;
        // All go out together, so that the one with the least time decides.
        let limit = shortest_limit(renewals);
        let (mut places, mut leases) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (place, renewal) in renewals.iter().enumerate() {
            let Renewal { key, token, mode, lease: length, .. } = renewal;
            let is_share = usize::from(*mode != Mode::Exclusive);
            places[is_share].push(place);
            let lease = Lease { key: key.clone(), token: *token, mode: *mode, length: *length };
            leases[is_share].push(lease);
        }
        // Shares are renewed by another statement; the common case is that there are none, and costs one message.
        let [alone, shares] = leases;
        if shares.is_empty() {
            let extended = self.connections.within(Kind::Renewal, RenewLeases(alone), limit).await?;
            return Ok(extended.map_or(Extended::All, Extended::Some));
        }
        let mut extended = HashSet::new();
        let mut extend = |places: &[usize], found: Option<HashSet<usize>>| match found {
            None => extended.extend(places),
            Some(some) => extended.extend(some.iter().filter_map(|place| places.get(*place))),
        };
        let mut left = limit;
        if !alone.is_empty() {
            // Both statements together must be answered in time.
            left /= 2;
            extend(&places[0], self.connections.within(Kind::Renewal, RenewLeases(alone), left).await?);
        }
        let found = self.connections.within(Kind::Renewal, RenewShares(shares), left).await?;
        extend(&places[1], found);
        Ok(Extended::Some(extended))
    }
}
