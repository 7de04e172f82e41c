//! Spans and metrics, to standard error and by OTLP.

use std::env;
use std::time::Duration;

use anyhow::Result;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::sync::oneshot;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How long what is left may take to be sent in the end: a collector that is away must not keep the process.
const LAST: Duration = Duration::from_secs(2);

/// Any of these asks for an export.
const ENDPOINTS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];

/// The export, if one was asked for.
#[derive(Debug)]
pub(crate) struct Telemetry(Option<(SdkTracerProvider, SdkMeterProvider)>);

impl Telemetry {
    /// Starts what the `OTEL_*` environment variables ask for. What is wrong with them is said, and the service runs
    /// without an export: nobody's booking waits for a graph.
    pub(crate) fn start(replica: &str) -> Self {
        let providers = asked_for().then(|| providers(replica));
        let (providers, trouble) = match providers {
            None => (None, None),
            Some(Ok(providers)) => (Some(providers), None),
            Some(Err(error)) => (None, Some(error)),
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_filter(filter);
        let spans = providers.as_ref().map(|(traces, _)| {
            // Only our own, so that the export does not export itself.
            let ours = Targets::new()
                .with_target("rooms", LevelFilter::INFO)
                .with_target("dlock", LevelFilter::DEBUG);
            tracing_opentelemetry::layer()
                .with_tracer(traces.tracer("rooms"))
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_filter(ours)
        });
        tracing_subscriber::registry().with(lines).with(spans).init();
        if let Some((traces, metrics)) = &providers {
            global::set_text_map_propagator(TraceContextPropagator::new());
            global::set_tracer_provider(traces.clone());
            global::set_meter_provider(metrics.clone());
        }
        if let Some(error) = trouble {
            tracing::warn!(target: "rooms", error = format!("{error:#}"), "no telemetry is exported");
        }
        Self(providers)
    }

    /// Sends what is left, for a short time.
    pub(crate) async fn stop(self) {
        let Some((traces, metrics)) = self.0 else { return };
        // Both block, the metrics for longer than they are allowed to: on threads that the process does not wait for.
        let traces = on_a_thread(move || traces.shutdown_with_timeout(LAST));
        let metrics = on_a_thread(move || metrics.shutdown_with_timeout(LAST));
        let _ = tokio::time::timeout(LAST, async { (traces.await, metrics.await) }).await;
    }
}

/// What it comes to, or an error if there is no thread for it.
fn on_a_thread<T: Send + 'static>(code: impl FnOnce() -> T + Send + 'static) -> oneshot::Receiver<T> {
    let (done, output) = oneshot::channel();
    let _ = std::thread::Builder::new().spawn(move || done.send(code()));
    output
}

fn asked_for() -> bool {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
    let off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    !off && ENDPOINTS.iter().any(|name| set(name).is_some())
}

fn providers(replica: &str) -> Result<(SdkTracerProvider, SdkMeterProvider)> {
    // What the environment says wins.
    let mut resource = Resource::builder();
    if env::var("OTEL_SERVICE_NAME").is_err() {
        resource = resource.with_service_name("rooms");
    }
    let resource = resource.with_attribute(KeyValue::new("service.instance.id", replica.to_owned())).build();
    let spans = SpanExporter::builder().build()?;
    let metrics = MetricExporter::builder().build()?;
    let traces =
        SdkTracerProvider::builder().with_resource(resource.clone()).with_batch_exporter(spans).build();
    let metrics = SdkMeterProvider::builder().with_resource(resource).with_periodic_exporter(metrics).build();
    Ok((traces, metrics))
}
