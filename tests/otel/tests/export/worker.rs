//! The process that exports.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Far more than anything here takes; a test that hangs shall end.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    /// What it printed so far.
    pub(crate) said: Vec<String>,
}

impl Worker {
    /// Exports to `url`, with further environment variables.
    pub(crate) fn start(scenario: &[&str], url: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_otel-worker"))
            .args(scenario)
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", url)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, stdin, lines, said: Vec::new() }
    }

    /// Waits for a line that starts like this.
    pub(crate) async fn says(&mut self, start: &str) {
        let said = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                let found = line.starts_with(start);
                self.said.push(line);
                if found {
                    return;
                }
            }
            panic!("it never said {start}, but {:?}", self.said);
        };
        tokio::time::timeout(LIMIT, said).await.unwrap_or_else(|_| panic!("it does not say {start}"));
    }

    pub(crate) async fn go_on(&mut self) {
        self.stdin.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn ends_well(mut self) -> Vec<String> {
        self.says("end").await;
        let status = tokio::time::timeout(LIMIT, self.child.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}: {:?}", self.said);
        self.said
    }
}

/// Checks that all of it was exported.
pub(crate) fn exported(said: Vec<String>) -> Vec<String> {
    assert!(!said.iter().any(|line| line.starts_with("not exported")), "{said:?}");
    said
}

/// The whole tour with this mark in all keys, up to its end.
pub(crate) async fn tour(mark: &str, url: &str, variables: &[(&str, &str)]) -> Vec<String> {
    let mut worker = Worker::start(&["tour", mark], url, variables);
    worker.says("shown").await;
    worker.go_on().await;
    worker.ends_well().await
}
