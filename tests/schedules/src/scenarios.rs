//! What threads do to each other in the engine. Each scenario panics where a promise is broken, and where somebody
//! waits for ever the scheduler finds that nobody can go on.

mod waiters;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::{block_on, spawn as spawn_task};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use shuttle::thread::{self, JoinHandle};

use crate::backend::{Grant, Signal, Validity};
use crate::engine::activity::Activity;
use crate::engine::hold::Hold;
use crate::engine::release::Share;
use crate::engine::scope::refused;
use crate::engine::{Engine, Spec};
use crate::keeper::Spawn;
use crate::key::Key;
use crate::options::Options;
use crate::telemetry::Site;
use crate::{ErrorKind, Locks, ManualClock, Memory, Wait};

/// Far beyond the end of a scenario, whose timers never fire.
const HOUR: Duration = Duration::from_secs(3_600);
const LEASE: Duration = Duration::from_secs(30);

/// A scenario and what it shows.
pub type Scenario = (&'static str, fn());

/// All scenarios.
pub const ALL: &[Scenario] = &[
    (
        "wait queue: a release reaches who waits, whoever comes and gives up meanwhile",
        waiters::releases_reach_waiters,
    ),
    (
        "wait queue: the next one learns of a release that another took as its reason and left",
        waiters::left_with_a_release,
    ),
    (
        "wait queue: a grant to a reader reaches the other readers, and then the writer",
        waiters::readers_are_invited,
    ),
    ("hold: it ends once, and everybody learns of it", a_hold_ends_once),
    ("hold: the last of its guards releases it, and no other", the_last_guard_releases),
    ("hold: one of a hand-over that is taken back and of the last guard releases it", taken_back),
    ("registry: what is listed while the keeper looks is renewed in time", listed_while_looked_at),
    ("registry: a key is held while one hold of it is listed and not lost", keys_are_counted),
    ("registry: a wait ends when the locks are closed", waits_end_with_the_locks),
    ("activity: a shutdown waits for all that is under way, and for no longer", activity_settles),
    ("keeper: what was dropped is released although the locks are gone", dropped_and_gone),
    ("keeper: its death loses what is held and refuses what is asked", the_keeper_dies),
    ("locks: one holder at a time, and everybody gets its turn", one_at_a_time),
    ("locks: an acquire that is dropped leaves nothing", a_dropped_acquire_leaves_nothing),
    (
        "locks: a lock is passed on with the next fence, and reaches the next one whoever gives up",
        passed_on_while_others_give_up,
    ),
];

/// Runs the keeper's tasks as tasks of the scheduler.
#[derive(Debug, Default)]
struct Scheduled {
    /// What was spawned from now on is never run.
    is_dead: AtomicBool,
}

impl Spawn for Scheduled {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if !self.is_dead.load(Ordering::SeqCst) {
            drop(spawn_task(task));
        }
    }
}

struct World {
    memory: Memory,
    clock: ManualClock,
    locks: Locks,
}

impl World {
    fn new() -> Self {
        Self::on(Arc::<Scheduled>::default())
    }

    fn on(tasks: Arc<Scheduled>) -> Self {
        let clock = ManualClock::stopped();
        let memory = Memory::with_clock(clock.clock());
        let locks = Locks::builder(memory.clone()).with_keeper_on(tasks).with_seed(1).with_lease(LEASE);
        Self { memory, clock, locks: locks.with_wait(Wait::Forever).build().expect("they can be built") }
    }

    fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.locks.engine())
    }

    /// A hold of `k` that the backend does not know of.
    fn hold(&self) -> Arc<Hold> {
        let (engine, options) = (self.engine(), Options { lease: LEASE, ..Options::default() });
        let spec = Spec { engine, key: key(), site: Site::default(), options };
        let claim = spec.claim().expect("a claim can be made");
        Hold::new(&spec, claim, Grant::new(Validity::Lease(LEASE)), spec.engine.clock.now())
    }

    /// Resolves when nothing of these locks is left in this process.
    fn settle(&self) {
        block_on(self.locks.engine().registry.settled());
    }
}

fn key() -> Key {
    Key::new("k").expect("a key")
}

fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) {
    for thread in threads {
        assert!(thread.join().is_ok(), "a thread panicked");
    }
}

fn a_hold_ends_once() {
    let world = World::new();
    let engine = world.engine();
    let hold = world.hold();
    engine.registry.list(&hold);
    let signal = Signal::new(&hold);
    let shares = [Share::first(Arc::clone(&hold))];
    let watchers = [
        {
            let hold = Arc::clone(&hold);
            thread::spawn(move || block_on(hold.ended()))
        },
        {
            let hold = Arc::clone(&hold);
            thread::spawn(move || {
                hold.confirm(hold.engine.clock.now());
                block_on(
                    hold.when(|hold| hold.check().is_err_and(|error| error.kind() != ErrorKind::Suspect)),
                );
            })
        },
    ];
    let kind = |hold: &Hold| hold.check().expect_err("it has ended").kind();
    let ends: [Box<dyn FnOnce() + Send>; 2] = [
        Box::new(move || drop(shares)),
        Box::new(move || {
            signal.suspect();
            signal.lost("somebody said so");
        }),
    ];
    let ends = ends.map(|end| {
        let hold = Arc::clone(&hold);
        thread::spawn(move || {
            end();
            kind(&hold)
        })
    });
    let seen = ends.map(|thread| thread.join().expect("it does not panic"));
    join(watchers);
    assert!(seen.iter().all(|seen| *seen == kind(&hold)), "an end is final");
    let error = hold.check().expect_err("it has ended");
    assert!(matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotHeld), "{error}");
    assert!(!engine.registry.holds_key(&key()));
    drop(hold);
    world.settle();
}

fn the_last_guard_releases() {
    let world = World::new();
    let guard = block_on(world.locks.lock("k").acquire()).expect("it is free");
    let view = guard.held();
    let first = Share::first(world.hold());
    let (second, _) =
        Share::of(Arc::clone(first.hold()), crate::engine::hold::ShareKind::Plain).expect("it is held");
    let released = Arc::new(AtomicUsize::new(0));
    let threads = [first, second].map(|share| {
        let released = Arc::clone(&released);
        thread::spawn(move || {
            if share.release().is_ok() {
                released.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let dropped = thread::spawn(move || drop(guard));
    join(threads);
    assert_eq!(released.load(Ordering::SeqCst), 1);
    join([dropped]);
    drop(view);
    world.settle();
    assert_eq!(world.memory.held(), 0);
}

fn taken_back() {
    let world = World::new();
    let share = Share::first(world.hold());
    let hold = Arc::clone(share.hold());
    let releases = Arc::new(AtomicUsize::new(0));
    let carrier = {
        let releases = Arc::clone(&releases);
        thread::spawn(move || {
            if hold.carry().is_ok() && hold.uncarry() {
                releases.fetch_add(1, Ordering::SeqCst);
            }
        })
    };
    let ends = {
        let releases = Arc::clone(&releases);
        thread::spawn(move || releases.fetch_add(usize::from(share.release().is_ok()), Ordering::SeqCst))
    };
    join([carrier]);
    join([ends]);
    assert_eq!(releases.load(Ordering::SeqCst), 1);
    drop(world);
}

fn listed_while_looked_at() {
    let world = World::new();
    let (locks, clock) = (world.locks.clone(), world.clock.clone());
    let other = thread::spawn(move || block_on(locks.lock("other").with_lease(LEASE * 2).acquire()));
    let guard = block_on(world.locks.lock("k").acquire()).expect("it is free");
    // Beyond every third of a lease, and before its end.
    clock.advance(LEASE / 2);
    let renewed = |_: &Hold| guard.remaining().is_some_and(|left| left > LEASE / 2);
    block_on(guard.hold().when(renewed));
    drop(guard);
    join([other]);
    world.settle();
    assert_eq!(world.memory.held(), 0);
}

fn keys_are_counted() {
    let world = World::new();
    let engine = world.engine();
    let holds = [world.hold(), world.hold()];
    let threads = holds.clone().map(|hold| thread::spawn(move || hold.engine.registry.list(&hold)));
    holds[0].lose("somebody said so".into());
    let closed = Arc::clone(&holds[1]);
    let closes = thread::spawn(move || closed.close());
    join(threads);
    join([closes]);
    holds[1].close();
    assert!(!engine.registry.holds_key(&key()), "one was lost, and the other released");
    holds[0].close();
    drop(holds);
    world.settle();
}

fn waits_end_with_the_locks() {
    let world = World::new();
    let waiters = [0, 1].map(|_| {
        let engine = world.engine();
        thread::spawn(move || {
            assert_eq!(block_on(refused(&engine)).kind(), ErrorKind::Closed);
        })
    });
    let engine = world.engine();
    let drains = thread::spawn(move || engine.registry.drain());
    join([drains]);
    join(waiters);
}

fn activity_settles() {
    let activity = Arc::new(Activity::default());
    let left = Arc::new(AtomicUsize::new(3));
    let threads = [0, 1, 2].map(|number| {
        let (token, left) = (activity.begin(), Arc::clone(&left));
        thread::spawn(move || {
            let token = if number == 0 { token } else { token.into_background() };
            left.fetch_sub(1, Ordering::SeqCst);
            drop(token);
        })
    });
    let listed = Arc::new(AtomicUsize::new(0));
    let lists = {
        let (token, activity, listed) = (activity.begin(), Arc::clone(&activity), Arc::clone(&listed));
        thread::spawn(move || {
            listed.store(1, Ordering::SeqCst);
            drop(token);
            thread::yield_now();
            listed.store(0, Ordering::SeqCst);
            activity.changed();
        })
    };
    block_on(activity.settled(|| listed.load(Ordering::SeqCst) == 0));
    assert_eq!(left.load(Ordering::SeqCst), 0);
    assert_eq!(listed.load(Ordering::SeqCst), 0);
    join(threads);
    join([lists]);
}

fn dropped_and_gone() {
    let World { memory, locks, .. } = World::new();
    let guard = block_on(locks.lock("k").acquire()).expect("it is free");
    let dropped = thread::spawn(move || drop(guard));
    let activity = Arc::clone(&locks.engine().registry.activity);
    let gone = thread::spawn(move || drop(locks));
    join([dropped, gone]);
    block_on(activity.settled(|| true));
    assert_eq!(memory.held(), 0);
}

fn the_keeper_dies() {
    let tasks = Arc::<Scheduled>::default();
    let world = World::on(Arc::clone(&tasks));
    let guard = block_on(world.locks.lock("k").acquire()).expect("it is free");
    let acquires = {
        let locks = world.locks.clone();
        thread::spawn(move || {
            let refused = block_on(async {
                loop {
                    match locks.lock("other").with_wait(Wait::No).acquire().await {
                        Ok(guard) => drop(guard.release().await),
                        Err(error) => return error.kind(),
                    }
                    shuttle::future::yield_now().await;
                }
            });
            assert_eq!(refused, ErrorKind::Closed);
        })
    };
    let watches = {
        let view = guard.held();
        thread::spawn(move || block_on(async move { view.lost().await }))
    };
    tasks.is_dead.store(true, Ordering::SeqCst);
    world.locks.engine().registry.keeper_is_dead();
    join([acquires, watches]);
    assert_eq!(guard.check().expect_err("nobody renews it").kind(), ErrorKind::Lost);
}

fn one_at_a_time() {
    let world = World::new();
    let inside = Arc::new(Mutex::new(0));
    let threads = [0, 1, 2].map(|_| {
        let (locks, inside) = (world.locks.clone(), Arc::clone(&inside));
        thread::spawn(move || {
            block_on(async {
                let guard = locks.lock("k").acquire().await.expect("it comes to its turn");
                let before = std::mem::replace(&mut *inside.lock().expect("no panic"), 1);
                assert_eq!(before, 0, "two holders");
                shuttle::future::yield_now().await;
                *inside.lock().expect("no panic") = 0;
                guard.release().await.expect("it is held");
            });
        })
    });
    join(threads);
    world.settle();
    assert_eq!(world.memory.held(), 0);
}

fn a_dropped_acquire_leaves_nothing() {
    let world = World::new();
    let held = block_on(world.locks.lock("k").acquire()).expect("it is free");
    let dropped = {
        let locks = world.locks.clone();
        thread::spawn(move || {
            let lock = locks.lock("k");
            let mut acquire = Box::pin(lock.acquire());
            let once = std::future::poll_fn(|context| {
                std::task::Poll::Ready(acquire.as_mut().poll(context).is_ready())
            });
            block_on(once);
            thread::yield_now();
            drop(acquire);
        })
    };
    let waits = {
        let locks = world.locks.clone();
        thread::spawn(move || drop(block_on(locks.lock("k").acquire()).expect("it comes to its turn")))
    };
    drop(held);
    join([dropped, waits]);
    world.settle();
    assert_eq!(world.memory.held(), 0);
}

fn passed_on_while_others_give_up() {
    let world = World::new();
    let held = block_on(world.locks.lock("k").acquire()).expect("it is free");
    let last = Arc::new(Mutex::new(held.fence()));
    let sections = [0, 1, 2].map(|_| {
        let (locks, last) = (world.locks.clone(), Arc::clone(&last));
        thread::spawn(move || {
            let guard = block_on(locks.lock("k").acquire()).expect("it comes to its turn");
            let before = std::mem::replace(&mut *last.lock().expect("no panic"), guard.fence());
            assert!(before < guard.fence(), "{before:?} is followed by {:?}", guard.fence());
            drop(guard);
        })
    });
    let gives_up = {
        let locks = world.locks.clone();
        thread::spawn(move || {
            let lock = locks.lock("k");
            let mut acquire = Box::pin(lock.acquire());
            for _ in 0..2 {
                let once = std::future::poll_fn(|context| {
                    std::task::Poll::Ready(acquire.as_mut().poll(context).is_ready())
                });
                if block_on(once) {
                    return;
                }
                thread::yield_now();
            }
            drop(acquire);
        })
    };
    drop(held);
    join(sections);
    join([gives_up]);
    world.settle();
    assert_eq!(world.memory.held(), 0);
}
