//! A Prometheus that asks the collector every second.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use dlock_rig::servers::Ports;
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running server. Dropping it kills it.
pub(crate) struct Prometheus {
    child: Child,
    url: String,
    client: reqwest::Client,
    _directory: TempDir,
}

/// One series of an answer.
#[derive(Debug)]
pub(crate) struct Line {
    /// The values of its labels.
    pub(crate) name: String,
    /// Seconds since the run began, and the value.
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Answer {
    data: Data,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: std::collections::BTreeMap<String, String>,
    values: Vec<(f64, String)>,
}

impl Prometheus {
    pub(crate) async fn start(target: SocketAddr) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let configuration = directory.path().join("prometheus.yml");
        let settings = json!({
            "global": { "scrape_interval": "1s" },
            "scrape_configs": [{ "job_name": "collector", "static_configs": [{ "targets": [target] }] }],
        });
        std::fs::write(&configuration, settings.to_string())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, Ports::free()));
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--log.level=error")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("no prometheus; install it with: apt-get install prometheus")?;
        let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
        let mut server = Self { child, url: format!("http://{address}"), client, _directory: directory };
        let started = Instant::now();
        while !server.is_ready().await {
            if server.child.try_wait()?.is_some() || started.elapsed() > PATIENCE {
                bail!("prometheus does not start");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    async fn is_ready(&self) -> bool {
        let answer = self.client.get(format!("{}/-/ready", self.url)).send().await;
        answer.is_ok_and(|answer| answer.status().is_success())
    }

    /// What an expression was worth in every second of a time.
    pub(crate) async fn range(
        &self,
        expression: &str,
        (from, to): (SystemTime, SystemTime),
    ) -> Result<Vec<Line>> {
        let seconds = |time: SystemTime| anyhow::Ok(time.duration_since(UNIX_EPOCH)?.as_secs_f64());
        let (from, to) = (seconds(from)?, seconds(to)?);
        let answer = self
            .client
            .get(format!("{}/api/v1/query_range", self.url))
            .query(&[
                ("query", expression),
                ("start", &from.to_string()),
                ("end", &to.to_string()),
                ("step", "1"),
            ])
            .send()
            .await?;
        let status = answer.status();
        let text = answer.text().await?;
        if !status.is_success() {
            bail!("prometheus refuses {expression}: {text}");
        }
        let answer: Answer = serde_json::from_str(&text)?;
        let lines = answer.data.result.into_iter().map(|series| Line {
            name: series.metric.into_values().collect::<Vec<_>>().join(" "),
            points: series
                .values
                .into_iter()
                .filter_map(|(at, value)| {
                    Some((at - from, value.parse().ok().filter(|v: &f64| v.is_finite())?))
                })
                .collect(),
        });
        Ok(lines.collect())
    }
}
