//! Progress: a bar for each worker where there is a terminal, plain lines where there is none.

use std::io::IsTerminal;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Where the progress of one round is shown: standard error, so that the result on standard output stays clean.
#[derive(Debug)]
pub(crate) struct Screen(Option<MultiProgress>);

/// The line of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Bar(ProgressBar);

impl Screen {
    pub(crate) fn new(quiet: bool) -> Self {
        let bars = !quiet && std::io::stderr().is_terminal();
        Self(bars.then(MultiProgress::new))
    }

    pub(crate) fn note(&self, line: &str) {
        match &self.0 {
            Some(bars) if bars.println(line).is_ok() => {}
            _ => eprintln!("{line}"),
        }
    }

    pub(crate) fn bar(&self, name: String, customers: usize) -> Bar {
        let Some(bars) = &self.0 else { return Bar(ProgressBar::hidden()) };
        let style = ProgressStyle::with_template("  {prefix:<12} [{bar:30}] {pos:>5}/{len} served  {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> ");
        let bar = bars.add(ProgressBar::new(u64::try_from(customers).unwrap_or(u64::MAX)).with_style(style));
        bar.set_prefix(name);
        Bar(bar)
    }
}

impl Bar {
    pub(crate) fn served(&self) {
        self.0.inc(1);
    }

    pub(crate) fn say(&self, what: &'static str) {
        self.0.set_message(what);
    }

    pub(crate) fn end(&self, what: &'static str) {
        self.0.abandon_with_message(what);
    }
}
