//! One table for every bench: what was measured, what it may be, and whether it is.

use anyhow::{Result, bail};
use comfy_table::{CellAlignment, Table, presets};

/// The median of some rounds, with the lowest and the highest.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The middle one.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Of these rounds.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self { median: at(values.len() / 2), min: at(0), max: at(values.len().saturating_sub(1)) }
    }
}

/// One line of the result.
#[derive(Debug)]
pub struct Row {
    what: String,
    measured: String,
    spread: String,
    /// The limit as text, and whether it is kept; none for a figure that only informs.
    target: Option<(String, bool)>,
    /// Why nothing was measured.
    failure: Option<String>,
}

impl Row {
    /// A figure with its unit.
    #[must_use]
    pub fn new(what: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            what: what.into(),
            measured: shown(value, unit),
            spread: String::new(),
            target: None,
            failure: None,
        }
    }

    /// A bench that could not measure.
    #[must_use]
    pub fn failed(what: impl Into<String>, error: &anyhow::Error) -> Self {
        let mut row = Self::new(what, f64::NAN, "");
        row.failure = Some(format!("{}: {error:#}", row.what));
        row.beside("failed".to_owned())
    }

    /// Returns what failed, of a bench that could not measure.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// The median of some rounds.
    #[must_use]
    pub fn spread(what: impl Into<String>, spread: Spread, unit: &str) -> Self {
        let mut row = Self::new(what, spread.median, unit);
        row.spread = format!("{} .. {}", shown(spread.min, ""), shown(spread.max, ""));
        row
    }

    /// Not more than this.
    #[must_use]
    pub fn at_most(mut self, value: f64, limit: f64, unit: &str) -> Self {
        self.target = Some((format!("<= {}", shown(limit, unit)), value <= limit));
        self
    }

    /// Not less than this.
    #[must_use]
    pub fn at_least(mut self, value: f64, limit: f64, unit: &str) -> Self {
        self.target = Some((format!(">= {}", shown(limit, unit)), value >= limit));
        self
    }

    /// Adds the name of the server, unless the row is indented below another one.
    #[must_use]
    pub fn on(mut self, server: &str) -> Self {
        if !self.what.starts_with(' ') {
            self.what = format!("{server}: {}", self.what);
        }
        self
    }

    /// Adds to the column of the spread what else is worth to know.
    #[must_use]
    pub fn beside(mut self, remark: String) -> Self {
        self.spread = remark;
        self
    }
}

fn shown(value: f64, unit: &str) -> String {
    let digits = if value >= 100.0 || value == 0.0 { 0 } else { 2 };
    format!("{value:.digits$} {unit}").trim_end().to_owned()
}

/// The rows as text.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(["what", "median", "min .. max", "target", "met"]);
    for row in rows {
        let (target, met) = match &row.target {
            Some((target, met)) => (target.as_str(), if *met { "yes" } else { "NO" }),
            None => ("", ""),
        };
        table.add_row([row.what.as_str(), &row.measured, &row.spread, target, met]);
    }
    for column in table.column_iter_mut().skip(1).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

/// The benches with `filter` in their name; all without one.
///
/// # Errors
///
/// When there is none, which names them all; and in a debug build, whose figures mean nothing.
pub fn choose<'a, B>(benches: &'a [(&'a str, B)], filter: Option<&str>) -> Result<Vec<&'a (&'a str, B)>> {
    if cfg!(debug_assertions) {
        bail!("this is a debug build, whose figures mean nothing; add --release");
    }
    let chosen: Vec<_> =
        benches.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter))).collect();
    if chosen.is_empty() {
        let names: Vec<_> = benches.iter().map(|(name, _)| *name).collect();
        bail!("no bench has {filter:?} in its name; there are: {}", names.join(", "));
    }
    Ok(chosen)
}
