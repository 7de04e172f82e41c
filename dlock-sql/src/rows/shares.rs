//! What several hold at a time: readers, and those with permits of a semaphore.
//!
//! The row of the key is taken as long as any of them is there, or the number of permits is remembered: its token is
//! [`SHARED`](stored::SHARED), its line says how many permits there are, its fence is that of the last grant, and its
//! lease ends no earlier than theirs. So whoever wants the lock alone, and knows nothing of all this, finds it taken.
//!
//! Each of them has a row of its own beside it, with its token, fence and lease. One more row is there while a claim
//! keeps newcomers out: its token, since when (the fence), and until when it counts as alive. None of them means
//! anything when the row of the key is free, or another one's. Whoever changes any of them locks the row of the key
//! first, in one message that the server carries out to its end: so what is read afterwards is what there is, and
//! nobody waits for the way to a client.

use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, PERMITS_REMEMBERED};
use dlock_core::{Fence, Holder, Key, Token};

use super::line::Stand;
use crate::digest::digest;
use crate::stored;

/// What begins the keys of the rows beside a key, which no text begins with.
const BESIDE: u8 = 0xfd;
/// How many bytes of the digest of a key these have.
const DIGEST: usize = 24;

/// The keys of the rows beside that of a key. That of a share is longer by its token.
#[derive(Clone, Debug)]
pub(crate) struct Beside {
    /// The row of the claim that keeps newcomers out, which is lower than those of all shares.
    pub(crate) preferred: Vec<u8>,
    /// What is higher than those of all shares.
    pub(crate) beyond: Vec<u8>,
}

impl Beside {
    pub(crate) fn of(key: &Key) -> Self {
        let digest = digest("dlock share", &[key.as_str()]);
        let preferred = [&[BESIDE], &digest[..DIGEST]].concat();
        let beyond = [&*preferred, &[0xff; 17]].concat();
        Self { preferred, beyond }
    }

    /// Of the share of this claim.
    pub(crate) fn own(&self, token: &Token) -> Vec<u8> {
        [&*self.preferred, token.as_bytes()].concat()
    }
}

/// For how long the row of a key stays taken by one of them.
pub(crate) fn kept(mode: Mode, lease: Duration) -> Duration {
    if mode.permits().is_some() { lease.max(PERMITS_REMEMBERED) } else { lease }
}

/// What an attempt on a lock that several may hold is made with.
#[derive(Clone, Debug)]
pub struct ShareAsk {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// The line about the holder, and that of its share.
    pub(crate) line: String,
    pub(crate) share: String,
    /// How many fences are reserved with it, where it is to be held alone.
    pub(crate) fences: u32,
    /// Whether it keeps newcomers out when it has to wait for several.
    pub(crate) prefers: bool,
    /// The token of what was left, where that is taken over, and nothing else.
    pub(crate) takes_over: Option<Token>,
    /// What it says of its place, where it is to have its turn.
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
            // What takes over waits for nobody.
            prefers: request.has_preference() && request.takes_over.is_none(),
            takes_over: request.takes_over,
            stand,
        }
    }

    /// How many permits there are; 0 of a lock.
    pub(crate) fn of(&self) -> i64 {
        i64::from(self.mode.permits().unwrap_or_default())
    }
}

/// What such an attempt came to.
#[derive(Debug)]
pub enum ShareTaken {
    /// With this fence, the last of those that were reserved, unless what stands in the row was never given.
    Granted(Option<Fence>),
    Busy {
        holder: Option<Box<Holder>>,
        /// When it may be free.
        free_in: Duration,
        /// Whether it keeps newcomers out from now on.
        prefers: bool,
        /// The place in line, and how many are before it at the most.
        place: Option<(i64, i64)>,
    },
    /// The key is used in this way.
    Conflict(Mode),
    /// Its row says that it is no key of leases.
    Elsewhere,
}

/// How long a claim that is refused waits at the least before it asks again, where the server says of no lease when it
/// ends: those whose turn it is come first.
const LEAST_WAIT: Duration = Duration::from_millis(50);

/// After how many microseconds a lock may be free, as the server says; 0 or less, or none, where it does not know.
pub(crate) fn free_in(micros: Option<i64>) -> Duration {
    match micros {
        Some(micros) if micros > 0 => Duration::from_micros(micros.unsigned_abs()),
        _ => LEAST_WAIT,
    }
}

/// What became of the number of permits.
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
