//! The OpenTelemetry collector, built of its modules, and the service of the example that exports to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dlock_rig::servers::Ports;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, TracesData};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long a server may take to listen, or to stop.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file of the project.
#[must_use]
pub fn of_the_project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path)
}

/// Whether there is a Go toolchain to build the collector with: one that gets itself the version that a module asks
/// for.
pub async fn can_be_built() -> bool {
    const FETCHES_OTHERS: u32 = 21;
    let Ok(output) = Command::new("go").arg("version").output().await else { return false };
    let text = String::from_utf8_lossy(&output.stdout);
    let minor =
        text.split_once("go1.").and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next());
    minor.and_then(|minor| minor.parse::<u32>().ok()).is_some_and(|minor| minor >= FETCHES_OTHERS)
}

/// Builds the collector. Returns the path of the program.
///
/// # Errors
///
/// When the build fails.
pub async fn build() -> Result<PathBuf> {
    let project = of_the_project("tests/interop/collector");
    let program = project.join("target/collector");
    let built =
        Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(&project).output();
    said(&built.await.context("no go; see https://go.dev/dl")?, "go build")?;
    Ok(program)
}

/// Builds the example `rooms`, as the tests do. Returns the path of the program.
///
/// # Errors
///
/// When the build fails.
pub async fn build_rooms() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "--workspace", "--all-features", "--bin", "rooms"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(of_the_project("."))
        .stderr(Stdio::inherit())
        .output();
    for line in said(&built.await?, "cargo build")?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        if let Some(program) = message["executable"].as_str()
            && message["target"]["name"] == "rooms"
        {
            return Ok(program.into());
        }
    }
    bail!("cargo did not say where it put the program")
}

/// What a program said, if it ended well.
///
/// # Errors
///
/// When it did not: with what it said.
pub fn said(output: &std::process::Output, what: &str) -> Result<String> {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{what} ended with {}: {out}{err}", output.status);
    Ok(out.into_owned())
}

/// A running collector with the configuration that the project ships, on ports of its own. It keeps the traces in a
/// file. Dropping it kills it.
#[derive(Debug)]
pub struct Collector {
    child: Child,
    directory: TempDir,
    otlp: u16,
    prometheus: u16,
}

impl Collector {
    /// Starts it, and waits until it listens.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub async fn start(program: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let [otlp, http, prometheus] = std::array::from_fn(|_| Ports::free());
        let ours = directory.path().join("ours.yaml");
        let traces = traces(&directory);
        std::fs::write(&ours, changes(otlp, http, prometheus, &traces))?;
        let log = std::fs::File::create(directory.path().join("collector.log"))?;
        let child = Command::new(program)
            .arg("--config")
            .arg(of_the_project("observability/collector.yaml"))
            .arg("--config")
            .arg(&ours)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be started", program.display()))?;
        let mut collector = Self { child, directory, otlp, prometheus };
        for port in [otlp, prometheus] {
            collector.listens(port).await?;
        }
        Ok(collector)
    }

    async fn listens(&mut self, port: u16) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            if self.child.try_wait()?.is_some() || started.elapsed() > PATIENCE {
                bail!("the collector does not listen: {}", self.log());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("collector.log")).unwrap_or_default()
    }

    /// Where it takes OTLP, for `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol `grpc`.
    #[must_use]
    pub fn otlp(&self) -> String {
        format!("http://127.0.0.1:{}", self.otlp)
    }

    /// Where Prometheus is to ask.
    #[must_use]
    pub fn prometheus(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.prometheus).into()
    }

    /// The series, as Prometheus would get them, once all of these are in them: the collector hands on in batches.
    ///
    /// # Errors
    ///
    /// When it does not answer, or they do not arrive.
    pub async fn series_with(&self, all: &[String]) -> Result<String> {
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        let started = Instant::now();
        loop {
            let answer = client.get(format!("http://{}/metrics", self.prometheus())).send().await?;
            let series = answer.error_for_status()?.text().await?;
            if all.iter().all(|text| series.contains(&**text)) {
                return Ok(series);
            }
            ensure!(started.elapsed() < PATIENCE, "not all of {all:?} arrived: {series}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it. Returns the spans that it got, and the text in which it kept them.
    ///
    /// # Errors
    ///
    /// When it does not end well, or what it has kept cannot be read.
    pub async fn stop(mut self) -> Result<(Vec<ResourceSpans>, String)> {
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(id.context("the collector ended by itself")?, Signal::TERM)?;
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        let status = status.context("the collector does not stop")??;
        ensure!(status.success(), "the collector ended with {status}: {}", self.log());
        let text = std::fs::read_to_string(traces(&self.directory))?;
        let mut spans = Vec::new();
        for line in text.lines() {
            spans.extend(serde_json::from_str::<TracesData>(line)?.resource_spans);
        }
        Ok((spans, text))
    }
}

fn traces(directory: &TempDir) -> PathBuf {
    directory.path().join("traces.json")
}

/// What is different here from the configuration that the project ships: where it listens, and where traces go.
fn changes(otlp: u16, http: u16, prometheus: u16, traces: &Path) -> String {
    serde_json::json!({
        "receivers": { "otlp": { "protocols": {
            "grpc": { "endpoint": format!("127.0.0.1:{otlp}") },
            "http": { "endpoint": format!("127.0.0.1:{http}") },
        } } },
        "exporters": {
            "prometheus": { "endpoint": format!("127.0.0.1:{prometheus}") },
            "file": { "path": traces },
        },
        "service": {
            "telemetry": { "metrics": { "level": "none" } },
            "pipelines": { "traces": { "exporters": ["file"] } },
        },
    })
    .to_string()
}
