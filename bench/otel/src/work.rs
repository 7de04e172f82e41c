//! One way of being observed, a round for each line that is read.

use std::io::BufRead;

use anyhow::{Context, Result};
use dlock::{Error, Locks, Memory};
use dlock_bench::thread_time;
use tokio::runtime::Builder;

use crate::Observed;

pub(crate) fn rounds(observed: Observed) -> Result<()> {
    let observer = observer::start(observed)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let lock = Locks::builder(Memory::new()).build()?.lock_named("room_<id>", "room_7");
    for line in std::io::stdin().lock().lines() {
        let calls: u32 = line?.trim().parse().context("how many calls?")?;
        let start = thread_time();
        runtime.block_on(async {
            for _ in 0..calls {
                lock.acquire().await?.release().await?;
            }
            Ok::<_, Error>(())
        })?;
        println!("{}", (thread_time() - start).as_secs_f64() * 1e9 / f64::from(calls));
    }
    drop(observer);
    Ok(())
}

#[cfg(not(feature = "otel"))]
mod observer {
    use anyhow::{Result, ensure};

    use crate::Observed;

    pub(super) struct Observer;

    pub(super) fn start(observed: Observed) -> Result<Observer> {
        ensure!(observed == Observed::No, "this was built without the feature otel");
        Ok(Observer)
    }
}

#[cfg(feature = "otel")]
mod observer {
    use std::time::Duration;

    use anyhow::{Result, ensure};
    use dlock::opentelemetry::global;
    use dlock::opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::metrics::data::ResourceMetrics;
    use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
    use opentelemetry_sdk::metrics::{SdkMeterProvider, Temporality};
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    use crate::Observed;

    pub(super) struct Observer {
        _tracers: Option<SdkTracerProvider>,
    }

    /// Takes everything and keeps nothing: what sending it costs is another thread's time.
    #[derive(Debug)]
    struct Nowhere;

    impl SpanExporter for Nowhere {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            Ok(())
        }
    }

    impl PushMetricExporter for Nowhere {
        async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
            Ok(())
        }

        fn force_flush(&self) -> OTelSdkResult {
            Ok(())
        }

        fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
            Ok(())
        }

        fn temporality(&self) -> Temporality {
            Temporality::Cumulative
        }
    }

    pub(super) fn start(observed: Observed) -> Result<Observer> {
        ensure!(observed != Observed::No, "this was built with the feature otel");
        if matches!(observed, Observed::Metrics | Observed::Spans) {
            global::set_meter_provider(SdkMeterProvider::builder().with_periodic_exporter(Nowhere).build());
        }
        let tracers = (observed == Observed::Spans).then(|| {
            let tracers = SdkTracerProvider::builder().with_batch_exporter(Nowhere).build();
            let bridge = tracing_opentelemetry::layer().with_tracer(tracers.tracer("bench"));
            tracing_subscriber::registry().with(bridge).init();
            tracers
        });
        Ok(Observer { _tracers: tracers })
    }
}
