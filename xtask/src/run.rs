//! Running commands and timing steps.

use std::ffi::OsString;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// A command that is shown before it runs.
pub(crate) struct Shown(Command);

/// Cargo itself, the one that runs us, in the root of the repository.
pub(crate) fn cargo<const N: usize>(arguments: [&str; N]) -> Shown {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())).args(arguments)
}

pub(crate) fn program(name: impl Into<OsString>) -> Shown {
    let mut command = Command::new(name.into());
    command.current_dir(root());
    without_ours(&mut command);
    Shown(command)
}

/// Takes from `command` what `cargo run` sets for xtask; it would have dependencies built again.
pub(crate) fn without_ours(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
}

impl Shown {
    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.0.args(arguments.into_iter().map(Into::into));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.0.env(name, value);
        self
    }

    /// Runs it to its end; a failure is an error.
    pub(crate) fn run(mut self) -> Result<()> {
        self.show();
        let status = self.0.status().with_context(|| format!("cannot start {}", self.text()))?;
        if !status.success() {
            bail!("{} ended with {status}", self.text());
        }
        Ok(())
    }

    /// As [`run`](Self::run); `line` is called with each line of its standard output, which is not shown.
    pub(crate) fn run_and_take(mut self, mut line: impl FnMut(&str)) -> Result<()> {
        self.show();
        let mut child =
            self.0.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", self.text()))?;
        if let Some(output) = child.stdout.take() {
            for text in BufReader::new(output).lines() {
                line(&text?);
            }
        }
        let status = child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.text());
        }
        Ok(())
    }

    /// Its standard output, not shown.
    pub(crate) fn read(mut self) -> Result<String> {
        let output = self
            .0
            .stderr(Stdio::piped())
            .output()
            .with_context(|| format!("cannot start {}", self.text()))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("{} ended with {}: {}", self.text(), output.status, why.trim_end());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Whether it runs and succeeds, silently.
    pub(crate) fn succeeds(mut self) -> bool {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn show(&self) {
        println!("$ {}", self.text());
    }

    fn text(&self) -> String {
        let name = Path::new(self.0.get_program()).file_name().unwrap_or_default();
        let words = std::iter::once(name).chain(self.0.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

/// How many tests ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// Those that failed once, and passed alone.
    pub(crate) flaky: u64,
}

type Work = Box<dyn FnOnce() -> Result<Option<Tests>>>;

/// One thing to check.
pub(crate) struct Step {
    name: String,
    work: Work,
}

/// A step that was carried out.
pub(crate) struct Done {
    pub(crate) name: String,
    pub(crate) error: Option<anyhow::Error>,
    pub(crate) tests: Option<Tests>,
    pub(crate) took: Duration,
}

impl Step {
    pub(crate) fn new(name: impl Into<String>, work: impl FnOnce() -> Result<()> + 'static) -> Self {
        Self { name: name.into(), work: Box::new(|| work().map(|()| None)) }
    }

    pub(crate) fn counting(name: impl Into<String>, work: impl FnOnce() -> Result<Tests> + 'static) -> Self {
        Self { name: name.into(), work: Box::new(|| work().map(Some)) }
    }

    pub(crate) fn carry_out(self) -> Done {
        println!("\n== {}", self.name);
        let start = Instant::now();
        let (error, tests) = match (self.work)() {
            Ok(tests) => (None, tests),
            Err(error) => {
                println!("error: {error:#}");
                (Some(error), None)
            }
        };
        Done { name: self.name, error, tests, took: start.elapsed() }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.error.is_some() { "FAILED" } else { "ok" };
        write!(f, "{verdict:<6} {:>7.1} s  {}", self.took.as_secs_f64(), self.name)
    }
}
