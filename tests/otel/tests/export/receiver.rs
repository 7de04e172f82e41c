//! A receiver of OTLP over gRPC.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, Metric, metric::Data, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// What arrived.
#[derive(Clone, Default)]
pub(crate) struct Receiver(Arc<Mutex<Received>>);

#[derive(Default)]
struct Received {
    metrics: Vec<ExportMetricsServiceRequest>,
    traces: Vec<ExportTraceServiceRequest>,
}

#[tonic::async_trait]
impl MetricsService for Receiver {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.0.lock().unwrap().metrics.push(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.lock().unwrap().traces.push(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Receiver {
    /// A receiver, and its address.
    pub(crate) async fn start() -> (Self, String) {
        let receiver = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = tonic::transport::Server::builder()
            .add_service(MetricsServiceServer::new(receiver.clone()))
            .add_service(TraceServiceServer::new(receiver.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        (receiver, url)
    }

    /// The metrics of dlock, as they arrived last.
    pub(crate) fn metrics(&self) -> Metrics {
        let received = self.0.lock().unwrap();
        let last = received.metrics.last().expect("no metrics have arrived");
        let scopes = last.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        let dlock = scopes.filter(|scope| scope.scope.as_ref().is_some_and(|scope| scope.name == "dlock"));
        Metrics(dlock.flat_map(|scope| scope.metrics.clone()).collect())
    }

    pub(crate) fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().unwrap();
        let resources = received.traces.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|resource| &resource.scope_spans).flat_map(|scope| scope.spans.clone()).collect()
    }

    /// All that arrived, as it was sent and as it is shown.
    pub(crate) fn everything(&self) -> (Vec<u8>, String) {
        let received = self.0.lock().unwrap();
        let mut bytes = Vec::new();
        received.metrics.iter().for_each(|message| message.encode(&mut bytes).unwrap());
        received.traces.iter().for_each(|message| message.encode(&mut bytes).unwrap());
        (bytes, format!("{:?} {:?}", received.metrics, received.traces))
    }
}

/// The text of an attribute.
pub(crate) fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.as_ref()?;
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        other => panic!("{name} is no text: {other:?}"),
    }
}

/// All attributes by name, as text that tells their types: `"busy"`, `7`, `true`, `0.5`.
pub(crate) fn typed(attributes: &[KeyValue]) -> BTreeMap<&str, String> {
    let text = |attribute: &KeyValue| match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => format!("{text:?}"),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => format!("{number:?}"),
        Some(Value::BoolValue(yes)) => yes.to_string(),
        other => format!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.as_str(), text(attribute))).collect()
}

fn number(attributes: &[KeyValue], name: &str) -> Option<i64> {
    let value = attributes.iter().find(|attribute| attribute.key == name)?.value.as_ref()?;
    match value.value {
        Some(Value::IntValue(number)) => Some(number),
        _ => None,
    }
}

/// Whether these are the attributes, and no others.
fn are(attributes: &[KeyValue], wanted: &[(&str, &str)]) -> bool {
    attributes.len() == wanted.len()
        && wanted.iter().all(|(name, value)| match number(attributes, name) {
            Some(number) => number.to_string() == *value,
            None => attribute(attributes, name) == Some(value),
        })
}

/// The metrics of one export.
#[derive(Debug)]
pub(crate) struct Metrics(pub(crate) Vec<Metric>);

impl Metrics {
    pub(crate) fn get(&self, name: &str) -> &Metric {
        let found: Vec<_> = self.0.iter().filter(|metric| metric.name == name).collect();
        assert_eq!(found.len(), 1, "{name} has arrived {} times", found.len());
        found[0]
    }

    /// The value of a counter under exactly these attributes.
    pub(crate) fn count(&self, name: &str, attributes: &[(&str, &str)]) -> i64 {
        let Some(Data::Sum(sum)) = &self.get(name).data else { panic!("{name} is no sum") };
        let point = sum.data_points.iter().find(|point| are(&point.attributes, attributes));
        match point.unwrap_or_else(|| missing(name, attributes, &sum.data_points)).value {
            Some(number_data_point::Value::AsInt(value)) => value,
            ref other => panic!("{name} is {other:?}"),
        }
    }

    /// The histogram under exactly these attributes.
    pub(crate) fn histogram(&self, name: &str, attributes: &[(&str, &str)]) -> &HistogramDataPoint {
        let Some(Data::Histogram(histogram)) = &self.get(name).data else { panic!("{name} is no histogram") };
        let point = histogram.data_points.iter().find(|point| are(&point.attributes, attributes));
        point.unwrap_or_else(|| missing(name, attributes, &histogram.data_points))
    }

    /// The attributes of all points of a metric.
    pub(crate) fn attributes(&self, name: &str) -> Vec<Vec<KeyValue>> {
        match &self.get(name).data {
            Some(Data::Sum(sum)) => sum.data_points.iter().map(|point| point.attributes.clone()).collect(),
            Some(Data::Histogram(histogram)) => {
                histogram.data_points.iter().map(|point| point.attributes.clone()).collect()
            }
            other => panic!("{name} is {other:?}"),
        }
    }
}

fn missing<T>(name: &str, attributes: &[(&str, &str)], there: &impl Debug) -> T {
    panic!("{name} has no point with {attributes:?}, but {there:#?}")
}
