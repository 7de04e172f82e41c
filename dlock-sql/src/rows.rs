//! Lease rows on a database server.
//!
//! A row is one key. It is free when its token is null or its lease has ended by the server's clock; it stays after a
//! release, since it keeps the key's fence. The row of the empty key, which no lock can have, is the table's mark: its
//! version, and the highest fence of all rows that were pruned.
//!
//! What is the same for all servers is here; a [`Server`] has the statements.

pub(crate) mod claim;
mod connections;
mod driven;
mod lane;
pub(crate) mod line;
mod progress;
mod request;
mod shares;
mod steps;
mod together;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Forced, LockId, Mode, by_then};
use dlock_core::{Failure, Holder, Key};
use tokio::sync::OnceCell;
use tokio::time::Instant;

pub use claim::RowClaim;
pub(crate) use connections::{Connections, Kind};
pub(crate) use driven::{gone, sleep_on_own_thread};
pub(crate) use line::LineSeen;
pub(crate) use line::{KEPT, KEPT_FOR_LINE, KEPT_LONGER, KEPT_PER_PLACE, Places};
#[cfg(feature = "postgres")]
pub(crate) use line::{TURNS, turn_channel};
pub(crate) use shares::{Beside, free_in, kept};
pub(crate) use shares::{Resized, ShareAsk, ShareTaken};
pub(crate) use steps::{Cancel, Count, End, MakeRow, Ping, Step};

use crate::failure::{closed, not_reached, unchanged};
use crate::questions::Questions;
use crate::renewals::{Extended, Renew, Renewal, Renewals, shortest_limit};
use crate::server::{Lease, Server};
use steps::{Force, Identify, List, Prune, Read};

/// What the mark row's `holder` says.
pub(crate) const MARK: &str = "dlock table, version 1";
/// How long a question outside of a lock may take.
pub(crate) const QUESTION: Duration = Duration::from_secs(5);
/// How long deleting some rows may take.
const PRUNING: Duration = Duration::from_secs(60);
/// How often a lock is looked at that changes hands meanwhile.
const LOOKS: u32 = 4;
/// How many rows are pruned, or listed, in one statement.
pub(crate) const AT_ONCE: u32 = 1_000;

/// What the claims of a backend share.
pub(crate) struct Rows<S: Server> {
    pub(crate) connections: Arc<Connections<S>>,
    pub(crate) renewals: Renewals,
    pub(crate) questions: Questions,
    /// Whether the table and the rights were looked at.
    verified: OnceCell<()>,
    closed: AtomicBool,
}

impl<S: Server> Rows<S> {
    pub(crate) fn start(connections: Arc<Connections<S>>) -> Result<Arc<Self>, Failure> {
        let (renewals, inbox) = Renewals::new();
        let rows = Arc::new(Self {
            connections,
            renewals,
            questions: Questions::default(),
            verified: OnceCell::new(),
            closed: AtomicBool::new(false),
        });
        crate::renewals::look_after(&rows, inbox)?;
        Ok(rows)
    }

    pub(crate) fn lock_id(&self, key: &Key) -> LockId {
        LockId::new(self.connections.address(), key.as_str())
    }

    pub(crate) fn claim(self: &Arc<Self>, request: ClaimRequest) -> RowClaim<S> {
        RowClaim::new(Arc::clone(self), request)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
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

    /// Who has the lock.
    pub(crate) async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
        self.ready(QUESTION).await?;
        let holder = self.connections.ask(Read(key.clone()), QUESTION).await.map_err(unchanged)?;
        if holder.as_ref().is_none_or(|holder| holder.mode == Mode::Exclusive) {
            return Ok(holder);
        }
        Ok(self.occupancy(key).await?.holders.into_iter().next())
    }

    /// All locks that are held, in order.
    pub(crate) async fn holders(&self) -> Result<Vec<(Key, Holder)>, Failure> {
        self.ready(QUESTION).await?;
        let mut all: Vec<(Key, Holder)> = Vec::new();
        let mut after = Vec::new();
        loop {
            let some = self.connections.ask(List(after), QUESTION).await.map_err(unchanged)?;
            let Some((last, _)) = some.last() else { return Ok(all) };
            after = last.clone();
            for (key, holder) in some {
                // A row with another key is none of ours, or beside another one.
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

    /// Frees the lock whoever has it.
    pub(crate) async fn force(&self, key: &Key) -> Result<bool, Failure> {
        self.ready(QUESTION).await?;
        self.connections.ask(Force(key.clone(), None), QUESTION).await
    }

    /// Frees the lock if all who have it were seen. Every grant changes the row of the key, which is read first and
    /// compared with in the statement that frees it.
    pub(crate) async fn force_of(&self, key: &Key, seen: &[Holder]) -> Result<Forced, Failure> {
        self.ready(QUESTION).await?;
        for _ in 0..LOOKS {
            let identity = self.connections.ask(Identify(key.clone()), QUESTION).await.map_err(unchanged)?;
            let now = self.occupancy(key).await?.holders;
            if let Some(answer) = Forced::without_release(&now, seen) {
                return Ok(answer);
            }
            // Where it is not freed, it has changed hands between the looks.
            if identity.is_some() && self.connections.ask(Force(key.clone(), identity), QUESTION).await? {
                return Ok(Forced::Released);
            }
        }
        Ok(Forced::HeldByOthers)
    }

    /// Deletes free rows.
    pub(crate) async fn prune(&self, unused: Duration) -> Result<u64, Failure> {
        self.ready(QUESTION).await?;
        // A row that was in use a moment ago may be taken right now by somebody who has read its last fence.
        let unused = unused.max(Duration::from_secs(60));
        let (mut count, mut after) = (0, Vec::new());
        loop {
            let pruned = self.connections.ask(Prune(unused, after), PRUNING).await?;
            count += pruned.count;
            match pruned.last {
                Some(last) => after = last,
                None => return Ok(count),
            }
        }
    }

    pub(crate) async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.connections.server().close();
        self.connections.close().await;
    }
}

impl<S: Server> Renew for Rows<S> {
    const AT_ONCE: usize = S::RENEWED_AT_ONCE;

    async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
        self.check()?;
        let limit = shortest_limit(renewals);
        let (mut places, mut leases) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (place, renewal) in renewals.iter().enumerate() {
            let Renewal { key, token, mode, lease: length, .. } = renewal;
            let is_share = usize::from(*mode != Mode::Exclusive);
            places[is_share].push(place);
            let lease = Lease { key: key.clone(), token: *token, mode: *mode, length: *length };
            leases[is_share].push(lease);
        }
        let [alone, shares] = leases;
        if shares.is_empty() {
            let extended = self.connections.within(Kind::Renewal, steps::Renew(alone), limit).await?;
            return Ok(extended.map_or(Extended::All, Extended::Some));
        }
        let mut extended = HashSet::new();
        let mut extend = |places: &[usize], found: Option<HashSet<usize>>| match found {
            None => extended.extend(places),
            Some(some) => extended.extend(some.iter().filter_map(|place| places.get(*place))),
        };
        let half = limit / 2;
        if !alone.is_empty() {
            extend(&places[0], self.connections.within(Kind::Renewal, steps::Renew(alone), half).await?);
        }
        let found = self.connections.within(Kind::Renewal, steps::RenewShares(shares), half).await?;
        extend(&places[1], found);
        Ok(Extended::Some(extended))
    }
}

impl<S: Server> fmt::Debug for Rows<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("connections", &self.connections).finish_non_exhaustive()
    }
}
