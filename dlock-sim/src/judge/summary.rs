//! Counts of what happened in runs.

/// What happened in a run, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Grants of the store.
    pub grants: u64,
    /// Locks that were passed on inside a process, in runs whose locks were there at the end.
    pub handoffs: u64,
    /// Attempts that found a lock busy.
    pub busy: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Steps of holders who believed to hold their lock.
    pub beliefs: u64,
    /// Writes that the resource rejected for their fence.
    pub rejected: u64,
    /// Processes killed or paused, connections cut, restarts and losses of the store, releases by force.
    pub faults: u64,
    /// Firings of jobs, each in several processes.
    pub firings: u64,
    /// Runs of jobs that began.
    pub began: u64,
    /// Those that succeeded.
    pub succeeded: u64,
    /// Those whose process was killed.
    pub killed: u64,
    /// Those that began since another one had failed, was killed or had lost its lock.
    pub again: u64,
    /// Processes that skipped a job.
    pub skipped: u64,
    /// Terms of leaders.
    pub terms: u64,
    /// Writers that became readers.
    pub downgrades: u64,
    /// Waiters in order that got their turn, in runs in which nothing failed.
    pub turns: u64,
    /// Batons that their givers got.
    pub given: u64,
    /// Those that were taken over.
    pub taken_over: u64,
    /// Requests to leave a lock that was left already.
    pub retracted: u64,
}

impl Summary {
    /// Adds another one to this.
    pub fn add(&mut self, other: &Self) {
        self.grants += other.grants;
        self.handoffs += other.handoffs;
        self.busy += other.busy;
        self.lost += other.lost;
        self.beliefs += other.beliefs;
        self.rejected += other.rejected;
        self.faults += other.faults;
        self.firings += other.firings;
        self.began += other.began;
        self.succeeded += other.succeeded;
        self.killed += other.killed;
        self.again += other.again;
        self.skipped += other.skipped;
        self.terms += other.terms;
        self.downgrades += other.downgrades;
        self.turns += other.turns;
        self.given += other.given;
        self.taken_over += other.taken_over;
        self.retracted += other.retracted;
    }
}
