//! Figures, and the table of them.

use std::fmt;
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Figure>);

#[derive(Debug)]
struct Figure {
    backend: &'static str,
    what: String,
    value: String,
    promise: String,
    kept: bool,
}

impl Report {
    /// Adds a figure of which something was promised.
    pub(crate) fn add(
        &mut self,
        backend: &'static str,
        what: impl Into<String>,
        value: impl fmt::Display,
        promise: impl Into<String>,
        kept: bool,
    ) {
        let (what, promise) = (what.into(), promise.into());
        self.0.push(Figure { backend, what, value: value.to_string(), promise, kept });
    }

    /// Adds a figure of which nothing was promised.
    pub(crate) fn note(&mut self, backend: &'static str, what: impl Into<String>, value: impl fmt::Display) {
        self.add(backend, what, value, "", true);
    }

    /// Adds the figures of another one whose promise was broken.
    pub(crate) fn extend_with_broken(&mut self, other: Self) {
        self.0.extend(other.0.into_iter().filter(|figure| !figure.kept));
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.0.iter().all(|figure| figure.kept)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["backend", "measured", "value", "promise", "kept"]);
        for figure in &self.0 {
            let kept = match (figure.kept, figure.promise.is_empty()) {
                (false, _) => "NO",
                (true, true) => "",
                (true, false) => "yes",
            };
            table.add_row([figure.backend, &figure.what, &figure.value, &figure.promise, kept]);
        }
        write!(f, "{table}")
    }
}

/// A bar on the terminal; nothing where there is none.
pub(crate) fn progress(what: &str, backend: &str, length: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(length).unwrap_or(u64::MAX));
    if let Ok(style) = ProgressStyle::with_template("{msg:40} {wide_bar} {pos}/{len} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(format!("{backend}: {what}"));
    bar
}

/// Median, 99th percentile and maximum.
pub(crate) struct Spread {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Spread {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
        Self { p50: at(50), p99: at(99), max: times.last().copied().unwrap_or_default() }
    }

    /// In percent of `whole`.
    pub(crate) fn percent(&self, whole: Duration) -> String {
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / whole.as_secs_f64();
        format!(
            "p50 {:.0} %, p99 {:.0} %, max {:.0} %",
            percent(self.p50),
            percent(self.p99),
            percent(self.max)
        )
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1?}, p99 {:.1?}, max {:.1?}", self.p50, self.p99, self.max)
    }
}
