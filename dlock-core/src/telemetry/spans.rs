//! Spans and events: one place for their names and fields.
//!
//! | span | level | covers | fields |
//! |---|---|---|---|
//! | `dlock.acquire` | info | the wait for a lock | `outcome`, `waited_ms`, `attempts`, `fence`, `handoff` |
//! | `dlock.hold` | info | the body that runs under a lock; the parent of the body's own spans | `outcome`, `fence` |
//! | `dlock.renew` | debug | one renewal, on the keeper's thread, in the trace of the acquire | `outcome` |
//! | `dlock.release` | info | the release; `background` tells whether the keeper does it | `outcome` |
//!
//! What failed has `error.type` and `otel.status_code`. Inside an acquire there are the events `busy`, `re-check` and
//! `wake-up`, at debug level, and a warning when a place in the backend's queue was lost. With the feature `otel` an
//! acquire that waits links to the acquire of the holder.
//!
//! All have `backend` and `key`, of a batch that of its first lock and `keys`, how many there are; those of a lock that
//! the attribute takes also `template`, the key's pattern, and `code.function.name`. The key is shown as a hash, since
//! keys often contain the ids of people; `LocksBuilder::with_keys_shown` shows it in clear.

use std::fmt::Write;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tracing::field::Empty;
use tracing::{debug, debug_span, error, info, info_span, warn};

use super::outage::Over;
use super::{Site, Span, Subject, Telemetry};
use crate::backend::ServerAddress;
use crate::error::{Error, ErrorKind, Failure};
use crate::fence::Fence;
use crate::guarded::{Panicked, tell};
use crate::key::Key;

fn host(to: &Telemetry) -> Option<&str> {
    to.server.as_ref().map(ServerAddress::host)
}

fn port(to: &Telemetry) -> Option<u16> {
    to.server.as_ref().and_then(ServerAddress::port)
}

pub(super) fn acquire(to: &Telemetry, first: Subject<'_>, keys: Option<usize>) -> Span {
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.acquire",
            backend = to.backend,
            server.address = host(to),
            server.port = port(to),
            key = Empty,
            keys,
            template = first.site.template,
            code.function.name = first.site.function,
            dlock.mode = first.site.mode,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
            waited_ms = Empty,
            attempts = Empty,
            fence = Empty,
            handoff = Empty,
        )
    });
    with_key(span, to, first.key)
}

pub(super) fn acquired(fence: Option<Fence>, waited: impl FnOnce() -> Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", "acquired");
        record_wait(span, waited(), attempts);
        span.record("fence", fence.map(Fence::get));
    });
}

pub(super) fn not_acquired(kind: ErrorKind, waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", kind.as_str());
        if kind != ErrorKind::Busy {
            record_error(span, kind);
        }
        record_wait(span, waited, attempts);
    });
}

pub(super) fn acquire_cancelled(waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", "cancelled");
        record_wait(span, waited, attempts);
    });
}

pub(super) fn busy(attempts: u32, retry_after: Option<Duration>) {
    let retry_after_ms = retry_after.map(|left| left.as_secs_f64() * 1e3);
    tell(|| debug!(target: "dlock", attempts, retry_after_ms, "busy"));
}

pub(super) fn woken() {
    tell(|| debug!(target: "dlock", "wake-up"));
}

pub(super) fn requeued(to: &Telemetry) {
    let backend = to.backend;
    tell(
        || warn!(target: "dlock", backend, "a place in the queue was lost, and the wait goes on at its end"),
    );
}

pub(super) fn rechecked(found: &'static str) {
    tell(|| debug!(target: "dlock", found, "re-check"));
}

fn record_wait(span: &tracing::Span, waited: Duration, attempts: u32) {
    span.record("waited_ms", waited.as_secs_f64() * 1e3);
    span.record("attempts", attempts);
}

pub(super) fn unknown_outcome(failure: &Failure, again: bool) {
    tell(|| debug!(target: "dlock", %failure, again, "the outcome of an attempt is unknown"));
}

pub(super) fn hold(to: &Telemetry, first: Subject<'_>, locks: usize, fence: Option<Fence>) -> Span {
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.hold",
            backend = to.backend,
            server.address = host(to),
            server.port = port(to),
            key = Empty,
            keys = (locks > 1).then_some(locks),
            template = first.site.template,
            code.function.name = first.site.function,
            dlock.mode = first.site.mode,
            fence = fence.map(Fence::get),
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    with_key(span, to, first.key)
}

pub(super) fn body_ended(lost: bool) {
    if lost { failed(ErrorKind::Lost) } else { outcome("done") }
}

pub(super) fn renew(to: &Telemetry, lock: Subject<'_>) -> Span {
    let span = Span::new(|| {
        debug_span!(
            target: "dlock",
            parent: None,
            "dlock.renew",
            backend = to.backend,
            server.address = host(to),
            server.port = port(to),
            key = Empty,
            template = lock.site.template,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    with_key(span, to, lock.key)
}

/// An outage has ended.
pub(super) fn over(to: &Telemetry, over: &Over, what: &'static str) {
    let (backend, Over { lasted, failures, untold }) = (to.backend, over);
    tell(|| warn!(target: "dlock", backend, ?lasted, failures, counts = untold, "{what}"));
}

/// An outage lasts: so many more by template and kind.
pub(super) fn goes_on(to: &Telemetry, counts: &str, what: &'static str) {
    let backend = to.backend;
    tell(|| warn!(target: "dlock", backend, counts, "{what}"));
}

pub(super) fn renewal_failed(to: &Telemetry, site: Site, failure: &Failure, left: impl Fn() -> Duration) {
    let (backend, template) = (to.backend, site.template);
    tell(|| {
        let what = "a renewal failed and is tried again";
        warn!(target: "dlock", backend, template, %failure, left = ?left(), "{what}");
    });
}

pub(super) fn refused(to: &Telemetry, site: Site, failure: &Failure) {
    let (backend, template) = (to.backend, site.template);
    tell(|| {
        let what = "the servers refuse what is waited for, and are asked again after pauses of up to 30 s";
        warn!(target: "dlock", backend, template, %failure, "{what}");
    });
}

pub(super) fn suspected(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let what = "the connection that keeps a lock is gone, and the lock at risk";
        debug!(target: "dlock", backend = to.backend, key = shown(to, lock.key), "{what}");
    });
}

pub(super) fn release_requested(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let (backend, template) = (to.backend, lock.site.template);
        let what = "somebody asks the holder to release the lock";
        info!(target: "dlock", backend, key = shown(to, lock.key), template, "{what}");
    });
}

pub(super) fn downgraded(to: &Telemetry, lock: Subject<'_>) {
    tell(|| {
        let what = "a lock that was held alone is held for reading from now on";
        debug!(target: "dlock", backend = to.backend, key = shown(to, lock.key), "{what}");
    });
}

pub(super) fn downgrade_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure) {
    tell(|| {
        let what = "others cannot read: the backend refused to let them";
        let (backend, template) = (to.backend, lock.site.template);
        warn!(target: "dlock", backend, key = shown(to, lock.key), template, %failure, "{what}");
    });
}

pub(super) fn lost(to: &Telemetry, lock: Subject<'_>, cause: &str, held: impl Fn() -> Duration) {
    let (backend, template) = (to.backend, lock.site.template);
    tell(|| {
        let what = "a lock was lost";
        warn!(target: "dlock", backend, key = shown(to, lock.key), template, held = ?held(), %cause, "{what}");
    });
}

pub(super) fn release(to: &Telemetry, lock: Subject<'_>, background: bool) -> Span {
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.release",
            backend = to.backend,
            server.address = host(to),
            server.port = port(to),
            key = Empty,
            template = lock.site.template,
            code.function.name = lock.site.function,
            background,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    with_key(span, to, lock.key)
}

pub(super) fn forced() {
    tell(|| warn!(target: "dlock", "a lock was taken away from its holder by force"));
}

pub(super) fn outcome(word: &'static str) {
    Span::current().note(|span| {
        span.record("outcome", word);
    });
}

/// What the span we are in stands for has failed.
pub(super) fn failed(kind: ErrorKind) {
    Span::current().note(|span| {
        span.record("outcome", kind.as_str());
        record_error(span, kind);
    });
}

pub(super) fn released(span: &Span, error: Option<&Error>) {
    span.note(|span| {
        span.record("outcome", error.map_or("released", |error| error.kind().as_str()));
        if let Some(error) = error {
            record_error(span, error.kind());
        }
    });
}

pub(super) fn passed_on(span: &Span) {
    span.note(|span| {
        span.record("outcome", "passed_on");
    });
}

/// The lock came from the section before, in this process.
pub(super) fn received() {
    Span::current().note(|span| {
        span.record("handoff", true);
    });
}

fn record_error(span: &tracing::Span, kind: ErrorKind) {
    span.record("error.type", kind.as_str());
    span.record("otel.status_code", "ERROR");
}

pub(super) fn withdrawal_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure) {
    tell(|| {
        let (backend, what) = (to.backend, "a release failed and is tried again");
        debug!(target: "dlock", backend, key = shown(to, lock.key), %failure, "{what}");
    });
}

pub(super) fn release_failed(to: &Telemetry, lock: Subject<'_>, failure: &Failure, what: &'static str) {
    let (backend, template) = (to.backend, lock.site.template);
    tell(|| warn!(target: "dlock", backend, key = shown(to, lock.key), template, %failure, "{what}"));
}

pub(super) fn nested_options_ignored(to: &Telemetry, lock: Subject<'_>, lease: Duration, asked: Duration) {
    tell(|| {
        let backend = to.backend;
        let what = "a nested acquire keeps the lease and the `max_hold` of the outer one";
        debug!(target: "dlock", backend, key = shown(to, lock.key), ?lease, ?asked, "{what}");
    });
}

pub(super) fn body_unlocked(to: &Telemetry, site: Site, error: &Error) {
    let (backend, template, failure) = (to.backend, site.template, error.failure());
    tell(|| {
        let what = "the body runs without the lock, as the caller asked for this case";
        warn!(target: "dlock", backend, template, %failure, "{what}");
    });
}

#[cfg(feature = "otel")]
pub(super) fn meter_panicked(panic: &Panicked) {
    tell(
        || error!(target: "dlock", %panic, "the meter panicked when it was asked for instruments: there are no metrics"),
    );
}

pub(super) fn acquires_unpolled(to: &Telemetry, acquires: usize) {
    tell(|| {
        let what = "acquires had their turn, and nobody polled them: it went to others, and they begin anew";
        info!(target: "dlock", backend = to.backend, acquires, "{what}");
    });
}

pub(super) fn keeper_panicked(panic: &Panicked) {
    tell(|| error!(target: "dlock", %panic, "the keeper panicked, and goes on"));
}

pub(super) fn keeper_died(held: usize) {
    tell(
        || error!(target: "dlock", held, "the keeper has ended: acquires are refused, and what is held is lost"),
    );
}

fn with_key(span: Span, to: &Telemetry, key: &Key) -> Span {
    span.note(|span| {
        span.record("key", shown(to, key));
    });
    span
}

/// The key as it may be shown: in clear when that was asked for, else the start of its SHA-256.
fn shown(to: &Telemetry, key: &Key) -> String {
    if to.show_keys {
        return key.as_str().escape_debug().to_string();
    }
    let digest = Sha256::digest(key.as_str());
    digest.iter().take(8).fold(String::with_capacity(16), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
