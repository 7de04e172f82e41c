//! The reports of all events: [`Telemetry`] has one method per event, behind which are spans, metrics and counts.
//!
//! It gets names and numbers, and knows nothing of the engine. All code of a subscriber or an exporter runs by
//! [`tell`](crate::guarded::tell) or a [`Span`], so that its panics end here. Without a subscriber, an event costs a
//! branch.
//!
//! Without the feature `otel` there are no metrics and no links between spans: [`off`] has the same signatures and does
//! nothing. Only the API of OpenTelemetry is used: the choice of SDK and exporter, if any, is the program's, and no
//! exporter is ever waited for.

mod acquire;
mod counts;
mod loss;
#[cfg(feature = "otel")]
mod metrics;
#[cfg(not(feature = "otel"))]
mod off;
mod outage;
#[cfg(feature = "otel")]
mod reach;
mod span;
mod spans;
mod subject;
#[cfg(feature = "otel")]
mod trace;

use std::time::{Duration, Instant};

pub(crate) use acquire::AcquireSpan;
use counts::Counts;
pub use counts::Stats;
pub(crate) use loss::Loss;
#[cfg(feature = "otel")]
pub(crate) use metrics::Meter;
#[cfg(feature = "otel")]
use metrics::Metrics;
#[cfg(not(feature = "otel"))]
use off::{Holders, Metrics, Reach};
#[cfg(not(feature = "otel"))]
pub(crate) use off::{Meter, Trace};
use outage::{EVERY, Outage, OutageReport, SOON};
#[cfg(feature = "otel")]
use reach::Reach;
pub(crate) use span::{Span, Spanned};
pub(crate) use subject::{Site, Subject, Waiters};
#[cfg(feature = "otel")]
use trace::Holders;
#[cfg(feature = "otel")]
pub(crate) use trace::Trace;

use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Failure};
use crate::fence::Fence;
use crate::guarded::Panicked;
use crate::server_address::ServerAddress;

/// The reach of one `Locks` into OpenTelemetry, as far as dlock can know. Crates of OpenTelemetry in other versions
/// than those that dlock links to have global state of their own: dlock finds nothing there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exported {
    /// Is `true` if there are metrics: a meter was given, or a global meter provider was set, before the locks were
    /// built.
    pub metrics: bool,
    /// Is `true` if spans have contexts, and so links: the subscriber has the layer of `tracing-opentelemetry`. `None`
    /// until the first acquire whose span a subscriber wants.
    pub traces: Option<bool>,
}

/// The reports about the locks of one `Locks`.
pub(crate) struct Telemetry {
    backend: &'static str,
    server: Option<ServerAddress>,
    show_keys: bool,
    metrics: Metrics,
    reach: Reach,
    counts: Counts,
    /// The traces of the holders in this process.
    holders: Holders,
    /// Renewals that fail.
    renewals: Outage,
    /// Releases that are not confirmed, or given up.
    releases: Outage,
    /// Bodies that run without their lock.
    unlocked: Outage,
    /// Locks that are lost, which may be thousands at once too.
    losses: Outage,
    /// Refusals of the servers that are retried.
    refusals: Outage,
    /// Notified when a count is not in any line yet.
    unreported: Notify,
}

impl Telemetry {
    /// Makes the reports about the locks of `backend`, whose one server is at `server`. `votes` is `true` if it has
    /// nodes that vote. Without a meter, metrics go to the global provider's.
    pub(crate) fn new(
        backend: &'static str,
        server: Option<ServerAddress>,
        votes: bool,
        show_keys: bool,
        meter: Option<Meter>,
    ) -> Self {
        let metrics = Metrics::new(backend, server.as_ref(), votes, meter);
        Self {
            backend,
            reach: Reach::new(&metrics),
            metrics,
            server,
            show_keys,
            counts: Counts::default(),
            holders: Holders::default(),
            renewals: Outage::new("renewals go on failing"),
            releases: Outage::new("releases go on failing"),
            unlocked: Outage::new("bodies go on running without their locks"),
            losses: Outage::new("more locks were lost"),
            refusals: Outage::new("the servers go on refusing what is waited for"),
            unreported: Notify::new(),
        }
    }

    /// Counts a failure. Returns whether it deserves a line of its own; a later line has the count of the others.
    fn is_first(&self, outage: &Outage, site: Site, kind: &'static str) -> bool {
        match outage.failed(site.template, kind, Instant::now()) {
            OutageReport::First => return true,
            OutageReport::Counts(counts) => spans::goes_on(self, &counts, outage.goes_on),
            OutageReport::Unreported => self.unreported.notify_one(),
            OutageReport::Nothing => {}
        }
        false
    }

    /// Reports all that was only counted so far. Returns whether there was any.
    pub(crate) fn tell_untold(&self) -> bool {
        let mut reported = false;
        for outage in [&self.renewals, &self.releases, &self.unlocked, &self.losses, &self.refusals] {
            if let Some(counts) = outage.unreported(Instant::now()) {
                spans::goes_on(self, &counts, outage.goes_on);
                reported = true;
            }
        }
        reported
    }

    /// Reports in time what was only counted, since no further failure or success may follow. Never resolves.
    pub(crate) async fn keep_telling(&self) {
        self.tell_untold();
        loop {
            self.unreported.notified().await;
            let mut pause = SOON;
            loop {
                tokio::time::sleep(pause).await;
                if !self.tell_untold() {
                    break;
                }
                // Seldom after the first line: a long outage must not fill a log.
                pause = EVERY;
            }
        }
    }

    /// Returns the counts so far. The two numbers of the present are counted by the caller.
    pub(crate) fn stats(&self, held: usize, background: usize) -> Stats {
        self.counts.read(held, background)
    }

    /// Reports the answer of node `node` of a quorum, from 1, to one attempt.
    pub(crate) fn voted(&self, node: usize, outcome: &'static str, error: Option<ErrorKind>) {
        self.metrics.voted(node, outcome, error);
    }

    /// Reports that an acquire begins, of `locks` locks at once if they are several. Its further events are reported by
    /// its [`AcquireSpan`].
    pub(crate) fn acquire_started(&self, first: Subject<'_>, locks: Option<usize>) -> Span {
        let span = spans::acquire(self, first, locks);
        self.reach.look(&span);
        span
    }

    /// Returns the reach into OpenTelemetry; `None` without the feature.
    pub(crate) fn exported(&self) -> Option<Exported> {
        self.reach.exported()
    }

    /// Reports that several locks were taken at once.
    pub(crate) fn batch_taken(&self, site: Site, locks: usize) {
        self.metrics.batch_taken(site, locks);
    }

    /// Reports that the caller held the lock already.
    pub(crate) fn reentered(&self, site: Site) {
        self.metrics.reentered(site);
    }

    /// Reports that a nested acquire asked for another lease than that of the lock it shares.
    pub(crate) fn nested_options_ignored(&self, lock: Subject<'_>, lease: Duration, asked: Duration) {
        spans::nested_options_ignored(self, lock, lease, asked);
    }

    /// Reports that a body found its segment exhausted.
    pub(crate) fn segment_moved(&self, site: Site) {
        self.metrics.segment_moved(site);
    }

    /// Reports that a lock is held from now on, by the span `trace`.
    pub(crate) fn granted(&self, lock: Subject<'_>, trace: &Trace) {
        self.metrics.hold_begins(lock.site);
        if lock.site.leads() {
            self.metrics.term_begins(lock.site);
        }
        self.holders.begins(lock.key, trace);
    }

    /// Reports the end of a hold that [`granted`](Self::granted) began.
    pub(crate) fn ended(
        &self,
        lock: Subject<'_>,
        trace: &Trace,
        lost: bool,
        held: Duration,
        waiters: &dyn Waiters,
    ) {
        self.metrics.hold_ends(lock.site, lost, held);
        if lock.site.leads() && !lost {
            self.metrics.term_ends(lock.site);
        }
        self.holders.ends(lock.key, trace, waiters);
    }

    /// Reports that a body begins to run under `locks` locks, of which `first` is one.
    pub(crate) fn body_started(&self, first: Subject<'_>, locks: usize, fence: Option<Fence>) -> Span {
        if let Some(over) = self.unlocked.succeeded(Instant::now) {
            spans::over(self, &over, "bodies run under their locks again");
        }
        spans::hold(self, first, locks, fence)
    }

    /// Reports that a body is done, or was stopped since its lock was lost.
    pub(crate) fn body_ended(lost: bool) {
        spans::body_ended(lost);
    }

    /// Reports that a body runs although its lock could not be asked for.
    pub(crate) fn body_unlocked(&self, site: Site, error: &Error) {
        if self.is_first(&self.unlocked, site, error.kind().as_str()) {
            spans::body_unlocked(self, site, error);
        }
    }

    /// Reports that a body is done, and its lock was not released properly.
    pub(crate) fn release_after_body_failed(&self, first: Subject<'_>, error: &Error) {
        self.release_failed(
            first,
            error.failure(),
            "the body is done, and its lock was not released properly",
        );
    }

    /// Reports that a renewal begins, in the trace of the span that took the lock.
    pub(crate) fn renewal_started(&self, lock: Subject<'_>, trace: &Trace) -> Span {
        let span = spans::renew(self, lock);
        trace.adopt(&span);
        span
    }

    /// Reports that a renewal was confirmed.
    pub(crate) fn renewed(&self, site: Site, took: impl FnOnce() -> Duration) {
        self.counts.renewals.add();
        self.metrics.renewal(site, "renewed", None, took);
        spans::outcome("renewed");
        if let Some(over) = self.renewals.succeeded(Instant::now) {
            spans::over(self, &over, "renewals succeed again");
        }
    }

    /// Reports that a renewal found the lock gone.
    pub(crate) fn renewal_found_gone(&self, site: Site, took: impl FnOnce() -> Duration) {
        self.metrics.renewal(site, "gone", None, took);
        spans::outcome("gone");
    }

    /// Reports that a renewal failed, with `left` of the lease.
    pub(crate) fn renewal_failed(
        &self,
        site: Site,
        failure: &Failure,
        took: impl FnOnce() -> Duration,
        left: impl Fn() -> Duration,
    ) {
        let kind = failure.kind();
        self.counts.failed_renewals.add();
        self.metrics.renewal(site, "failed", Some(kind), took);
        spans::failed("failed", kind);
        if self.is_first(&self.renewals, site, kind.as_str()) {
            spans::renewal_failed(self, site, failure, left);
        }
    }

    /// Reports that the connection that keeps a lock is gone, so that the lock cannot be relied on for now.
    pub(crate) fn suspected(&self, lock: Subject<'_>) {
        spans::suspected(self, lock);
    }

    /// Reports that a lock was lost while it was held. Calls `wake` once that is counted, and before the report to a
    /// subscriber, which may block.
    pub(crate) fn lost(
        &self,
        lock: Subject<'_>,
        loss: Loss,
        reason: &str,
        held: impl Fn() -> Duration,
        wake: impl FnOnce(),
    ) {
        self.counts.lost.add();
        wake();
        self.metrics.lost(lock.site, loss);
        if lock.site.leads() {
            self.metrics.term_ends(lock.site);
        }
        if self.is_first(&self.losses, lock.site, loss.as_str()) {
            spans::lost(self, lock, loss, reason, held);
        }
    }

    /// Reports that a user asks the holder to release the lock.
    pub(crate) fn release_requested(&self, lock: Subject<'_>) {
        spans::release_requested(self, lock);
    }

    /// Reports that an exclusive lock is a reader's now.
    pub(crate) fn downgraded(&self, lock: Subject<'_>) {
        spans::downgraded(self, lock);
    }

    /// Reports that a lock stays exclusive, although its owner only reads.
    pub(crate) fn downgrade_failed(&self, lock: Subject<'_>, failure: &Failure) {
        spans::downgrade_failed(self, lock, failure);
    }

    /// Reports that a release begins that the caller waits for.
    pub(crate) fn release_started(&self, lock: Subject<'_>) -> Span {
        spans::release(self, lock, false)
    }

    /// Reports that the release of `span` is over, with the error if it failed.
    pub(crate) fn released(&self, span: &Span, error: Option<&Error>) {
        spans::released(span, error);
        if error.is_none() {
            self.releases_succeed();
        }
    }

    /// Reports that the release of `span` sent nothing: the next section in this process has the lock.
    pub(crate) fn passed_on(span: &Span) {
        spans::passed_on(span);
    }

    /// Reports that one lock of several was not released properly.
    pub(crate) fn release_of_many_failed(&self, lock: Subject<'_>, error: &Error) {
        self.release_failed(lock, error.failure(), "one lock of a batch was not released properly");
    }

    fn release_failed(&self, lock: Subject<'_>, failure: &Failure, what: &'static str) {
        if self.is_first(&self.releases, lock.site, failure.kind().as_str()) {
            spans::release_failed(self, lock, failure, what);
        }
    }

    fn releases_succeed(&self) {
        if let Some(over) = self.releases.succeeded(Instant::now) {
            spans::over(self, &over, "releases succeed again");
        }
    }

    /// Reports that a lock was taken away from its holder, if it had one.
    pub(crate) fn forced(had_holder: bool) {
        spans::outcome("forced");
        if had_holder {
            spans::forced();
        }
    }

    /// Reports that a clean-up in the background begins, in the trace of the span that took the lock, if it was taken.
    pub(crate) fn cleanup_started(&self, lock: Subject<'_>, trace: &Trace) -> Span {
        let span = spans::release(self, lock, true);
        trace.adopt(&span);
        span
    }

    /// Reports that a request of a clean-up was refused, and is made again after a longer pause.
    pub(crate) fn cleanup_refused(&self, lock: Subject<'_>, failure: &Failure) {
        self.counts.failed_withdrawals.add();
        self.metrics.release_failed(lock.site, failure.kind());
        self.release_failed(
            lock,
            failure,
            "a release was refused, and is tried again after pauses of up to 30 s",
        );
    }

    /// Reports that the servers refuse what is waited for, and are asked again.
    pub(crate) fn refused(&self, site: Site, failure: &Failure) {
        if self.is_first(&self.refusals, site, failure.kind().as_str()) {
            spans::refused(self, site, failure);
        }
    }

    /// Reports that the servers do not refuse any more.
    pub(crate) fn refusals_over(&self) {
        if let Some(over) = self.refusals.over(Instant::now()) {
            spans::over(self, &over, "the servers do not refuse any more");
        }
    }

    /// Reports that nothing is left on the servers.
    pub(crate) fn cleaned_up(&self) {
        spans::outcome("released");
        self.releases_succeed();
    }

    /// Reports that a request of a clean-up failed. It is made again unless it was given up.
    pub(crate) fn cleanup_failed(&self, lock: Subject<'_>, failure: &Failure, given_up: bool) {
        self.counts.failed_withdrawals.add();
        self.metrics.release_failed(lock.site, failure.kind());
        if !given_up {
            return spans::withdrawal_failed(self, lock, failure);
        }
        spans::failed("failed", failure.kind());
        self.abandoned(lock, failure);
    }

    /// Reports that the rest of a lock on a server, if any, is left to its lease.
    pub(crate) fn abandoned(&self, lock: Subject<'_>, failure: &Failure) {
        self.counts.abandoned.add();
        self.metrics.abandoned(lock.site);
        self.release_failed(lock, failure, "a release was given up; the lease ends the lock");
    }

    /// Reports that the keeper looks through the locks that are held.
    pub(crate) fn keeper_looks(&self) {
        self.counts.keeper_looks.add();
    }

    /// Reports that the keeper had to be woken.
    pub(crate) fn keeper_woken(&self) {
        self.counts.keeper_wakes.add();
    }

    /// Reports how late the keeper looked.
    pub(crate) fn keeper_lagged(&self, by: Duration) {
        self.metrics.keeper_lagged(by);
    }

    /// Reports that the keeper took back acquires that were not polled.
    pub(crate) fn acquires_unpolled(&self, acquires: usize) {
        spans::acquires_unpolled(self, acquires);
    }

    /// Reports that the keeper panicked, and goes on.
    pub(crate) fn keeper_panicked(panic: &Panicked) {
        spans::keeper_panicked(panic);
    }

    /// Reports that the keeper has ended while so many locks were held.
    pub(crate) fn keeper_died(held: usize) {
        spans::keeper_died(held);
    }
}
