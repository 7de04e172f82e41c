//! Fleets that are made up: what their processes held, as a sound lock grants it, and one violation that is planted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use dlock_audit::checker::HeldAs;
use dlock_audit::made::{Hold, Run};
use fastrand::Rng;

pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// By how much wall clocks may be wrong: what the audit is given.
pub(crate) const ERROR: u64 = 20 * MILLI;

const LEASE: u64 = 2 * SECOND;
const START: u64 = 1_700_000_000 * SECOND;

/// The number of a hold that was planted.
pub(crate) const PLANTED: u64 = 1 << 40;

/// What a fleet is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) hosts: u32,
    pub(crate) processes: u32,
    pub(crate) keys: u32,
    pub(crate) sections: u32,
    pub(crate) is_fenced: bool,
    /// Some processes are killed.
    pub(crate) kills: bool,
}

impl Shape {
    pub(crate) fn of(rng: &mut Rng, sections: u32) -> Self {
        let hosts = rng.u32(1..6);
        Self {
            hosts,
            processes: hosts * rng.u32(1..4),
            keys: rng.u32(1..8),
            sections,
            is_fenced: rng.u8(0..8) > 0,
            kills: rng.u8(0..4) == 0,
        }
    }
}

/// What is done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// The clock of a holder stood still, so that it counted on its lease for longer.
    ClockStoodStill,
    /// A holder was paused, and noticed late that its lock was gone.
    PausedHolder,
    /// A failover lost the grant and its fence, which are given again.
    LostWrites,
    /// A backup was restored: fences begin anew from an earlier one.
    RestoredBackup,
    /// The key was deleted: the next fence is the first one.
    DeletedKey,
    /// Another has the lock by a store that gives no fence.
    NoFence,
    /// A reader was let in beside a writer.
    ReaderBesideWriter,
    /// A permit too many was given.
    PermitTooMany,
}

impl Wrong {
    pub(crate) const ALL: [Self; 8] = [
        Self::ClockStoodStill,
        Self::PausedHolder,
        Self::LostWrites,
        Self::RestoredBackup,
        Self::DeletedKey,
        Self::NoFence,
        Self::ReaderBesideWriter,
        Self::PermitTooMany,
    ];
}

/// A host, and how its clocks go.
struct Host {
    boot: u64,
    /// By how many millionths its clock is fast.
    fast: i64,
    /// From when on the wall clock is wrong by how much.
    offsets: Vec<(u64, i64)>,
}

impl Host {
    fn new(rng: &mut Rng, span: u64) -> Self {
        let most = i64::try_from(ERROR).unwrap() * 9 / 10;
        let mut offsets = vec![(0, rng.i64(-most..=most))];
        for _ in 0..rng.usize(0..4) {
            offsets.push((START + rng.u64(0..span), rng.i64(-most..=most)));
        }
        offsets.sort_unstable();
        Self { boot: START - rng.u64(SECOND..1_000_000 * SECOND), fast: rng.i64(-40..=40), offsets }
    }

    fn mono(&self, at: u64) -> u64 {
        // Only since the fleet began, so that it does not add up; and without steps back.
        let since = i128::from(at) - i128::from(START);
        let ahead = (since * i128::from(self.fast)).div_euclid(1_000_000);
        (at - self.boot).checked_add_signed(i64::try_from(ahead).unwrap()).unwrap()
    }

    fn wall(&self, at: u64) -> u64 {
        let (_, offset) = self.offsets.iter().rev().find(|(from, _)| *from <= at).unwrap();
        at.checked_add_signed(*offset).unwrap()
    }
}

/// One section, by the true time.
#[derive(Clone, Copy, Debug)]
struct Section {
    process: u32,
    key: u32,
    number: u64,
    fence: Option<u64>,
    held_as: HeldAs,
    from: u64,
    until: u64,
    end: &'static str,
}

/// Makes a fleet, with something planted or nothing.
pub(crate) fn fleet(rng: &mut Rng, shape: Shape, wrong: Option<Wrong>) -> Vec<Run> {
    let mut sections = Vec::new();
    for key in 0..shape.keys {
        // The first key is held alone, so that there is one for what is planted; the second has permits.
        let each = shape.sections / shape.keys;
        match (key, rng.u8(0..4)) {
            (0, _) => locked(rng, shape, key, each, false, &mut sections),
            (1, _) | (_, 0) => permits(rng, shape, key, each, &mut sections),
            (_, kind) => locked(rng, shape, key, each, kind == 1, &mut sections),
        }
    }
    if let Some(wrong) = wrong {
        plant(rng, shape, wrong, &mut sections);
    }
    let end = sections.iter().map(|section| section.until).max().unwrap_or(START) + SECOND;
    let hosts: Vec<Host> = (0..shape.hosts).map(|_| Host::new(rng, end - START)).collect();
    let mut runs: Vec<Run> = (0..shape.processes)
        .map(|process| {
            let host = process % shape.hosts;
            let mut pairs = Vec::new();
            let mut at = START;
            while at < end {
                pairs.push((hosts[host as usize].mono(at), hosts[host as usize].wall(at)));
                at += rng.u64(2 * SECOND..6 * SECOND);
            }
            pairs.push((hosts[host as usize].mono(end), hosts[host as usize].wall(end)));
            Run { host, pairs, is_killed: false, holds: Vec::new() }
        })
        .collect();
    let planted = sections.iter().find(|section| section.number >= PLANTED).map(|section| section.process);
    let killed: Vec<Option<u64>> = (0..shape.processes)
        .map(|process| {
            let dies = shape.kills && planted.is_none() && process > 0 && rng.bool();
            dies.then(|| rng.u64(START..end))
        })
        .collect();
    for section in sections {
        let process = section.process as usize;
        if killed[process].is_some_and(|at| at < section.until) {
            continue;
        }
        let host = &hosts[runs[process].host as usize];
        runs[process].holds.push(Hold {
            key: section.key,
            number: section.number,
            fence: section.fence,
            held_as: section.held_as,
            believed: (host.mono(section.from), host.mono(section.until)),
            end: section.end,
        });
    }
    for (run, killed) in runs.iter_mut().zip(&killed) {
        run.is_killed = killed.is_some();
    }
    runs
}

/// How long a section is: mostly short, seldom long.
fn length(rng: &mut Rng) -> u64 {
    let most = match rng.u8(0..20) {
        0 => 3 * SECOND,
        1..=4 => 50 * MILLI,
        _ => 2 * MILLI,
    };
    rng.u64(MICRO..most)
}

/// How long a message takes.
fn delay(rng: &mut Rng) -> u64 {
    if rng.u8(0..50) == 0 { rng.u64(0..SECOND) } else { rng.u64(20 * MICRO..2 * MILLI) }
}

/// A hold that the server granted at `granted`: from when and until when it is believed in, when it is free again, and
/// how it ended.
fn believed(rng: &mut Rng, granted: u64) -> (u64, u64, u64, &'static str) {
    let sent = granted - rng.u64(10 * MICRO..MILLI);
    let from = granted + delay(rng);
    let mut deadline = sent + LEASE - LEASE / 100;
    let until = from + length(rng);
    // Renewals that were answered.
    let outage = rng.u8(0..30) == 0;
    while !outage && deadline < until {
        deadline += LEASE / 2;
    }
    if deadline <= from {
        // It came too late, and was never believed in.
        return (from, from, granted + LEASE, "lease_expired");
    }
    match until < deadline {
        // A release that is lost leaves the lock to its lease.
        true if rng.u8(0..40) == 0 => (from, until, deadline + LEASE / 50, "released"),
        true => (from, until, until + rng.u64(20 * MICRO..MILLI), "released"),
        false => (from, deadline, deadline + LEASE / 50, "lease_expired"),
    }
}

/// Sections of a key that is held alone, or by readers too.
fn locked(rng: &mut Rng, shape: Shape, key: u32, count: u32, reads: bool, all: &mut Vec<Section>) {
    let (mut now, mut fence) = (START + rng.u64(SECOND..2 * SECOND), rng.u64(1..1_000_000));
    let mut number = u64::from(key) << 32;
    let mut left = count;
    while left > 0 {
        // Mostly contended: the next one is granted it at once.
        now += if rng.u8(0..10) < 7 { rng.u64(1..100 * MICRO) } else { rng.u64(0..SECOND) };
        let process = rng.u32(0..shape.processes);
        let mut put = |process, held_as, (from, until, end), fence: u64| {
            number += 1;
            let fence = shape.is_fenced.then_some(fence);
            all.push(Section { process, key, number, fence, held_as, from, until, end });
        };
        if reads && rng.bool() {
            let readers = rng.u32(1..6).min(left);
            let mut free = now;
            for _ in 0..readers {
                fence += rng.u64(1..4);
                let granted = now + rng.u64(0..5 * MILLI);
                let (from, until, ends, end) = believed(rng, granted);
                put(rng.u32(0..shape.processes), HeldAs::Reader, (from, until, end), fence);
                free = free.max(ends);
            }
            (now, left) = (free, left - readers);
            continue;
        }
        fence += rng.u64(1..70);
        let (mut from, mut until, ends, end) = believed(rng, now);
        let mut free = ends;
        put(process, HeldAs::Alone, (from, until, end), fence);
        left -= 1;
        // Passed on inside the process.
        while left > 0 && end == "released" && rng.u8(0..3) == 0 && until < now + LEASE / 4 {
            fence += 1;
            from = until + rng.u64(0..MICRO);
            until = from + rng.u64(MICRO..100 * MICRO);
            put(process, HeldAs::Alone, (from, until, end), fence);
            left -= 1;
            free = until + rng.u64(20 * MICRO..MILLI).max(free.saturating_sub(until));
        }
        now = free;
    }
}

/// Sections of a semaphore.
fn permits(rng: &mut Rng, shape: Shape, key: u32, count: u32, all: &mut Vec<Section>) {
    let of = rng.u32(1..5);
    let (mut now, mut fence) = (START + SECOND, 0);
    let mut held: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
    let mut sum = 0;
    for number in 0..count {
        let taken = rng.u32(1..=of);
        now += rng.u64(0..2 * MILLI);
        while sum + taken > of {
            let Some(Reverse((free, back))) = held.pop() else { break };
            now = now.max(free);
            sum -= back;
        }
        fence += 1;
        let (from, until, free, end) = believed(rng, now);
        held.push(Reverse((free, taken)));
        sum += taken;
        all.push(Section {
            process: rng.u32(0..shape.processes),
            key,
            number: (u64::from(key) << 32) + u64::from(number) + 1,
            fence: shape.is_fenced.then_some(fence),
            held_as: HeldAs::Permits { taken, of },
            from,
            until,
            end,
        });
    }
}

/// Plants a violation at a section of the first key, or of the second where that is about permits.
fn plant(rng: &mut Rng, shape: Shape, wrong: Wrong, all: &mut Vec<Section>) {
    let key = u32::from(wrong == Wrong::PermitTooMany);
    let of_the_key: Vec<usize> = (0..all.len()).filter(|at| all[*at].key == key).collect();
    let middle = |range: Range<usize>, rng: &mut Rng| of_the_key[rng.usize(range)];
    let count = of_the_key.len();
    let at = middle(count / 4..count / 2, rng);
    let next = of_the_key[of_the_key.partition_point(|other| *other <= at)];
    let first = all[at];
    let process = rng.u32(0..shape.processes);
    // On one host the shortest overlap counts; between two, one that no error of the clocks explains.
    let is_one_host = |other: u32| first.process % shape.hosts == other % shape.hosts;
    let most = |other| if is_one_host(other) { rng_of(first.from, 20 * MICRO) } else { 5 * ERROR };
    let beside = |fence, held_as, both: u64| Section {
        process,
        key,
        number: PLANTED,
        fence,
        held_as,
        from: first.from + MICRO,
        until: first.from + MICRO + both,
        end: "released",
    };
    match wrong {
        Wrong::ClockStoodStill | Wrong::PausedHolder => {
            let both = most(all[next].process);
            let end = if wrong == Wrong::PausedHolder { "gone" } else { "lease_expired" };
            // Both of them, for so long.
            let after = &mut all[next];
            after.until = after.until.max(after.from + both);
            let until = after.from + both;
            all[at] = Section { until: first.until.max(until), end, number: PLANTED, ..first };
        }
        Wrong::RestoredBackup => {
            // From the middle on, fences begin anew from the first one.
            let (lowest, back) = (all[of_the_key[0]].fence, first.fence);
            let by = back.unwrap_or(0) - lowest.unwrap_or(0);
            for &later in of_the_key.iter().filter(|later| **later >= at) {
                all[later].fence = all[later].fence.map(|fence| fence - by);
            }
            all[at].number = PLANTED;
        }
        Wrong::LostWrites
        | Wrong::DeletedKey
        | Wrong::NoFence
        | Wrong::ReaderBesideWriter
        | Wrong::PermitTooMany => {
            let both = most(process);
            let (fence, held_as) = match wrong {
                Wrong::LostWrites => (first.fence, HeldAs::Alone),
                Wrong::DeletedKey => (first.fence.map(|_| 1), HeldAs::Alone),
                Wrong::ReaderBesideWriter => (first.fence.map(|fence| fence + 1), HeldAs::Reader),
                Wrong::PermitTooMany => {
                    let HeldAs::Permits { of, .. } = first.held_as else { unreachable!("of the second key") };
                    (first.fence, HeldAs::Permits { taken: of, of })
                }
                _ => (None, HeldAs::Alone),
            };
            let planted = beside(fence, held_as, both);
            all[at].until = first.until.max(planted.until);
            all.push(planted);
        }
    }
}

/// A time of at least a microsecond and at most `most`, by what a section is like.
fn rng_of(seed: u64, most: u64) -> u64 {
    Rng::with_seed(seed).u64(2 * MICRO..most)
}
