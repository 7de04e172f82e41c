//! What a connection that keeps locks is asked to do.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, Renewed, RequestClock, Withdrawal};
use dlock_core::{Failure, Key, Token};
use tokio::sync::oneshot;

use super::hold_signal::HoldSignal;
use crate::protocol::Taken;

pub(super) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// What the connection is asked to do.
pub(super) enum Command {
    /// Open the connection: its session.
    Open(Reply<i64>),
    /// Take a lock.
    Take(Take),
    /// Have a lock that is held alone read.
    Downgrade(Downgrade),
    /// Release a lock.
    Release(Release),
    /// Close the connection.
    Close(Reply<()>),
}

pub(super) struct Take {
    pub(super) request: ClaimRequest,
    pub(super) clock: RequestClock,
    pub(super) signal: Arc<HoldSignal>,
    /// Whether the claim has its turn among those who wait.
    pub(super) has_turn: bool,
    pub(super) answer: Reply<Taken>,
}

impl Take {
    pub(super) fn reads(&self) -> bool {
        self.request.mode == Mode::Shared
    }
}

pub(super) struct Downgrade {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) limit: Duration,
    pub(super) answer: Reply<Renewed>,
}

pub(super) struct Release {
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) answer: Option<Reply<Withdrawal>>,
}
