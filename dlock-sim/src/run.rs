//! One run: what happens in it, from the first process to the last check.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use dlock_core::{Held, Locks};
use fastrand::Rng;

use crate::backend::Leases;
use crate::exec::{KeeperOf, Scheduler, sleep, spawn};
use crate::judge::Summary;
use crate::lease::Changes;
use crate::majority;
use crate::plan::Plan;
use crate::queue::Queue;
use crate::shared::SharedKeys;
use crate::work::Worker;
use crate::world::{Event, World, replace, tell, violate, world};
use crate::{jobs, modes};

thread_local! {
    static DONE: Cell<bool> = const { Cell::new(false) };
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the seed of the run on this thread: what is known when a panic in a destructor ends the program.
#[must_use]
pub fn current_seed() -> u64 {
    SEED.get()
}

/// What one run came to.
#[derive(Debug)]
pub struct Outcome {
    /// The rule that was broken, if one was.
    pub violation: Option<String>,
    /// What each process did, where that was asked for.
    pub story: String,
    /// Counts of what happened.
    pub summary: Summary,
}

/// Carries out the run of a seed.
#[must_use]
pub fn run(seed: u64, with_story: bool) -> Outcome {
    let plan = Plan::new(seed);
    simulate(plan.clone(), with_story, direct(plan))
}

/// Carries out the run of jobs and leaders of a seed.
#[must_use]
pub fn run_jobs(seed: u64, with_story: bool) -> Outcome {
    let plan = Plan::of_jobs(seed);
    simulate(plan.clone(), with_story, jobs::direct(plan))
}

/// Carries out the run of a seed over a quorum of several stores.
#[must_use]
pub fn run_quorums(seed: u64, with_story: bool) -> Outcome {
    let plan = Plan::of_quorums(seed);
    simulate(plan.clone(), with_story, direct(plan))
}

/// Carries out the run with batons of a seed.
#[must_use]
pub fn run_batons(seed: u64, with_story: bool) -> Outcome {
    let plan = Plan::of_batons(seed);
    simulate(plan.clone(), with_story, direct(plan))
}

/// The run is over.
pub(crate) fn done() {
    DONE.set(true);
}

/// Carries out the run of readers, permits and waiters in order of a seed.
#[must_use]
pub fn run_modes(seed: u64, with_story: bool) -> Outcome {
    let plan = Plan::of_modes(seed);
    simulate(plan.clone(), with_story, modes::direct(plan))
}

fn simulate(plan: Plan, with_story: bool, direct: impl Future<Output = ()> + Send + 'static) -> Outcome {
    let seed = plan.seed;
    SEED.set(seed);
    crate::exec::reset();
    DONE.set(false);
    let mut new = World::new(plan.clone(), with_story);
    tell!(new, None, "seed {seed:016x}: {plan:?}");
    new.store.shared = plan.modes.then(SharedKeys::default);
    new.plan_faults();
    replace(Some(new));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no more than memory");
    let _log = crate::log::enter(seed, plan.rate_log_panic);
    runtime.block_on(tokio::task::unconstrained(async {
        spawn(usize::MAX, Box::pin(direct));
        Scheduler::new(|| DONE.get()).await;
        crate::log::leave();
        // What is left is dropped while the world still stands, and where timers may be touched.
        for process in (0..world(|w| w.processes.len())).chain([usize::MAX]) {
            drop(world(|w| {
                if let Some(p) = w.processes.get_mut(process) {
                    p.alive = false;
                }
                w.tasks.kill(process)
            }));
        }
        loop {
            let Some(view) = world(World::any_view) else { break };
            drop(view);
        }
        modes::drop_views();
    }));
    let w = replace(None).expect("the run is there");
    Outcome {
        violation: w.violation.clone(),
        story: w.story.clone().unwrap_or_default(),
        summary: w.judge.summary,
    }
}

/// Starts the processes, waits for their tasks, and looks at what is left.
async fn direct(plan: Plan) {
    let mut rng = Rng::with_seed(plan.seed ^ 0x6469_7265);
    let users = Arc::new(());
    if let Some(majority) = plan.majority
        && let Err(error) = majority::bootstrap(majority).await
    {
        return violate(error.to_string());
    }
    let mut engines = Vec::new();
    for process in 0..plan.processes {
        let count = if rng.u32(..4) == 0 { 2 } else { 1 };
        for engine in 0..count {
            let builder = match plan.majority.map(|majority| majority::quorum(process, engine, majority)) {
                Some(Ok(quorum)) => Locks::builder(quorum),
                Some(Err(error)) => return violate(error.to_string()),
                None if plan.sessions => Locks::builder(Queue::new(process, engine)),
                None => Locks::builder(Leases::new(process, engine)),
            };
            let builder = builder
                .with_lease(Duration::from_millis(plan.lease))
                .with_request_timeout(Duration::from_millis(plan.request_timeout))
                .with_handoff(plan.handoff)
                .with_handoff_limit(plan.handoff_limit)
                .with_handoff_time(Duration::from_millis(plan.handoff_time))
                .with_seed(rng.u64(..))
                .with_keeper_on(Arc::new(KeeperOf(process)));
            let builder = if plan.bounds_rechecks { builder.with_rechecks(plan.rechecks) } else { builder };
            match builder.build() {
                Ok(locks) => engines.push((process, engine, locks)),
                Err(error) => return violate(error.to_string()),
            }
        }
        for _ in 0..plan.tasks {
            let (_, engine, locks) = &engines[engines.len() - 1 - rng.usize(..count)];
            let worker = Worker {
                process,
                engine: *engine,
                locks: locks.clone(),
                hot: plan.hot,
                updates: true,
                rng: Rng::with_seed(rng.u64(..)),
                owner: 0,
                _users: Arc::clone(&users),
            };
            spawn(process, Box::pin(worker.work(plan.operations)));
        }
    }
    // Some shut down while others are at work.
    if rng.u32(..6) == 0 {
        sleep(rng.u64(1..=plan.lease * 6)).await;
        let (process, engine, locks) = engines.swap_remove(rng.usize(..engines.len()));
        let waits_for_quiet = rng.bool();
        shut_down(&plan, process, engine, locks, waits_for_quiet).await;
    }
    let most = plan.lease * 400 + 600_000;
    let mut waited = 0;
    while Arc::strong_count(&users) > 1 {
        let piece = (plan.lease / 2).max(20);
        sleep(piece).await;
        waited += piece;
        for key in 0..world(|w| w.keys.len()) {
            world(|w| w.judge_idle(key));
        }
        world(World::judge_retractions);
        for (process, engine, locks) in &engines {
            let stats = locks.stats();
            // What was given up lasts until its lease ends.
            if (stats.held, stats.background, stats.abandoned) == (0, 0, 0) {
                world(|w| w.judge_left(*process, *engine));
            }
        }
        if waited > most {
            return violate("a task does not end".into());
        }
    }
    sleep(plan.quiet_at.saturating_sub(crate::exec::now() / 1_000_000) + 1).await;
    majority::can_be_had(&plan, &engines).await;
    settle(&plan, &mut rng, engines).await;
    world(World::judge_end);
    done();
}

/// The end of every process: by a shutdown, or when its locks are dropped.
pub(crate) async fn settle(plan: &Plan, rng: &mut Rng, engines: Vec<(usize, usize, Locks)>) {
    if plan.healthy {
        // Cancelled claims are taken back by themselves.
        sleep(1_200 + 20 * plan.delay).await;
        let left = world(|w| {
            let mut all = w.store.entries.iter();
            let left = all.find(|(key, e)| w.is_left_over(**key, e));
            left.map(|(_, e)| e.claim)
        });
        if let Some(claim) = left {
            violate(format!("c{claim} is still held when all have left"));
        }
    }
    for (process, engine, locks) in engines {
        world(|w| w.passed_on(locks.stats().handoffs));
        if !world(|w| w.processes[process].alive) {
            drop(locks);
            continue;
        }
        if rng.bool() {
            shut_down(plan, process, engine, locks, true).await;
        } else {
            let most = 3 * plan.lease + 4 * plan.request_timeout + plan.late + 4_000;
            sleep(most).await;
            let stats = locks.stats();
            if (stats.held, stats.background) != (0, 0) && world(|w| w.processes[process].alive) {
                violate(format!("p{process} is idle, and has {stats:?}"));
            }
            drop(locks);
        }
    }
    // A session ends at a tick after its timeout, and a clean-up that failed is made again after a second at the
    // latest.
    sleep(plan.late + 2 * plan.lease + plan.request_timeout + 1_200).await;
    if plan.majority.is_some() {
        // A mark may be on its way to a node for 5 s.
        sleep(5_000).await;
    }
    for process in 0..plan.processes {
        let left = world(|w| w.tasks.alive(process));
        if left > 0 {
            violate(format!("{left} tasks of p{process} are left when its locks are gone"));
        }
    }
}

/// With as much time as it needs when nothing fails any more, from now on or from then on.
async fn shut_down(plan: &Plan, process: usize, engine: usize, locks: Locks, waits_for_quiet: bool) {
    let enough = 2 * (plan.lease + plan.request_timeout + plan.late) + 2_000;
    let faults = plan.quiet_at.saturating_sub(crate::exec::now() / 1_000_000);
    let timeout = if waits_for_quiet { faults + enough } else { enough };
    let alive = || world(|w| w.processes[process].alive);
    if !alive() {
        return;
    }
    world(|w| {
        tell!(w, Some(process), "engine {engine} shuts down");
        w.closing(process, engine);
    });
    let done = locks.shutdown(Duration::from_millis(timeout)).await;
    if !alive() {
        return;
    }
    match done {
        Ok(()) => world(|w| w.shut_down(process, engine)),
        Err(error) => {
            // One that may have spent its time on faults is excused.
            if plan.healthy || waits_for_quiet || faults == 0 {
                violate(format!("p{process}: {error}"));
            }
        }
    }
}

impl World {
    /// Decides when which process is paused or killed, and what becomes of the store.
    fn plan_faults(&mut self) {
        let plan = self.plan.clone();
        let mut rng = Rng::with_seed(plan.seed ^ 0x6661_756c);
        let r = &mut rng;
        let processes = plan.processes;
        for _ in 0..plan.pauses {
            let event = Event::Pause(r.usize(..processes), r.u64(1..=plan.lease * 3));
            self.tasks.after(r.u64(0..plan.quiet_at), event);
        }
        for _ in 0..plan.kills.min(u32::try_from(processes).unwrap_or(0) - 1) {
            self.tasks.after(r.u64(0..plan.quiet_at), Event::Kill(r.usize(..processes)));
        }
        for _ in 0..plan.cuts {
            let event = Event::Cut(r.usize(..processes), r.u64(1..=plan.lease * 2));
            self.tasks.after(r.u64(0..plan.quiet_at), event);
        }
        if plan.majority.is_some() {
            self.plan_node_faults(r);
        }
        let one_store = plan.majority.is_none();
        for _ in 0..if one_store { plan.restarts } else { 0 } {
            self.tasks.after(r.u64(0..plan.quiet_at), Event::Down(r.u64(1..=plan.lease)));
        }
        for _ in 0..if one_store { plan.losses } else { 0 } {
            let at = r.u64(0..plan.quiet_at);
            let copy = r.bool();
            self.tasks.after(at, Event::Copy);
            let lag = r.u64(0..=(plan.quiet_at - at).min(plan.lease));
            self.tasks.after(at + lag, Event::Lose(copy));
        }
        for _ in 0..plan.forced {
            self.tasks.after(r.u64(0..plan.quiet_at), Event::Force(r.usize(..plan.keys)));
        }
        if plan.sessions {
            self.tasks.after(plan.lease / 2, Event::Tick);
        }
        self.tasks.after(plan.quiet_at, Event::Quiet);
        self.tasks.at(u64::MAX / 8, Event::End);
    }
}

impl Event {
    pub(crate) fn happen(self) {
        match self {
            Self::Arrive(message) => {
                let probes = world(|w| {
                    let changes = w.arrived(message);
                    w.probes(&changes)
                });
                ask_all(probes);
            }
            Self::Kill(process) => {
                let tasks = world(|w| {
                    tell!(w, Some(process), "is killed");
                    w.judge.summary.faults += 1;
                    w.processes[process].alive = false;
                    w.processes[process].stalled = None;
                    w.tasks.kill(process)
                });
                crate::log::quietly(|| drop(tasks));
            }
            Self::Tick => {
                let probes = world(|w| {
                    w.tasks.after(w.plan.lease / 2, Self::Tick);
                    let time = w.clock(None);
                    let changes = if w.store.up { w.store.tick(time) } else { Changes::default() };
                    w.note(&changes);
                    w.notify(&changes);
                    w.probes(&changes)
                });
                ask_all(probes);
            }
            event => world(|w| w.happen(event)),
        }
    }
}

impl World {
    fn happen(&mut self, event: Event) {
        if matches!(
            event,
            Event::Pause(..)
                | Event::Cut(..)
                | Event::Down(_)
                | Event::NodeDown(..)
                | Event::NodeEmpty(_)
                | Event::Lose(_)
                | Event::Force(_)
        ) {
            self.judge.summary.faults += 1;
        }
        match event {
            Event::Arrive(_) | Event::Kill(_) | Event::Tick | Event::End => {}
            Event::Reply(request, answer) => self.replied(request, answer),
            Event::Told(process, key) => self.told(process, key),
            Event::Pause(process, millis) => self.pause(process, millis),
            Event::Resume(process) => self.resume(process),
            Event::Cut(process, millis) => {
                tell!(self, Some(process), "is cut off for {millis} ms");
                self.processes[process].cut_until = crate::exec::now() + millis * 1_000_000;
            }
            Event::Down(millis) => {
                tell!(self, None, "the store is down for {millis} ms");
                self.store.up = false;
                self.store.restart(self.clock(None));
                self.tasks.after(millis, Event::Up);
            }
            Event::Up => {
                if !self.store.up {
                    tell!(self, None, "the store is up");
                    self.store.up = true;
                    self.store.restart(self.clock(None));
                    self.came_up();
                }
            }
            Event::NodeDown(node, millis) => self.node_down(node, millis),
            Event::NodeUp(node) => self.node_up(node),
            Event::NodeEmpty(node) => self.node_empty(node),
            Event::Copy => self.store.replicate(),
            Event::Lose(copy) => {
                tell!(self, None, "the store goes on with {}", if copy { "an old copy" } else { "nothing" });
                self.store.lose(copy);
                self.all_taken_away();
            }
            Event::Force(key) => {
                let key = self.key(&format!("k{key}"));
                tell!(self, None, "an administrator frees {}", self.keys[key]);
                let changes = self.store.force(key);
                self.taken_away(key);
                for (key, process) in changes.tell {
                    self.tasks.after(0, Event::Told(process, key));
                }
            }
            Event::Write(access) => self.write(&access),
            Event::Quiet => {
                tell!(self, None, "nothing fails any more");
                self.quiet = true;
                self.quiet_since = crate::exec::now();
                for process in 0..self.processes.len() {
                    self.resume(process);
                    self.processes[process].cut_until = 0;
                }
                self.down.clear();
                self.happen(Event::Up);
            }
        }
    }
}

/// Nobody believes to hold what was granted to somebody else.
fn ask_all(probes: Vec<(u64, usize, u64, Held)>) {
    for (_, process, fence, held) in probes {
        if held.is_held() {
            violate(format!(
                "p{process} believes to hold what was granted anew, or left, with fence {fence}"
            ));
        }
    }
}
