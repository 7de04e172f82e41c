//! Locks that several hold at a time: readers, and claims with permits of a semaphore.
//!
//! The row of the key is taken as long as any of them is there, or the number of permits is remembered: its token is
//! [`SHARED`](stored::SHARED), its line says how many permits there are, its fence is that of the last grant, and its
//! lease ends no earlier than theirs. So a claim that wants the lock alone, and knows nothing of all this, finds it
//! taken.
//!
//! | row | key | token | fence | lease |
//! |---|---|---|---|---|
//! | of the key | the key | [`SHARED`](stored::SHARED) | of the last grant | the longest |
//! | preference | [`Beside::preferred`] | of the claim | since when | until when it counts as alive |
//! | share | [`Beside::own`] | of the claim | of its grant | its own |
//!
//! The preference is there while a claim keeps newcomers out. None of these rows means anything when the row of the key
//! is free, or another one's. Each change of any of them locks the row of the key first, in one message that the server
//! carries out to its end: so what is read afterwards is what there is, and no claim waits for the way to a client.

use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, PERMITS_REMEMBERED};
use dlock_core::{Fence, Holder, Key, Token};

use super::line::Stand;
use crate::digest::digest;
use crate::stored;

/// The first byte of the keys of the rows beside a key, with which no text begins.
const BESIDE: u8 = 0xfd;
/// The number of bytes of the digest of a key in these.
const DIGEST: usize = 24;

/// The keys of the rows beside that of a key. That of a share is longer by its token.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// The row of the claim that keeps newcomers out, which is lower than those of all shares.
    pub(crate) preferred: Vec<u8>,
    /// A key that is higher than those of all shares.
    pub(crate) beyond: Vec<u8>,
}

impl Beside {
    pub(crate) fn of(key: &Key) -> Self {
        let digest = digest("dlock share", &[key.as_str()]);
        let preferred = [&[BESIDE], &digest[..DIGEST]].concat();
        let beyond = [&*preferred, &[0xff; 17]].concat();
        Self { preferred, beyond }
    }

    /// Returns the key of the share of this claim.
    pub(crate) fn own(&self, token: &Token) -> Vec<u8> {
        [&*self.preferred, token.as_bytes()].concat()
    }
}

/// Returns the time for which the row of a key stays taken by one of them.
pub(crate) fn kept(mode: Mode, lease: Duration) -> Duration {
    if mode.permits().is_some() { lease.max(PERMITS_REMEMBERED) } else { lease }
}

/// An attempt on a lock that several may hold.
#[derive(Clone, Debug)]
pub struct ShareAsk {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// The line about the holder.
    pub(crate) line: String,
    /// The line about its share.
    pub(crate) share: String,
    /// The number of fences that are reserved with it, where it is to be held alone.
    pub(crate) fences: u32,
    /// Is `true` if it keeps newcomers out when it has to wait for several.
    pub(crate) prefers: bool,
    /// The token of what was left, where that is taken over, and nothing else.
    pub(crate) takes_over: Option<Token>,
    /// The place that it states, where it is to have its turn.
    pub(crate) stand: Option<Stand>,
}

impl ShareAsk {
    pub(super) fn new(request: &ClaimRequest, fences: u32, stand: Option<Stand>) -> Self {
        let line = stored::line(request, fences);
        let ClaimRequest { key, token, mode, lease, .. } = request;
        Self {
            key: key.clone(),
            token: *token,
            mode: *mode,
            lease: *lease,
            share: stored::share_line(*mode, &line),
            line,
            fences,
            // A claim that takes over waits for no other.
            prefers: request.has_preference() && request.takes_over.is_none(),
            takes_over: request.takes_over,
            stand,
        }
    }

    /// Returns the number of permits; 0 of a lock.
    pub(crate) fn of(&self) -> i64 {
        i64::from(self.mode.permits().unwrap_or_default())
    }
}

/// The answer to such an attempt.
#[derive(Debug)]
pub enum ShareTaken {
    /// Granted with this fence, the last of those that were reserved, unless the fence in the row was never given.
    Granted(Option<Fence>),
    Busy {
        holder: Option<Box<Holder>>,
        /// The time after which it may be free.
        free_in: Duration,
        /// Is `true` if it keeps newcomers out from now on.
        prefers: bool,
        /// The place in line, and the largest possible number before it.
        place: Option<(i64, i64)>,
    },
    /// The key is used in this way.
    Conflict(Mode),
    /// Its row says that it is no key of leases.
    Elsewhere,
}

/// The shortest pause of a claim that is refused before it asks again, where the server knows of no lease when it ends:
/// those with the turn come first.
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// Returns the time after which a lock may be free, from the microseconds that the server states; 0 or less, or none,
/// where it does not know.
pub(crate) fn free_in(micros: Option<i64>) -> Duration {
    match micros {
        Some(micros) if micros > 0 => Duration::from_micros(micros.unsigned_abs()),
        _ => LEAST_WAIT,
    }
}

/// The outcome of a change of the number of permits.
#[derive(Clone, Copy, Debug)]
pub enum Resized {
    /// There was no semaphore.
    Missing,
    /// There were so many.
    Was(u32),
    /// The key is used as a lock.
    IsLock,
    /// Its row says that it is no key of leases.
    Elsewhere,
}
