//! Every metric arrives with its unit, attributes and value.

use opentelemetry_proto::tonic::metrics::v1::metric::Data;

use crate::receiver::{Metrics, Receiver};
use crate::worker::{Worker, exported};

/// Name, unit, and what it is.
const TABLE: &[(&str, &str, &str)] = &[
    ("dlock.acquire.duration", "s", "histogram"),
    ("dlock.acquire.attempts", "{attempt}", "histogram"),
    ("dlock.hold.duration", "s", "histogram"),
    ("dlock.lock.held", "{lock}", "up-down counter"),
    ("dlock.lock.waiting", "{waiter}", "up-down counter"),
    ("dlock.leader", "{term}", "up-down counter"),
    ("dlock.leader.terms", "{term}", "counter"),
    ("dlock.rechecks", "{recheck}", "counter"),
    ("dlock.lock.handoffs", "{handoff}", "counter"),
    ("dlock.renew.duration", "s", "histogram"),
    ("dlock.lock.lost", "{lock}", "counter"),
    ("dlock.background_release.failures", "{failure}", "counter"),
    ("dlock.lock.abandoned", "{lock}", "counter"),
    ("dlock.reentries", "{reentry}", "counter"),
    ("dlock.batch.size", "{lock}", "histogram"),
    ("dlock.segment.moves", "{move}", "counter"),
    ("dlock.quorum.votes", "{vote}", "counter"),
    ("dlock.keeper.lag", "s", "histogram"),
];

const SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0,
];

const NAMES: &[&str] = &[
    "dlock.backend",
    "db.system.name",
    "server.address",
    "server.port",
    "dlock.template",
    "dlock.mode",
    "code.function.name",
    "dlock.outcome",
    "dlock.cause",
    "dlock.node",
    "error.type",
];

/// The metrics while one holds and one waits, and at the end.
async fn of_a_tour() -> (Metrics, Metrics) {
    let (receiver, url) = Receiver::start().await;
    let mut worker = Worker::start(&["tour", "7"], &url, &[]);
    worker.says("shown").await;
    let shown = receiver.metrics();
    worker.go_on().await;
    exported(worker.ends_well().await);
    (shown, receiver.metrics())
}

fn of<'a>(template: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("dlock.backend", "memory"), ("dlock.template", template)], more].concat()
}

#[tokio::test]
async fn every_metric_of_the_table_arrives_with_its_unit_and_its_value() {
    let (shown, end) = of_a_tour().await;

    let names: Vec<_> = end.0.iter().map(|metric| metric.name.as_str()).collect();
    for &(name, unit, what) in TABLE {
        let metric = end.get(name);
        assert_eq!(metric.unit, unit, "{name}");
        assert!(!metric.description.is_empty(), "{name}");
        match (&metric.data, what) {
            (Some(Data::Histogram(_)), "histogram") => {}
            (Some(Data::Sum(sum)), "counter") => assert!(sum.is_monotonic, "{name}"),
            (Some(Data::Sum(sum)), "up-down counter") => assert!(!sum.is_monotonic, "{name}"),
            (data, _) => panic!("{name} is no {what}: {data:?}"),
        }
        for attributes in end.attributes(name) {
            for attribute in attributes {
                assert!(NAMES.contains(&attribute.key.as_str()), "{name} has {}", attribute.key);
            }
        }
    }
    assert_eq!(names.len(), TABLE.len(), "there are others: {names:?}");

    let acquires = |template, more: &[_]| end.histogram("dlock.acquire.duration", &of(template, more)).count;
    let outcome = |outcome| ("dlock.outcome", outcome);
    let function = ("code.function.name", "otel_worker::tour::book");
    assert_eq!(acquires("room_<mark>_<id>", &[function, outcome("acquired")]), 3);
    assert_eq!(acquires("wanted_<id>", &[outcome("acquired")]), 1);
    assert_eq!(acquires("wanted_<id>", &[outcome("busy")]), 1);
    assert_eq!(acquires("wanted_<id>", &[outcome("timed_out"), ("error.type", "timed_out")]), 1);
    assert_eq!(acquires("wanted_<id>", &[outcome("cancelled")]), 1);
    assert_eq!(acquires("down_<id>", &[outcome("failed"), ("error.type", "unavailable")]), 1);
    assert_eq!(acquires("nested_<id>", &[outcome("acquired")]), 1, "a re-entry is no acquire");
    assert_eq!(end.count("dlock.reentries", &of("nested_<id>", &[])), 1);
    assert_eq!(end.count("dlock.lock.handoffs", &of("passed_<id>", &[])), 1);
    assert_eq!(acquires("passed_<id>", &[outcome("acquired")]), 3, "one that is passed on is an acquire");

    let bounds = |name, labels: &[_]| end.histogram(name, labels).explicit_bounds.clone();
    let acquired = of("doubted_<id>", &[outcome("acquired")]);
    assert_eq!(bounds("dlock.acquire.duration", &acquired), SECONDS);
    let attempts = end.histogram("dlock.acquire.attempts", &acquired);
    assert_eq!((attempts.count, attempts.sum), (1, Some(2.0)), "one acquire asked twice");
    assert_eq!(end.count("dlock.rechecks", &acquired), 1);

    let waited = end.histogram("dlock.acquire.duration", &of("wanted_<id>", &[outcome("cancelled")]));
    assert!(waited.sum.is_some_and(|sum| (0.02..60.0).contains(&sum)), "in seconds: {waited:?}");

    let holds = |template, more: &[_]| end.histogram("dlock.hold.duration", &of(template, more)).count;
    assert_eq!(holds("room_<mark>_<id>", &[function, outcome("released")]), 3);
    let renewed = end.histogram("dlock.hold.duration", &of("renewed_<id>", &[outcome("released")]));
    assert_eq!((renewed.count, renewed.sum), (1, Some(47.0)), "two thirds of a minute and five seconds");
    for lost in ["taken_<id>", "deleted_<id>", "expired_<id>", "capped_<id>", "stopped_<id>", "shut_<id>"] {
        assert_eq!(holds(lost, &[outcome("lost")]), 1, "{lost}");
    }

    let leads = of("leads_<id>", &[("dlock.mode", "leader")]);
    assert_eq!(end.count("dlock.leader.terms", &leads), 2);
    assert_eq!(end.count("dlock.leader", &leads), 0, "both terms are over");

    let renewals = |more: &[_]| end.histogram("dlock.renew.duration", &of("renewed_<id>", more)).count;
    assert_eq!(renewals(&[outcome("renewed")]), 2);
    assert_eq!(renewals(&[outcome("failed"), ("error.type", "unavailable")]), 1);
    let gone = end.histogram("dlock.renew.duration", &of("deleted_<id>", &[outcome("gone")]));
    assert_eq!(gone.count, 1);

    for (template, cause) in [
        ("taken_<id>", "backend"),
        ("deleted_<id>", "gone"),
        ("expired_<id>", "lease_expired"),
        ("capped_<id>", "max_hold"),
        ("stopped_<id>", "backend"),
        ("shut_<id>", "shutdown"),
    ] {
        assert_eq!(end.count("dlock.lock.lost", &of(template, &[("dlock.cause", cause)])), 1, "{template}");
    }

    assert_eq!(end.count("dlock.lock.abandoned", &of("abandoned_<id>", &[])), 1);
    let failures = of("abandoned_<id>", &[("error.type", "unavailable")]);
    assert!(end.count("dlock.background_release.failures", &failures) >= 1);
    assert!(end.histogram("dlock.keeper.lag", &[("dlock.backend", "memory")]).count > 0);

    let batches = end.histogram("dlock.batch.size", &of("one_<id>", &[]));
    assert_eq!((batches.count, batches.sum), (1, Some(3.0)), "one batch of three, named by its first lock");
    assert_eq!(end.count("dlock.segment.moves", &of("divided_<id>", &[])), 3);
    let votes = |node: &'static str, more: &[_]| {
        let labels = [&[("dlock.backend", "quorum"), ("dlock.node", node)], more].concat();
        end.count("dlock.quorum.votes", &labels)
    };
    for node in ["1", "2"] {
        assert_eq!(votes(node, &[outcome("granted")]), 1, "node {node}");
        assert_eq!(votes(node, &[outcome("busy")]), 1, "node {node}");
    }
    assert_eq!(votes("3", &[outcome("failed"), ("error.type", "unavailable")]), 2);

    let now = |metrics: &Metrics, name| metrics.count(name, &of("shown_<id>", &[]));
    assert_eq!((now(&shown, "dlock.lock.held"), now(&shown, "dlock.lock.waiting")), (1, 1));
    for name in ["dlock.lock.held", "dlock.lock.waiting"] {
        for attributes in end.attributes(name) {
            let labels: Vec<_> = attributes
                .iter()
                .map(|label| {
                    let label = label.key.as_str();
                    (label, crate::receiver::attribute(&attributes, label).unwrap())
                })
                .collect();
            assert_eq!(end.count(name, &labels), 0, "{name} of {labels:?} at the end");
        }
    }
}
