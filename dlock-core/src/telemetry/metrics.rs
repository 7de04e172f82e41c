//! The instruments. docs/observability.md has the table of them.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

pub(crate) use opentelemetry::metrics::Meter;
use opentelemetry::metrics::{Counter, Histogram, MeterProvider, NoopMeterProvider, UpDownCounter};
use opentelemetry::{InstrumentationScope, KeyValue, global};
use smallvec::SmallVec;

use super::subject::{acquire_outcome, db_system};
use super::{Loss, Site, spans};
use crate::error::ErrorKind;
use crate::guarded::{guard, tell};
use crate::server_address::ServerAddress;
use crate::sync::plain::Mutex;

/// Upper bounds of the buckets of durations, in seconds: 100 µs to 10 min.
const SECONDS: [f64; 21] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];
/// Upper bounds of the buckets of attempts.
const ATTEMPTS: [f64; 11] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

/// Upper bounds of the buckets of batch sizes.
const SIZES: [f64; 10] = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0];

/// The instruments of one `Locks`. They are made when it is built: instruments that are made before the program has set
/// its meter provider would stay silent for ever.
pub(super) struct Metrics {
    /// Is `true` if the meter measures.
    measures: bool,
    store: Store,
    acquire: Histogram<f64>,
    attempts: Histogram<u64>,
    hold: Histogram<f64>,
    held: UpDownCounter<i64>,
    waiters: UpDownCounter<i64>,
    leader: UpDownCounter<i64>,
    terms: Counter<u64>,
    rechecks: Counter<u64>,
    requeues: Counter<u64>,
    renew: Histogram<f64>,
    lost: Counter<u64>,
    release_failures: Counter<u64>,
    abandoned: Counter<u64>,
    handoffs: Counter<u64>,
    reentries: Counter<u64>,
    batch: Histogram<u64>,
    segment_moves: Counter<u64>,
    /// Set for a backend with nodes that vote.
    votes: Option<Counter<u64>>,
    lag: Histogram<f64>,
}

impl Metrics {
    /// Makes the instruments, with the global provider's meter if none is given. `votes` is `true` if the backend has
    /// nodes that vote. A meter that panics measures nothing.
    pub(super) fn new(
        backend: &'static str,
        server: Option<&ServerAddress>,
        votes: bool,
        meter: Option<Meter>,
    ) -> Self {
        let store = Store { backend, server: server.map(kept) };
        let made = guard(|| {
            let measures = meter.is_some() || is_meter_provider_set();
            let meter = meter.unwrap_or_else(|| {
                let scope = InstrumentationScope::builder("dlock").with_version(env!("CARGO_PKG_VERSION"));
                global::meter_with_scope(scope.build())
            });
            Self::made_by(&meter, measures, store, votes)
        });
        made.unwrap_or_else(|panic| {
            spans::meter_panicked(&panic);
            Self::made_by(&NoopMeterProvider::new().meter("dlock"), false, store, votes)
        })
    }

    /// Is `true` if measurements may reach a reader.
    pub(super) const fn measures(&self) -> bool {
        self.measures
    }

    fn made_by(meter: &Meter, measures: bool, store: Store, votes: bool) -> Self {
        let seconds = |name, what| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_boundaries(SECONDS.into());
            histogram.with_description(what).build()
        };
        let count = |name, unit, what| meter.u64_counter(name).with_unit(unit).with_description(what).build();
        let level =
            |name, unit, what| meter.i64_up_down_counter(name).with_unit(unit).with_description(what).build();
        Self {
            measures,
            store,
            acquire: seconds("dlock.acquire.duration", "How long acquires took, by outcome."),
            attempts: meter
                .u64_histogram("dlock.acquire.attempts")
                .with_unit("{attempt}")
                .with_boundaries(ATTEMPTS.into())
                .with_description("How often one acquire asked the backend.")
                .build(),
            hold: seconds("dlock.hold.duration", "How long locks were held."),
            held: level("dlock.lock.held", "{lock}", "Locks that are held now."),
            waiters: level(
                "dlock.lock.waiting",
                "{waiter}",
                "Acquires that wait for somebody else's lock now.",
            ),
            leader: level("dlock.leader", "{term}", "Elections in which this process leads now."),
            terms: count("dlock.leader.terms", "{term}", "Terms that this process began."),
            rechecks: count(
                "dlock.rechecks",
                "{recheck}",
                "Attempts that asked the owner again after an unknown outcome, by what they found.",
            ),
            requeues: count(
                "dlock.requeues",
                "{requeue}",
                "Waits that lost their place in the backend's queue and went on at its end.",
            ),
            renew: seconds("dlock.renew.duration", "How long renewals took, by outcome."),
            lost: count("dlock.lock.lost", "{lock}", "Locks that were lost while they were held, by cause."),
            release_failures: count(
                "dlock.background_release.failures",
                "{failure}",
                "Releases in the background that failed; each is tried again until the lease ends.",
            ),
            abandoned: count(
                "dlock.lock.abandoned",
                "{lock}",
                "Releases in the background that were given up; the lease ends those locks, or votes of a quorum.",
            ),
            handoffs: count(
                "dlock.lock.handoffs",
                "{handoff}",
                "Locks that were passed on inside this process, without a request.",
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
            votes: votes.then(|| {
                count(
                    "dlock.quorum.votes",
                    "{vote}",
                    "What the nodes of quorums said to attempts, by outcome.",
                )
            }),
            lag: seconds("dlock.keeper.lag", "How late the keeper looked after what is held."),
        }
    }

    /// Records the end of an acquire. `failed` is the kind of error if it gave no lock.
    pub(super) fn acquire_ended(
        &self,
        site: Site,
        failed: Option<ErrorKind>,
        waited: impl FnOnce() -> Duration,
        attempts: u32,
    ) {
        let (labels, waited) = (self.labels(site), waited());
        let Some(kind) = failed else { return self.record_acquire(&labels.acquired, waited, attempts) };
        let (outcome, error) = acquire_outcome(kind);
        self.record_acquire(&labels.with(outcome, error), waited, attempts);
    }

    /// Records that the caller was cancelled.
    pub(super) fn acquire_cancelled(&self, site: Site, waited: Duration, attempts: u32) {
        self.record_acquire(&self.labels(site).with("cancelled", None), waited, attempts);
    }

    fn record_acquire(&self, labels: &[KeyValue], waited: Duration, attempts: u32) {
        tell(|| self.acquire.record(waited.as_secs_f64(), labels));
        tell(|| self.attempts.record(attempts.into(), labels));
    }

    /// Records that an acquire begins to wait for another holder.
    pub(super) fn wait_begins(&self, site: Site) {
        tell(|| self.waiters.add(1, &self.labels(site).plain));
    }

    pub(super) fn wait_ends(&self, site: Site) {
        tell(|| self.waiters.add(-1, &self.labels(site).plain));
    }

    pub(super) fn hold_begins(&self, site: Site) {
        tell(|| self.held.add(1, &self.labels(site).plain));
    }

    pub(super) fn hold_ends(&self, site: Site, lost: bool, held: Duration) {
        let labels = self.labels(site);
        tell(|| self.held.add(-1, &labels.plain));
        tell(|| self.hold.record(held.as_secs_f64(), if lost { &labels.lost } else { &labels.released }));
    }

    /// Records that this process leads from now on.
    pub(super) fn term_begins(&self, site: Site) {
        let labels = self.labels(site);
        tell(|| self.leader.add(1, &labels.plain));
        tell(|| self.terms.add(1, &labels.plain));
    }

    /// Records that this process leads no more, whether the body of its term has noticed or not.
    pub(super) fn term_ends(&self, site: Site) {
        tell(|| self.leader.add(-1, &self.labels(site).plain));
    }

    pub(super) fn requeued(&self, site: Site) {
        tell(|| self.requeues.add(1, &self.labels(site).plain));
    }

    pub(super) fn rechecked(&self, site: Site, outcome: &'static str) {
        tell(|| self.rechecks.add(1, &self.labels(site).with(outcome, None)));
    }

    /// Records a renewal that was confirmed, found the lock gone, or failed.
    pub(super) fn renewal(
        &self,
        site: Site,
        outcome: &'static str,
        error: Option<ErrorKind>,
        took: impl FnOnce() -> Duration,
    ) {
        tell(|| self.renew.record(took().as_secs_f64(), &self.labels(site).with(outcome, error)));
    }

    pub(super) fn lost(&self, site: Site, cause: Loss) {
        let cause = KeyValue::new("dlock.cause", cause.as_str());
        tell(|| self.lost.add(1, &self.labels(site).and([cause])));
    }

    pub(super) fn release_failed(&self, site: Site, error: ErrorKind) {
        let error = KeyValue::new("error.type", error.as_str());
        tell(|| self.release_failures.add(1, &self.labels(site).and([error])));
    }

    pub(super) fn abandoned(&self, site: Site) {
        tell(|| self.abandoned.add(1, &self.labels(site).plain));
    }

    /// Records that a section took the lock over from the section before it in this process.
    pub(super) fn passed_on(&self, site: Site) {
        tell(|| self.handoffs.add(1, &self.labels(site).plain));
    }

    pub(super) fn reentered(&self, site: Site) {
        tell(|| self.reentries.add(1, &self.labels(site).plain));
    }

    /// Records that a batch of so many locks was taken.
    pub(super) fn batch_taken(&self, site: Site, locks: usize) {
        tell(|| self.batch.record(locks as u64, &self.labels(site).plain));
    }

    pub(super) fn segment_moved(&self, site: Site) {
        tell(|| self.segment_moves.add(1, &self.labels(site).plain));
    }

    /// Records the vote of node `node`, from 1, on one attempt.
    pub(super) fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>) {
        let Some(votes) = &self.votes else { return };
        let node = KeyValue::new("dlock.node", node as i64);
        let outcome = KeyValue::new("dlock.outcome", outcome);
        let error = error.map(|kind| KeyValue::new("error.type", kind.as_str()));
        let attributes = [node, outcome].into_iter().chain(error);
        tell(|| votes.add(1, &self.labels(Site::default()).and(attributes)));
    }

    pub(super) fn keeper_lagged(&self, by: Duration) {
        tell(|| self.lag.record(by.as_secs_f64(), &self.labels(Site::default()).plain));
    }

    fn labels(&self, site: Site) -> &'static Labels {
        Labels::of(self.store, site)
    }
}

/// Is `true` if the program has set a global meter provider. OpenTelemetry has no call for this, but the provider that
/// stands in for none is the only one without data: any other has to know where its measurements go.
pub(super) fn is_meter_provider_set() -> bool {
    size_of_val(&*global::meter_provider()) > 0
}

type Attributes = SmallVec<[KeyValue; 8]>;

/// The attributes of events at one place in the program, ready to be used: making them each time would cost more than
/// all else here. There are few places, since templates are few, and so they are kept for good.
#[derive(Debug)]
struct Labels {
    /// The attributes of an event without an outcome.
    plain: Attributes,
    acquired: Attributes,
    released: Attributes,
    lost: Attributes,
}

/// The name of a backend, and the address of its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Store {
    backend: &'static str,
    server: Option<&'static ServerAddress>,
}

/// Returns an equal address that is kept for good, as the labels with it are: a program has few servers.
fn kept(server: &ServerAddress) -> &'static ServerAddress {
    static ALL: LazyLock<Mutex<HashSet<&'static ServerAddress>>> = LazyLock::new(Mutex::default);

    let mut all = ALL.lock();
    if let Some(known) = all.get(server) {
        return known;
    }
    let kept: &'static ServerAddress = Box::leak(Box::new(server.clone()));
    all.insert(kept);
    kept
}

/// A store, and the place at which a lock of it is used.
type Origin = (Store, Site);

/// Is `true` if both are the same pieces of memory, which is quick to see. Equal texts elsewhere are found in the map.
fn is_same_text(a: &Origin, b: &Origin) -> bool {
    let parts = |(store, Site { template, function, mode }): &Origin| {
        [Some(store.backend), *template, *function, *mode]
    };
    let server = |(store, _): &Origin| store.server.map(std::ptr::from_ref);
    parts(a).map(|part| part.map(std::ptr::from_ref)) == parts(b).map(|part| part.map(std::ptr::from_ref))
        && server(a) == server(b)
}

impl Labels {
    fn of(store: Store, site: Site) -> &'static Self {
        thread_local! {
            /// The labels of this thread's last measurement, which are often those of the next.
            static LAST: Cell<Option<(Origin, &'static Labels)>> = const { Cell::new(None) };
        }
        static ALL: LazyLock<Mutex<HashMap<Origin, &'static Labels>>> = LazyLock::new(Mutex::default);

        let name = (store, site);
        if let Ok(Some((last, labels))) = LAST.try_with(Cell::get)
            && is_same_text(&last, &name)
        {
            return labels;
        }
        let mut all = ALL.lock();
        let labels = *all.entry(name).or_insert_with(|| Box::leak(Box::new(Self::new(store, site))));
        drop(all);
        // A thread that is ending has lost its thread-locals.
        let _ = LAST.try_with(|last| last.set(Some((name, labels))));
        labels
    }

    fn new(store: Store, site: Site) -> Self {
        let mut plain = Attributes::new();
        plain.push(KeyValue::new("dlock.backend", store.backend));
        plain.extend(db_system(store.backend).map(|system| KeyValue::new("db.system.name", system)));
        plain.extend(store.server.map(|server| KeyValue::new("server.address", server.host())));
        let port = store.server.and_then(ServerAddress::port);
        plain.extend(port.map(|port| KeyValue::new("server.port", i64::from(port))));
        plain.extend(site.template.map(|template| KeyValue::new("dlock.template", template)));
        plain.extend(site.function.map(|function| KeyValue::new("code.function.name", function)));
        plain.extend(site.mode.map(|mode| KeyValue::new("dlock.mode", mode)));
        let with = |outcome| {
            let mut attributes = plain.clone();
            attributes.push(KeyValue::new("dlock.outcome", outcome));
            attributes
        };
        Self { acquired: with("acquired"), released: with("released"), lost: with("lost"), plain }
    }

    fn and(&self, more: impl IntoIterator<Item = KeyValue>) -> Attributes {
        let mut attributes = self.plain.clone();
        attributes.extend(more);
        attributes
    }

    fn with(&self, outcome: &'static str, error: Option<ErrorKind>) -> Attributes {
        let outcome = KeyValue::new("dlock.outcome", outcome);
        self.and([outcome].into_iter().chain(error.map(|kind| KeyValue::new("error.type", kind.as_str()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_that_stands_in_for_none_is_known_by_its_size() {
        let none: &(dyn MeterProvider + Send + Sync) = &NoopMeterProvider::new();
        assert_eq!(size_of_val(none), 0);
        assert!(!is_meter_provider_set());
    }

    #[test]
    fn labels_are_made_once_and_have_the_database_and_its_server() {
        let server = ServerAddress::in_url("postgres://db:5432/app");
        let store = |backend| Store { backend, server: server.as_ref().map(kept) };
        let labels = Labels::of(store("postgres"), Site::default());
        assert!(labels.plain.iter().any(|label| label.key.as_str() == "db.system.name"));
        let told: Vec<_> = labels.plain.iter().map(|it| (it.key.as_str(), it.value.to_string())).collect();
        assert!(
            told.contains(&("server.address", "db".into())) && told.contains(&("server.port", "5432".into()))
        );
        assert!(std::ptr::eq(labels, Labels::of(store("postgres"), Site::default())), "made anew");
    }
}
