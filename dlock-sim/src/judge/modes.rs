//! What holders of every mode may believe: no writer beside anybody, no more permits than there are, fences of readers
//! between those of the writers, and turns in their order.

use dlock_core::Held;
use dlock_core::backend::Mode;

use crate::exec::now;
use crate::world::{World, tell};

/// What is known of the holders in a run of modes.
#[derive(Default)]
pub(crate) struct Holders {
    number: u64,
    last_call: u64,
    views: Vec<HolderView>,
    /// The highest fences with which somebody believed to hold a key: of any, and of one alone.
    believed: Vec<(usize, u64, u64)>,
    /// Calls that wait for their turn: number, key, when they began, and since when they certainly have a place.
    calls: Vec<(u64, usize, u64, Option<u64>)>,
}

/// One holder.
#[derive(Clone)]
struct HolderView {
    number: u64,
    process: usize,
    key: usize,
    mode: Mode,
    held: Held,
}

impl World {
    /// Somebody has a guard from now on.
    pub(crate) fn holds(&mut self, process: usize, key: usize, mode: Mode, held: Held) -> u64 {
        let holders = &mut self.judge.holders;
        holders.number += 1;
        let number = holders.number;
        holders.views.push(HolderView { number, process, key, mode, held });
        number
    }

    /// A holder only reads from now on.
    pub(crate) fn reads(&mut self, number: u64) {
        let view = self.judge.holders.views.iter_mut().find(|view| view.number == number);
        if let Some(view) = view {
            view.mode = Mode::Shared;
        }
        self.judge.summary.downgrades += 1;
    }

    /// A guard is about to go. Its view is to be dropped by the caller.
    pub(crate) fn holds_no_more(&mut self, number: u64) -> Option<Held> {
        let views = &mut self.judge.holders.views;
        let at = views.iter().position(|view| view.number == number)?;
        Some(views.swap_remove(at).held)
    }

    /// One of the views that are left, to be dropped by the caller.
    pub(crate) fn any_holder(&mut self) -> Option<Held> {
        self.judge.holders.views.pop().map(|view| view.held)
    }

    /// A holder has just found that it holds the key. Returns the others of that key, to be asked.
    fn believes_in_mode(&mut self, number: u64) -> Option<(HolderView, Vec<HolderView>)> {
        let views = &self.judge.holders.views;
        let own = views.iter().find(|view| view.number == number)?.clone();
        let others = views.iter().filter(|view| view.key == own.key && view.number != number);
        let others: Vec<_> = others.filter(|view| self.processes[view.process].alive).cloned().collect();
        self.judge.summary.beliefs += 1;
        let fence = own.held.fence().map_or(0, |fence| fence.get());
        let believed = &mut self.judge.holders.believed;
        let at = believed.iter().position(|(key, ..)| *key == own.key).unwrap_or_else(|| {
            believed.push((own.key, 0, 0));
            believed.len() - 1
        });
        let (_, any, alone) = &mut believed[at];
        let least = if own.mode == Mode::Exclusive { *any } else { *alone };
        if fence < least && own.mode.permits().is_none() {
            let what = format!("p{} believes to {} with fence {fence} after {least}", own.process, own.mode);
            self.violate(what);
        } else if own.mode.permits().is_none() {
            *any = fence.max(*any);
            if own.mode == Mode::Exclusive {
                *alone = fence.max(*alone);
            }
        }
        Some((own, others))
    }

    /// A call that waits for its turn begins.
    pub(crate) fn joins(&mut self, key: usize) -> u64 {
        let holders = &mut self.judge.holders;
        holders.number += 1;
        holders.calls.push((holders.number, key, now(), None));
        holders.last_call = holders.number;
        holders.number
    }

    /// The call that began last, which makes a claim now.
    pub(crate) const fn last_call(&self) -> u64 {
        self.judge.holders.last_call
    }

    /// An attempt of this claim found the key taken: the call that made it has a place.
    pub(crate) fn has_place(&mut self, call: u64) {
        if let Some(of) = self.judge.holders.calls.iter_mut().find(|(number, ..)| *number == call) {
            of.3.get_or_insert(now());
        }
    }

    /// The call has ended; and whether it got the lock.
    pub(crate) fn leaves_line(&mut self, call: u64, granted: bool) {
        let calls = &mut self.judge.holders.calls;
        let Some(at) = calls.iter().position(|(number, ..)| *number == call) else { return };
        let (_, key, began, _) = calls.swap_remove(at);
        if !granted || !self.plan.healthy {
            return;
        }
        let before = calls.iter().find(|(_, of, _, place)| *of == key && place.is_some_and(|at| at < began));
        if let Some((other, ..)) = before.copied() {
            let name = self.keys[key].clone();
            self.violate(format!(
                "call {call} got {name} before call {other}, which had a place when it came"
            ));
        } else {
            self.judge.summary.turns += 1;
            tell!(self, None, "call {call} has its turn");
        }
    }
}

/// A holder has just found that it holds the key: no other may believe what cannot be beside that.
pub(crate) fn judge_belief(number: u64) {
    let Some((own, others)) = crate::world::world(|w| w.believes_in_mode(number)) else { return };
    let others: Vec<_> = others.into_iter().filter(|other| other.held.is_held()).collect();
    let wrong = match own.mode {
        Mode::Permits { of, take } => {
            let all = take + others.iter().map(|other| other.mode.taken()).sum::<u32>();
            (all > of).then(|| format!("{all} of {of} permits are believed in"))
        }
        Mode::Exclusive => others.first().map(|other| format!("p{} to {}", other.process, other.mode)),
        _ => {
            let alone = others.iter().find(|other| other.mode == Mode::Exclusive);
            alone.map(|other| format!("p{} to write", other.process))
        }
    };
    if let Some(what) = wrong {
        crate::world::violate(format!(
            "p{} believes to {}, and at the same time {what}",
            own.process, own.mode
        ));
    }
}
