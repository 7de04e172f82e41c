//! Spans and events: one place for their names and fields.
//!
//! | span | level | covers | fields |
//! |---|---|---|---|
//! | `dlock.acquire` | info | the wait for a lock | `outcome`, `waited_ms`, `attempts`, `fence` |
//! | `dlock.hold` | info | the body that runs under a lock; the parent of the body's own spans | `outcome`, `fence` |
//! | `dlock.renew` | debug | one renewal, on the keeper's thread, in the trace of the acquire | `outcome` |
//! | `dlock.release` | info | the release; `background` tells whether the keeper does it | `outcome` |
//!
//! What failed has `error.type` and `otel.status_code`. Inside of an acquire there are the events `busy`, `re-check` and
//! `wake-up`, at debug level, and a warning when a place in the backend's queue was lost. With the feature `otel` an acquire that waits links to the acquire of the holder.
//!
//! All have `backend` and `key`, of a batch that of its first lock and `keys`, how many there are; those of a lock that the attribute takes also `template`, the key's pattern, and `function`. The key is shown as a
//! hash, since keys often contain the ids of people; `LocksBuilder::with_keys_shown` shows it in clear.

use std::fmt::Write;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tracing::field::Empty;
use tracing::{debug, debug_span, error, info, info_span, warn};

use crate::engine::Engine;
use crate::engine::hold::Hold;
use crate::error::{Error, ErrorKind, Failure};
use crate::fence::Fence;
use crate::guarded::{Panicked, guard};
use crate::handles::held::Held;
use crate::handles::options::{Options, Site};
use crate::key::Key;
use crate::telemetry::Loss;
use crate::telemetry::outage::{Line, Over};
use crate::telemetry::span::Span;

/// For `keys` locks that are taken together, of which `key` is the first.
pub(crate) fn acquire_span(engine: &Engine, key: &Key, site: Site, keys: Option<usize>) -> Span {
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.acquire",
            backend = engine.name,
            key = Empty,
            keys,
            template = site.template,
            function = site.function,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
            waited_ms = Empty,
            attempts = Empty,
            fence = Empty,
        )
    });
    with_key(span, engine, key)
}

pub(crate) fn acquired(fence: Option<Fence>, waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", "acquired");
        record_wait(span, waited, attempts);
        span.record("fence", fence.map(Fence::get));
    });
}

pub(crate) fn not_acquired(error: &Error, waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", error.kind().as_str());
        if error.kind() != ErrorKind::Busy {
            record_error(span, error.kind());
        }
        record_wait(span, waited, attempts);
    });
}

pub(crate) fn acquire_cancelled(waited: Duration, attempts: u32) {
    Span::current().note(|span| {
        span.record("outcome", "cancelled");
        record_wait(span, waited, attempts);
    });
}

pub(crate) fn busy(attempts: u32, retry_after: Option<Duration>) {
    let retry_after_ms = retry_after.map(|left| left.as_secs_f64() * 1e3);
    tell(|| debug!(target: "dlock", attempts, retry_after_ms, "busy"));
}

pub(crate) fn woken() {
    tell(|| debug!(target: "dlock", "wake-up"));
}

pub(crate) fn requeued(engine: &Engine) {
    let backend = engine.name;
    tell(
        || warn!(target: "dlock", backend, "a place in the queue was lost, and the wait goes on at its end"),
    );
}

pub(crate) fn rechecked(found: &'static str) {
    tell(|| debug!(target: "dlock", found, "re-check"));
}

fn record_wait(span: &tracing::Span, waited: Duration, attempts: u32) {
    span.record("waited_ms", waited.as_secs_f64() * 1e3);
    span.record("attempts", attempts);
}

pub(crate) fn unknown_outcome(failure: &Failure, again: bool) {
    tell(|| debug!(target: "dlock", %failure, again, "the outcome of an attempt is unknown"));
}

/// None for a body that runs without a lock.
pub(crate) fn hold_span(held: &Held) -> Span {
    let holds = held.holds();
    let Some(hold) = holds.first() else { return Span::none() };
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.hold",
            backend = hold.engine.name,
            key = Empty,
            keys = (holds.len() > 1).then_some(holds.len()),
            template = hold.site.template,
            function = hold.site.function,
            fence = held.fence().map(Fence::get),
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    with_key(span, &hold.engine, &hold.key)
}

/// A body is done, or was stopped since its lock was lost.
pub(crate) fn body_ended(lost: bool) {
    if lost { failed(ErrorKind::Lost) } else { outcome("done") }
}

pub(crate) fn renew_span(hold: &Hold) -> Span {
    let span = Span::new(|| {
        debug_span!(
            target: "dlock",
            parent: None,
            "dlock.renew",
            backend = hold.engine.name,
            key = Empty,
            template = hold.site.template,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    hold.trace.adopt(&span);
    with_key(span, &hold.engine, &hold.key)
}

pub(crate) fn renewed(hold: &Hold) {
    outcome("renewed");
    let backend = hold.engine.name;
    if let Some(Over { lasted, failures }) = hold.engine.registry.renewal_outage.succeeded(Instant::now) {
        tell(|| warn!(target: "dlock", backend, ?lasted, failures, "renewals succeed again"));
    }
}

pub(crate) fn renewal_failed(hold: &Hold, failure: &Failure) {
    failed(failure.kind());
    let left = hold.deadline().since(hold.engine.clock.now());
    let (backend, template) = (hold.engine.name, hold.site.template);
    match hold.engine.registry.renewal_outage.failed(template, failure.kind().as_str(), Instant::now()) {
        Line::First => tell(
            || warn!(target: "dlock", backend, template, %failure, ?left, "a renewal failed and is tried again"),
        ),
        Line::Counts(counts) => tell(|| warn!(target: "dlock", backend, counts, "renewals go on failing")),
        Line::Nothing => {}
    }
}

pub(crate) fn release_requested(hold: &Hold) {
    let key = shown(&hold.engine, &hold.key);
    let template = hold.site.template;
    tell(
        || info!(target: "dlock", backend = hold.engine.name, key, template, "somebody asks the holder to release the lock"),
    );
}

pub(crate) fn lost(hold: &Hold, loss: Loss) {
    let held = hold.engine.clock.now().since(hold.acquired_at);
    let (backend, template) = (hold.engine.name, hold.site.template);
    match hold.engine.registry.losses.failed(template, loss.as_str(), Instant::now()) {
        Line::First => {
            let (cause, key) = (hold.cause(), shown(&hold.engine, &hold.key));
            tell(|| warn!(target: "dlock", backend, key, template, ?held, %cause, "a lock was lost"));
        }
        Line::Counts(counts) => tell(|| warn!(target: "dlock", backend, counts, "more locks were lost")),
        Line::Nothing => {}
    }
}

pub(crate) fn release_span(engine: &Engine, key: &Key, site: Site, background: bool) -> Span {
    let span = Span::new(|| {
        info_span!(
            target: "dlock",
            "dlock.release",
            backend = engine.name,
            key = Empty,
            template = site.template,
            function = site.function,
            background,
            outcome = Empty,
            error.type = Empty,
            otel.status_code = Empty,
        )
    });
    with_key(span, engine, key)
}

pub(crate) fn forced() {
    tell(|| warn!(target: "dlock", "a lock was taken away from its holder by force"));
}

pub(crate) fn outcome(word: &'static str) {
    Span::current().note(|span| {
        span.record("outcome", word);
    });
}

/// What the span we are in stands for has failed.
pub(crate) fn failed(kind: ErrorKind) {
    Span::current().note(|span| {
        span.record("outcome", kind.as_str());
        record_error(span, kind);
    });
}

pub(crate) fn released(span: &Span, error: Option<&Error>) {
    span.note(|span| {
        span.record("outcome", error.map_or("released", |error| error.kind().as_str()));
        if let Some(error) = error {
            record_error(span, error.kind());
        }
    });
}

fn record_error(span: &tracing::Span, kind: ErrorKind) {
    span.record("error.type", kind.as_str());
    span.record("otel.status_code", "ERROR");
}

pub(crate) fn withdrawal_failed(engine: &Engine, key: &Key, site: Site, failure: &Failure, given_up: bool) {
    let key = shown(engine, key);
    let backend = engine.name;
    if !given_up {
        return tell(
            || debug!(target: "dlock", backend, key, %failure, "a release failed and is tried again"),
        );
    }
    match engine.registry.cleanup_outage.failed(site.template, failure.kind().as_str(), Instant::now()) {
        Line::First => tell(
            || warn!(target: "dlock", backend, key, %failure, "a release was given up; the lease ends the lock"),
        ),
        Line::Counts(counts) => {
            tell(|| warn!(target: "dlock", backend, counts, "more releases were given up"));
        }
        Line::Nothing => {}
    }
}

pub(crate) fn nested_options_ignored(hold: &Hold, options: &Options) {
    let (backend, key) = (hold.engine.name, shown(&hold.engine, &hold.key));
    let (lease, asked) = (hold.lease, options.lease);
    tell(
        || debug!(target: "dlock", backend, key, ?lease, ?asked, "a nested acquire keeps the lease and the `max_hold` of the outer one"),
    );
}

pub(crate) fn running_unlocked(error: &Error) {
    let (backend, failure) = (error.backend(), error.failure());
    tell(
        || warn!(target: "dlock", backend, %failure, "the body runs without the lock, as the caller asked for this case"),
    );
}

pub(crate) fn release_failed_after_body(held: &Held, error: &Error) {
    let key = held.holds().first().map(|hold| shown(&hold.engine, &hold.key));
    let (backend, failure) = (error.backend(), error.failure());
    tell(
        || warn!(target: "dlock", backend, key, %failure, "the body is done, and its lock was not released properly"),
    );
}

pub(crate) fn release_of_many_failed(error: &Error) {
    let (backend, failure) = (error.backend(), error.failure());
    tell(|| warn!(target: "dlock", backend, %failure, "one lock of a batch was not released properly"));
}

pub(crate) fn keeper_panicked(panic: &Panicked) {
    tell(|| error!(target: "dlock", %panic, "the keeper panicked, and goes on"));
}

pub(crate) fn keeper_died(held: usize) {
    tell(
        || error!(target: "dlock", held, "the keeper has ended: acquires are refused, and what is held is lost"),
    );
}

fn with_key(span: Span, engine: &Engine, key: &Key) -> Span {
    span.note(|span| {
        span.record("key", shown(engine, key));
    });
    span
}

/// The key as it may be shown: in clear when that was asked for, else the start of its SHA-256.
fn shown(engine: &Engine, key: &Key) -> String {
    if engine.show_keys {
        return key.as_str().escape_debug().to_string();
    }
    let digest = Sha256::digest(key.as_str());
    digest.iter().take(8).fold(String::with_capacity(16), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Runs what a subscriber may panic in.
fn tell(event: impl FnOnce()) {
    let _ = guard(event);
}
