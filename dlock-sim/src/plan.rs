//! What a seed decides before a run begins.

use fastrand::Rng;

/// The setting of one run. Times are in milliseconds, rates in thousandths of all requests.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Nothing fails in this run, so that the rules are strict.
    pub(crate) healthy: bool,
    /// Whether sessions keep the locks, in queues; otherwise leases do.
    pub(crate) sessions: bool,
    pub(crate) processes: usize,
    pub(crate) tasks: usize,
    pub(crate) keys: usize,
    pub(crate) operations: usize,
    pub(crate) lease: u64,
    pub(crate) request_timeout: u64,
    pub(crate) rechecks: u32,
    /// Whether that is said to the engine, which else asks for as long as it is of use.
    pub(crate) bounds_rechecks: bool,
    pub(crate) notified: bool,
    pub(crate) poll_from: u64,
    pub(crate) poll_to: u64,
    /// Whether several locks cannot be taken in one step.
    pub(crate) separately: bool,
    /// Connections of one process: one that all requests share, or a pool.
    pub(crate) connections: usize,
    /// The longest delay of a message when nothing is wrong.
    pub(crate) delay: u64,
    /// The longest delay of a message that is late.
    pub(crate) late: u64,
    pub(crate) rate_late: u32,
    /// Of the answers that are late.
    pub(crate) rate_late_answer: u32,
    pub(crate) rate_lost: u32,
    pub(crate) rate_unanswered: u32,
    pub(crate) rate_reset: u32,
    pub(crate) rate_refused: u32,
    pub(crate) rate_twice: u32,
    pub(crate) rate_untold: u32,
    pub(crate) rate_for_nothing: u32,
    pub(crate) rate_panic: u32,
    pub(crate) rate_log_panic: u32,
    pub(crate) pauses: u32,
    pub(crate) kills: u32,
    pub(crate) cuts: u32,
    pub(crate) restarts: u32,
    pub(crate) losses: u32,
    pub(crate) forced: u32,
    /// When faults end.
    pub(crate) quiet_at: u64,
    /// Parts per million by which each clock, the store's first, runs fast or slow.
    pub(crate) drift: Vec<i64>,
    /// Whether each grant has the other holders asked whether they believe to hold the lock.
    pub(crate) probes: bool,
    /// Whether `Memory` carries out the same commands, to be compared.
    pub(crate) twin: bool,
    /// Whether a claim takes itself for clean although an answer to it did not come, as a backend may.
    pub(crate) forgetful: bool,
    /// Whether locks are passed on inside a process, and after how many sections and milliseconds no more.
    pub(crate) handoff: bool,
    pub(crate) handoff_limit: u32,
    pub(crate) handoff_time: u64,
    /// Whether many tasks want one key for moments, again and again.
    pub(crate) hot: bool,
    /// Whether many answers are lost and many requests late, of tasks that want a lock for moments only: so that
    /// attempts arrive after the answers to later ones.
    pub(crate) straggling: bool,
    /// A run of jobs and leaders instead.
    pub(crate) firings: Option<Firings>,
    /// A run of readers, permits and waiters in order instead.
    pub(crate) modes: bool,
    /// A quorum of several stores keeps the locks.
    pub(crate) majority: Option<Majority>,
    /// Locks are also handed over and taken over.
    pub(crate) batons: bool,
    /// Of the requests that leave a lock, whose sender is then cut off and does not hear of it for long.
    pub(crate) rate_cut: u32,
}

/// What is decided of a quorum. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Majority {
    pub(crate) nodes: usize,
    /// Whether the nodes are said to forget nothing; otherwise they may, and are asked for their memory.
    pub(crate) durable: bool,
    pub(crate) node_timeout: u64,
    pub(crate) longest_lease: u64,
}

/// What is decided of a run of jobs. Times are in milliseconds.
#[derive(Clone, Debug)]
pub(crate) struct Firings {
    pub(crate) count: u64,
    /// From one firing to the next.
    pub(crate) gap: u64,
    /// Whether all firings have one key, and the time between two runs; otherwise each has its own.
    pub(crate) every: bool,
    pub(crate) window: u64,
    pub(crate) skip_after_error: bool,
    pub(crate) skip_after_crash: bool,
    /// How late each process fires, by its clock, which is up to 5 minutes behind or ahead of the others.
    pub(crate) late: Vec<u64>,
    /// Whether the processes also elect a leader.
    pub(crate) elects: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let r = &mut rng;
        let healthy = r.u32(..4) == 0;
        let sessions = r.u32(..4) == 0;
        let lease = if sessions { r.u64(4..=30) * 100 } else { [60, 100, 300, 1_000, 3_000][r.usize(..5)] };
        let delay = r.u64(0..=4.min(lease / 40));
        let request_timeout = if r.bool() { (lease / 6).min(5_000) } else { r.u64(lease / 8..=lease / 2) };
        let notified = r.u32(..3) > 0 || sessions;
        let processes = r.usize(1..=3);
        let faults = if healthy { 0 } else { r.u32(1..=3) };
        // Each kind of fault is in some of the runs only, so that some runs have much of little.
        let mut rate =
            |most: u32| if faults > 0 && r.u32(..2 + faults) < faults { r.u32(1..=most) } else { 0 };
        let rates = [
            rate(120),
            rate(60),
            rate(80),
            rate(40),
            rate(60),
            rate(100),
            rate(200),
            rate(30),
            rate(30),
            rate(200),
        ];
        let [late_rate, lost, unanswered, reset, refused, twice, untold, panic, log_panic, for_nothing] =
            rates;
        let counts = [rate(4), rate(2), rate(3), rate(2), rate(2), rate(2)];
        let [pauses, kills, cuts, restarts, losses, forced] = counts;
        let late = if r.u32(..4) == 0 { 3 * lease } else { request_timeout };
        let mut plan = Self {
            seed,
            healthy,
            sessions,
            processes,
            tasks: r.usize(1..=3),
            keys: r.usize(1..=3),
            operations: r.usize(1..=4),
            lease,
            request_timeout,
            rechecks: r.u32(0..=2),
            bounds_rechecks: true,
            notified,
            poll_from: r.u64(2..=10),
            poll_to: if notified { r.u64(100..=1_000) } else { r.u64(20..=250) },
            separately: r.u32(..3) == 0,
            connections: if r.bool() || sessions { 1 } else { 3 },
            delay,
            late: late.max(delay + 1),
            rate_late: late_rate,
            rate_late_answer: 0,
            rate_lost: lost,
            rate_unanswered: unanswered,
            rate_reset: reset,
            rate_refused: refused,
            rate_twice: twice,
            rate_untold: untold,
            rate_for_nothing: for_nothing,
            rate_panic: panic,
            rate_log_panic: log_panic,
            pauses,
            kills,
            cuts,
            restarts,
            losses: if sessions { 0 } else { losses },
            forced: if sessions { 0 } else { forced },
            quiet_at: lease * r.u64(2..=8),
            drift: (0..=processes).map(|_| r.i64(-4_900..=4_900)).collect(),
            probes: r.u32(..3) == 0,
            twin: r.u32(..8) == 0 && !sessions,
            forgetful: false,
            handoff: false,
            handoff_limit: 64,
            handoff_time: 50,
            hot: false,
            straggling: false,
            firings: None,
            modes: false,
            majority: None,
            batons: false,
            rate_cut: 0,
        };
        plan.forgetful = r.u32(..3) == 0;
        plan.handoff = r.u32(..4) > 0;
        if r.bool() {
            plan.handoff_limit = r.u32(1..=6);
            plan.handoff_time = r.u64(1..=10_000);
        }
        // Last, so that all other runs stay what they are.
        if r.u32(..6) == 0 && !sessions {
            (plan.hot, plan.keys) = (true, 1);
            (plan.tasks, plan.operations) = (r.usize(3..=6), r.usize(4..=16));
        } else if r.u32(..5) == 0 && !healthy && !sessions {
            plan.straggle(r);
        } else if r.u32(..8) == 0 && !healthy && !sessions {
            plan.lag(r);
        }
        plan
    }

    /// Has many answers come late and many requests fail, of processes that want one lock, so that a lease ends soon
    /// after the late answer to its renewal.
    fn lag(&mut self, r: &mut Rng) {
        (self.twin, self.probes, self.notified, self.poll_to) = (false, true, false, r.u64(20..=50));
        (self.processes, self.tasks, self.keys) = (r.usize(2..=3), 1, 1);
        self.drift = (0..=self.processes).map(|_| r.i64(-4_900..=4_900)).collect();
        self.operations = r.usize(3..=8);
        self.lease = [300, 1_000, 3_000][r.usize(..3)];
        (self.request_timeout, self.late) = (self.lease / 2, self.lease / 2);
        (self.rate_late_answer, self.rate_lost) = (r.u32(100..=500), r.u32(100..=500));
        self.quiet_at = self.lease * r.u64(8..=20);
    }

    /// Has attempts arrive after the answers to later ones.
    fn straggle(&mut self, r: &mut Rng) {
        (self.straggling, self.twin, self.connections) = (true, false, 3);
        (self.processes, self.tasks) = (r.usize(2..=3), 1);
        self.drift = (0..=self.processes).map(|_| r.i64(-4_900..=4_900)).collect();
        (self.keys, self.operations) = (r.usize(1..=2), r.usize(3..=8));
        self.lease = [300, 1_000, 3_000][r.usize(..3)];
        self.request_timeout = self.lease / r.u64(5..=9);
        self.late = self.lease / 2;
        (self.rate_late, self.rate_unanswered) = (r.u32(50..=400), r.u32(0..=200));
        self.rechecks = r.u32(1..=4);
        self.quiet_at = self.lease * r.u64(8..=20);
    }

    /// The setting of a run of modes.
    pub(crate) fn of_modes(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let mut rng = Rng::with_seed(seed ^ 0x6d6f_6465);
        let r = &mut rng;
        (plan.modes, plan.sessions, plan.twin, plan.hot, plan.keys) = (true, false, false, false, 1);
        plan.straggling = false;
        plan.processes = r.usize(1..=3);
        plan.drift = (0..=plan.processes).map(|_| r.i64(-4_900..=4_900)).collect();
        (plan.tasks, plan.operations) = (r.usize(2..=4), r.usize(2..=6));
        (plan.losses, plan.forced, plan.forgetful) = (0, 0, false);
        plan
    }

    /// The setting of a run with batons.
    pub(crate) fn of_batons(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let mut rng = Rng::with_seed(seed ^ 0x6261_746f);
        let r = &mut rng;
        (plan.batons, plan.sessions, plan.hot, plan.straggling) = (true, false, false, false);
        plan.processes = r.usize(1..=3);
        plan.drift = (0..=plan.processes).map(|_| r.i64(-4_900..=4_900)).collect();
        (plan.tasks, plan.operations, plan.keys) = (r.usize(1..=3), r.usize(2..=6), r.usize(1..=3));
        plan.lease = [60, 100, 300, 1_000, 3_000][r.usize(..5)];
        plan.delay = plan.delay.min(plan.lease / 40);
        plan.request_timeout = r.u64(plan.lease / 8..=plan.lease / 2);
        let late = if r.u32(..4) == 0 { 3 * plan.lease } else { plan.request_timeout };
        plan.late = late.max(plan.delay + 1);
        plan.quiet_at = plan.lease * r.u64(2..=12);
        plan.twin = r.u32(..8) == 0;
        plan.bounds_rechecks = r.bool();
        plan.rate_cut = if plan.healthy || r.bool() { 0 } else { r.u32(20..=300) };
        plan
    }

    /// The setting of a run of jobs.
    pub(crate) fn of_jobs(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let mut rng = Rng::with_seed(seed ^ 0x6a6f_6273);
        let r = &mut rng;
        (plan.sessions, plan.twin, plan.hot, plan.straggling) = (false, false, false, false);
        plan.processes = r.usize(2..=4);
        plan.drift = (0..=plan.processes).map(|_| r.i64(-4_900..=4_900)).collect();
        // What happens to processes, connections and the store is aimed at jobs that run.
        (plan.pauses, plan.kills, plan.cuts, plan.restarts, plan.losses, plan.forced) = (0, 0, 0, 0, 0, 0);
        plan.quiet_at = 3_000_000;
        // What is withdrawn is asked for until a lease has passed, which may be the window: requests that come much
        // later than that would make ever more of them.
        plan.late = plan.late.min(plan.request_timeout.max(plan.delay + 1));
        let every = r.bool();
        let apart = if r.bool() { 600_000 } else { plan.lease };
        plan.firings = Some(Firings {
            count: r.u64(1..=6),
            gap: r.u64(10_000..=300_000),
            every,
            // It may be the lease, which bounds a request.
            window: if every { r.u64(1_000..=250_000).max(3 * plan.request_timeout) } else { 1_500_000 },
            skip_after_error: r.u32(..4) == 0,
            skip_after_crash: r.u32(..3) == 0,
            late: (0..plan.processes).map(|_| r.u64(0..=apart)).collect(),
            elects: r.u32(..3) == 0,
        });
        plan
    }

    /// The setting of a run over a quorum.
    pub(crate) fn of_quorums(seed: u64) -> Self {
        let mut plan = Self::new(seed);
        let mut rng = Rng::with_seed(seed ^ 0x7175_6f72);
        let r = &mut rng;
        (plan.sessions, plan.twin, plan.hot, plan.forced) = (false, false, false, 0);
        plan.straggling = false;
        plan.lease = [60, 100, 300, 1_000, 3_000][r.usize(..5)];
        plan.delay = plan.delay.min(plan.lease / 60);
        plan.request_timeout = (plan.lease / 3).max(12 * plan.delay).max(20);
        plan.late = if r.u32(..4) == 0 { 3 * plan.lease } else { plan.request_timeout };
        plan.quiet_at = plan.lease * r.u64(2..=8);
        let nodes = if r.u32(..4) == 0 { 5 } else { 3 };
        plan.connections = nodes * if r.bool() { 1 } else { 2 };
        plan.drift = (0..=plan.processes + nodes).map(|_| r.i64(-4_900..=4_900)).collect();
        let durable = r.u32(..3) == 0;
        if !plan.healthy {
            plan.restarts += r.u32(0..=3);
            plan.losses = if durable { 0 } else { r.u32(0..=3) };
        }
        plan.majority = Some(Majority {
            nodes,
            durable,
            node_timeout: r.u64(6 * plan.delay + 6..=plan.request_timeout),
            longest_lease: plan.lease * r.u64(1..=2),
        });
        plan
    }
}
