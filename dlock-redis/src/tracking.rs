//! Locks that the servers tell of changes of: client tracking, as it is called there.
//!
//! A renewal reads its lock last, on a connection that is tracked. Whatever changes the lock after that, but for what
//! comes over the same connection, the server tells at once; and the renewal that follows finds out what it was, and
//! has the server tell again. So the renewals of a lock have nothing told, and cost nothing but that read.
//!
//! What several hold, or wait for in line, is changed by all of them: if each renewed at each change, their renewals
//! would cause one another. Such a lock is looked at instead, see [`looks`].

mod looks;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use dlock_core::backend::{Mutex, Signal, sleep_until, tell};
use dlock_core::{ErrorKind, keeper};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, PushInfo, PushKind, Value};
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use crate::error::{Fault, refusal};

pub(crate) use self::looks::Probes;
use self::looks::{Pace, Watched, look_at, parts};

/// How long a lock is held before it is tracked: one that is released soon costs nothing.
pub(crate) const TRACKED_AFTER: Duration = Duration::from_secs(1);

/// After which time a server that denied it is asked again to tell of changes: whoever gives the right back restarts
/// nothing.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// How many looks are under way at the most.
const LOOKS_AT_ONCE: usize = 64;

type ByName = HashMap<Arc<str>, Named>;

/// The holds that what has one name belongs to, with a number each: one that was lost may stand beside the next one.
#[derive(Debug, Default)]
struct Named {
    holds: SmallVec<[(u64, Watched); 1]>,
    pace: Pace,
}

/// The locks of one client that are tracked.
#[derive(Debug)]
pub(crate) struct Tracking {
    most: usize,
    count: AtomicUsize,
    locks: Mutex<ByName>,
    last: AtomicU64,
    /// The turns of looks: many may be due at once, when a connection has ended.
    turns: Semaphore,
    /// The servers do not track, or the user may not ask for it.
    refused: AtomicBool,
    refusal: Mutex<Refusal>,
}

/// What is known of a refusal.
#[derive(Debug, Default)]
struct Refusal {
    /// A warning has told of it.
    told: bool,
    /// When the server is asked again, where the user only lacks a right.
    until: Option<Instant>,
}

/// A lock among them, until this is dropped.
pub(crate) struct TrackedLock {
    tracking: Arc<Tracking>,
    names: SmallVec<[Arc<str>; 1]>,
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
            turns: Semaphore::new(LOOKS_AT_ONCE),
            refused: AtomicBool::new(false),
            refusal: Mutex::default(),
        })
    }

    /// Whether any lock is to be tracked.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.most > 0
    }

    /// Whether one more lock may be tracked.
    pub(crate) fn has_room(&self) -> bool {
        self.count.load(Ordering::Relaxed) < self.most && self.is_possible()
    }

    /// Whether locks that were entered may still be tracked, or again.
    pub(crate) fn is_possible(&self) -> bool {
        !self.refused.load(Ordering::Relaxed) || self.is_asked_again()
    }

    /// Ends a refusal that has lasted for long enough; the next answer tells whether it goes on.
    fn is_asked_again(&self) -> bool {
        let mut refusal = self.refusal.lock();
        let is_over = refusal.until.is_some_and(|until| Instant::now() >= until);
        if is_over {
            refusal.until = None;
            self.refused.store(false, Ordering::Relaxed);
        }
        is_over
    }

    /// Enters a lock whose holder is asked to renew it when it has changed, if there is room: at once, or with probes
    /// once these find it gone.
    pub(crate) fn enter(
        self: &Arc<Self>,
        lock: &Arc<str>,
        signal: &Signal,
        probes: Option<Probes>,
    ) -> Option<TrackedLock> {
        if !self.is_possible() {
            return None;
        }
        let more = |count| (count < self.most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let names = probes.as_ref().map_or_else(|| SmallVec::from_iter([Arc::clone(lock)]), Probes::names);
        let watched = Watched { signal: signal.clone(), probes: probes.map(Arc::new) };
        let mut locks = self.locks.lock();
        for name in &names {
            locks.entry(Arc::clone(name)).or_default().holds.push((number, watched.clone()));
        }
        drop(locks);
        Some(TrackedLock { tracking: Arc::clone(self), names, number })
    }

    fn changed(self: &Arc<Self>, name: &str) {
        let found =
            self.locks.lock().get_key_value(name).map(|(name, named)| (Arc::clone(name), named.signals()));
        if let Some((name, signals)) = found {
            self.tell(&name, signals);
        }
    }

    /// Any of them may have changed.
    fn all_changed(self: &Arc<Self>) {
        let all: Vec<_> =
            self.locks.lock().iter().map(|(name, named)| (Arc::clone(name), named.signals())).collect();
        all.into_iter().for_each(|(name, signals)| self.tell(&name, signals));
    }

    /// Has these renewed, and looks at what others change too.
    fn tell(self: &Arc<Self>, name: &Arc<str>, (renewed, looked_at): (Signals, bool)) {
        renewed.iter().for_each(|signal| signal.renew_within(Duration::ZERO));
        if looked_at {
            self.look(name);
        }
    }

    fn refuse(&self, why: &str, lasts: Option<Duration>) {
        let mut refusal = self.refusal.lock();
        if !self.refused.swap(true, Ordering::Relaxed) || lasts.is_none() {
            refusal.until = lasts.map(|lasts| Instant::now() + lasts);
        }
        let was_told = std::mem::replace(&mut refusal.told, true);
        drop(refusal);
        if self.most > 0 && !was_told {
            let what = "the server sends no notifications of changes: a lock that another client deletes is known to be \
                        lost at its next renewal";
            tell(|| tracing::warn!({ dlock.reason = %why }, "{what}"));
        }
    }

    /// The server tells of changes.
    fn allowed(&self) {
        let mut refusal = self.refusal.lock();
        if std::mem::take(&mut refusal.told) {
            drop(refusal);
            tell(|| tracing::warn!("the server sends notifications of changes again"));
        }
    }
}

/// A task that looks, which may end with its runtime.
struct UnderWay {
    tracking: Arc<Tracking>,
    name: Arc<str>,
    done: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if !self.done
            && let Some(named) = self.tracking.locks.lock().get_mut(&self.name)
        {
            named.pace.under_way = false;
        }
    }
}

impl Tracking {
    /// Has the holds under a name looked at soon, where they are renewed: whoever hears of a change may have no
    /// runtime, or one that is blocked from now on.
    fn look(self: &Arc<Self>, name: &Arc<str>) {
        let Some(renews) = self.locks.lock().get(name).map(Named::runtime) else { return };
        let Some(runtime) = renews.or_else(|| keeper::current().ok()) else { return };
        let begins = self.locks.lock().get_mut(name).is_some_and(|named| named.pace.ask());
        if begins {
            let (tracking, name) = (Arc::clone(self), Arc::clone(name));
            runtime.spawn(go_on_looking(UnderWay { tracking, name, done: false }));
        }
    }

    /// When the next look is due. Whoever asks later begins anew.
    fn due(&self, name: &str) -> Option<Instant> {
        let mut locks = self.locks.lock();
        let pace = &mut locks.get_mut(name)?.pace;
        pace.under_way = pace.asked;
        pace.due()
    }

    fn holds_to_look_at(&self, name: &str) -> Vec<Watched> {
        let mut locks = self.locks.lock();
        let Some(named) = locks.get_mut(name) else { return Vec::new() };
        let holds = named.holds.iter().map(|(_, hold)| hold).filter(|hold| hold.probes.is_some());
        let holds: Vec<Watched> = holds.cloned().collect();
        let lease = holds.iter().flat_map(|hold| &hold.probes).map(|probes| probes.lease).min();
        named.pace.looks(lease.unwrap_or_default() / 12);
        holds
    }
}

async fn go_on_looking(mut task: UnderWay) {
    while let Some(due) = task.tracking.due(&task.name) {
        sleep_until(due).await;
        let _turn = task.tracking.turns.acquire().await;
        let holds = task.tracking.holds_to_look_at(&task.name);
        for holds in parts(&holds) {
            let gone = look_at(holds).await;
            gone.into_iter().for_each(|hold| hold.signal.renew_within(Duration::ZERO));
        }
    }
    task.done = true;
}

type Signals = SmallVec<[Signal; 1]>;

impl Named {
    /// The holds that are to be renewed when it has changed, and whether there are others, which are looked at.
    fn signals(&self) -> (Signals, bool) {
        let renewed = self.holds.iter().filter(|(_, hold)| hold.probes.is_none());
        let renewed: Signals = renewed.map(|(_, hold)| hold.signal.clone()).collect();
        let looked_at = renewed.len() < self.holds.len();
        (renewed, looked_at)
    }

    /// Where the first of those that are looked at is renewed.
    fn runtime(&self) -> Option<Handle> {
        self.holds.iter().find_map(|(_, hold)| hold.probes.as_ref())?.runtime.clone()
    }
}

impl TrackedLock {
    /// Looks at what a renewal has changed, which was not told of any more. A look at one of its names reads all of
    /// them.
    pub(crate) fn look(&self) {
        self.names.first().into_iter().for_each(|name| self.tracking.look(name));
    }
}

impl Drop for TrackedLock {
    fn drop(&mut self) {
        self.tracking.count.fetch_sub(1, Ordering::Relaxed);
        // What it asks with may be the last of its client, which does not end here under a lock.
        let mut removed: SmallVec<[Watched; 1]> = SmallVec::new();
        let mut locks = self.tracking.locks.lock();
        for name in &self.names {
            let Some(named) = locks.get_mut(name) else { continue };
            if let Some(place) = named.holds.iter().position(|(number, _)| *number == self.number) {
                removed.push(named.holds.swap_remove(place).1);
            }
            if named.holds.is_empty() {
                locks.remove(name);
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

    /// Has the server tell of changes of what is read over this connection from now on. Asks until the server has
    /// agreed, after a denial once a minute; a cut connection is reported by what follows on it.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the next one asks again.
    pub(crate) async fn begin(&self, connection: &MultiplexedConnection, resp3: bool) {
        if !self.tracking.is_possible() {
            return;
        }
        let asking = self.asked.get_or_try_init(async || {
            // Whoever asked before this one may have been refused.
            if !self.tracking.is_possible() {
                return Err(Fault::Unsent("the server does not tell of changes"));
            }
            if !resp3 {
                self.tracking.refuse("it is spoken to in RESP2", None);
                return Ok(());
            }
            // Redis 6.0 does not have this, and tells of changes by scripts to the client that runs them.
            self.ask(connection, "TRACKINGINFO", &[]).await?;
            self.on.store(true, Ordering::Release);
            self.ask(connection, "TRACKING", &["ON", "NOLOOP"]).await?;
            self.tracking.allowed();
            Ok(())
        });
        let _ = asking.await;
    }

    async fn ask(&self, connection: &MultiplexedConnection, what: &str, words: &[&str]) -> Result<(), Fault> {
        let mut command = Cmd::new();
        command.arg("CLIENT").arg(what).arg(words);
        let answer = connection.clone().send_packed_command(&command).await;
        match answer.and_then(Value::extract_error).map_err(Fault::of) {
            Err(Fault::Refused(text)) if !refusal(&text).is_transient() => {
                let is_denied = refusal(&text).kind() == ErrorKind::Denied;
                self.tracking.refuse(&text, is_denied.then_some(REFUSED_FOR));
                Err(Fault::Refused(text))
            }
            answer => answer.map(drop),
        }
    }
}

#[cfg(test)]
mod tests;
