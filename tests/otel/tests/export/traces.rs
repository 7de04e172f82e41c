//! The tree of spans, and the links between waiters and holders.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};

use crate::receiver::{Receiver, attribute, typed};
use crate::worker::{Worker, exported, tour};

fn named<'a>(spans: &'a [Span], name: &str) -> impl Iterator<Item = &'a Span> {
    spans.iter().filter(move |span| span.name == name)
}

fn only<'a>(spans: &'a [Span], name: &str, among: impl Fn(&Span) -> bool) -> &'a Span {
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
    attribute(&span.attributes, "dlock.template") == Some(template)
}

fn outcome(span: &Span) -> Option<&str> {
    attribute(&span.attributes, "dlock.outcome")
}

/// What the attributes of a span have to be, all of them; `*` stands for any number with a fraction.
fn has_exactly(span: &Span, wanted: &[(&str, &str)]) {
    let mut there = typed(&span.attributes);
    for (name, wanted) in wanted {
        if let Some(value) = there.get_mut(name)
            && *wanted == "*"
            && value.contains('.')
            && value.parse::<f64>().is_ok()
        {
            *value = "*".into();
        }
    }
    let wanted: BTreeMap<&str, String> =
        wanted.iter().map(|(name, value)| (*name, (*value).into())).collect();
    assert_eq!(there, wanted, "{}", span.name);
}

#[tokio::test]
async fn every_span_arrives_under_its_name_and_kind_with_attributes_of_the_types_that_conventions_ask_for() {
    let (receiver, url) = Receiver::start().await;
    let worker = Worker::start(&["each", "redis://locks.example:7391/"], &url, &[]);
    exported(worker.ends_well().await);
    let spans = receiver.spans();

    let common = [
        ("dlock.backend", "\"redis\""),
        ("db.system.name", "\"redis\""),
        ("server.address", "\"locks.example\""),
        ("server.port", "7391"),
    ];
    // The start of the key's SHA-256.
    let room = [
        ("dlock.key", "\"967113e1d713b18a\""),
        ("dlock.template", "\"room_<id>\""),
        ("code.function.name", "\"shop::book\""),
    ];
    let check = |name: &str, kind: SpanKind, wanted: &str, more: &[(&str, &str)]| {
        let span = only(&spans, name, |span| outcome(span) == Some(wanted));
        assert_eq!(span.kind(), kind, "{name}");
        let wanted = format!("{wanted:?}");
        has_exactly(span, &[&common[..], &[("dlock.outcome", &*wanted)], more].concat());
    };
    let room_and = |more: &[(&'static str, &'static str)]| [&room[..], more].concat();
    let asked = [("dlock.waited_ms", "*"), ("dlock.attempts", "1")];
    let acquired = room_and(&[asked[0], asked[1], ("dlock.fence", "1")]);
    check("acquire room_<id>", SpanKind::Client, "acquired", &acquired);
    check("hold room_<id>", SpanKind::Internal, "done", &room_and(&[("dlock.fence", "1")]));
    check("renew room_<id>", SpanKind::Client, "renewed", &room);
    check("release room_<id>", SpanKind::Client, "released", &room_and(&[("dlock.background", "false")]));

    // Events have the same names.
    check("acquire room_<id>", SpanKind::Client, "busy", &room_and(&asked));
    let busy = only(&spans, "acquire room_<id>", |span| outcome(span) == Some("busy"));
    let event = busy.events.iter().find(|event| event.name == "busy").expect("why");
    assert_eq!(typed(&event.attributes).get("dlock.attempts").map(String::as_str), Some("1"), "{event:?}");

    // Without a template the name is what is done; a batch has the key of its first lock.
    let plain = [("dlock.key", "\"a116c9ed46d62077\""), ("dlock.fence", "2")];
    check("acquire", SpanKind::Client, "acquired", &[&plain[..], &asked].concat());
    check("hold", SpanKind::Internal, "done", &plain);
    let both =
        [("dlock.key", "\"7692c3ad3540bb80\""), ("dlock.template", "\"both_<id>\""), ("dlock.keys", "2")];
    check("hold both_<id>", SpanKind::Internal, "done", &both);
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
        for name in ["acquire room_<id>", "hold room_<id>", "release room_<id>"] {
            let span = only(&spans, name, |span| span.trace_id == request.trace_id);
            assert_eq!(span.parent_span_id, request.span_id, "{name}");
            assert!(!is_error(span), "{name}");
        }
        let acquire = only(&spans, "acquire room_<id>", |span| span.trace_id == request.trace_id);
        assert_eq!(outcome(acquire), Some("acquired"));
        assert!(in_template(acquire, "room_<id>"));
    }
    let hold = only(&spans, "hold room_<id>", |span| span.trace_id == holder.trace_id);
    assert_eq!(outcome(hold), Some("done"));
    assert_eq!(only(&spans, "work", |_| true).parent_span_id, hold.span_id);

    let acquire =
        |request: &Span| only(&spans, "acquire room_<id>", |span| span.trace_id == request.trace_id);
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

    let acquire = |template: &str, wanted: &str| {
        only(&spans, &format!("acquire {template}"), |span| outcome(span) == Some(wanted))
    };
    for (template, wanted, error) in [
        ("wanted_<id>", "busy", None),
        ("wanted_<id>", "timed_out", Some("timed_out")),
        ("wanted_<id>", "cancelled", None),
        ("down_<id>", "failed", Some("unavailable")),
    ] {
        let span = acquire(template, wanted);
        assert_eq!(is_error(span), error.is_some(), "{template} {wanted}");
        assert_eq!(attribute(&span.attributes, "error.type"), error, "{template} {wanted}");
    }
    let doubted = acquire("doubted_<id>", "acquired");
    assert!(events(doubted).contains(&"re-check"), "{:?}", events(doubted));

    // In one process: those who waited for `wanted` link to the one who had it.
    let holder = acquire("wanted_<id>", "acquired");
    for waiter in ["timed_out", "cancelled"] {
        let links = &acquire("wanted_<id>", waiter).links;
        assert_eq!(links.len(), 1, "{links:?}");
        assert_eq!((&links[0].trace_id, &links[0].span_id), (&holder.trace_id, &holder.span_id));
    }

    // A renewal is in the trace that took the lock, below the acquire.
    let taken = acquire("renewed_<id>", "acquired");
    let renewals: Vec<_> =
        named(&spans, "renew renewed_<id>").filter(|span| span.parent_span_id == taken.span_id).collect();
    let mut outcomes: Vec<_> = renewals.iter().filter_map(|span| outcome(span)).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["failed", "renewed", "renewed"]);
    for renewal in renewals {
        assert_eq!(renewal.trace_id, taken.trace_id);
        assert_eq!(is_error(renewal), outcome(renewal) != Some("renewed"));
    }

    let stopped = only(&spans, "hold stopped_<id>", |_| true);
    assert_eq!(outcome(stopped), Some("lost"));
    assert!(is_error(stopped));

    let abandoned = acquire("abandoned_<id>", "acquired");
    let release = only(&spans, "release abandoned_<id>", |span| span.parent_span_id == abandoned.span_id);
    assert_eq!(outcome(release), Some("failed"));
    assert!(is_error(release), "the release in the background was given up: {release:?}");
}
