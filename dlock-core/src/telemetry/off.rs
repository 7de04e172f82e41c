//! The names of metrics and traces without the feature `otel`: they do nothing.

use std::time::Duration;

use super::{Exported, Loss, Site, Span, Waiters};
use crate::error::ErrorKind;
use crate::key::Key;
use crate::server_address::ServerAddress;

/// A meter, which cannot be given.
#[derive(Debug)]
pub(crate) enum Meter {}

pub(super) struct Metrics;

/// The reach of telemetry, which is none.
pub(super) struct Reach;

impl Reach {
    pub(super) const fn new(_: &Metrics) -> Self {
        Self
    }

    pub(super) const fn look(&self, _: &Span) {}

    pub(super) const fn exported(&self) -> Option<Exported> {
        None
    }
}

impl Metrics {
    pub(super) const fn new(_: &'static str, _: Option<&ServerAddress>, _: bool, _: Option<Meter>) -> Self {
        Self
    }
    pub(super) fn acquire_ended(&self, _: Site, _: Option<ErrorKind>, _: impl FnOnce() -> Duration, _: u32) {}
    pub(super) const fn acquire_cancelled(&self, _: Site, _: Duration, _: u32) {}
    pub(super) const fn wait_begins(&self, _: Site) {}
    pub(super) const fn wait_ends(&self, _: Site) {}
    pub(super) const fn hold_begins(&self, _: Site) {}
    pub(super) const fn hold_ends(&self, _: Site, _: bool, _: Duration) {}
    pub(super) const fn term_begins(&self, _: Site) {}
    pub(super) const fn term_ends(&self, _: Site) {}
    pub(super) const fn requeued(&self, _: Site) {}
    pub(super) const fn rechecked(&self, _: Site, _: &'static str) {}
    pub(super) fn renewal(
        &self,
        _: Site,
        _: &'static str,
        _: Option<ErrorKind>,
        _: impl FnOnce() -> Duration,
    ) {
    }
    pub(super) const fn lost(&self, _: Site, _: Loss) {}
    pub(super) const fn release_failed(&self, _: Site, _: ErrorKind) {}
    pub(super) const fn abandoned(&self, _: Site) {}
    pub(super) const fn passed_on(&self, _: Site) {}
    pub(super) const fn reentered(&self, _: Site) {}
    pub(super) const fn batch_taken(&self, _: Site, _: usize) {}
    pub(super) const fn segment_moved(&self, _: Site) {}
    pub(super) const fn voted(&self, _: usize, _: &'static str, _: Option<ErrorKind>) {}
    pub(super) const fn keeper_lagged(&self, _: Duration) {}
}

// With braces, so that it is not `Copy`: a value that can be copied would be used in other ways than the real one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {}

impl Trace {
    pub(crate) const fn current() -> Self {
        Self {}
    }

    pub(super) const fn is_some(&self) -> bool {
        false
    }

    pub(super) const fn parse(_: &str) -> Self {
        Self {}
    }

    pub(super) const fn is_same_span(&self, _: &Self) -> bool {
        true
    }

    pub(crate) const fn to_text(&self) -> Option<String> {
        None
    }

    pub(super) const fn link(&self) {}

    pub(super) const fn adopt(&self, _: &Span) {}
}

#[derive(Default)]
pub(super) struct Holders {}

impl Holders {
    pub(super) const fn begins(&self, _: &Key, _: &Trace) {}
    pub(super) const fn ends(&self, _: &Key, _: &Trace, _: &dyn Waiters) {}
    pub(super) const fn waiter_left(&self, _: &Key, _: &dyn Waiters) {}
    pub(super) const fn of(&self, _: &Key) -> Trace {
        Trace {}
    }
}
