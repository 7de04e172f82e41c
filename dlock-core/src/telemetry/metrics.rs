//! The instruments. docs/observability.md has the table.

use std::time::Duration;

use opentelemetry::metrics::{Counter, Histogram, Meter, UpDownCounter};
use opentelemetry::{InstrumentationScope, KeyValue, global};
use smallvec::SmallVec;

use super::Loss;
use crate::error::ErrorKind;
use crate::options::Site;

/// Upper bounds of the buckets of durations, in seconds: 100 µs to 10 min.
const SECONDS: [f64; 21] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Upper bounds of the buckets of attempts.
const ATTEMPTS: [f64; 11] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

/// Upper bounds of the buckets of batch sizes.
const SIZES: [f64; 10] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];

/// The instruments of one `Locks`. Made when it is built: those made before the program has set its meter provider
/// would stay silent for ever.
pub(crate) struct Metrics {
    backend: &'static str,
    acquire: Histogram<f64>,
    attempts: Histogram<u64>,
    hold: Histogram<f64>,
    held: UpDownCounter<i64>,
    waiters: UpDownCounter<i64>,
    rechecks: Counter<u64>,
    renew: Histogram<f64>,
    lost: Counter<u64>,
    release_failures: Counter<u64>,
    abandoned: Counter<u64>,
    reentries: Counter<u64>,
    batch: Histogram<u64>,
    segment_moves: Counter<u64>,
    votes: Votes,
    lag: Histogram<f64>,
}

impl Metrics {
    /// With the global provider's meter if none is given.
    pub(crate) fn new(backend: &'static str, meter: Option<Meter>) -> Self {
        let meter = meter.unwrap_or_else(|| {
            let scope = InstrumentationScope::builder("dlock").with_version(env!("CARGO_PKG_VERSION"));
            global::meter_with_scope(scope.build())
        });
        let seconds = |name, what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_boundaries(SECONDS.into());
            histogram.with_description(what).build()
        };
        let count = |name, unit, what| meter.u64_counter(name).with_unit(unit).with_description(what).build();
        let level =
            |name, unit, what| meter.i64_up_down_counter(name).with_unit(unit).with_description(what).build();
        Self {
            backend,
            acquire: seconds("dlock.acquire.duration", "How long acquires took, by outcome."),
            attempts: meter
                .u64_histogram("dlock.acquire.attempts")
                .with_unit("{attempt}")
                .with_boundaries(ATTEMPTS.into())
                .with_description("How often one acquire asked the backend.")
                .build(),
            hold: seconds("dlock.hold.duration", "How long locks were held."),
            held: level("dlock.locks.held", "{lock}", "Locks that are held now."),
            waiters: level("dlock.waiters", "{waiter}", "Acquires that wait for somebody else's lock now."),
            rechecks: count(
                "dlock.rechecks",
                "{recheck}",
                "Attempts that asked the owner again after an unknown outcome, by what they found.",
            ),
            renew: seconds("dlock.renew.duration", "How long renewals took, by outcome."),
            lost: count("dlock.locks.lost", "{lock}", "Locks that were lost while they were held, by cause."),
            release_failures: count(
                "dlock.background_release.failures",
                "{failure}",
                "Releases in the background that failed; each is tried again until the lease ends.",
            ),
            abandoned: count(
                "dlock.locks.abandoned",
                "{lock}",
                "Releases in the background that were given up; the lease ends those locks.",
            ),
            reentries: count(
                "dlock.reentries",
                "{reentry}",
                "Acquires of a lock that the caller held already.",
            ),
            batch: meter
                .u64_histogram("dlock.batch.size")
                .with_unit("{lock}")
                .with_boundaries(SIZES.into())
                .with_description("How many locks a batch took at once.")
                .build(),
            segment_moves: count(
                "dlock.segment.moves",
                "{move}",
                "Bodies that found their segment exhausted, so that another one is tried.",
            ),
            votes: Votes((backend == crate::quorum::NAME).then(|| {
                count(
                    "dlock.quorum.votes",
                    "{vote}",
                    "What the nodes of quorums said to attempts, by outcome.",
                )
            })),
            lag: seconds("dlock.keeper.lag", "How late the keeper looked after what is held."),
        }
    }

    /// An acquire is over; `failed` tells why it gave no lock.
    pub(crate) fn acquire_ended(
        &self,
        site: Site,
        failed: Option<ErrorKind>,
        waited: Duration,
        attempts: u32,
    ) {
        let (outcome, error) = match failed {
            None => ("acquired", None),
            Some(ErrorKind::Busy) => ("busy", None),
            Some(kind @ ErrorKind::TimedOut) => (kind.as_str(), Some(kind)),
            Some(kind) => ("failed", Some(kind)),
        };
        let mut labels = self.site(site);
        labels.add("dlock.outcome", outcome);
        if let Some(kind) = error {
            labels.add("error.type", kind.as_str());
        }
        self.record_acquire(&labels, waited, attempts);
    }

    /// The caller went away.
    pub(crate) fn acquire_cancelled(&self, site: Site, waited: Duration, attempts: u32) {
        self.record_acquire(&self.site(site).outcome("cancelled"), waited, attempts);
    }

    fn record_acquire(&self, labels: &Labels, waited: Duration, attempts: u32) {
        self.acquire.record(waited.as_secs_f64(), labels.all());
        self.attempts.record(attempts.into(), labels.all());
    }

    /// An acquire begins to wait for somebody else.
    pub(crate) fn wait_begins(&self, site: Site) {
        self.waiters.add(1, self.site(site).all());
    }

    pub(crate) fn wait_ends(&self, site: Site) {
        self.waiters.add(-1, self.site(site).all());
    }

    pub(crate) fn hold_begins(&self, site: Site) {
        self.held.add(1, self.site(site).all());
    }

    pub(crate) fn hold_ends(&self, site: Site, lost: bool, held: Duration) {
        let mut labels = self.site(site);
        self.held.add(-1, labels.all());
        labels.add("dlock.outcome", if lost { "lost" } else { "released" });
        self.hold.record(held.as_secs_f64(), labels.all());
    }

    pub(crate) fn rechecked(&self, site: Site, outcome: &'static str) {
        self.rechecks.add(1, self.site(site).outcome(outcome).all());
    }

    /// A renewal was confirmed, found the lock gone, or failed.
    pub(crate) fn renewal(
        &self,
        site: Site,
        outcome: &'static str,
        error: Option<ErrorKind>,
        took: impl FnOnce() -> Duration,
    ) {
        self.renew.record(took().as_secs_f64(), self.site(site).outcome(outcome).error(error).all());
    }

    pub(crate) fn lost(&self, site: Site, cause: Loss) {
        self.lost.add(1, self.site(site).with("dlock.cause", cause.as_str()).all());
    }

    pub(crate) fn release_failed(&self, error: ErrorKind) {
        self.release_failures.add(1, self.site(Site::default()).error(Some(error)).all());
    }

    pub(crate) fn abandoned(&self) {
        self.abandoned.add(1, self.site(Site::default()).all());
    }

    pub(crate) fn reentered(&self, site: Site) {
        self.reentries.add(1, self.site(site).all());
    }

    /// A batch of so many locks was taken.
    pub(crate) fn batch_taken(&self, site: Site, locks: usize) {
        self.batch.record(locks as u64, self.site(site).all());
    }

    pub(crate) fn segment_moved(&self, site: Site) {
        self.segment_moves.add(1, self.site(site).all());
    }

    /// For the claims of these locks.
    pub(crate) fn votes(&self) -> Votes {
        self.votes.clone()
    }

    pub(crate) fn keeper_lagged(&self, by: Duration) {
        self.lag.record(by.as_secs_f64(), self.site(Site::default()).all());
    }

    fn site(&self, site: Site) -> Labels {
        let mut labels = Labels(SmallVec::new());
        labels.add("dlock.backend", self.backend);
        if let Some(template) = site.template {
            labels.add("dlock.template", template);
        }
        if let Some(function) = site.function {
            labels.add("dlock.function", function);
        }
        labels
    }
}

/// Counts what the nodes of a quorum say. Nothing for other backends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Votes(Option<Counter<u64>>);

impl Votes {
    /// What node `node`, from 1, said to one attempt.
    pub(crate) fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>) {
        let Some(votes) = &self.0 else { return };
        let mut labels = Labels(SmallVec::new());
        labels.add("dlock.backend", crate::quorum::NAME);
        labels.0.push(KeyValue::new("dlock.node", node as i64));
        votes.add(1, labels.outcome(outcome).error(error).all());
    }
}

/// A few attributes, without an allocation.
struct Labels(SmallVec<[KeyValue; 5]>);

impl Labels {
    fn add(&mut self, name: &'static str, value: &'static str) {
        self.0.push(KeyValue::new(name, value));
    }

    fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.add(name, value);
        self
    }

    fn outcome(self, outcome: &'static str) -> Self {
        self.with("dlock.outcome", outcome)
    }

    fn error(mut self, kind: Option<ErrorKind>) -> Self {
        if let Some(kind) = kind {
            self.add("error.type", kind.as_str());
        }
        self
    }

    fn all(&self) -> &[KeyValue] {
        &self.0
    }
}
