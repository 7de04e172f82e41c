//! What has to be so of jobs that run once: no run beside another one, none in a window that is closed, and after a
//! crash what was said.

use std::collections::{HashMap, HashSet};

use super::MS;
use crate::lease::Entry;
use crate::plan::Firings;
use crate::world::{World, tell};

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Succeeded,
    /// It failed, panicked or was cancelled.
    Failed,
    /// It was dropped, since its lock was lost.
    Lost,
    /// Its process was killed.
    Killed,
}

struct Run {
    process: usize,
    fence: u64,
    ended: Option<Ended>,
}

#[derive(Default)]
pub(crate) struct Jobs {
    /// By key, in the order in which they began.
    runs: HashMap<usize, Vec<Run>>,
    /// When a lock with this fence was granted, by the store's clock.
    granted: HashMap<u64, u64>,
    /// Fences of locks that ended with their lease.
    ran_out: HashSet<u64>,
}

impl Jobs {
    /// What the store did.
    pub(super) fn note(&mut self, granted: &[(usize, Entry)], ran_out: &[u64], time: u64) {
        granted.iter().for_each(|(_, entry)| _ = self.granted.insert(entry.fence, time));
        self.ran_out.extend(ran_out);
    }
}

impl World {
    /// A run of a job begins.
    pub(crate) fn job_begins(&mut self, process: usize, key: usize, fence: u64) {
        self.judge.summary.began += 1;
        tell!(self, Some(process), "begins the job {} with fence {fence}", self.keys[key]);
        let Some(firings) = self.plan.firings.clone() else { return };
        let time = self.clock(None);
        let (window, healthy) = (firings.window * MS, self.plan.healthy);
        let jobs = &mut self.judge.jobs;
        let runs = jobs.runs.entry(key).or_default();
        let mut broken = None;
        if let Some(last) = runs.last() {
            let since = time.saturating_sub(jobs.granted.get(&last.fence).copied().unwrap_or(0));
            let ran_out = jobs.ran_out.contains(&last.fence);
            // The clocks of processes and store are up to 1 % apart.
            let in_window = since + window / 50 + 20 * MS < window;
            let closed = match last.ended {
                Some(Ended::Succeeded) => true,
                Some(Ended::Failed) => firings.skip_after_error,
                Some(Ended::Lost | Ended::Killed) | None => firings.skip_after_crash,
            };
            // A success that the store could not be told of in a lease is none to the others; where a crash closes the
            // window, the lease is as long as that.
            let unknown = ran_out && !healthy && !firings.skip_after_crash;
            let (fence, by, ended) = (last.fence, last.process, last.ended);
            if closed && in_window && !unknown {
                let since = since / MS;
                broken =
                    Some(format!("p{by}'s run {fence} was {ended:?}, and {since} ms later p{process} runs"));
            } else if matches!(ended, None | Some(Ended::Killed)) && !ran_out {
                broken =
                    Some(format!("p{process} runs a job beside run {fence} of p{by}, which is {ended:?}"));
            }
            self.judge.summary.again += u64::from(in_window);
        }
        runs.push(Run { process, fence, ended: None });
        if let Some(broken) = broken {
            self.violate(broken);
        }
    }

    /// A run of a job ends.
    pub(crate) fn job_ends(&mut self, key: usize, fence: u64, ended: Ended) {
        let runs = self.judge.jobs.runs.entry(key).or_default();
        let Some(run) = runs.iter_mut().find(|run| run.fence == fence && run.ended.is_none()) else { return };
        run.ended = Some(ended);
        let process = run.process;
        tell!(self, Some(process), "its run {fence} is {ended:?}");
        match ended {
            Ended::Succeeded => self.judge.summary.succeeded += 1,
            Ended::Killed => self.judge.summary.killed += 1,
            Ended::Failed | Ended::Lost => {}
        }
    }

    /// A process skipped a job.
    pub(crate) fn job_skipped(&mut self, process: usize, key: usize, is_done: bool) {
        self.judge.summary.skipped += 1;
        tell!(self, Some(process), "skips {}, done: {is_done}", self.keys[key]);
        let Some(Firings { skip_after_error, skip_after_crash, .. }) = self.plan.firings else { return };
        let runs = self.judge.jobs.runs.get(&key);
        let done = runs.into_iter().flatten().any(|run| match run.ended {
            Some(Ended::Succeeded) => true,
            Some(Ended::Failed) => skip_after_error,
            _ => false,
        });
        if is_done && !done {
            self.violate(format!("p{process} skips a job as done that nobody has done"));
        }
        if !is_done && !skip_after_crash {
            self.violate(format!("p{process} skips a job whose outcome it was to wait for"));
        }
    }
}
