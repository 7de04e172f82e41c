//! Leaders that are killed, frozen, cut off, or blocked meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use dlock_rig::proxy::Proxy;
use dlock_rig::worker::{Order, Report as Said, Worker};
use dlock_testkit::now_ns;
use fastrand::Rng;
use futures_util::future::select_all;
use indicatif::ProgressBar;
use tokio::time::Instant;

use crate::figure::{Report, Spread, progress};
use crate::store::Store;
use crate::{Failed, Volume};

const LEASE: Duration = Duration::from_secs(1);
/// So long that no renewal is in the way.
const RESIGNED_LEASE: Duration = Duration::from_secs(30);
/// When the next one leads where it is notified.
const SOON: Duration = Duration::from_millis(50);
/// How long a candidate has to get in line: more than the 100 ms for which it stands back where the backend notifies.
const STANDS: Duration = Duration::from_millis(250);
/// Elections at a time.
const LANES: usize = 8;
/// Candidates of each.
const REPLICAS: usize = 3;
/// How long a machine that is busy with other things may be without a leader.
const ACCEPTED: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fault {
    Killed,
    Frozen,
    CutOff,
    /// Its runtime does nothing until after it has lost its term.
    CutOffAndBlocked,
}

impl Fault {
    const ALL: [(Self, &str); 4] = [
        (Self::Killed, "killed"),
        (Self::Frozen, "frozen"),
        (Self::CutOff, "cut off"),
        (Self::CutOffAndBlocked, "cut off with a blocked runtime"),
    ];
}

/// What happened in one election.
#[derive(Default)]
struct Seen {
    /// When a term began, and until when its leader believed in it.
    terms: Vec<(u64, u64)>,
    gaps: Vec<(Fault, Duration)>,
}

impl Seen {
    /// How many terms were believed in while another one was.
    fn overlaps(&self) -> usize {
        let mut terms = self.terms.clone();
        terms.sort_unstable();
        terms.windows(2).filter(|pair| pair[0].1 > pair[1].0).count()
    }
}

pub(crate) async fn measure(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let (lanes, each) = (volume.of(LANES, 2), volume.of(125, 4));
    let bar = progress("leaders", store.name(), lanes * each);
    let mut all = Vec::new();
    for lane in 0..lanes {
        let random = Rng::with_seed(volume.seed ^ u64::try_from(lane)?);
        all.push(elections(store, each, random, bar.clone()));
    }
    let seen = futures_util::future::try_join_all(all).await?;
    bar.finish_and_clear();
    let total: usize = seen.iter().map(|seen| seen.gaps.len()).sum();
    let terms: usize = seen.iter().map(|seen| seen.terms.len()).sum();
    let overlaps: usize = seen.iter().map(Seen::overlaps).sum();
    let what = format!("{total} faults of leaders over {terms} terms: terms that were believed in at a time");
    report.add(store.name(), what, overlaps, "0", overlaps == 0);
    let gaps = |of: Option<Fault>| -> Vec<_> {
        let gaps = seen.iter().flat_map(|seen| &seen.gaps);
        gaps.filter(|(fault, _)| of.is_none_or(|of| of == *fault)).map(|(_, gap)| *gap).collect()
    };
    for (fault, name) in Fault::ALL {
        let of = gaps(Some(fault));
        if !of.is_empty() {
            let what =
                format!("{} leaders {name}: time to the next one, in % of the lease of {LEASE:?}", of.len());
            report.note(store.name(), what, Spread::of(of).percent(LEASE));
        }
    }
    let within = gaps(None).iter().filter(|gap| **gap <= LEASE.mul_f64(1.1)).count();
    let spread = Spread::of(gaps(None));
    let what = format!("all of them, and those within 1.1 leases ({within} of {total})");
    let promise = if store.kind().is_etcd() {
        "150 % at the most (accepted here: 200 %)"
    } else {
        "110 % at the most (accepted here: 150 %)"
    };
    let accepted = if store.kind().is_etcd() { LEASE * 2 } else { ACCEPTED };
    report.add(store.name(), what, spread.percent(LEASE), promise, spread.max <= accepted);
    Ok(())
}

/// Measures how soon the next candidate leads when a leader resigns, on a server that is not disturbed.
pub(crate) async fn resign(store: &Store, volume: Volume, report: &mut Report) -> Result<(), Failed> {
    let rounds = volume.of(300, 5);
    let bar = progress("resignations", store.name(), rounds);
    let key = store.key();
    // Each with connections of its own, as in two processes.
    let all = [store.locks(RESIGNED_LEASE).await?, store.locks(RESIGNED_LEASE).await?];
    let [mut leads, mut waits] = all.each_ref().map(|locks| locks.election(&key).campaign());
    let next_is_notified = all[0].capabilities().notified;
    let mut term = leads.next().await.ok_or("nobody leads")?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut next = Box::pin(waits.next());
        // Whoever resigned stands back for a moment; then it waits for its turn.
        if tokio::time::timeout(STANDS, &mut next).await.is_ok() {
            return Err("two lead at a time".into());
        }
        let called = Instant::now();
        let (resigned, (next, took)) = tokio::join!(term.resign(), async { (next.await, called.elapsed()) });
        resigned?;
        times.push(took);
        term = next.ok_or("nobody leads")?;
        std::mem::swap(&mut leads, &mut waits);
        bar.inc(1);
    }
    bar.finish_and_clear();
    term.resign().await?;
    let soon = times.iter().filter(|took| **took <= SOON).count();
    let what = format!("{rounds} leaders resigned: time to the next one");
    report.note(store.name(), what, Spread::of(times));
    let what = "the same: within 50 ms";
    if next_is_notified {
        // One in a hundred may be the machine's.
        report.add(store.name(), what, soon, "99 %", soon * 100 >= rounds * 99);
    } else {
        // It takes as long as a poll.
        report.note(store.name(), what, soon);
    }
    for locks in all {
        locks.shutdown(RESIGNED_LEASE).await?;
    }
    Ok(())
}

/// One candidate.
struct Replica {
    worker: Worker,
    /// Its way to the server, where there is one.
    way: Option<(Proxy, String)>,
}

impl Replica {
    async fn start(store: &Store, key: &str, way: Option<(Proxy, String)>) -> Result<Self, Failed> {
        let url = way.as_ref().map_or_else(|| store.url(LEASE), |(_, url)| url.clone());
        let mut worker = store.worker_at(&url, LEASE).await?;
        worker.ask(&Order::Lead { key: key.to_owned() }).await?;
        Ok(Self { worker, way })
    }
}

struct Election<'a> {
    store: &'a Store,
    key: String,
    replicas: Vec<Replica>,
    /// Who leads: the place and the time.
    leads: Option<(usize, u64)>,
    /// Terms whose end was not reported yet, by place and number.
    open: HashMap<(usize, u64), u64>,
    seen: Seen,
}

async fn elections(store: &Store, faults: usize, mut random: Rng, bar: ProgressBar) -> Result<Seen, Failed> {
    let key = store.key();
    let mut replicas = Vec::new();
    for _ in 0..REPLICAS {
        replicas.push(Replica::start(store, &key, store.proxy(LEASE)?).await?);
    }
    let mut election =
        Election { store, key, replicas, leads: None, open: HashMap::new(), seen: Seen::default() };
    for round in 0..faults {
        let (place, _) = election.leader_after(0).await?;
        // Anywhere between two renewals.
        election.watch(LEASE.mul_f64(random.f64())).await?;
        if election.leads.is_some_and(|(now, _)| now != place) {
            // A machine that is busy with other things let it lose its term by itself.
            continue;
        }
        let (fault, _) = Fault::ALL[round % Fault::ALL.len()];
        election.inject(fault, place, random.f64()).await?;
        bar.inc(1);
    }
    Ok(election.seen)
}

impl Election<'_> {
    /// Takes the next report of any of them, and notes what it says.
    async fn step(&mut self) -> Result<(), Failed> {
        let reports = self.replicas.iter_mut().map(|replica| Box::pin(replica.worker.report()));
        let (said, place, _) = select_all(reports).await;
        match said? {
            Said::Leads { term, at } => {
                self.leads = Some((place, at));
                self.open.insert((place, term), at);
            }
            Said::Left { term, believed_until } => {
                let began = self.open.remove(&(place, term)).ok_or("a term ended that did not begin")?;
                self.seen.terms.push((began, believed_until));
            }
            // The end of a block.
            Said::Checked { .. } => {}
            other => return Err(format!("unexpected: {other:?}").into()),
        }
        Ok(())
    }

    /// Notes what happens for so long.
    async fn watch(&mut self, time: Duration) -> Result<(), Failed> {
        let until = Instant::now() + time;
        while let Ok(step) = tokio::time::timeout_at(until, self.step()).await {
            step?;
        }
        Ok(())
    }

    /// Waits for a leader whose term began after this.
    async fn leader_after(&mut self, after: u64) -> Result<(usize, u64), Failed> {
        loop {
            if let Some((place, at)) = self.leads
                && at > after
            {
                return Ok((place, at));
            }
            self.step().await?;
        }
    }

    async fn inject(&mut self, fault: Fault, place: usize, part: f64) -> Result<(), Failed> {
        let replica = &mut self.replicas[place];
        let proxy = || replica.way.as_ref().map(|(proxy, _)| proxy).ok_or("there is no way to cut");
        match fault {
            Fault::Killed => {}
            Fault::Frozen => replica.worker.freeze()?,
            Fault::CutOff => proxy()?.black_hole(),
            Fault::CutOffAndBlocked => {
                proxy()?.black_hole();
                let ms = u64::try_from((LEASE * 2).as_millis())?;
                replica.worker.order(&Order::Block { ms }).await?;
            }
        }
        let began = now_ns();
        if fault == Fault::Killed {
            let replica = &mut self.replicas[place];
            replica.worker.kill().await?;
            let way = replica.way.take();
            // Of one that did not say when it left, only the beginning is known for certain.
            self.open.retain(|(of, _), from| {
                let is_its = *of == place;
                if is_its {
                    self.seen.terms.push((*from, *from));
                }
                !is_its
            });
            let (store, key) = (self.store, self.key.clone());
            self.replicas[place] = Replica::start(store, &key, way).await?;
        }
        let (_, next) = self.leader_after(began).await?;
        self.seen.gaps.push((fault, Duration::from_nanos(next - began)));
        self.watch(LEASE.mul_f64(part)).await?;
        let replica = &self.replicas[place];
        match fault {
            Fault::Killed => {}
            Fault::Frozen => replica.worker.thaw()?,
            Fault::CutOff | Fault::CutOffAndBlocked => {
                if let Some((proxy, _)) = &replica.way {
                    proxy.mend();
                }
            }
        }
        // What it believed at the end of its term is part of the record.
        while fault != Fault::Killed
            && self.open.keys().any(|(of, _)| *of == place)
            && !self.leads_again(place)
        {
            self.step().await?;
        }
        Ok(())
    }

    /// Whether the one at `place` leads by now.
    fn leads_again(&self, place: usize) -> bool {
        let terms = self.open.keys().filter(|(of, _)| *of == place).count();
        terms == 1 && self.leads.is_some_and(|(leads, _)| leads == place)
    }
}
