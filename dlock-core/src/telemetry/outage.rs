//! Warnings that come by the thousand when a server is away: the first failure is a line, and the others are counted in
//! further lines. A timer writes those that no later failure or success does.
//!
//! ```text
//!          failure: a line                    success, 1 s after the last failure: a line
//! quiet -------------------> outage lasts ---------------------------------------------------> quiet
//!                             |        ^
//!                             +--------+ failure: counted, and a line with the counts every 10 s;
//!                                        after 90 s without one it begins another outage
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::sync::plain::Mutex;

/// The time between two lines while an outage lasts.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// The time after which the first counts are logged: thousands of failures mostly come at once.
pub(super) const SOON: Duration = Duration::from_secs(1);
/// The time without a failure after which a success ends an outage: some locks may fail while others do not.
const QUIET: Duration = Duration::from_secs(1);
/// The time without a failure after which the next one begins another outage, where successes are not reported. Longer
/// than the longest pause after a refusal and its request.
const FORGOTTEN: Duration = Duration::from_secs(90);
/// The number of kinds of failures that a line distinguishes.
const KINDS: usize = 20;

/// The failures of one sort of request of one `Locks`.
#[derive(Debug)]
pub(super) struct Outage {
    /// The text of a line with counts.
    pub(super) goes_on: &'static str,
    lasts: AtomicBool,
    state: Mutex<OutageState>,
}

#[derive(Debug, Default)]
struct OutageState {
    began: Option<Instant>,
    last_failure: Option<Instant>,
    last_line: Option<Instant>,
    /// The failures since the last line, by template and kind.
    unreported: BTreeMap<(&'static str, &'static str), u64>,
    failures: u64,
}

/// The report that a failure deserves.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum OutageReport {
    /// All about it: it is the first.
    First,
    /// The number of failures since the last line, by template and kind.
    Counts(String),
    /// Nothing yet: it is the first that is in no line, and a timer has to write it.
    Unreported,
    Nothing,
}

/// The report at the end of an outage.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) lasted: Duration,
    pub(super) failures: u64,
    /// The failures that are in no line yet, by template and kind.
    pub(super) unreported: Option<String>,
}

impl OutageState {
    /// Takes the failures that are in no line yet; the caller writes them.
    fn take_unreported(&mut self) -> Option<String> {
        let unreported = std::mem::take(&mut self.unreported);
        // Templates are few, but one line must stay readable also if all of them fail.
        let rest = unreported.len().saturating_sub(KINDS);
        let mut text = String::new();
        for ((template, kind), count) in unreported.iter().take(KINDS) {
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
    /// Creates an outage whose lines with counts have this text.
    pub(super) fn new(goes_on: &'static str) -> Self {
        Self { goes_on, lasts: AtomicBool::new(false), state: Mutex::default() }
    }

    /// Counts a failure, and returns the report that it deserves.
    pub(super) fn failed(
        &self,
        template: Option<&'static str>,
        kind: &'static str,
        now: Instant,
    ) -> OutageReport {
        let mut state = self.state.lock();
        if state.last_failure.is_some_and(|last| now.saturating_duration_since(last) >= FORGOTTEN) {
            // The counts stay for the timer. All else begins anew, so that this failure is a line of its own.
            let unreported = std::mem::take(&mut state.unreported);
            *state = OutageState { unreported, ..OutageState::default() };
        }
        self.lasts.store(true, Ordering::Release);
        state.failures += 1;
        state.last_failure = Some(now);
        if state.began.is_none() {
            // The first line has all about its failure, so it is not counted as unreported.
            (state.began, state.last_line) = (Some(now), Some(now));
            return OutageReport::First;
        }
        // Only the first one wakes the timer, which then looks for all of them.
        let is_first = state.unreported.is_empty();
        *state.unreported.entry((template.unwrap_or("no template"), kind)).or_default() += 1;
        if state.last_line.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            return if is_first { OutageReport::Unreported } else { OutageReport::Nothing };
        }
        state.last_line = Some(now);
        state.take_unreported().map_or(OutageReport::Nothing, OutageReport::Counts)
    }

    /// Returns the failures that are in no line yet; the caller writes them at once.
    pub(super) fn unreported(&self, now: Instant) -> Option<String> {
        let mut state = self.state.lock();
        let unreported = state.take_unreported()?;
        state.last_line = Some(now);
        Some(unreported)
    }

    /// Notes a success, and returns the report if that ends an outage. Costs next to nothing when there is none.
    pub(super) fn succeeded(&self, now: impl FnOnce() -> Instant) -> Option<Over> {
        // One load where nothing fails: every renewal and release comes here.
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

    /// Ends an outage, if there is one, and returns the report.
    pub(super) fn over(&self, now: Instant) -> Option<Over> {
        let mut state = self.state.lock();
        let began = state.began?;
        self.lasts.store(false, Ordering::Release);
        let (lasted, failures) = (now.saturating_duration_since(began), state.failures);
        let over = Over { lasted, failures, unreported: state.take_unreported() };
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
                OutageReport::Unreported | OutageReport::Nothing => {}
                line => lines.push(line),
            }
            assert_eq!(outage.succeeded(|| at(n)), None);
        }
        let counts = "no template unavailable: 2000, room_<id> unavailable: 8000";
        assert_eq!(lines, [OutageReport::Counts(counts.into()), OutageReport::Counts(counts.into())]);
        let over = outage.succeeded(|| at(26_000)).unwrap();
        let unreported = Some("no template unavailable: 1000, room_<id> unavailable: 4000".into());
        assert_eq!(over, Over { lasted: Duration::from_secs(26), failures: 25_001, unreported });
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
        assert_eq!(outage.unreported(start), None);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::First);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::Unreported);
        assert_eq!(outage.failed(None, "gone", start), OutageReport::Nothing);
        // The counts were not taken in between, and the next failure begins another outage.
        assert_eq!(outage.failed(None, "gone", start + FORGOTTEN), OutageReport::First);
        assert_eq!(outage.unreported(start + FORGOTTEN), Some("no template gone: 2".into()));
        assert_eq!(outage.unreported(start + FORGOTTEN), None);
        assert_eq!(outage.failed(None, "gone", start + FORGOTTEN), OutageReport::Unreported);
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
