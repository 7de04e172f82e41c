//! The commands to a connection that keeps locks.

use std::sync::Arc;
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, Renewed, RequestClock, Withdrawal};
use dlock_core::{Failure, Key, Token};
use tokio::sync::oneshot;

use super::hold_signal::HoldSignal;
use crate::protocol::Taken;

pub(super) type Reply<T> = oneshot::Sender<Result<T, Failure>>;

/// A command to a connection.
pub(super) enum Command {
    /// Opens the connection, and returns its session.
    Open(Reply<i64>),
    /// Takes a lock.
    Take(Take),
    /// Makes a lock that is held alone a reader's.
    Downgrade(Downgrade),
    /// Releases a lock.
    Release(Release),
    /// Closes the connection.
    Close(Reply<()>),
}

pub(super) struct Take {
    pub(super) request: ClaimRequest,
    pub(super) clock: RequestClock,
    pub(super) signal: Arc<HoldSignal>,
    /// Is `true` if the claim has its turn among those that wait.
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
