//! `#[tracing::instrument]` above and below the attribute.
//!
//! A program of its own: whether a span is made is decided once for each place in the code, for all threads, and other
//! tests of the attribute run without a subscriber.
#![cfg(feature = "macros")]
#![deny(warnings, clippy::pedantic)]

#[path = "../attribute/support.rs"]
mod support;

use crate::support::on_memory;
use async_trait::async_trait;
use dlock::{Error, distributed_lock};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::instrument;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[instrument(skip_all, fields(who))]
#[distributed_lock(key = "above_<id>", backend = "memory")]
async fn above(id: u64, who: &str) -> Result<String, Error> {
    tracing::info_span!("in_the_body", id).in_scope(|| Ok(who.to_owned()))
}

#[distributed_lock(key = "below_<id>", backend = "memory")]
#[instrument(skip(who), err)]
async fn below(id: u64, who: &str) -> Result<String, Error> {
    tracing::info_span!("in_the_body", id).in_scope(|| Ok(who.to_owned()))
}

#[distributed_lock(key = { format!("computed {id}") }, backend = "memory")]
async fn computed(id: u64) -> Result<u64, Error> {
    Ok(id)
}

struct Desk;

#[async_trait]
trait Book {
    async fn above(&self, id: u64) -> Result<u64, Error>;
    async fn below(&self, id: u64) -> Result<u64, Error>;
}

#[async_trait]
impl Book for Desk {
    #[instrument(skip(self))]
    #[distributed_lock(key = "above_<id>", backend = "memory")]
    async fn above(&self, id: u64) -> Result<u64, Error> {
        tracing::info_span!("in_the_body").in_scope(|| Ok(id))
    }

    #[distributed_lock(key = "below_<id>", backend = "memory")]
    #[instrument(skip(self))]
    async fn below(&self, id: u64) -> Result<u64, Error> {
        tracing::info_span!("in_the_body").in_scope(|| Ok(id))
    }
}

/// Each span with those it is in, outermost first, and its template.
#[derive(Clone, Default)]
struct Paths(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Template(String);

impl Visit for Template {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "dlock.template" {
            self.0 = format!(" {value}");
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Paths {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut template = Template::default();
        attributes.record(&mut template);
        let path = context.span_scope(id).into_iter().flatten().map(|span| span.name()).collect::<Vec<_>>();
        let path = path.into_iter().rev().collect::<Vec<_>>().join("/") + &template.0;
        self.0.lock().expect("no test panics with it").push(path);
    }
}

impl Paths {
    async fn of<F: Future>(call: F) -> (Vec<String>, F::Output) {
        use tracing::instrument::WithSubscriber;

        let paths = Self::default();
        let output = call.with_subscriber(tracing_subscriber::registry().with(paths.clone())).await;
        let paths = std::mem::take(&mut *paths.0.lock().expect("no test panics with it"));
        (paths, output)
    }
}

/// Where the span of the function and that of its body are, of all that were made.
fn own<'a>(paths: &'a [String], name: &str) -> Vec<&'a str> {
    let own = |path: &&str| path.ends_with(name) || path.ends_with("in_the_body");
    paths.iter().map(String::as_str).filter(own).collect()
}

#[tokio::test]
async fn a_span_above_is_inside_of_the_lock() -> Result<(), Error> {
    let (paths, who) = Paths::of(on_memory(async |_| above(1, "ann").await)).await;
    assert_eq!(who?, "ann");
    assert_eq!(own(&paths, "above"), ["dlock.hold/above", "dlock.hold/above/in_the_body"]);
    Ok(())
}

#[tokio::test]
async fn a_span_below_contains_the_lock() -> Result<(), Error> {
    let (paths, who) = Paths::of(on_memory(async |_| below(1, "ann").await)).await;
    assert_eq!(who?, "ann");
    assert_eq!(own(&paths, "below"), ["below", "below/dlock.hold/in_the_body"]);
    Ok(())
}

#[tokio::test]
async fn async_trait_methods_can_have_both() -> Result<(), Error> {
    let (paths, id) = Paths::of(on_memory(async |_| Desk.above(1).await)).await;
    assert_eq!(id?, 1);
    assert_eq!(own(&paths, "above"), ["dlock.hold/above", "dlock.hold/above/in_the_body"]);

    let (paths, id) = Paths::of(on_memory(async |_| Desk.below(2).await)).await;
    assert_eq!(id?, 2);
    assert_eq!(own(&paths, "below"), ["below", "below/dlock.hold/in_the_body"]);
    Ok(())
}

#[tokio::test]
async fn spans_name_the_template_and_never_the_arguments() -> Result<(), Error> {
    let (paths, id) = Paths::of(on_memory(async |_| below(77, "ann").await)).await;
    id?;
    assert!(paths.contains(&"below/dlock.acquire below_<id>".to_owned()), "{paths:?}");

    let (paths, id) = Paths::of(on_memory(async |_| computed(77).await)).await;
    id?;
    assert!(paths.contains(&"dlock.acquire {computed}".to_owned()), "{paths:?}");
    assert!(paths.iter().all(|path| !path.contains("77")), "{paths:?}");
    Ok(())
}
