//! What a service exports, as the real collector gets it and hands it on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};
use dlock_interop::collector::{Collector, build, build_rooms, of_the_project, said};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use tokio::process::Command;

/// What is certain to happen while rooms are booked.
const EXPECTED: [&str; 6] = [
    "dlock_acquire_duration_seconds_bucket",
    "dlock_acquire_attempts_bucket",
    "dlock_hold_duration_seconds_bucket",
    "dlock_lock_held",
    "dlock_lock_waiting",
    "dlock_batch_size_bucket",
];

/// What came of rooms that three replicas booked.
pub(crate) struct Run {
    /// As Prometheus gets them.
    series: String,
    spans: Vec<ResourceSpans>,
    text: String,
}

impl Run {
    pub(crate) async fn new() -> Result<Self> {
        let (program, rooms) = (build().await?, build_rooms().await?);
        accepted(&program).await?;
        let collector = Collector::start(&program).await?;
        let booked = Command::new(rooms)
            .args(["--replicas", "3", "--requests", "300"])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.otlp())
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
            .env_remove("DLOCK_URL")
            .output();
        said(&booked.await?, "rooms")?;
        let replicas = ["rooms-1", "rooms-2", "rooms-3"];
        let series =
            collector.series_with(&replicas.map(|name| format!(r#"service_instance_id="{name}""#))).await?;
        let (spans, text) = collector.stop().await?;
        Ok(Self { series, spans, text })
    }

    /// The sum of a series over all that have this label.
    fn sum(&self, name: &str, label: &str) -> f64 {
        let values = self.series.lines().filter(|line| series_of(line) == name && line.contains(label));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

fn series_of(line: &str) -> &str {
    line.split(['{', ' ']).next().unwrap_or_default()
}

/// The configuration that is shipped.
async fn accepted(program: &Path) -> Result<()> {
    let checked = Command::new(program)
        .arg("validate")
        .arg("--config")
        .arg(of_the_project("observability/collector.yaml"))
        .output();
    said(&checked.await?, "observability/collector.yaml").map(drop)
}

pub(crate) fn metrics(run: &Run) -> Result<String> {
    let dashboard = std::fs::read_to_string(of_the_project("observability/grafana/dashboards/dlock.json"))?;
    let there: BTreeSet<_> =
        run.series.lines().map(series_of).filter(|name| name.starts_with("dlock_")).collect();
    for name in EXPECTED {
        ensure!(there.contains(name), "{name} did not arrive: {there:?}");
        ensure!(dashboard.contains(name), "no panel asks for {name}");
    }
    let acquired = run.sum("dlock_acquire_duration_seconds_count", r#"dlock_outcome="acquired""#);
    let (held, released) = (
        run.sum("dlock_hold_duration_seconds_count", ""),
        run.sum("dlock_hold_duration_seconds_count", r#"dlock_outcome="released""#),
    );
    // A batch is one acquire and several holds, unless its locks had to be taken one after the other.
    let (batches, in_batches) = (run.sum("dlock_batch_size_count", ""), run.sum("dlock_batch_size_sum", ""));
    ensure!(acquired > 100.0 && batches > 1.0, "{acquired} acquires, {batches} batches");
    ensure!(
        (acquired..=acquired - batches + in_batches).contains(&held),
        "{held} holds of {acquired} acquires with {batches} batches of {in_batches} locks"
    );
    ensure!((held - released).abs() < 0.5, "{released} of {held} were released");
    let left = run.sum("dlock_lock_held", "") + run.sum("dlock_lock_waiting", "");
    ensure!(left.abs() < 0.5, "{left} held or waiting in the end");
    let label = r#"dlock_template="room_<room>""#;
    ensure!(run.series.contains(label), "no series has {label}");
    Ok(format!("{} series names, {acquired} acquires, {held} holds, all released", there.len()))
}

/// What is before the template in its name.
fn operation(span: &Span) -> &str {
    span.name.split(' ').next().unwrap_or_default()
}

pub(crate) fn traces(run: &Run) -> Result<String> {
    let mut instances = BTreeMap::new();
    for (instance, span) in spans(&run.spans) {
        instances.insert(span.span_id.clone(), (instance, span));
    }
    let done = |what| instances.values().filter(|(_, span)| operation(span) == what).count();
    for what in ["acquire", "hold", "release"] {
        ensure!(done(what) > 100, "{} spans {what}", done(what));
    }
    let (mut links, mut across) = (0, 0);
    for (instance, span) in instances.values() {
        for link in &span.links {
            links += 1;
            let Some((other, holder)) = instances.get(&link.span_id) else { continue };
            ensure!(operation(holder) == "acquire", "a link leads to {}", holder.name);
            ensure!(holder.trace_id == link.trace_id, "a link has the trace of another span");
            across += u32::from(instance != other);
        }
    }
    ensure!(across > 0, "of {links} links none leads to another replica");
    Ok(format!("{} spans, {links} links to holders, {across} of them in other replicas", instances.len()))
}

pub(crate) fn secrets(run: &Run) -> Result<String> {
    for room in 0..4 {
        for secret in [format!("room_{room}"), format!("guest {room}")] {
            ensure!(!run.series.contains(&secret), "{secret} is in the metrics");
            ensure!(!run.text.contains(&secret), "{secret} is in the traces");
        }
    }
    Ok(format!(
        "no key in {} kB of traces and {} kB of metrics",
        run.text.len() / 1_000,
        run.series.len() / 1_000
    ))
}

/// All spans, and which replica they are of.
fn spans(resources: &[ResourceSpans]) -> impl Iterator<Item = (&str, &Span)> {
    resources.iter().flat_map(|resource| {
        let instance = instance(resource).unwrap_or_default();
        resource.scope_spans.iter().flat_map(|scope| &scope.spans).map(move |span| (instance, span))
    })
}

/// The name of the replica.
fn instance(spans: &ResourceSpans) -> Option<&str> {
    let attributes = &spans.resource.as_ref()?.attributes;
    let instance = attributes.iter().find(|attribute| attribute.key == "service.instance.id")?;
    match instance.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}
