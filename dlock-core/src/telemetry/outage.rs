//! Warnings that come by the thousand when a server is away: the first one is a line, and the others are counted in
//! further lines, of which a timer writes what no later failure or success does.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sync::plain::Mutex;

/// How often an outage is logged while it lasts.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// After how long the first counts are logged: what comes by the thousand mostly comes at once.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// After how long without a failure a success ends an outage: some locks may fail while others do not.
const QUIET: Duration = Duration::from_secs(1);
/// After how long without a failure the next one begins another outage, where nothing tells of successes.
/// Longer than the longest pause after a refusal and its request.
const FORGOTTEN: Duration = Duration::from_secs(90);
/// How many kinds of failures a line tells apart.
const KINDS: usize = 20;

/// The failures of one sort of request of one `Locks`.
#[derive(Debug)]
pub(super) struct Outage {
    /// What a line with counts says.
    pub(super) goes_on: &'static str,
    lasts: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    began: Option<Instant>,
    last_failure: Option<Instant>,
    last_line: Option<Instant>,
    /// Since the last line, by template and kind.
    untold: BTreeMap<(&'static str, &'static str), u64>,
    failures: u64,
}

/// What to say of a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutageReport {
    /// All about it: it is the first.
    First,
    /// How many there were since the last line, by template and kind.
    Counts(String),
    /// Nothing yet: it is the first that no line has told of.
    Untold,
    Nothing,
}

/// What to say when it is over.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) lasted: Duration,
    pub(super) failures: u64,
    /// Those that no line has told of, by template and kind.
    pub(super) untold: Option<String>,
}

impl OutageState {
    /// What no line has told of; the caller does.
    fn take_untold(&mut self) -> Option<String> {
        let untold = std::mem::take(&mut self.untold);
        let rest = untold.len().saturating_sub(KINDS);
        let mut text = String::new();
        for ((template, kind), count) in untold.iter().take(KINDS) {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}{template} {kind}: {count}");
        }
        if rest > 0 {
            let _ = write!(text, ", and {rest} more");
        }
        (!text.is_empty()).then_some(text)
    }
}

impl Outage {
    /// Creates one of which lines with counts say this.
    pub(super) fn new(goes_on: &'static str) -> Self {
        Self { goes_on, lasts: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Counts a failure, and says what to tell of it.
    pub(super) fn failed(
        &self,
        template: Option<&'static str>,
        kind: &'static str,
        now: Instant,
    ) -> OutageReport {
        let mut state = self.state.lock();
        if state.last_failure.is_some_and(|last| now.saturating_duration_since(last) >= FORGOTTEN) {
            let untold = std::mem::take(&mut state.untold);
            *state = OutageState { untold, ..OutageState::default() };
        }
        self.lasts.store(true, Ordering::Release);
        state.failures += 1;
        state.last_failure = Some(now);
        if state.began.is_none() {
            (state.began, state.last_line) = (Some(now), Some(now));
            return OutageReport::First;
        }
        let is_first = state.untold.is_empty();
        *state.untold.entry((template.unwrap_or("no template"), kind)).or_default() += 1;
        if state.last_line.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return if is_first { OutageReport::Untold } else { OutageReport::Nothing };
        }
        state.last_line = Some(now);
        state.take_untold().map_or(OutageReport::Nothing, OutageReport::Counts)
    }

    /// Returns what no line has told of, for the caller to do so at this moment.
    pub(super) fn untold(&self, now: Instant) -> Option<String> {
        let mut state = self.state.lock();
        let untold = state.take_untold()?;
        state.last_line = Some(now);
        Some(untold)
    }

    /// Notes a success; says what to tell when it ends an outage. Costs next to nothing when there is none.
    pub(super) fn succeeded(&self, now: impl FnOnce() -> Instant) -> Option<Over> {
        if !self.lasts.load(Ordering::Acquire) {
            return None;
        }
        let now = now();
        if now.saturating_duration_since(self.state.lock().last_failure?) < QUIET {
            None
        } else {
            self.over(now)
        }
    }

    /// Ends an outage, if there is one; says what to tell of it.
    pub(super) fn over(&self, now: Instant) -> Option<Over> {
        let mut state = self.state.lock();
        let began = state.began?;
        self.lasts.store(false, Ordering::Release);
        let (lasted, failures) = (now.saturating_duration_since(began), state.failures);
        let over = Over { lasted, failures, untold: state.take_untold() };
        *state = OutageState::default();
        Some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_of_at_its_begin_every_ten_seconds_and_at_its_end() {
        let (outage, start) = (Outage::new("it goes on"), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(outage.succeeded(|| start), None);
        assert_eq!(outage.failed(Some("room_<id>"), "unavailable", start), OutageReport::First);
        let mut lines = Vec::new();
        for n in 1..=25_000 {
            let template = if n % 5 == 0 { None } else { Some("room_<id>") };
            match outage.failed(template, "unavailable", at(n)) {
                OutageReport::Untold | OutageReport::Nothing => {}
                line => lines.push(line),
            }
            assert_eq!(outage.succeeded(|| at(n)), None);
        }
        let counts = "no template unavailable: 2000, room_<id> unavailable: 8000";
        assert_eq!(lines, [OutageReport::Counts(counts.into()), OutageReport::Counts(counts.into())]);
        let over = outage.succeeded(|| at(26_000)).unwrap();
        let untold = Some("no template unavailable: 1000, room_<id> unavailable: 4000".into());
        assert_eq!(over, Over { lasted: Duration::from_secs(26), failures: 25_001, untold });
        assert_eq!(outage.succeeded(|| at(27_000)), None);
        assert_eq!(outage.failed(None, "unknown", at(28_000)), OutageReport::First);
        assert_eq!(
            outage.failed(None, "unknown", at(57_000)),
            OutageReport::Counts("no template unknown: 1".into())
        );
        assert_eq!(outage.failed(None, "unknown", at(147_000)), OutageReport::First);
    }

    #[test]
    fn what_no_line_has_told_of_is_kept_for_the_timer() {
        let (outage, start) = (Outage::new("it goes on"), Instant::now());
        assert_eq!(outage.untold(start), None);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::First);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::Untold);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::Nothing);
        // Nobody came for it, and the next one begins another outage.
        assert_eq!(outage.failed(None, "gone", start + FORGOTTEN), OutageReport::First);
        assert_eq!(outage.untold(start + FORGOTTEN), Some("no template gone: 2".into()));
        assert_eq!(outage.untold(start + FORGOTTEN), None);
        assert_eq!(outage.failed(None, "gone", start + FORGOTTEN), OutageReport::Untold);
    }

    #[test]
    fn a_line_tells_a_few_kinds_apart() {
        let (outage, start) = (Outage::new("it goes on"), Instant::now());
        for n in 0..100_u32 {
            let template: &'static str = Box::leak(format!("t{n:02}").into());
            outage.failed(Some(template), "unknown", start);
        }
        let OutageReport::Counts(text) = outage.failed(None, "unknown", start + EVERY) else { panic!() };
        assert!(text.ends_with("and 80 more") && text.len() < 1_000, "{text}");
    }
}
