//! Locks whose changes the servers report, by what Redis calls client tracking.
//!
//! A renewal reads its lock last, on a connection that is tracked. The server reports at once whatever changes the lock
//! after that, except for what comes over the same connection. The renewal that follows a report finds out what has
//! changed, and makes the server track the lock again. So the renewals of a lock cause no reports themselves, and cost
//! nothing but that read.
//!
//! A lock that several clients hold, or wait for in a queue, is changed by all of them: if each holder renewed at each
//! change, their renewals would cause one another. Such a lock is looked at instead, see [`looks`].
//!
//! ```text
//!                         the server reports a change, or the connection ends
//!                                  |                        |
//!                           exclusive lock        shared or fair lock
//!                                  |                        |
//!                                  |              look: are this client's holds there?
//!                                  |                 | yes            | no
//!                                  v                 v                v
//!                       the hold is renewed       nothing     the hold is renewed
//! ```
//!
//! | `refused` | `Refusal::until` | the servers | becomes |
//! |---|---|---|---|
//! | no | | are asked to report by tracked renewals | refused by `refuse` |
//! | yes | a time | lack a right of the user | not refused at that time, and asked again |
//! | yes | `None` | cannot report | stays so |

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

/// The time for which a lock is held before it is tracked: a lock that is released earlier costs nothing by tracking.
pub(crate) const TRACKED_AFTER: Duration = Duration::from_secs(1);

/// The time after which a server that denied its reports to this user is asked again: an operator who grants the right
/// restarts nothing.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// The most looks that are under way at once.
const LOOKS_AT_ONCE: usize = 64;

type ByName = HashMap<Arc<str>, Named>;

/// The holds that a name on the server belongs to. Each has a number: a hold that was lost may stay listed beside the
/// next one for a while.
#[derive(Debug, Default)]
struct Named {
    holds: SmallVec<[(u64, Watched); 1]>,
    pace: Pace,
}

/// The tracked locks of one client.
#[derive(Debug)]
pub(crate) struct Tracking {
    most: usize,
    count: AtomicUsize,
    locks: Mutex<ByName>,
    last: AtomicU64,
    /// The turns of looks. Many looks may be due at once when a connection has ended.
    turns: Semaphore,
    /// `true` while the servers do not track, or the user may not ask them to.
    refused: AtomicBool,
    refusal: Mutex<Refusal>,
}

/// The state of a refusal.
#[derive(Debug, Default)]
struct Refusal {
    /// `true` once a warning was logged.
    logged: bool,
    /// The time at which the server is asked again, if the user only lacks a right.
    until: Option<Instant>,
}

/// A tracked lock, until this is dropped.
pub(crate) struct TrackedLock {
    tracking: Arc<Tracking>,
    names: SmallVec<[Arc<str>; 1]>,
    number: u64,
}

impl Tracking {
    /// Creates the tracking of at most this many locks.
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

    /// Returns `true` if any lock is to be tracked.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.most > 0
    }

    /// Returns `true` if one more lock may be tracked.
    pub(crate) fn has_room(&self) -> bool {
        // A guess, which spares a claim that cannot be tracked its preparations: `enter` decides.
        self.count.load(Ordering::Relaxed) < self.most && self.is_possible()
    }

    /// Returns `true` if locks that were entered may still be tracked, or tracked again.
    pub(crate) fn is_possible(&self) -> bool {
        !self.refused.load(Ordering::Relaxed) || self.is_asked_again()
    }

    /// Ends a refusal that has lasted long enough. The next answer of the server shows whether it goes on.
    fn is_asked_again(&self) -> bool {
        let mut refusal = self.refusal.lock();
        // A refusal without an end has no `until`, and neither has one that was just ended here by another caller.
        let is_over = refusal.until.is_some_and(|until| Instant::now() >= until);
        if is_over {
            refusal.until = None;
            self.refused.store(false, Ordering::Relaxed);
        }
        is_over
    }

    /// Enters a lock, if there is room, whose hold is asked to renew when the lock has changed: at once, or, with
    /// `probes`, once a look finds the hold gone.
    pub(crate) fn enter(
        self: &Arc<Self>,
        lock: &Arc<str>,
        signal: &Signal,
        probes: Option<Probes>,
    ) -> Option<TrackedLock> {
        if !self.is_possible() {
            return None;
        }
        // The room is taken before the lock is listed: two holds that enter at once cannot both get the last place.
        let more = |count| (count < self.most).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        // Relaxed: the number only has to be unlike all others, and is read under the lock of `locks`.
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

    /// Notes that the server reported a change of a name.
    fn changed(self: &Arc<Self>, name: &str) {
        // Collected first: a signal calls into the engine, which must not happen while `locks` is locked.
        let found =
            self.locks.lock().get_key_value(name).map(|(name, named)| (Arc::clone(name), named.signals()));
        if let Some((name, signals)) = found {
            self.notify(&name, signals);
        }
    }

    /// Treats every tracked lock as changed: its report may have been lost.
    fn all_changed(self: &Arc<Self>) {
        let all: Vec<_> =
            self.locks.lock().iter().map(|(name, named)| (Arc::clone(name), named.signals())).collect();
        all.into_iter().for_each(|(name, signals)| self.notify(&name, signals));
    }

    /// Makes these holds renew, and looks at the shared lock behind the name if there is one.
    fn notify(self: &Arc<Self>, name: &Arc<str>, (renewed, looked_at): (Signals, bool)) {
        renewed.iter().for_each(|signal| signal.renew_within(Duration::ZERO));
        if looked_at {
            self.look(name);
        }
    }

    /// Notes that the servers do not report changes, for this time or for good, and logs the first refusal.
    fn refuse(&self, why: &str, lasts: Option<Duration>) {
        let mut refusal = self.refusal.lock();
        // A refusal that is known stays as it is, unless this one is final: otherwise each answer of many connections
        // would put the next question off.
        if !self.refused.swap(true, Ordering::Relaxed) || lasts.is_none() {
            refusal.until = lasts.map(|lasts| Instant::now() + lasts);
        }
        let was_logged = std::mem::replace(&mut refusal.logged, true);
        // Unlocked before the event: a subscriber may block, or take a lock by this client.
        drop(refusal);
        if self.most > 0 && !was_logged {
            let what = "the server sends no notifications of changes: a lock that another client deletes is known to be \
                        lost at its next renewal";
            tell(|| tracing::warn!({ dlock.reason = %why }, "{what}"));
        }
    }

    /// Notes that the server reports changes, and logs the end of a refusal.
    fn allowed(&self) {
        let mut refusal = self.refusal.lock();
        if std::mem::take(&mut refusal.logged) {
            drop(refusal);
            tell(|| tracing::warn!("the server sends notifications of changes again"));
        }
    }
}

/// A task that looks at one name. Its runtime may drop it, and then the next change starts another one.
struct UnderWay {
    tracking: Arc<Tracking>,
    name: Arc<str>,
    done: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // A task that ended by itself has cleared the flag in `due`, and another may be under way by now.
        if !self.done
            && let Some(named) = self.tracking.locks.lock().get_mut(&self.name)
        {
            named.pace.under_way = false;
        }
    }
}

impl Tracking {
    /// Looks at the holds under a name soon, on the runtime on which they are renewed: the thread that received the
    /// report may have no runtime, or a runtime that is blocked from now on.
    fn look(self: &Arc<Self>, name: &Arc<str>) {
        // The runtime comes first: a change that is noted without a task would keep later ones from starting one.
        let Some(renews) = self.locks.lock().get(name).map(Named::runtime) else { return };
        let Some(runtime) = renews.or_else(|| keeper::current().ok()) else { return };
        // One task a name, so that its looks have pauses, however many reports arrive.
        let begins = self.locks.lock().get_mut(name).is_some_and(|named| named.pace.ask());
        if begins {
            let (tracking, name) = (Arc::clone(self), Arc::clone(name));
            runtime.spawn(go_on_looking(UnderWay { tracking, name, done: false }));
        }
    }

    /// Returns the time of the next look, or `None` if the task has to end. A change that is noted after that starts
    /// another task.
    fn due(&self, name: &str) -> Option<Instant> {
        let mut locks = self.locks.lock();
        let pace = &mut locks.get_mut(name)?.pace;
        // Under the same lock as the question: a change falls either before it, and is looked at, or after it, and
        // finds no task.
        pace.under_way = pace.asked;
        pace.due()
    }

    /// Returns the holds under a name that are looked at, and notes that a look begins.
    fn holds_to_look_at(&self, name: &str) -> Vec<Watched> {
        let mut locks = self.locks.lock();
        let Some(named) = locks.get_mut(name) else { return Vec::new() };
        let holds = named.holds.iter().map(|(_, hold)| hold).filter(|hold| hold.probes.is_some());
        let holds: Vec<Watched> = holds.cloned().collect();
        // The shortest lease bounds the pauses for all: its hold has the least time to learn of a loss.
        let lease = holds.iter().flat_map(|hold| &hold.probes).map(|probes| probes.lease).min();
        // Noted before the look is sent: a change during the look needs another one.
        named.pace.looks(lease.unwrap_or_default() / 12);
        holds
    }
}

/// Looks at one name as long as changes are noted, with growing pauses.
async fn go_on_looking(mut task: UnderWay) {
    while let Some(due) = task.tracking.due(&task.name) {
        sleep_until(due).await;
        // Behind the pause, so that a name that waits for its next look takes no turn from the others. An error would
        // mean that the semaphore was closed, which nothing does; a look without a turn does no harm.
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
    /// Returns the holds that are renewed when the name has changed, and whether there are others, which are looked at.
    fn signals(&self) -> (Signals, bool) {
        let renewed = self.holds.iter().filter(|(_, hold)| hold.probes.is_none());
        let renewed: Signals = renewed.map(|(_, hold)| hold.signal.clone()).collect();
        let looked_at = renewed.len() < self.holds.len();
        (renewed, looked_at)
    }

    /// Returns the runtime on which the first of the holds that are looked at is renewed.
    fn runtime(&self) -> Option<Handle> {
        self.holds.iter().find_map(|(_, hold)| hold.probes.as_ref())?.runtime.clone()
    }
}

impl TrackedLock {
    /// Looks at a shared lock after its own renewal, whose change is not reported. A look at one of the lock's names
    /// reads all of them, and so makes the server track them again.
    pub(crate) fn look(&self) {
        self.names.first().into_iter().for_each(|name| self.tracking.look(name));
    }
}

impl Drop for TrackedLock {
    fn drop(&mut self) {
        // Before the names are removed: the entry of another lock may come in between, which makes one more than `most`
        // for a moment and does no harm.
        self.tracking.count.fetch_sub(1, Ordering::Relaxed);
        // The probes may hold the last reference to the client, whose drop must not run while `locks` is locked.
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

/// The tracking on one connection.
///
/// | `asked` | `on` | the server |
/// |---|---|---|
/// | not set | no | was not asked, or refused: the next tracked renewal asks |
/// | not set | yes | may have agreed |
/// | set | yes | reports changes until the connection ends |
/// | set | no | is spoken to in RESP2, and reports nothing; or the connection has ended |
#[derive(Debug)]
pub(crate) struct ConnectionTracking {
    tracking: Arc<Tracking>,
    /// Set once the server has agreed to report, or cannot.
    asked: OnceCell<()>,
    /// `true` while reports may arrive over the connection.
    on: AtomicBool,
}

impl ConnectionTracking {
    pub(crate) fn new(tracking: &Arc<Tracking>) -> Arc<Self> {
        let (asked, on) = (OnceCell::new(), AtomicBool::new(false));
        Arc::new(Self { tracking: Arc::clone(tracking), asked, on })
    }

    /// Handles a message that the server sent of its own accord.
    pub(crate) fn pushed(&self, push: &PushInfo) {
        match push.kind {
            PushKind::Invalidate => self.invalidated(push.data.first()),
            PushKind::Disconnection => self.ended(),
            _ => {}
        }
    }

    /// Notes that no more reports arrive over this connection. Reports may have been lost with it, so every lock counts
    /// as changed.
    pub(crate) fn ended(&self) {
        // Once only: a connection is ended by its own end, and by each caller that notices it.
        if self.on.swap(false, Ordering::AcqRel) && self.tracking.is_possible() {
            self.tracking.all_changed();
        }
    }

    /// Notes the names of a report, or all of them if it has none.
    fn invalidated(&self, names: Option<&Value>) {
        match names {
            Some(Value::Array(names)) => {
                for name in names {
                    // Names of locks are text.
                    if let Value::BulkString(name) = name
                        && let Ok(name) = std::str::from_utf8(name)
                    {
                        self.tracking.changed(name);
                    }
                }
            }
            // No names: all keys were deleted.
            _ => self.tracking.all_changed(),
        }
    }

    /// Makes the server report changes of the keys that are read over this connection from now on. Asks until the
    /// server has agreed, after a denial once a minute. A connection that breaks meanwhile is reported by the request
    /// that follows.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the next tracked request asks again.
    pub(crate) async fn begin(&self, connection: &MultiplexedConnection, resp3: bool) {
        if !self.tracking.is_possible() {
            return;
        }
        // One task asks for the whole connection, and the others wait for its answer.
        let asking = self.asked.get_or_try_init(async || {
            // The task that asked before this one may have been refused.
            if !self.tracking.is_possible() {
                return Err(Fault::Unsent("the server does not tell of changes"));
            }
            if !resp3 {
                self.tracking.refuse("it is spoken to in RESP2", None);
                return Ok(());
            }
            // Redis 6.0 lacks this command, and reports changes by a script to the client that runs it: it is not asked
            // to track.
            self.ask(connection, "TRACKINGINFO", &[]).await?;
            // Set before the server may agree: from then on reports may arrive, and are lost if the connection ends.
            self.on.store(true, Ordering::Release);
            self.ask(connection, "TRACKING", &["ON", "NOLOOP"]).await?;
            self.tracking.allowed();
            Ok(())
        });
        // A refusal is noted by `ask`. Whatever the outcome, the renewal goes out: it is valid without a report, too.
        let _ = asking.await;
    }

    /// Sends one `CLIENT` command, and notes a refusal.
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
pub(crate) mod tests;
