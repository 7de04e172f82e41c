//! Random faults over processes that work on one register, and the checkers' verdict.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dlock_rig::proxy::{Direction, Flow, Loss, Proxy};
use dlock_rig::register::RegisterServer;
use dlock_rig::worker::{Order, Report as Said, Way, Work, Worker};
use dlock_testkit::checkers::{
    Inversion, Overlap, Sharing, Updates, fence_order, lost_updates, overlap, sharing,
};
use dlock_testkit::history::{self, Event, Op, Outcome};
use dlock_testkit::register::Register;
use tokio::task::JoinSet;

use crate::clock::WallClock;
use crate::cluster::Cluster;
use crate::figure::{Report, progress};
use crate::store::{Kind, Server, Store};
use crate::{Failed, Volume};

pub(crate) const ARENAS: usize = 6;
const WORKERS: usize = 3;

/// What happened in one arena: a key, a register, and processes that fight for them.
#[derive(Default)]
struct Fought {
    events: Vec<Event>,
    updates: Updates,
    blows: Blows,
}

/// How often each kind of fault was made.
type Blows = BTreeMap<Blow, usize>;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Blow {
    Kill,
    Freeze,
    Cut,
    LostReply,
    Delay,
    BlackHole,
    FrozenServer,
    KilledServer,
    Parted,
    Expiry,
    ClockSet,
    LostData,
}

impl Blow {
    /// What can hit processes, the likely ones more than once.
    const AT_PROCESSES: [Self; 5] = [Self::Kill, Self::Kill, Self::Freeze, Self::Freeze, Self::Freeze];
    /// The same where there is a network in between.
    const WITH_NETWORK: [Self; 10] = [
        Self::Kill,
        Self::Freeze,
        Self::Freeze,
        Self::Cut,
        Self::Cut,
        Self::LostReply,
        Self::LostReply,
        Self::LostReply,
        Self::Delay,
        Self::BlackHole,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Kill => "processes killed",
            Self::Freeze => "processes frozen",
            Self::Cut => "times all connections cut",
            Self::LostReply => "replies lost",
            Self::Delay => "delays",
            Self::BlackHole => "black holes",
            Self::FrozenServer => "servers frozen",
            Self::KilledServer => "servers killed",
            Self::Parted => "leaders parted from the other servers",
            Self::Expiry => "sessions ended",
            Self::ClockSet => "times the wall clock of the processes set",
            Self::LostData => "times all data lost",
        }
    }
}

fn describe(blows: &Blows) -> String {
    let total: usize = blows.values().sum();
    let each: Vec<_> = blows.iter().map(|(blow, count)| format!("{count} {}", blow.name())).collect();
    format!("{total} faults ({})", each.join(", "))
}

/// What a fight is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fight {
    /// Whether the register looks at fences.
    pub(crate) fenced: bool,
    /// Faults in each arena.
    pub(crate) rounds: usize,
    pub(crate) seed: u64,
    /// Whether the wall clock of the processes is set to and fro.
    pub(crate) sets_clocks: bool,
    /// Whether the server loses all data now and then; only Redis does, whose fences are in order all the same.
    pub(crate) loses_data: bool,
    /// How the lock is taken.
    pub(crate) way: Way,
}

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    // A server and a network have more ways to fail, and fewer of their faults hit a section in the middle.
    let (with, without, quick) = if store.server().is_some() { (170, 17, 8) } else { (34, 9, 4) };
    let fight = |fenced, full| Fight {
        fenced,
        rounds: volume.of(full, quick),
        seed: volume.seed,
        sets_clocks: false,
        loses_data: false,
        way: Way::Alone,
    };
    let fenced = fight(true, with).fight(store, report).await?;
    // Whether they bite shows with one server: where leases begin anew with each leader, they outlast most faults.
    if store.kind() == Kind::EtcdCluster {
        return Ok(());
    }
    let unfenced = fight(false, without).fight(store, report).await?;
    let bit = fenced.stale_tried > 0 && unfenced.stale_tried > 0;
    let value = format!("{} with fences, {} without", fenced.stale_tried, unfenced.stale_tried);
    report.add(store.name(), "the same: stale writes tried (do the faults bite?)", value, "more than 0", bit);
    Ok(())
}

impl Fight {
    /// Lets processes fight for keys of `store` under faults, and judges what they recorded.
    pub(crate) async fn fight(self, store: &Store, report: &mut Report) -> Result<Updates, Failed> {
        let fenced = self.fenced;
        let what = if fenced { "faults, register with fences" } else { "faults, register without fences" };
        let all = self.fought(what, store).await?;
        for inversion in &all.inversions {
            eprintln!("{inversion:?}");
        }
        for overlap in &all.overlaps {
            eprintln!("{overlap:?}");
        }
        let name = store.name();
        let All { updates, blows, mut inversions, mut overlaps, grants, releases, .. } = all;
        // Data that is lost takes every lock from its holder, who knows it at its next renewal.
        if self.loses_data {
            let losses = blows.get(&Blow::LostData).copied().unwrap_or_default();
            let early = inversions.extract_if(.., |it| it.what == Inversion::TOO_EARLY).count();
            let (most, both) = (losses * ARENAS, overlaps.len());
            let what = format!("{losses} times all data lost: grants before the time promised, overlaps");
            let kept = early <= most && both <= most;
            report.add(name, what, format!("{early}, {both}"), format!("{most} at the most"), kept);
            overlaps.clear();
        }
        // Whoever ends a session by force takes back what was promised to the holder of its lock, and the order stays.
        let ended = blows.get(&Blow::Expiry).copied().unwrap_or_default();
        let early = inversions.extract_if(.., |it| ended > 0 && it.what == Inversion::TOO_EARLY).count();
        if ended > 0 {
            let what =
                format!("{ended} sessions ended by force: grants before the time promised to the old holder");
            report.add(name, what, early, format!("{ended} at the most"), early <= ended);
        }
        if fenced {
            let what = format!("{} over {grants} grants and {releases} releases", describe(&blows));
            report.add(
                name,
                format!("{what}: fences out of order"),
                inversions.len(),
                "0",
                inversions.is_empty() && grants > 0,
            );
            report.add(
                name,
                "the same: overlaps of believed holds",
                overlaps.len(),
                "0",
                overlaps.is_empty(),
            );
            let value = format!("{} of {}", updates.stale_accepted, updates.stale_tried);
            report.add(name, "the same: stale writes accepted", value, "0", updates.stale_accepted == 0);
            let value = format!("{} of {}", updates.lost_updates, updates.tried);
            report.add(name, "the same: updates lost", value, "0", updates.lost_updates == 0);
        } else {
            let value = format!("{} of {}", updates.lost_updates, updates.tried);
            report.add(
                name,
                format!("without fences, {}: updates lost", describe(&blows)),
                value,
                "more than 0: the lock alone cannot",
                updates.lost_updates > 0 && inversions.is_empty() && overlaps.is_empty(),
            );
        }
        Ok(updates)
    }

    /// Lets processes fight, and says what happened.
    pub(crate) async fn fought(self, what: &str, store: &Store) -> Result<All, Failed> {
        let Self { fenced, rounds, seed: base, .. } = self;
        let bar = Arc::new(progress(what, store.name(), rounds * ARENAS));
        let mut arenas = JoinSet::new();
        for arena in 0..ARENAS {
            let seed = base ^ (u64::try_from(arena)? << 8) ^ u64::from(fenced);
            let arena = Arena::open(store, self, seed).await?;
            let bar = Arc::clone(&bar);
            arenas.spawn(async move { arena.run(rounds, &bar).await });
        }
        let done = AtomicBool::new(false);
        let server = hit_the_server(store, self, &done);
        let collected = async {
            let fought = collect(arenas).await;
            done.store(true, Ordering::SeqCst);
            fought
        };
        let (fought, server) = tokio::join!(collected, server);
        let (mut all, server) = (fought?, server?);
        all.blows.extend(server);
        bar.finish_and_clear();
        Ok(all)
    }
}

/// What happened in all arenas.
#[derive(Default)]
pub(crate) struct All {
    pub(crate) updates: Updates,
    blows: Blows,
    inversions: Vec<Inversion>,
    overlaps: Vec<Overlap>,
    pub(crate) sharing: Sharing,
    pub(crate) grants: usize,
    pub(crate) releases: usize,
}

impl All {
    /// The faults, as text.
    pub(crate) fn faults(&self) -> String {
        describe(&self.blows)
    }

    /// How many sessions were ended by force.
    pub(crate) fn sessions_ended(&self) -> usize {
        self.blows.get(&Blow::Expiry).copied().unwrap_or_default()
    }
}

async fn collect(mut arenas: JoinSet<Result<Fought, Failed>>) -> Result<All, Failed> {
    let mut all = All::default();
    while let Some(arena) = arenas.join_next().await {
        let fought = arena??;
        let order = fence_order(&fought.events);
        all.grants += order.grants;
        all.releases += fought
            .events
            .iter()
            .filter(|event| event.op == Op::Release && event.outcome == Outcome::Ok)
            .count();
        all.inversions.extend(order.inversions);
        all.overlaps.extend(overlap(&fought.events).overlaps);
        let shared = sharing(&fought.events);
        all.sharing.holds += shared.holds;
        all.sharing.most = all.sharing.most.max(shared.most);
        all.sharing.beside.extend(shared.beside);
        all.sharing.inversions.extend(shared.inversions);
        all.updates.tried += fought.updates.tried;
        all.updates.stale_tried += fought.updates.stale_tried;
        all.updates.stale_accepted += fought.updates.stale_accepted;
        all.updates.lost_updates += fought.updates.lost_updates;
        for (blow, count) in fought.blows {
            *all.blows.entry(blow).or_default() += count;
        }
    }
    Ok(all)
}

/// Freezes and kills the server, where there is one, until the processes are done. It keeps its data.
async fn hit_the_server(store: &Store, fight: Fight, done: &AtomicBool) -> Result<Blows, Failed> {
    let mut random = fastrand::Rng::with_seed(fight.seed ^ u64::from(fight.fenced));
    let (mut blows, lease) = (Blows::new(), store.kind().lease());
    while store.server().is_some() && !done.load(Ordering::SeqCst) {
        tokio::time::sleep(lease.mul_f64(3.0 + 3.0 * random.f64())).await;
        let blow = match (random.u8(0..4), store.kind()) {
            (0, Kind::Zk) => Blow::Expiry,
            (0, Kind::EtcdCluster) => Blow::Parted,
            (0, Kind::Redis) if fight.loses_data => Blow::LostData,
            (0 | 1, _) => Blow::KilledServer,
            _ => Blow::FrozenServer,
        };
        match blow {
            Blow::KilledServer => store.server().map_or(Ok(()), |mut server| server.restart())?,
            Blow::LostData => store.lose_data()?,
            Blow::Parted => {
                let with_cluster = |act: fn(&Cluster)| {
                    if let Some(Server::EtcdCluster(cluster)) = store.server().as_deref() {
                        act(cluster);
                    }
                };
                with_cluster(Cluster::part);
                // Another one is elected after one lease.
                tokio::time::sleep(lease.mul_f64(4.0 * random.f64())).await;
                with_cluster(Cluster::join);
            }
            Blow::Expiry => {
                if let Some(Server::ZooKeeper(server)) = store.server().as_deref() {
                    let sessions = server.admin().sessions();
                    random.choice(sessions).inspect(|session| server.admin().expire(*session));
                }
            }
            _ => {
                store.server().inspect(|server| server.pause());
                tokio::time::sleep(lease.mul_f64(1.5 * random.f64())).await;
                store.server().inspect(|server| server.resume());
            }
        }
        *blows.entry(blow).or_default() += 1;
    }
    Ok(blows)
}

struct Arena {
    /// The wall clock of the processes, where it is set.
    clock: Option<WallClock>,
    command: Command,
    url: String,
    proxy: Option<Proxy>,
    lease: Duration,
    /// How long a section takes.
    pause_ms: (u64, u64),
    /// The requests whose replies are lost.
    requests: &'static [&'static str],
    locks: dlock::Locks,
    server: RegisterServer,
    key: String,
    histories: std::path::PathBuf,
    random: fastrand::Rng,
    workers: Vec<Worker>,
    processes: u32,
    way: Way,
}

impl Arena {
    async fn open(store: &Store, fight: Fight, seed: u64) -> Result<Self, Failed> {
        let register = if fight.fenced { Register::fenced() } else { Register::unfenced() };
        let histories = store.file("histories");
        std::fs::create_dir(&histories)?;
        let lease = store.kind().lease();
        let (proxy, url) = match store.proxy(lease)? {
            Some((proxy, url)) => (Some(proxy), url),
            None => (None, store.url(lease)),
        };
        let is_proxied = proxy.is_some();
        let mut arena = Self {
            command: store.command()?,
            clock: fight.sets_clocks.then(|| WallClock::new(store.file("clock"))).transpose()?,
            url,
            proxy,
            lease,
            // Over a network there are many short sections, and some of them are hit all the same. On etcd, where each
            // write is flushed to the disk, they would be too small a part of the time.
            pause_ms: match (store.kind(), is_proxied) {
                (Kind::Etcd | Kind::EtcdCluster, _) => (8, 40),
                (_, true) => (0, 8),
                (_, false) => (40, 160),
            },
            requests: match store.kind() {
                Kind::Etcd | Kind::EtcdCluster => &["TXN", "LEASEKEEPALIVE", "LEASEGRANT", "RANGE"],
                Kind::Zk => &["CREATE", "GETCHILDREN", "DELETE", "SYNC"],
                Kind::Postgres | Kind::Mysql => &["EXECUTE"],
                _ => &["EVALSHA"],
            },
            locks: store.locks(lease).await?,
            server: RegisterServer::start(register).await?,
            key: store.key(),
            histories,
            random: fastrand::Rng::with_seed(seed),
            workers: Vec::new(),
            processes: 0,
            way: fight.way,
        };
        for _ in 0..WORKERS {
            let worker = arena.start().await?;
            arena.workers.push(worker);
        }
        Ok(arena)
    }

    /// One more process that works.
    async fn start(&mut self) -> Result<Worker, Failed> {
        let mut tries = 0;
        let mut worker = loop {
            let mut command = Command::new(self.command.get_program());
            command.args(self.command.get_args());
            self.clock.iter().for_each(|clock| clock.give_to(&mut command));
            match Worker::open(command, &self.url, self.lease).await {
                Ok(worker) => break worker,
                // The server may just have been hit.
                Err(error) if tries == 20 => return Err(error.into()),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(self.lease / 4).await;
        };
        let process = self.processes;
        self.processes += 1;
        let task = Work {
            process,
            key: self.key.clone(),
            register: self.server.address(),
            pause_ms: self.pause_ms,
            seed: self.random.u64(..),
            history: self.histories.join(format!("{process}.jsonl")),
            way: self.way,
            // What several hold is to be held by several.
            tasks: if matches!(self.way, Way::Alone | Way::Fair) { 1 } else { 2 },
        };
        worker.ask(&Order::Work(task)).await?;
        Ok(worker)
    }

    /// Who is to be hit: mostly the holder, since the others have little to lose.
    async fn victim(&mut self) -> Result<usize, Failed> {
        if self.random.u8(0..10) < 8
            && matches!(self.way, Way::Alone | Way::Fair)
            && let Ok(Some(holder)) = self.locks.inspect(&self.key).await
            && let Some(at) = self.workers.iter().position(|worker| Some(worker.pid()) == holder.pid)
        {
            return Ok(at);
        }
        Ok(self.random.usize(0..WORKERS))
    }

    async fn strike(&mut self, blow: Blow) -> Result<(), Failed> {
        let part = self.random.f64();
        match (blow, &self.proxy) {
            (Blow::Kill, _) => {
                let victim = self.victim().await?;
                self.workers[victim].kill().await?;
                self.workers[victim] = self.start().await?;
            }
            (Blow::Freeze, _) => {
                let victim = self.victim().await?;
                self.workers[victim].freeze()?;
                // Servers notice up to half a lease late that one has run out.
                tokio::time::sleep(self.lease.mul_f64(1.5 + part)).await;
                self.workers[victim].thaw()?;
            }
            (Blow::Cut, Some(proxy)) => proxy.cut(),
            (Blow::LostReply, Some(proxy)) => {
                let loss = if self.random.bool() { Loss::Cut } else { Loss::Silence };
                // Of what takes a lock, keeps it or gives it back, and not of pings.
                let name = self.random.choice(self.requests).copied().unwrap_or_default();
                proxy.lose_reply(self.random.u64(1..=5), name, loss);
            }
            (Blow::Delay, Some(proxy)) => {
                proxy.set(Direction::ToServer, Flow::Delay(self.lease.mul_f64(part / 3.0)));
                proxy.set(Direction::ToClient, Flow::Delay(self.lease.mul_f64(part / 3.0)));
                tokio::time::sleep(self.lease).await;
                proxy.mend();
            }
            (Blow::BlackHole, Some(proxy)) => {
                proxy.black_hole();
                tokio::time::sleep(self.lease.mul_f64(1.5 * part)).await;
                proxy.mend();
            }
            (Blow::ClockSet, _) => {
                let day = 24 * 3600;
                let offset = self.random.i64(-day..=day);
                self.clock.as_ref().map_or(Ok(()), |clock| clock.set(offset))?;
            }
            (other, _) => return Err(format!("{} cannot happen here", other.name()).into()),
        }
        Ok(())
    }

    async fn run(mut self, rounds: usize, bar: &indicatif::ProgressBar) -> Result<Fought, Failed> {
        let mut fought = Fought::default();
        for _ in 0..rounds {
            // Between two faults over a network there is time for a few hundred sections.
            let gap = if self.proxy.is_some() { 6.0 } else { 0.5 };
            tokio::time::sleep(self.lease.mul_f64(self.random.f64() * gap)).await;
            let blow = match self.proxy {
                _ if self.clock.is_some() && self.random.u8(0..6) == 0 => Blow::ClockSet,
                Some(_) => Blow::WITH_NETWORK[self.random.usize(..Blow::WITH_NETWORK.len())],
                None => Blow::AT_PROCESSES[self.random.usize(..Blow::AT_PROCESSES.len())],
            };
            self.strike(blow).await?;
            *fought.blows.entry(blow).or_default() += 1;
            bar.inc(1);
        }
        for worker in &mut self.workers {
            if !matches!(worker.ask(&Order::Stop).await?, Said::Worked { .. }) {
                return Err("a worker did not work to the end".into());
            }
        }
        for process in 0..self.processes {
            let path = self.histories.join(format!("{process}.jsonl"));
            if path.exists() {
                let events = history::read(path)?;
                fought.events.extend(events);
            }
        }
        fought.updates = lost_updates(&self.server.register().record());
        Ok(fought)
    }
}
