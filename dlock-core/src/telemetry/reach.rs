//! The check that OpenTelemetry gets anything. With crates of other versions than those that dlock links to, it gets
//! nothing, and nothing fails.

use std::env;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use opentelemetry::Context;
use tracing_opentelemetry::{OpenTelemetrySpanExt, SetParentError};

use super::metrics::{Metrics, is_meter_provider_set};
use super::{Exported, Span, spans};

/// The variables that ask for an export; one of them is enough.
const ENDPOINTS: [&str; 3] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
];

/// The exports of one `Locks`.
pub(super) struct Reach {
    metrics: bool,
    traces: OnceLock<bool>,
}

impl Reach {
    pub(super) const fn new(metrics: &Metrics) -> Self {
        Self { metrics: metrics.measures(), traces: OnceLock::new() }
    }

    pub(super) fn exported(&self) -> Option<Exported> {
        Some(Exported { metrics: self.metrics, traces: self.traces.get().copied() })
    }

    /// Looks for the layer at the first span that a subscriber wants.
    pub(super) fn look(&self, span: &Span) {
        if self.traces.get().is_none() {
            span.note(|span| {
                let has_layer = has_layer(span);
                if self.traces.set(has_layer).is_ok() {
                    self.warn_of_mistake(has_layer);
                }
            });
        }
    }

    /// Warns of settings that contradict each other. A program may leave out metrics, or traces, or all of
    /// OpenTelemetry: that is no mistake.
    fn warn_of_mistake(&self, has_layer: bool) {
        static WARNED: AtomicBool = AtomicBool::new(false);

        let what = if self.metrics {
            return;
        } else if is_meter_provider_set() {
            "a meter provider was set after these locks were built, so that they have no metrics: set it before"
        } else if !has_layer && asks_for_export(|name| env::var(name).ok()) {
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and there are no metrics of locks and no links between their traces: \
             dlock finds neither a meter provider nor the layer of tracing-opentelemetry, and sees none of other \
             versions than its own, which it re-exports as `dlock::opentelemetry`"
        } else {
            return;
        };
        if !WARNED.swap(true, Ordering::Relaxed) {
            spans::export_missing(what);
        }
    }
}

/// Is `true` if the span's subscriber has the layer, whether the layer wants this span or not.
fn has_layer(span: &tracing::Span) -> bool {
    // `context` starts the span, after which `set_parent` changes nothing: the span keeps its parent, and only the
    // error shows.
    let _ = span.context();
    !matches!(span.set_parent(Context::new()), Err(SetParentError::LayerNotFound))
}

/// Is `true` if the environment asks for an export by OTLP.
fn asks_for_export(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let off = set("OTEL_SDK_DISABLED").is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    !off && ENDPOINTS.iter().any(|name| set(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_asks_for_an_export_by_an_endpoint_unless_the_sdk_is_disabled() {
        let asked = |set: &[(&str, &str)]| {
            asks_for_export(|name| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into())
            })
        };
        let endpoint = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://collector:4317");
        assert!(asked(&[endpoint]) && asked(&[endpoint, ("OTEL_SDK_DISABLED", "false")]));
        assert!(!asked(&[]) && !asked(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]));
        assert!(!asked(&[endpoint, ("OTEL_SDK_DISABLED", "True")]));
    }
}
