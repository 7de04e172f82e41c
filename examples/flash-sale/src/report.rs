//! What came of the rounds: a table for people, JSON for programs.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::Sale;
use crate::round::Kind;

/// One round's result. What was sold is counted in the shop's orders, not in what workers said.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) kind: Kind,
    pub(crate) stock: i64,
    pub(crate) customers: i64,
    pub(crate) sold: i64,
    pub(crate) left: i64,
    pub(crate) refused: u32,
    pub(crate) failed: u32,
    /// Customers served a second.
    pub(crate) throughput: f64,
    /// In microseconds.
    pub(crate) waits: Histogram<u64>,
    /// From the kill to the next sale by somebody else.
    pub(crate) takeover: Option<Duration>,
}

impl Outcome {
    /// Sold more than there was.
    fn oversold(&self) -> i64 {
        (self.sold - self.stock).max(0)
    }

    /// Sales that the stock does not know of.
    fn lost_updates(&self) -> i64 {
        self.sold - (self.stock - self.left)
    }

    /// Every voucher was sold once, every sale is in the stock, and every customer got an answer.
    fn is_exact(&self) -> bool {
        self.sold == self.stock.min(self.customers) && self.lost_updates() == 0 && self.failed == 0
    }

    /// Whether the round came out as it must. A sale without a lock must do nothing.
    pub(crate) fn is_right(&self) -> bool {
        match self.kind {
            Kind::Unlocked => true,
            Kind::Locked | Kind::Segments => self.is_exact(),
            Kind::Incidents => self.is_exact() && self.takeover.is_some() && self.refused > 0,
        }
    }

    fn verdict(&self) -> &'static str {
        match (self.kind, self.is_exact(), self.is_right()) {
            (Kind::Unlocked, false, _) => "wrong, as\nexpected",
            (Kind::Unlocked, true, _) => "exact,\nby luck",
            (_, true, true) => "exact",
            (_, true, false) => "incomplete",
            (_, false, _) => "WRONG",
        }
    }

    pub(crate) fn sentence(&self) -> String {
        let Self { sold, stock, .. } = self;
        let (oversold, lost) = (self.oversold(), self.lost_updates());
        let verdict = self.verdict().replace('\n', " ");
        format!("{sold} of {stock} sold, {oversold} too many, {lost} lost updates: {verdict}")
    }

    fn wait_ms(&self, quantile: f64) -> Option<f64> {
        let micros = self.waits.value_at_quantile(quantile);
        (!self.waits.is_empty()).then(|| Duration::from_micros(micros).as_secs_f64() * 1e3)
    }
}

/// How many times the throughput under the single lock this round had.
fn gain(outcome: &Outcome, outcomes: &[Outcome]) -> Option<f64> {
    let single = outcomes.iter().find(|outcome| outcome.kind == Kind::Locked)?;
    (outcome.kind == Kind::Segments).then(|| outcome.throughput / single.throughput)
}

pub(crate) fn table(outcomes: &[Outcome]) -> String {
    const NONE: &str = "-";
    let ms = |ms: Option<f64>| ms.map_or_else(|| NONE.to_owned(), |ms| format!("{ms:.1} ms"));
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "round",
        "sold",
        "over-\nsold",
        "lost\nupdates",
        "stale writes\nrefused",
        "customers\nper s",
        "against\none lock",
        "wait\np50",
        "wait\np99",
        "taken\nover in",
        "result",
    ]);
    for outcome in outcomes {
        table.add_row([
            outcome.kind.title().to_owned(),
            outcome.sold.to_string(),
            outcome.oversold().to_string(),
            outcome.lost_updates().to_string(),
            outcome.refused.to_string(),
            format!("{:.0}", outcome.throughput),
            gain(outcome, outcomes).map_or_else(|| NONE.to_owned(), |gain| format!("{gain:.1}x")),
            ms(outcome.wait_ms(0.5)),
            ms(outcome.wait_ms(0.99)),
            outcome.takeover.map_or_else(|| NONE.to_owned(), |took| format!("{:.2} s", took.as_secs_f64())),
            outcome.verdict().to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(1).take(9) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

pub(crate) fn json(sale: &Sale, outcomes: &[Outcome]) -> String {
    let rounds: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "round": outcome.kind.title(),
                "sold": outcome.sold,
                "left": outcome.left,
                "oversold": outcome.oversold(),
                "lost_updates": outcome.lost_updates(),
                "refused": outcome.refused,
                "failed": outcome.failed,
                "customers_per_second": outcome.throughput,
                "against_one_lock": gain(outcome, outcomes),
                "wait_p50_ms": outcome.wait_ms(0.5),
                "wait_p99_ms": outcome.wait_ms(0.99),
                "takeover_ms": outcome.takeover.map(|took| took.as_secs_f64() * 1e3),
                "exact": outcome.is_exact(),
                "right": outcome.is_right(),
            })
        })
        .collect();
    let (stock, customers, seed) = (sale.stock, sale.customers, sale.seed);
    let document = json!({ "stock": stock, "customers": customers, "seed": seed, "rounds": rounds });
    serde_json::to_string_pretty(&document).unwrap_or_default()
}
