//! Everything that one run is about, reached from wherever its thread is.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::task::Waker;

use fastrand::Rng;

use crate::exec::{TaskId, Tasks, now};
use crate::judge::Judge;
use crate::lease::{Answer, Command, Store};
use crate::majority;
use crate::net::{Connection, Message};
use crate::plan::Plan;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// Calls `f` with the run of this thread. Never while one such call is under way.
pub(crate) fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|w| f(w.as_mut().expect("a simulation runs on this thread")))
}

/// Puts a run on this thread, and returns the one that was there.
pub(crate) fn replace(new: Option<World>) -> Option<World> {
    WORLD.replace(new)
}

/// A rule was broken; the first one counts, and the run ends.
pub(crate) fn violate(what: String) {
    world(|w| w.violate(what));
}

/// Writes a line of the story, where one is wanted.
macro_rules! tell {
    ($w:expr, $process:expr, $($text:tt)*) => {
        if $w.story.is_some() {
            let text = format!($($text)*);
            $w.tell($process, &text);
        }
    };
}
pub(crate) use tell;

/// One process: an engine or two, with keepers, and the tasks that use them.
pub(crate) struct Process {
    pub(crate) alive: bool,
    /// Whether it is to be killed.
    pub(crate) doomed: bool,
    /// The tasks that are to go on after a pause, while there is one.
    pub(crate) stalled: Option<Vec<TaskId>>,
    pub(crate) paused_at: u64,
    pub(crate) paused_in_all: u64,
    pub(crate) resumed_at: u64,
    pub(crate) connections: Vec<Connection>,
    /// Until when nothing passes between it and the store.
    pub(crate) cut_until: u64,
    /// How often it was notified of a change, by key.
    pub(crate) told: HashMap<usize, u64>,
    pub(crate) watchers: Vec<(usize, Waker)>,
}

impl Process {
    /// For how long it was paused until now.
    pub(crate) fn paused(&self) -> u64 {
        self.paused_in_all + if self.stalled.is_some() { now() - self.paused_at } else { 0 }
    }
}

/// Something that happens by itself at its time.
pub(crate) enum Event {
    Arrive(Message),
    Reply(u64, Result<Answer, Trouble>),
    Told(usize, usize),
    Pause(usize, u64),
    Resume(usize),
    Kill(usize),
    Cut(usize, u64),
    Down(u64),
    Up,
    /// A node of the quorum is down for so many milliseconds.
    NodeDown(usize, u64),
    NodeUp(usize),
    /// A node of the quorum is empty.
    NodeEmpty(usize),
    Copy,
    /// The store goes on with its copy, or with nothing.
    Lose(bool),
    Force(usize),
    Write(Box<Access>),
    Tick,
    Quiet,
    End,
}

/// A write to the resource that the locks protect.
pub(crate) struct Access {
    pub(crate) key: usize,
    pub(crate) fence: u64,
    pub(crate) value: u64,
}

/// How a request fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trouble {
    Refused,
    Reset,
    Panic,
}

/// A request that its sender waits for.
#[derive(Default)]
pub(crate) struct Wanted {
    pub(crate) waker: Option<Waker>,
    pub(crate) answer: Option<Result<Answer, Trouble>>,
}

/// One run.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) tasks: Tasks,
    pub(crate) rng: Rng,
    pub(crate) processes: Vec<Process>,
    /// With a quorum the name of each key on each of the nodes, one node after the other, and then those of locks.
    pub(crate) keys: Vec<String>,
    /// With a quorum all of its nodes, which share nothing but the code.
    pub(crate) store: Store,
    /// The nodes of the quorum that are down.
    pub(crate) down: HashSet<usize>,
    pub(crate) requests: HashMap<u64, Wanted>,
    pub(crate) request: u64,
    pub(crate) claims: u64,
    /// Counts the operations.
    pub(crate) owner: u64,
    pub(crate) quiet: bool,
    pub(crate) quiet_since: u64,
    pub(crate) judge: Judge,
    pub(crate) violation: Option<String>,
    pub(crate) story: Option<String>,
}

impl World {
    pub(crate) fn new(plan: Plan, story: bool) -> Self {
        let seed = plan.seed;
        let process = |_| Process {
            alive: true,
            doomed: false,
            stalled: None,
            paused_at: 0,
            paused_in_all: 0,
            resumed_at: 0,
            connections: (0..plan.connections).map(|_| Connection::default()).collect(),
            cut_until: 0,
            told: HashMap::new(),
            watchers: Vec::new(),
        };
        Self {
            tasks: Tasks::new(seed ^ 0x7461_736b),
            rng: Rng::with_seed(seed ^ 0x776f_726c),
            processes: (0..plan.processes).map(process).collect(),
            keys: majority::keys(&plan),
            store: Store::new(plan.twin, plan.sessions, plan.drift[0]),
            down: HashSet::new(),
            requests: HashMap::new(),
            request: 0,
            claims: 0,
            owner: 0,
            quiet: plan.healthy,
            quiet_since: 0,
            judge: Judge::default(),
            violation: None,
            story: story.then(String::new),
            plan,
        }
    }

    pub(crate) fn violate(&mut self, what: String) {
        tell!(self, None, "BROKEN: {what}");
        self.violation.get_or_insert(what);
    }

    pub(crate) fn tell(&mut self, process: Option<usize>, text: &str) {
        if let Some(story) = &mut self.story {
            let at = now() / 1_000_000;
            let who = process.map_or_else(|| "world".into(), |p| format!("p{p}"));
            let _ = writeln!(story, "{:>6}.{:03} s  {who:<5}  {text}", at / 1_000, at % 1_000);
        }
    }

    /// The number of a key.
    pub(crate) fn key(&mut self, name: &str) -> usize {
        if let Some(at) = self.keys.iter().position(|key| key == name) {
            return at;
        }
        self.keys.push(name.to_owned());
        self.keys.len() - 1
    }

    pub(crate) fn chance(&mut self, rate: u32) -> bool {
        rate > 0 && !self.quiet && self.rng.u32(..1_000) < rate
    }

    /// The reading of a process's clock, or the store's, now.
    pub(crate) fn clock(&self, process: Option<usize>) -> u64 {
        read(self.plan.drift[process.map_or(0, |p| p + 1)])
    }

    pub(crate) fn pause(&mut self, process: usize, millis: u64) {
        let p = &mut self.processes[process];
        if p.alive && p.stalled.is_none() {
            p.stalled = Some(Vec::new());
            p.paused_at = now();
            tell!(self, Some(process), "is paused for {millis} ms");
            self.tasks.after(millis, Event::Resume(process));
        }
    }

    /// Whether a process may be killed, so that another one is left; it then counts as one that will be.
    pub(crate) fn doomed(&mut self, process: usize) -> bool {
        let left = self.processes.iter().filter(|p| p.alive && !p.doomed).count();
        let may = left > 1 || self.processes[process].doomed;
        self.processes[process].doomed |= may;
        may
    }

    pub(crate) fn resume(&mut self, process: usize) {
        let p = &mut self.processes[process];
        if let Some(stalled) = p.stalled.take() {
            p.paused_in_all += now() - p.paused_at;
            p.resumed_at = now();
            tell!(self, Some(process), "goes on");
            self.tasks.wake_all(stalled);
        }
    }

    pub(crate) fn command_of(&self, command: &Command) -> String {
        let name = |key: usize| self.keys[key].as_str();
        match command {
            Command::Attempt(all) => {
                let all: Vec<String> =
                    all.iter().map(|one| format!("{} as c{}", name(one.key), one.claim)).collect();
                format!("asks for {}", all.join(", "))
            }
            Command::Renew(one) => format!("renews {} of c{}", name(one.key), one.claim),
            Command::Downgrade(one) => format!("downgrades {} of c{}", name(one.key), one.claim),
            Command::Withdraw(one) => format!("withdraws {} of c{}", name(one.key), one.claim),
            Command::Leave(one, taken_for) => {
                format!("leaves {} of c{} for {} ms", name(one.key), one.claim, taken_for / 1_000_000)
            }
            Command::Inspect(usize::MAX) => "says that it lives".into(),
            Command::Inspect(key) => format!("inspects {}", name(*key)),
        }
    }
}

/// The reading of a clock that runs `drift` parts per million fast. Begins at an hour, so that it can be reckoned back
/// from.
pub(crate) fn read(drift: i64) -> u64 {
    let true_time = now();
    let extra = i128::from(true_time) * i128::from(drift) / 1_000_000;
    let reading = i128::from(true_time) + extra;
    3_600_000_000_000 + u64::try_from(reading).unwrap_or(0)
}
