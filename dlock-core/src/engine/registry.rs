//! The holds of one engine, in the order in which the keeper has to look at them.
//!
//! ```text
//!  granted ── list ──▶ listed, counted by key ── note_lost ──▶ listed, not counted
//!                                │                                     │
//!                                └──────────────▶ unlist ◀─────────────┘
//! ```
//!
//! A listed hold is in `due` by the moment of its next renewal or of its end, whichever comes first. A hold that was
//! lost stays listed until its guard goes or the keeper gives it up, so that a shutdown waits for its release.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::atomic::AtomicU64 as PlainU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::futures::Notified;

use crate::clock::{Clock, Timestamp};
use crate::engine::activity::Activity;
use crate::engine::hold::Hold;
use crate::error::{ErrorKind, Failure};
use crate::guarded::wake_all;
use crate::key::Key;
use crate::runtime::tasks::Tasks;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, Notify};
use crate::telemetry::{Loss, Stats, Telemetry};

/// The holds, and the work that is under way.
pub(crate) struct HoldRegistry {
    pub(super) clock: Clock,
    pub(super) telemetry: Arc<Telemetry>,
    pub(crate) tasks: Tasks,
    pub(crate) activity: Arc<Activity>,
    holds: Mutex<DueIndex>,
    /// The next look of the keeper by itself. Only a hold that is due earlier wakes it.
    next_look: AtomicU64,
    pub(super) wake: Notify,
    /// The moment of the backend's last answer, zero before the first one. It decides nothing, so that a scheduler of
    /// threads need not know of it.
    contact: PlainU64,
    closed: AtomicBool,
    draining: AtomicBool,
    /// The first of the registries that are drained together with this one. Set before any of them is drained, so that
    /// a scheduler of threads need not know of it.
    group: OnceLock<Weak<Self>>,
    /// Is `true` if the keeper has ended, so that nothing is renewed any more.
    dead: AtomicBool,
    shut: Notify,
}

/// The holds. No code of others runs while they are locked, and nothing whose cost grows with their number but for a
/// step down a tree.
#[derive(Default)]
struct DueIndex {
    /// The holds by the moment at which the keeper has to look at them, and by their number.
    due: BTreeMap<(Timestamp, u64), Arc<Hold>>,
    /// The number of holds of each key that were not lost.
    keys: HashMap<Key, u32, RandomState>,
    last_number: u64,
}

/// The entry of a hold in the registry; changed only while the registry is locked.
#[derive(Debug, Default)]
pub(super) struct RegistryEntry {
    /// The hold's number; zero when it is not listed.
    number: AtomicU64,
    due: AtomicU64,
    /// Is `true` if it is counted by its key.
    counted: AtomicBool,
}

impl RegistryEntry {
    /// Is `true` if the hold is held, or was lost and not released.
    pub(super) fn is_listed(&self) -> bool {
        self.number.load(Ordering::Relaxed) != 0
    }

    /// Returns its place among the holds, if it has one.
    fn place(&self) -> Option<(Timestamp, u64)> {
        let number = self.number.load(Ordering::Relaxed);
        (number != 0).then(|| (Timestamp::from_nanos(self.due.load(Ordering::Relaxed)), number))
    }
}

impl DueIndex {
    /// Moves a hold to where it is due now.
    fn replan(&mut self, hold: &Hold, at: Timestamp) {
        let Some((due, number)) = hold.listing.place() else { return };
        if let Some(hold) = self.due.remove(&(due, number)) {
            hold.listing.due.store(at.as_nanos(), Ordering::Relaxed);
            self.due.insert((at, number), hold);
        }
    }

    fn count_out(&mut self, hold: &Hold) {
        // Swapped, since the loss and the end of a hold both count it out, in either order.
        if hold.listing.counted.swap(false, Ordering::SeqCst)
            && let Some(count) = self.keys.get_mut(&hold.key)
        {
            *count -= 1;
            if *count == 0 {
                self.keys.remove(&hold.key);
            }
        }
    }
}

/// The health as it is known without asking the backend.
pub(crate) struct EngineHealth {
    /// Is `true` if acquires are accepted.
    pub(crate) accepts: bool,
    /// The time since the backend answered.
    pub(crate) contact: Option<Duration>,
    /// The time for which a renewal is overdue.
    pub(crate) oldest: Option<Duration>,
    /// The delay of the keeper.
    pub(crate) keeper_lag: Duration,
}

/// The result of a look at the registry.
pub(super) struct DueWork {
    /// The holds to be renewed.
    pub(super) due: Vec<Arc<Hold>>,
    /// The holds to be given up for their owners.
    pub(super) overdue: Vec<Arc<Hold>>,
    /// The time of the next look.
    pub(super) next: Timestamp,
}

/// The keeper looks at least this often, so that a lock with a longer sixth of its lease never has to wake it.
const IDLE_LOOK: Duration = Duration::from_secs(5);

/// The number of holds that are looked at before acquires and releases get their turn.
const BATCH: usize = 64;

/// The number of renewals that go out together before some of them are due. More are spread instead.
const TOGETHER: usize = 64;

/// The part of a lease by which a renewal may go out early, with others that are due. A third of the lease is the time
/// from one renewal to the next, so that this makes few more of them.
const EARLY: u32 = 32;

impl HoldRegistry {
    pub(crate) fn new(clock: Clock, telemetry: Arc<Telemetry>, tasks: Tasks) -> Self {
        Self {
            clock,
            telemetry,
            tasks,
            activity: Arc::default(),
            holds: Mutex::default(),
            next_look: AtomicU64::new(0),
            wake: Notify::new(),
            contact: PlainU64::default(),
            closed: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            group: OnceLock::new(),
            dead: AtomicBool::new(false),
            shut: Notify::new(),
        }
    }

    /// Lists a hold for renewal.
    pub(crate) fn list(&self, hold: &Arc<Hold>) {
        let due = hold.due_at();
        {
            let mut holds = self.holds.lock();
            // From one upwards and never used twice: zero marks a hold that is not listed, and two holds that are due
            // at one moment differ by it.
            holds.last_number += 1;
            let number = holds.last_number;
            hold.listing.number.store(number, Ordering::Relaxed);
            hold.listing.due.store(due.as_nanos(), Ordering::Relaxed);
            hold.listing.counted.store(true, Ordering::SeqCst);
            *holds.keys.entry(hold.key.clone()).or_default() += 1;
            holds.due.insert((due, number), Arc::clone(hold));
            // It may have been lost before it was listed, when `note_lost` found nothing to count out.
            if hold.is_lost() {
                holds.count_out(hold);
            }
        }
        // After the hold is listed, and not under the lock: a subscriber may block or acquire a lock.
        self.telemetry.granted(hold.subject(), &hold.trace);
        self.look_by(due);
    }

    /// Has the keeper look at this time. Wakes it only when it would come too late by itself.
    pub(super) fn look_by(&self, at: Timestamp) {
        // Lowered before the wake-up, so that one of many holds that are listed at once wakes the keeper.
        if self.next_look.fetch_min(at.as_nanos(), Ordering::AcqRel) > at.as_nanos() {
            self.telemetry.keeper_woken();
            self.wake.notify_one();
        }
    }

    /// Has the keeper look at the hold when it is due, which may be earlier than it was.
    pub(super) fn replan(&self, hold: &Hold) {
        let at = hold.due_at();
        let is_earlier = {
            let mut holds = self.holds.lock();
            let is_earlier = hold.listing.place().is_some_and(|(due, _)| at < due);
            // A hold that is due later than before is looked at once for nothing, which is cheaper than to move it each
            // time.
            if is_earlier {
                holds.replan(hold, at);
            }
            is_earlier
        };
        if is_earlier {
            self.look_by(at);
        }
    }

    /// Ends what `list` began, once. `lost` is the hold's condition at its end.
    pub(super) fn unlist(&self, hold: &Hold, lost: bool, now: Timestamp) {
        let listed = {
            let mut holds = self.holds.lock();
            // The number is cleared under the lock: of a release and a keeper that gives up, one reports the end.
            let Some(place) = hold.listing.place() else { return };
            hold.listing.number.store(0, Ordering::Relaxed);
            holds.count_out(hold);
            holds.due.remove(&place)
        };
        let held = now.since(hold.acquired_at);
        self.telemetry.ended(hold.subject(), &hold.trace, lost, held, &hold.engine.wait_queue);
        // Not under the lock: the last reference to a hold drops its claim, which is code of a backend.
        drop(listed);
        self.activity.changed();
    }

    /// Notes that a hold was lost: its key is not held here by it any more.
    pub(super) fn note_lost(&self, hold: &Hold) {
        // A loss before the hold is listed finds nothing counted here; `list` looks at `is_lost` after it has counted.
        if hold.listing.counted.load(Ordering::SeqCst) {
            self.holds.lock().count_out(hold);
        }
    }

    /// Is `true` if `key` is held here and was not lost, so that it need not be asked for.
    pub(crate) fn holds_key(&self, key: &Key) -> bool {
        self.holds.lock().keys.contains_key(key)
    }

    /// Looks at what is due, and ends what has run out.
    pub(super) fn look(&self) -> DueWork {
        self.telemetry.keeper_looks();
        let now = self.clock.now();
        let idle = now + IDLE_LOOK;
        // A hold listed while this looks is either seen below or lowers this again.
        self.next_look.store(idle.as_nanos(), Ordering::Release);
        let (mut due, mut ended) = (Vec::new(), Vec::new());
        // One `now` for all batches: holds that fall due meanwhile are for the next look, so that this ends.
        while self.look_at_some(now, &mut due, &mut ended) == BATCH {}
        // Not under the lock: `condition` notices the loss, which wakes waiters and takes the lock to count the hold
        // out.
        for hold in &ended {
            hold.condition();
        }
        ended.retain(|hold| hold.overdue_at() <= now);
        // Read after the looks, which moved holds to their next moments.
        let first = self.holds.lock().due.first_key_value().map(|((at, _), _)| *at);
        let next = first.map_or(idle, |first| idle.min(first));
        // Another thread may have asked for an earlier look meanwhile. Its wake-up is stored in `wake`, but the figure
        // has to stay the least, by which later holds decide whether to wake.
        let planned = self.next_look.fetch_min(next.as_nanos(), Ordering::AcqRel);
        DueWork { due, overdue: ended, next: next.min(Timestamp::from_nanos(planned)) }
    }

    /// Looks at up to [`BATCH`] holds, and returns at how many.
    fn look_at_some(&self, now: Timestamp, due: &mut Vec<Arc<Hold>>, ended: &mut Vec<Arc<Hold>>) -> usize {
        let mut holds = self.holds.lock();
        for seen in 0..BATCH {
            let Some((&(at, _), hold)) = holds.due.first_key_value() else { return seen };
            let hold = Arc::clone(hold);
            // Renewals that are due soon go out together with those due now, as far as these are few.
            let ahead =
                if (1..TOGETHER).contains(&due.len()) { hold.lease() / EARLY } else { Duration::ZERO };
            // The deadline first: `take_renewal` changes the plan, and no renewal may be sent for a hold that has
            // ended.
            let renews = hold.deadline() > now && hold.take_renewal(now, ahead);
            if at > now && !renews {
                return seen;
            }
            if renews {
                due.push(Arc::clone(&hold));
            } else if hold.deadline() <= now {
                hold.renew_never();
                ended.push(Arc::clone(&hold));
                // Stays listed until its guard goes, or until it is overdue where a session keeps the lock.
                let overdue = hold.overdue_at();
                holds.replan(&hold, if overdue <= now { Timestamp::NEVER } else { overdue });
                continue;
            }
            holds.replan(&hold, hold.due_at());
        }
        BATCH
    }

    /// Notes that the backend answered.
    pub(crate) fn contacted(&self, at: Timestamp) {
        self.contact.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Returns the health as it is known without asking the backend.
    pub(crate) fn health(&self) -> EngineHealth {
        let now = self.clock.now();
        let contact = self.contact.load(Ordering::Relaxed);
        // A keeper that keeps up has its next look ahead of now. Without one that looks, the moment stays behind.
        let next_look = Timestamp::from_nanos(self.next_look.load(Ordering::Acquire));
        let (mut oldest, mut after) = (None, None);
        loop {
            let mut seen = 0;
            // In steps, so that acquires and releases get their turn.
            for (place, hold) in
                self.holds.lock().due.range((after.map_or(Unbounded, Excluded), Unbounded)).take(BATCH)
            {
                oldest = oldest.max(hold.renewal_overdue(now));
                (after, seen) = (Some(*place), seen + 1);
            }
            if seen < BATCH {
                break;
            }
        }
        EngineHealth {
            accepts: !self.refuses(),
            contact: (contact != 0).then(|| now.since(Timestamp::from_nanos(contact))),
            oldest,
            keeper_lag: now.since(next_look),
        }
    }

    pub(crate) fn held(&self) -> Vec<Arc<Hold>> {
        self.holds.lock().due.values().map(Arc::clone).collect()
    }

    /// Refuses acquires from now on, and ends the waits of those under way.
    pub(super) fn close(&self) {
        // Stored before the waiters are woken: a waiter that listens too late for the wake-up reads the flag.
        self.closed.store(true, Ordering::SeqCst);
        wake_all(&self.shut);
    }

    /// Has bodies under the locks of `first` acquire here while both are drained, and those of here there.
    pub(super) fn join(&self, first: &Arc<Self>) {
        self.group.get_or_init(|| Arc::downgrade(first));
    }

    /// Is `true` if bodies under locks of `other` may acquire here while locks are drained.
    pub(super) fn serves(&self, other: &Self) -> bool {
        // The address of the first registry names the group, so that a `Weak` is enough, and no registry keeps another.
        let groups = || self.group.get().zip(other.group.get());
        std::ptr::eq(self, other) || groups().is_some_and(|(ours, theirs)| ours.ptr_eq(theirs))
    }

    /// Returns how many holds there have been.
    pub(super) fn listed_so_far(&self) -> u64 {
        self.holds.lock().last_number
    }

    /// Refuses acquires from now on, and ends the waits of those under way, but for acquires of bodies that run under a
    /// lock of this registry or of one that is drained together with it.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        wake_all(&self.shut);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Is `true` if acquires are refused; while the locks are only drained, but for those of bodies under them.
    pub(super) fn refuses(&self) -> bool {
        self.is_closed() || self.draining.load(Ordering::SeqCst)
    }

    /// Refuses acquires, and loses what is held, since it is not renewed any more.
    pub(super) fn keeper_is_dead(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // Closed first: an acquire lists its hold and then looks at this, so that no hold escapes both.
        self.close();
        let held = self.held();
        Telemetry::keeper_died(held.len());
        for hold in held {
            hold.lose_by(Loss::Keeper);
        }
        self.activity.changed();
    }

    /// Returns the reason why acquires are refused.
    pub(super) fn closed(&self) -> Failure {
        let why = match self.dead.load(Ordering::SeqCst) {
            true => {
                "dlock's own thread has ended, so that nothing can be renewed or released here; build new locks"
            }
            false if !self.closed.load(Ordering::SeqCst) => {
                "these locks are being drained: only bodies that run already may acquire"
            }
            false => "these locks were shut down",
        };
        Failure::new(ErrorKind::Closed, why)
    }

    /// Resolves when the registry is closed, or is drained, after this call.
    pub(super) fn shut(&self) -> Notified<'_> {
        // The future listens from this call on, so that it is made before the flags are read.
        self.shut.notified()
    }

    /// Resolves when nothing is held, being acquired or being released, and nothing goes on in the background.
    pub(crate) async fn settled(&self) {
        // A hold that was lost stays in `due` until its guard goes: its release is waited for as well.
        self.activity.settled(|| self.holds.lock().due.is_empty()).await;
    }

    pub(crate) fn stats(&self) -> Stats {
        self.telemetry.stats(self.holds.lock().due.len(), self.activity.in_background())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Grant, Validity};
    use crate::engine::{Engine, Spec};
    use crate::options::Options;
    use crate::telemetry::Site;
    use crate::{Locks, ManualClock, Memory};

    const LEASE: Duration = Duration::from_secs(30);

    fn hold(engine: &Arc<Engine>, key: &str, lease: Duration) -> Arc<Hold> {
        let (key, options) = (Key::new(key).unwrap(), Options { lease, ..Options::default() });
        let spec = Spec { engine: Arc::clone(engine), key, site: Site::default(), options };
        let (claim, now) = (spec.claim(None).unwrap(), engine.clock.now());
        Hold::new(&spec, (claim, None), Grant::new(Validity::Lease(lease)), now)
    }

    #[test]
    fn a_look_sees_what_is_due_and_nothing_else() {
        let clock = ManualClock::stopped();
        let locks = Locks::new(Memory::with_clock(clock.clock()));
        let engine = locks.engine();
        let telemetry = Telemetry::new("memory", None, false, false, None);
        // A registry of its own, which no keeper looks at.
        let tasks = engine.registry.tasks.clone();
        let registry = HoldRegistry::new(clock.clock(), Arc::new(telemetry), tasks);
        let holds: Vec<_> = (0..1_000).map(|n| hold(engine, &format!("{n}"), LEASE * 100)).collect();
        holds.iter().for_each(|hold| registry.list(hold));
        let short = hold(engine, "short", LEASE);
        registry.list(&short);
        let look = || {
            let (mut due, mut ended) = (Vec::new(), Vec::new());
            let seen = registry.look_at_some(clock.clock().now(), &mut due, &mut ended);
            (seen, due.len(), ended.len())
        };
        assert_eq!(look(), (0, 0, 0));
        clock.advance(LEASE / 3);
        assert_eq!(look(), (1, 1, 0));
        assert_eq!(look(), (0, 0, 0));
        clock.advance(LEASE);
        assert_eq!(look(), (1, 0, 1));
        assert_eq!(look(), (0, 0, 0));
        let look = registry.look();
        assert!(
            look.due.is_empty() && look.overdue.is_empty() && look.next == clock.clock().now() + IDLE_LOOK
        );
        registry.unlist(&short, true, clock.clock().now());
        assert_eq!(registry.stats().held, 1_000);
    }

    #[test]
    fn a_key_is_held_while_one_hold_of_it_is_listed_and_not_lost() {
        let locks = Locks::new(Memory::new());
        let engine = locks.engine();
        let registry = &engine.registry;
        let key = Key::new("k").unwrap();
        let (old, new) = (hold(engine, "k", LEASE), hold(engine, "k", LEASE));
        assert!(!registry.holds_key(&key));
        registry.list(&old);
        registry.list(&new);
        old.lose_by(Loss::Gone);
        old.lose_by(Loss::Gone);
        assert!(registry.holds_key(&key));
        old.close();
        assert!(registry.holds_key(&key));
        new.close();
        new.close();
        assert!(!registry.holds_key(&key));
        let lost = hold(engine, "k", LEASE);
        lost.lose_by(Loss::Gone);
        registry.list(&lost);
        assert!(!registry.holds_key(&key));
        lost.close();
        assert!(registry.holds.lock().keys.is_empty() && registry.holds.lock().due.is_empty());
    }
}
