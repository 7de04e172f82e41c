//! Set-ups by which less is exported than all.

use anyhow::Result;
use dlock::opentelemetry::{global, trace::TracerProvider};
use dlock::{Locks, Memory};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::field::{Field, Visit};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Prints warnings.
struct Warnings;

impl<S: tracing::Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message;
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    println!("warned: {value:?}");
                }
            }
        }
        if *event.metadata().level() <= tracing::Level::WARN {
            event.record(&mut Message);
        }
    }
}

/// Prints what dlock says of the export: of all signals, of metrics `late`, of `traces` alone, or of none, as for a
/// program whose crates of OpenTelemetry are of `other` versions.
pub(crate) async fn notice(what: &str) -> Result<()> {
    let (tracers, meters) = (SdkTracerProvider::builder().build(), SdkMeterProvider::builder().build());
    let bridge =
        (what != "other").then(|| tracing_opentelemetry::layer().with_tracer(tracers.tracer("otel-worker")));
    tracing_subscriber::registry().with(bridge).with(Warnings).init();
    if what == "all" {
        global::set_meter_provider(meters.clone());
    }
    let locks = [Locks::new(Memory::new()), Locks::new(Memory::new())];
    if what == "late" {
        global::set_meter_provider(meters);
    }
    for locks in &locks {
        let known = |locks: &Locks| locks.health().exported.map(|export| (export.metrics, export.traces));
        let before = known(locks);
        locks.lock("k").run(async {}).await?;
        println!("exported: {before:?} {:?}", known(locks));
    }
    println!("end");
    Ok(())
}
