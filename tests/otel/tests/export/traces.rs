//! The tree of spans, and the links between waiters and holders.

use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};

use crate::receiver::{Receiver, attribute};
use crate::worker::{Worker, exported, tour};

fn named<'a>(spans: &'a [Span], name: &'a str) -> impl Iterator<Item = &'a Span> {
    spans.iter().filter(move |span| span.name == name)
}

fn only<'a>(spans: &'a [Span], name: &'a str, among: impl Fn(&Span) -> bool) -> &'a Span {
    let found: Vec<_> = named(spans, name).filter(|span| among(span)).collect();
    assert_eq!(found.len(), 1, "{name}: {found:#?} of {} spans", spans.len());
    found[0]
}

fn events(span: &Span) -> Vec<&str> {
    span.events.iter().map(|event| event.name.as_str()).collect()
}

fn is_error(span: &Span) -> bool {
    span.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error)
}

fn in_template(span: &Span, template: &str) -> bool {
    attribute(&span.attributes, "template") == Some(template)
}

#[tokio::test]
async fn a_waiter_links_to_its_holder_in_another_process_and_its_trace_tells_why_it_waited() {
    let (receiver, url) = Receiver::start().await;
    let dir = tempfile::tempdir().unwrap();
    let place = format!("sqlite://{}|room_7", dir.path().join("locks.db").display());
    let mut holder = Worker::start(&["hold", &place], &url, &[]);
    holder.says("held").await;
    let mut waiter = Worker::start(&["wait", &place], &url, &[]);
    waiter.says("busy").await;
    holder.go_on().await;
    exported(holder.ends_well().await);
    exported(waiter.ends_well().await);

    let spans = receiver.spans();
    let request = |role| only(&spans, "request", |span| attribute(&span.attributes, "role") == Some(role));
    let (holder, waiter) = (request("holder"), request("waiter"));
    assert_ne!(holder.trace_id, waiter.trace_id);

    // The tree: the acquire, the hold and the release are children of the request; the body is one of the hold.
    for request in [holder, waiter] {
        for name in ["dlock.acquire", "dlock.hold", "dlock.release"] {
            let span = only(&spans, name, |span| span.trace_id == request.trace_id);
            assert_eq!(span.parent_span_id, request.span_id, "{name}");
            assert!(!is_error(span), "{name}");
        }
        let acquire = only(&spans, "dlock.acquire", |span| span.trace_id == request.trace_id);
        assert_eq!(attribute(&acquire.attributes, "outcome"), Some("acquired"));
        assert!(in_template(acquire, "room_<id>"));
    }
    let hold = only(&spans, "dlock.hold", |span| span.trace_id == holder.trace_id);
    assert_eq!(attribute(&hold.attributes, "outcome"), Some("done"));
    assert_eq!(only(&spans, "work", |_| true).parent_span_id, hold.span_id);

    let acquire = |request: &Span| only(&spans, "dlock.acquire", |span| span.trace_id == request.trace_id);
    let links = &acquire(waiter).links;
    assert_eq!(links.len(), 1, "{links:?}");
    assert_eq!(links[0].trace_id, holder.trace_id);
    assert_eq!(links[0].span_id, acquire(holder).span_id);
    assert!(acquire(holder).links.is_empty(), "it waited for nobody");
    let told = events(acquire(waiter));
    assert!(told.starts_with(&["busy", "wake-up"]), "{told:?}");
}

#[tokio::test]
async fn what_goes_wrong_is_told_by_outcome_and_status_and_a_waiter_links_within_a_process() {
    let (receiver, url) = Receiver::start().await;
    exported(tour("7", &url, &[]).await);
    let spans = receiver.spans();

    let acquire = |template: &'static str, outcome: &'static str| {
        only(&spans, "dlock.acquire", move |span| {
            in_template(span, template) && attribute(&span.attributes, "outcome") == Some(outcome)
        })
    };
    for (template, outcome, error) in [
        ("wanted_<id>", "busy", None),
        ("wanted_<id>", "timed_out", Some("timed_out")),
        ("wanted_<id>", "cancelled", None),
        ("down_<id>", "unavailable", Some("unavailable")),
    ] {
        let span = acquire(template, outcome);
        assert_eq!(is_error(span), error.is_some(), "{template} {outcome}");
        assert_eq!(attribute(&span.attributes, "error.type"), error, "{template} {outcome}");
    }
    let doubted = acquire("doubted_<id>", "acquired");
    assert!(events(doubted).contains(&"re-check"), "{:?}", events(doubted));

    // In one process: those who waited for `wanted` link to the one who had it.
    let holder = acquire("wanted_<id>", "acquired");
    for outcome in ["timed_out", "cancelled"] {
        let links = &acquire("wanted_<id>", outcome).links;
        assert_eq!(links.len(), 1, "{links:?}");
        assert_eq!((&links[0].trace_id, &links[0].span_id), (&holder.trace_id, &holder.span_id));
    }

    // A renewal is in the trace that took the lock, below the acquire.
    let taken = acquire("renewed_<id>", "acquired");
    let renewals: Vec<_> =
        named(&spans, "dlock.renew").filter(|span| span.parent_span_id == taken.span_id).collect();
    let outcomes: Vec<_> =
        renewals.iter().filter_map(|span| attribute(&span.attributes, "outcome")).collect();
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    for renewal in renewals {
        assert_eq!(renewal.trace_id, taken.trace_id);
        assert_eq!(is_error(renewal), attribute(&renewal.attributes, "outcome") != Some("renewed"));
    }

    let stopped = only(&spans, "dlock.hold", |span| in_template(span, "stopped_<id>"));
    assert_eq!(attribute(&stopped.attributes, "outcome"), Some("lost"));
    assert!(is_error(stopped));

    let abandoned = acquire("abandoned_<id>", "acquired");
    let release = only(&spans, "dlock.release", |span| span.parent_span_id == abandoned.span_id);
    assert!(is_error(release), "the release in the background was given up: {release:?}");
}
