//! The SDK, as a service would set it up: where to is said by the usual environment variables.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result};
use dlock::opentelemetry::{global, trace::TracerProvider};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::sync::watch;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// For the last export; what a single one may take is said by the environment.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Exported {
    meters: SdkMeterProvider,
    tracers: SdkTracerProvider,
}

static BUSY: LazyLock<watch::Sender<u32>> = LazyLock::new(|| watch::Sender::new(0));

/// How often an acquire met a busy lock.
pub(crate) struct Notices(watch::Receiver<u32>);

pub(crate) fn notices() -> Notices {
    Notices(BUSY.subscribe())
}

impl Notices {
    /// Resolves when one meets a busy lock, counted from where these notices began.
    pub(crate) async fn busy(&mut self) {
        self.0.changed().await.expect("the sender is never dropped");
    }
}

/// Spans that are open. Others may keep one open for a moment longer than its work takes: the thread of a database, the
/// keeper.
static OPEN: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

struct Watch;

impl<S: tracing::Subscriber> Layer<S> for Watch {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        OPEN.send_modify(|open| *open += 1);
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        OPEN.send_modify(|open| *open -= 1);
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Message(bool);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "message" && format!("{value:?}") == "busy";
            }
        }
        let mut message = Message(false);
        event.record(&mut message);
        if message.0 {
            BUSY.send_modify(|n| *n += 1);
        }
    }
}

pub(crate) fn start() -> Result<Exported> {
    let spans = SpanExporter::builder().with_tonic().build().context("no exporter of spans")?;
    let tracers = SdkTracerProvider::builder().with_batch_exporter(spans).build();
    let bridge = tracing_opentelemetry::layer()
        .with_tracer(tracers.tracer("otel-worker"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false);
    // All levels of dlock, and nothing of the exporter's own.
    let ours = tracing_subscriber::filter::filter_fn(|metadata| {
        metadata.target().starts_with("dlock") || metadata.target().starts_with("otel_worker")
    });
    tracing_subscriber::registry().with(bridge.and_then(Watch).with_filter(ours)).init();
    let metrics = MetricExporter::builder().with_tonic().build().context("no exporter of metrics")?;
    let reader = PeriodicReader::builder(metrics).with_interval(Duration::from_secs(3_600)).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    global::set_meter_provider(meters.clone());
    Ok(Exported { meters, tracers })
}

impl Exported {
    /// Exports the metrics as they are now.
    pub(crate) async fn flush(&self) -> Result<()> {
        let meters = self.meters.clone();
        tokio::task::spawn_blocking(move || meters.force_flush()).await??;
        Ok(())
    }

    /// Exports what is left, once no span is open any more.
    pub(crate) async fn end(self) -> Result<()> {
        OPEN.subscribe().wait_for(|open| *open == 0).await?;
        tokio::task::spawn_blocking(move || {
            let spans = self.tracers.shutdown_with_timeout(PATIENCE);
            spans.and(self.meters.shutdown_with_timeout(PATIENCE))
        })
        .await??;
        Ok(())
    }
}
