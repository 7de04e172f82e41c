//! Locks that the servers tell of changes of: client tracking, as it is called there.
//!
//! A renewal reads its lock last, on a connection that is tracked. Whatever changes the lock after that, but for what
//! comes over the same connection, the server tells at once; and the renewal that follows finds out what it was, and
//! has the server tell again. So the renewals of a lock have nothing told, and cost nothing but that read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dlock_core::backend::Signal;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, Value};
use smallvec::SmallVec;
use tokio::sync::OnceCell;

use crate::error::{Fault, refusal};

/// How long a lock is held before it is tracked: one that is released soon costs nothing.
pub(crate) const TRACKED_AFTER: Duration = Duration::from_secs(1);

/// The holds of each lock, with a number each: one that was lost may stand beside the next one.
type ByName = HashMap<Arc<str>, SmallVec<[(u64, Signal); 1]>>;

/// The locks of one client that are tracked.
#[derive(Debug)]
pub(crate) struct Tracking {
    most: usize,
    count: AtomicUsize,
    locks: Mutex<ByName>,
    last: AtomicU64,
    /// The servers do not track, or the user may not ask for it.
    refused: AtomicBool,
}

/// A lock among them, until this is dropped.
pub(crate) struct TrackedLock {
    tracking: Arc<Tracking>,
    name: Arc<str>,
    number: u64,
}

impl Tracking {
    /// Of so many locks at the most.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            count: AtomicUsize::new(0),
            locks: Mutex::default(),
            last: AtomicU64::new(0),
            refused: AtomicBool::new(false),
        })
    }

    /// Whether one more lock may be tracked.
    pub(crate) fn has_room(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.most && !self.refused.load(Ordering::Relaxed)
    }

    /// Whether locks that were entered may still be tracked.
    pub(crate) fn is_possible(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Enters a lock whose holder is asked to renew it when it has changed, if there is room.
    pub(crate) fn enter(self: &Arc<Self>, name: &Arc<str>, signal: &Signal) -> Option<TrackedLock> {
        if !self.is_possible() {
            return None;
        }
        let more = |count| (count < self.most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        self.locks().entry(Arc::clone(name)).or_default().push((number, signal.clone()));
        Some(TrackedLock { tracking: Arc::clone(self), name: Arc::clone(name), number })
    }

    fn locks(&self) -> MutexGuard<'_, ByName> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self, name: &str) {
        let signals: SmallVec<[Signal; 1]> =
            self.locks().get(name).into_iter().flatten().map(|(_, signal)| signal.clone()).collect();
        signals.iter().for_each(|signal| signal.renew_within(Duration::ZERO));
    }

    /// Any of them may have changed.
    fn all_changed(&self) {
        let signals: Vec<Signal> =
            self.locks().values().flatten().map(|(_, signal)| signal.clone()).collect();
        signals.iter().for_each(|signal| signal.renew_within(Duration::ZERO));
    }

    fn refuse(&self, why: &str) {
        if self.most > 0 && !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                reason = %why,
                "the server sends no notifications of changes: a lock that another client deletes is known to be lost \
                 at its next renewal"
            );
        }
    }
}

impl Drop for TrackedLock {
    fn drop(&mut self) {
        self.tracking.count.fetch_sub(1, Ordering::Relaxed);
        let mut locks = self.tracking.locks();
        if let Some(entries) = locks.get_mut(&self.name) {
            entries.retain(|(number, _)| *number != self.number);
            if entries.is_empty() {
                locks.remove(&self.name);
            }
        }
    }
}

/// What one connection has to do with it.
#[derive(Debug)]
pub(crate) struct ConnectionTracking {
    tracking: Arc<Tracking>,
    /// The server was asked to tell.
    asked: OnceCell<()>,
    /// It may tell something until it ends.
    on: AtomicBool,
}

impl ConnectionTracking {
    pub(crate) fn new(tracking: &Arc<Tracking>) -> Arc<Self> {
        let (asked, on) = (OnceCell::new(), AtomicBool::new(false));
        Arc::new(Self { tracking: Arc::clone(tracking), asked, on })
    }

    /// Takes note of what the server says unasked.
    pub(crate) fn heard(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Invalidate => self.invalidated(push.data.first()),
            PushKind::Disconnection => self.ended(),
            _ => {}
        }
    }

    /// No more notifications arrive over this connection.
    pub(crate) fn ended(&self) {
        if self.on.swap(false, Ordering::AcqRel) && self.tracking.is_possible() {
            self.tracking.all_changed();
        }
    }

    fn invalidated(&self, names: Option<&Value>) {
        match names {
            Some(Value::Array(names)) => {
                for name in names {
                    if let Value::BulkString(name) = name
                        && let Ok(name) = std::str::from_utf8(name)
                    {
                        self.tracking.changed(name);
                    }
                }
            }
            // All keys were deleted.
            _ => self.tracking.all_changed(),
        }
    }

    /// Has the server tell of changes of what is read over this connection from now on. Asks once; a cut connection is
    /// reported by what follows on it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the next one asks again.
    pub(crate) async fn begin(&self, connection: &MultiplexedConnection, resp3: bool) {
        if !self.tracking.is_possible() {
            return;
        }
        let asking = self.asked.get_or_try_init(async || {
            if !resp3 {
                self.tracking.refuse("it is spoken to in RESP2");
                return Ok(());
            }
            // Redis 6.0 does not have this, and tells of changes by scripts to the client that runs them.
            self.ask(connection, "TRACKINGINFO", &[]).await?;
            self.on.store(true, Ordering::Release);
            self.ask(connection, "TRACKING", &["ON", "NOLOOP"]).await
        });
        let _ = asking.await;
    }

    async fn ask(&self, connection: &MultiplexedConnection, what: &str, words: &[&str]) -> Result<(), Fault> {
        if !self.tracking.is_possible() {
            return Ok(());
        }
        let mut command = Cmd::new();
        command.arg("CLIENT").arg(what).arg(words);
        let answer = connection.clone().send_packed_command(&command).await;
        match answer.and_then(Value::extract_error).map_err(Fault::of) {
            Err(Fault::Refused(text)) if !refusal(&text).is_transient() => {
                self.tracking.refuse(&text);
                Ok(())
            }
            answer => answer.map(drop),
        }
    }
}
