//! Spans and events: one place for their names and fields.
//!
//! | span | exported as | level | covers | fields |
//! |---|---|---|---|---|
//! | `dlock.acquire` | `acquire TEMPLATE` | info | the wait for a lock | `waited_ms`, `attempts`, `fence`, `handoff` |
//! | `dlock.hold` | `hold TEMPLATE` | info | the body that runs under a lock; the parent of the body's own spans | `fence` |
//! | `dlock.renew` | `renew TEMPLATE` | debug | one renewal, on the keeper's thread, in the trace of the acquire | |
//! | `dlock.release` | `release TEMPLATE` | info | the release | `background`: whether the keeper does it |
//!
//! Fields are named and typed as the attributes of metrics are: dlock's own begin with `dlock.`, in events too, and
//! numbers are signed, since `tracing-opentelemetry` exports unsigned ones as text. A failure has `error.type` and
//! `otel.status_code`. Inside an acquire there are the events `busy`, `re-check` and `wake-up`, at debug level, and a
//! warning when a place in the backend's queue was lost. With the feature `otel` an acquire that waits links to the
//! acquire of the holder.
//!
//! All have the outcome, the backend and its server, and the key; a batch has the key of its first lock, and the number
//! of locks. The spans of a lock that the attribute takes also have the key's pattern and the function. The key is
//! shown as a hash, since keys often contain the ids of people; `LocksBuilder::with_keys_shown` shows it in clear.

use std::borrow::Cow;
use std::time::Duration;

use tracing::field::Empty;
use tracing::{debug, debug_span, error, info, info_span, warn};

use super::outage::Over;
use super::subject::{acquire_outcome, db_system};
use super::{Loss, Site, Span, Subject, Telemetry};
use crate::error::{Error, ErrorKind, Failure};
use crate::fence::Fence;
use crate::guarded::{Panicked, tell};
use crate::key::Key;
use crate::server_address::ServerAddress;

/// Makes a span with the fields that all spans have, and `$more`. `$kind` is OpenTelemetry's: that of a request to a
/// server, or of work in this process.
macro_rules! span {
    (
        $make:ident($($parent:ident: $none:expr,)? $operation:literal), $kind:literal, $to:ident, $lock:ident,
        { $($more:tt)* }
    ) => {{
        let span = Span::new(|| {
            $make!(
                target: "dlock",
                $($parent: $none,)?
                concat!("dlock.", $operation),
                otel.name = &*exported_name($operation, $lock.site),
                otel.kind = $kind,
                otel.status_code = Empty,
                dlock.backend = $to.backend,
                db.system.name = db_system($to.backend),
                server.address = $to.server.as_ref().map(ServerAddress::host),
                server.port = $to.server.as_ref().and_then(ServerAddress::port).map(i64::from),
                dlock.key = Empty,
                dlock.template = $lock.site.template,
                dlock.mode = $lock.site.mode,
                code.function.name = $lock.site.function,
                dlock.outcome = Empty,
                error.type = Empty,
                $($more)*
            )
        });
        span.note(|span| {
            span.record("dlock.key", shown($to, $lock.key));
        });
        span
    }};
}

/// Returns the name that OpenTelemetry shows: the operation, and the kind of lock. There are few such names, since they
/// have no key.
fn exported_name(operation: &'static str, site: Site) -> Cow<'static, str> {
    site.template.map_or(Cow::Borrowed(operation), |template| Cow::Owned(format!("{operation} {template}")))
}

/// Converts a number to one of OpenTelemetry, which has no unsigned ones.
fn count(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Returns a fence as a number of OpenTelemetry. A fence above the highest one is left out, since a wrong number would
/// be worse. No server gives such a fence.
fn fence_number(fence: Option<Fence>) -> Option<i64> {
    i64::try_from(fence?.get()).ok()
}

pub(super) fn acquire(to: &Telemetry, first: Subject<'_>, keys: Option<usize>) -> Span {
    span!(info_span("acquire"), "client", to, first, {
        dlock.keys = keys.map(count),
        dlock.waited_ms = Empty,
        dlock.attempts = Empty,
        dlock.fence = Empty,
        dlock.handoff = Empty,
    })
}

pub(super) fn acquired(fence: Option<Fence>, waited: impl FnOnce() -> Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("dlock.outcome", "acquired");
        record_wait(span, waited(), attempts);
        span.record("dlock.fence", fence_number(fence));
    });
}

pub(super) fn not_acquired(kind: ErrorKind, waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        let (outcome, error) = acquire_outcome(kind);
        span.record("dlock.outcome", outcome);
        if let Some(kind) = error {
            record_error(span, kind);
        }
        record_wait(span, waited, attempts);
    });
}

pub(super) fn acquire_cancelled(waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("dlock.outcome", "cancelled");
        record_wait(span, waited, attempts);
    });
}

pub(super) fn busy(attempts: u32, retry_after: Option<Duration>) {
    tell(|| {
        let retry_after_ms = retry_after.map(milliseconds);
        debug!(
            target: "dlock",
            {
                dlock.attempts = i64::from(attempts),
                dlock.retry_after_ms = retry_after_ms,
            },
            "busy"
        );
    });
}

pub(super) fn woken() {
    tell(|| debug!(target: "dlock", "wake-up"));
}

pub(super) fn requeued(to: &Telemetry) {
    tell(|| {
        let what = "a place in the queue was lost, and the wait goes on at its end";
        warn!(target: "dlock", { dlock.backend = to.backend }, "{what}");
    });
}

pub(super) fn rechecked(found: &'static str) {
    tell(|| debug!(target: "dlock", { dlock.found = found }, "re-check"));
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn record_wait(span: &tracing::Span, waited: Duration, attempts: u32) {
    span.record("dlock.waited_ms", milliseconds(waited));
    span.record("dlock.attempts", i64::from(attempts));
}

pub(super) fn unknown_outcome(failure: &Failure, again: bool) {
    tell(|| {
        let what = "the outcome of an attempt is unknown";
        debug!(target: "dlock", { dlock.failure = %failure, dlock.again = again }, "{what}");
    });
}

pub(super) fn hold(to: &Telemetry, first: Subject<'_>, locks: usize, fence: Option<Fence>) -> Span {
    span!(info_span("hold"), "internal", to, first, {
        dlock.keys = (locks > 1).then(|| count(locks)),
        dlock.fence = fence_number(fence),
    })
}

pub(super) fn body_ended(lost: bool) {
    if lost { failed("lost", ErrorKind::Lost) } else { outcome("done") }
}

pub(super) fn renew(to: &Telemetry, lock: Subject<'_>) -> Span {
    span!(debug_span(parent: None, "renew"), "client", to, lock, {})
}

/// Writes that an outage has ended.
pub(super) fn over(to: &Telemetry, over: &Over, what: &'static str) {
    let Over { lasted, failures, unreported } = over;
    tell(|| {
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.lasted = ?lasted,
                dlock.failures = count(*failures),
                dlock.counts = unreported,
            },
            "{what}"
        );
    });
}

/// Writes that an outage lasts, with the further failures by template and kind.
pub(super) fn goes_on(to: &Telemetry, counts: &str, what: &'static str) {
    tell(|| warn!(target: "dlock", { dlock.backend = to.backend, dlock.counts = counts }, "{what}"));
}

pub(super) fn renewal_failed(to: &Telemetry, site: Site, failure: &Failure, left: impl Fn() -> Duration) {
    tell(|| {
        let what = "a renewal failed and is tried again";
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.template = site.template,
                dlock.failure = %failure,
                dlock.left = ?left(),
            },
            "{what}"
        );
    });
}

pub(super) fn refused(to: &Telemetry, site: Site, failure: &Failure) {
    let what = "the servers refuse what is waited for, and are asked again after pauses of up to 30 s";
    tell(|| {
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.template = site.template,
                dlock.failure = %failure,
            },
            "{what}"
        );
    });
}

pub(super) fn suspected(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let what = "the connection that keeps a lock is gone, and the lock at risk";
        debug!(target: "dlock", { dlock.backend = to.backend, dlock.key = shown(to, lock.key) }, "{what}");
    });
}

pub(super) fn release_requested(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let what = "somebody asks the holder to release the lock";
        info!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.key = shown(to, lock.key),
                dlock.template = lock.site.template,
            },
            "{what}"
        );
    });
}

pub(super) fn downgraded(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let what = "a lock that was held alone is held for reading from now on";
        debug!(target: "dlock", { dlock.backend = to.backend, dlock.key = shown(to, lock.key) }, "{what}");
    });
}

pub(super) fn downgrade_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure) {
    warn_of(to, lock, failure, "others cannot read: the backend refused to let them");
}

pub(super) fn lost(to: &Telemetry, lock: Subject<'_>, loss: Loss, reason: &str, held: impl Fn() -> Duration) {
    tell(|| {
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.key = shown(to, lock.key),
                dlock.template = lock.site.template,
                dlock.held = ?held(),
                dlock.cause = loss.as_str(),
                dlock.reason = reason,
            },
            "a lock was lost"
        );
    });
}

pub(super) fn release(to: &Telemetry, lock: Subject<'_>, background: bool) -> Span {
    span!(info_span("release"), "client", to, lock, { dlock.background = background })
}

pub(super) fn forced() {
    tell(|| warn!(target: "dlock", "a lock was taken away from its holder by force"));
}

pub(super) fn outcome(word: &'static str) {
    Span::current().note(|span| {
        span.record("dlock.outcome", word);
    });
}

/// Records in the current span that what it stands for has failed.
pub(super) fn failed(outcome: &'static str, kind: ErrorKind) {
    Span::current().note(|span| {
        span.record("dlock.outcome", outcome);
        record_error(span, kind);
    });
}

pub(super) fn released(span: &Span, error: Option<&Error>) {
    span.note(|span| {
        span.record("dlock.outcome", if error.is_some() { "failed" } else { "released" });
        if let Some(error) = error {
            record_error(span, error.kind());
        }
    });
}

pub(super) fn passed_on(span: &Span) {
    span.note(|span| {
        span.record("dlock.outcome", "passed_on");
    });
}

/// Records that the lock came from the section before, in this process.
pub(super) fn received() {
    Span::current().note(|span| {
        span.record("dlock.handoff", true);
    });
}

fn record_error(span: &tracing::Span, kind: ErrorKind) {
    span.record("error.type", kind.as_str());
    span.record("otel.status_code", "ERROR");
}

pub(super) fn withdrawal_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure) {
    tell(|| {
        debug!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.key = shown(to, lock.key),
                dlock.failure = %failure,
            },
            "a release failed and is tried again"
        );
    });
}

pub(super) fn release_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure, what: &'static str) {
    warn_of(to, lock, failure, what);
}

fn warn_of(to: &Telemetry, lock: Subject<'_>, failure: &Failure, what: &'static str) {
    tell(|| {
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.key = shown(to, lock.key),
                dlock.template = lock.site.template,
                dlock.failure = %failure,
            },
            "{what}"
        );
    });
}

pub(super) fn nested_options_ignored(to: &Telemetry, lock: Subject<'_>, lease: Duration, asked: Duration) {
    tell(|| {
        debug!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.key = shown(to, lock.key),
                dlock.lease = ?lease,
                dlock.asked = ?asked,
            },
            "a nested acquire keeps the lease and the `max_hold` of the outer one"
        );
    });
}

pub(super) fn body_unlocked(to: &Telemetry, site: Site, error: &Error) {
    tell(|| {
        warn!(
            target: "dlock",
            {
                dlock.backend = to.backend,
                dlock.template = site.template,
                dlock.failure = %error.failure(),
            },
            "the body runs without the lock, as the caller asked for this case"
        );
    });
}

#[cfg(feature = "otel")]
pub(super) fn export_missing(what: &str) {
    tell(|| warn!(target: "dlock", "{what}"));
}

#[cfg(feature = "otel")]
pub(super) fn meter_panicked(panic: &Panicked) {
    let what = "the meter panicked when it was asked for instruments: there are no metrics";
    tell(|| error!(target: "dlock", { dlock.panic = %panic }, "{what}"));
}

pub(super) fn acquires_unpolled(to: &Telemetry, acquires: usize) {
    tell(|| {
        let what = "acquires had their turn, and nobody polled them: it went to others, and they begin anew";
        info!(target: "dlock", { dlock.backend = to.backend, dlock.acquires = count(acquires) }, "{what}");
    });
}

pub(super) fn keeper_panicked(panic: &Panicked) {
    tell(|| error!(target: "dlock", { dlock.panic = %panic }, "the keeper panicked, and goes on"));
}

pub(super) fn keeper_died(held: usize) {
    let what = "the keeper has ended: acquires are refused, and what is held is lost";
    tell(|| error!(target: "dlock", { dlock.locks = count(held) }, "{what}"));
}

/// Returns the key as it may be shown: in clear if the user asked for that, and otherwise as a hash.
fn shown(to: &Telemetry, key: &Key) -> String {
    if to.show_keys { key.as_str().escape_debug().to_string() } else { key.hash_shown() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_above_the_highest_signed_number_is_left_out() {
        let highest = i64::MAX.cast_unsigned();
        assert_eq!(fence_number(Some(Fence::new(highest))), Some(i64::MAX));
        assert_eq!(fence_number(Some(Fence::new(highest + 1))), None);
        assert_eq!(fence_number(None), None);
    }
}
