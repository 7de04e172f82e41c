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
    /// How many leases one statement renews.
    const RENEWED_AT_ONCE: usize;
    /// How many locks one statement takes or releases at the most.
    const TOGETHER: usize;
    /// How often waiters ask that are not notified.
    const POLLING: (Duration, Duration);

    /// Takes the lock if it is free or ours. `contended`: somebody had it a moment ago. Changes nothing on a connection
    /// on which it would not be a transaction by itself, and fails.
    fn take(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        contended: bool,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Has a key of sessions or locked rows locked by leases from now on, unless it is held: in which way. The fence of
    /// its row is then no lower than any before.
    fn take_back(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
    ) -> impl Future<Output = SqlResult<Option<Way>>> + Send;
    /// Takes over what stands under the token that was left behind, and adopts what is ours, while its time has not
    /// ended; those who wait stay noted. Changes nothing else.
    fn take_over(
        &self,
        on: &mut Conn<Self>,
        ask: &Ask,
        left: &Token,
    ) -> impl Future<Output = SqlResult<Taken>> + Send;
    /// Gives the lock back and wakes who waits; nothing when it was not ours.
    fn release(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Gives the lock back, leaves its row taken for so long, and wakes who waits; nothing when it was not ours.
    fn leave_taken(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<Option<Released>>> + Send;
    /// Takes locks with different keys that are free or ours: what became of each, or nothing where that has to be
    /// asked for by itself.
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
    /// Releases locks with different keys: what was found of each, or nothing where that has to be asked for by itself.
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
    /// Extends what is still ours, and says which of these it is; nothing when all of them are.
    fn renew(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Who has the lock; of several holders the last that was granted it.
    fn read(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Option<Holder>>> + Send;
    /// Some locks that are held, in the order of their keys' bytes, after this one.
    fn list(
        &self,
        on: &mut Conn<Self>,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Vec<(Vec<u8>, Holder)>>> + Send;
    /// Which grant stands in the row of a key; `None` where there is no row, or nobody has it.
    fn identify(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
    ) -> impl Future<Output = SqlResult<Option<RowIdentity>>> + Send;
    /// Frees the lock whoever has it, or only of this grant, with a higher fence, and wakes who waits: whether somebody
    /// had it.
    fn force(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        only: Option<&RowIdentity>,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Deletes some free rows that nobody used for this long, of those after a key.
    fn prune(
        &self,
        on: &mut Conn<Self>,
        unused: Duration,
        after: &[u8],
    ) -> impl Future<Output = SqlResult<Pruned>> + Send;
    /// Notes with the lock that somebody waits for it; whether anybody has it.
    fn await_release(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<bool>> + Send;
}

/// The lease rows of keys that several holders have at a time, and of those who wait in order.
#[doc(hidden)]
pub trait ShareTable: Server {
    /// Takes the lock, or a share of it, if what others have of it allows that.
    fn take_share(
        &self,
        on: &mut Conn<Self>,
        ask: &ShareAsk,
    ) -> impl Future<Output = SqlResult<ShareTaken>> + Send;
    /// Releases what this token has, with its preference and its place in line if it may have one, and wakes who waits;
    /// whether it had the lock.
    fn release_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        fair: bool,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Reads the line for a key as the waiter with this place finds it, and changes nothing; `None` where it has lost
    /// its place.
    fn look_in_line(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        place: i64,
    ) -> impl Future<Output = SqlResult<Option<LineSeen>>> + Send;
    /// As [`LeaseTable::renew`], for shares.
    fn renew_shares(
        &self,
        on: &mut Conn<Self>,
        leases: &[Lease],
    ) -> impl Future<Output = SqlResult<Option<HashSet<usize>>>> + Send;
    /// Turns a lock that this token has into a share, and extends that, or the share that it has already; wakes who
    /// waits. Whether it had any.
    fn downgrade(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        lease: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// Leaves the share that this token has for a baton, for so long, or no longer than it is left already. Whether
    /// there was one.
    fn leave_share(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        token: &Token,
        taken_for: Duration,
    ) -> impl Future<Output = SqlResult<bool>> + Send;
    /// All who have the lock, or a share of it.
    fn occupancy(&self, on: &mut Conn<Self>, key: &Key) -> impl Future<Output = SqlResult<Occupancy>> + Send;
    /// Changes how many permits there are, and wakes who waits.
    fn resize(
        &self,
        on: &mut Conn<Self>,
        key: &Key,
        permits: u32,
    ) -> impl Future<Output = SqlResult<Resized>> + Send;
}
