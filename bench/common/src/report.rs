//! One table: what was measured, what it may be, and whether it is.

use comfy_table::{CellAlignment, Table, presets};

use crate::measure::Spread;

/// One line of the result.
#[derive(Debug)]
pub struct Row {
    what: String,
    measured: String,
    spread: String,
    /// The limit as text, and whether it is kept; none for a figure that only informs.
    target: Option<(String, bool)>,
}

impl Row {
    /// A figure with its unit.
    #[must_use]
    pub fn new(what: impl Into<String>, value: f64, unit: &str) -> Self {
        Self { what: what.into(), measured: shown(value, unit), spread: String::new(), target: None }
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

/// All lines as one table.
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
