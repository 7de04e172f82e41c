//! The statements of lease rows.

use std::collections::HashSet;
use std::time::Duration;

use dlock_core::backend::Occupancy;
use dlock_core::{Holder, Key, Token};

use super::line::LineSeen;
use super::shares::{Resized, ShareAsk, ShareTaken};
use crate::driver::Conn;
use crate::protocol::{Ask, Lease, Pruned, Released, RowIdentity, SqlResult, Taken};
use crate::server::Server;
use crate::way::Way;

/// The lease rows of keys that one holder has at a time.
#[doc(hidden)]
pub trait LeaseTable: ShareTable {
    /// The number of leases that one statement renews.
    const RENEWED_AT_ONCE: usize;
    /// The largest number of locks that one statement takes or releases.
    const TOGETHER: usize;
    /// The pauses of waiters that are not notified.
    const POLLING: (Duration, Duration);

    /// Takes the lock if it is free or the claim's own. `contended`: it was held a moment ago. Changes nothing on a
    /// connection on which it would not be a transaction by itself, and fails.
    fn take(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        contended: bool,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Moves a key of sessions or locked rows to lease rows, unless it is held. Returns the way in which it is held.
    /// The fence of its row is then no lower than any before.
    fn take_back(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
    ) -> impl Future<Output = SqlResult<Option<Way>>> + Send;
    /// Takes over the lock under the token that was left behind, or adopts the claim's own, while its time has not
    /// ended; those that wait stay noted. Changes nothing else.
    fn take_over(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        left: &Token,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Releases the lock and wakes waiters. Returns `None` when it was not the claim's.
    fn release(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Releases the lock, leaves its row taken for so long, and wakes waiters. Returns `None` when it was not the
    /// claim's.
    fn leave_taken(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Takes locks with different keys that are free or the claims' own. Returns the outcome of each, or `None` where
    /// that has to be asked for by itself.
    fn take_all(
        &self,
        on: &mut Conn<Self>,
        asks: &[Ask],
    ) -> impl Future<Output = SqlResult<Vec<Option<Taken>>>> + Send {
        async move {
            let mut taken = Vec::new();
            for ask in asks {
                taken.push(Some(self.take(on, ask, false).await?));
            }
            Ok(taken)
        }
    }
    /// Releases locks with different keys. Returns what was found of each, or `None` where that has to be asked for by
    /// itself.
    fn release_all(
        &self,
        on: &mut Conn<Self>,
        held: &[(Key, Token)],
    ) -> impl Future<Output = SqlResult<Vec<Option<Released>>>> + Send {
        async move {
            let mut released = Vec::new();
            for (key, token) in held {
                released.push(self.release(on, key, token).await?);
            }
            Ok(released)
        }
    }
    /// Extends the leases that are still in place, and returns which these are; `None` when all of them are.
    fn renew(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Returns the holder of the lock; of several holders the last that was granted it.
    fn read(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Option<Holder>>> + Send;
    /// Returns some locks that are held, in the order of their keys' bytes, after this one.
    fn list(
        &self,
        on: &mut Conn<Self>,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Vec<(Vec<u8>, Holder)>>> + Send;
    /// Returns the grant in the row of a key; `None` where there is no row, or it is free.
    fn identify(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
    ) -> impl Future<Output = SqlResult<Option<RowIdentity>>> + Send;
    /// Frees the lock of any holder, or only of this grant, with a higher fence, and wakes waiters. Returns whether it
    /// was held.
    fn force(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        only: Option<&RowIdentity>,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Deletes some free rows, of those after a key, that were not used for this long.
    fn prune(
        &self,
        on: &mut Conn<Self>,
        unused: Duration,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Pruned>> + Send;
    /// Notes with the lock that a claim waits for it. Returns whether it is held.
    fn await_release(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<bool>> + Send;
}

/// The lease rows of keys that several holders have at a time, and of those that wait in order.
#[doc(hidden)]
pub trait ShareTable: Server {
    /// Takes the lock, or a share of it, if the shares of others allow that.
    fn take_share(
        &self,
        on: &mut Conn<Self>,
        ask: &ShareAsk,
    ) -> impl Future<Output = SqlResult<ShareTaken>> + Send;
    /// Releases what this token has, with its preference and its place in line if it may have one, and wakes waiters.
    /// Returns whether it had the lock.
    fn release_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Reads the line for a key as the waiter with this place finds it, and changes nothing. Returns `None` where it
    /// has lost its place.
    fn look_in_line(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> impl Future<Output = SqlResult<Option<LineSeen>>> + Send;
    /// Extends shares, as [`LeaseTable::renew`] does with locks.
    fn renew_shares(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Turns a lock that this token has into a share, and extends that, or the share that it has already; wakes
    /// waiters. Returns whether it had any.
    fn downgrade(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Leaves the share that this token has for a baton, for so long, or no longer than it is left already. Returns
    /// whether there was one.
    fn leave_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Returns all holders of the lock, or of a share of it.
    fn occupancy(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Occupancy>> + Send;
    /// Changes the number of permits, and wakes waiters.
    fn resize(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        permits: u32,
    ) -> impl Future<Output = SqlResult<Resized>> + Send;
}
