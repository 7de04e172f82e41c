//! The beginning of an acquire, and the moment from which its wait counts.

use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;
use tokio::time::Instant;

use super::{Acquire, Shares, Specs};
use crate::backend::Mode;
use crate::engine::acquire::wait::within;
use crate::engine::attended::Begun;
use crate::engine::release::Share;
use crate::engine::{Engine, Spec, scope};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::telemetry::{AcquireSpan, Spanned};

/// Locks that are being taken; [`only_share`] takes the share of one.
pub(crate) type Taking = Begun<Option<Shares>>;

/// The moment from which the wait of an acquire counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Start {
    /// Its first poll, which follows at once.
    Now,
    At(Instant),
    /// That moment, when it began for the first time: it was [taken back](crate::engine::attended) since.
    Again(Instant),
}

impl Start {
    /// Returns the time since then.
    pub(crate) fn waited(self, engine: &Engine) -> Duration {
        match self {
            Self::Now => Duration::ZERO,
            Self::At(started) | Self::Again(started) => engine.timers.now() - started,
        }
    }
}

/// Begins to take one lock, without a look at what the caller holds already.
pub(crate) fn begin(spec: Spec, start: Start) -> Result<Taking, Error> {
    take(smallvec![spec], start)
}

/// Returns the share of the one lock that was taken.
pub(crate) fn only_share(taken: Option<Shares>) -> Share {
    match taken.and_then(|shares| shares.into_iter().next()) {
        Some(share) => share,
        None => unreachable!("one lock is never set aside"),
    }
}

/// Takes several locks of one engine, with one wait for all, in one step; `None` when they have to be taken one after
/// the other. The shares are in the order of `specs`.
pub(crate) fn acquire_all(specs: Specs, start: Start) -> impl Future<Output = Result<Option<Shares>, Error>> {
    let taking = take(specs, start);
    async move { taking?.await }
}

/// Begins an acquire. Boxed, and made outside of any future: the state of a wait would make the future of every
/// annotated function four times as large.
fn take(specs: Specs, start: Start) -> Result<Taking, Error> {
    let first = &specs[0];
    let refuse = |failure: Failure| first.error(Operation::Acquire, failure);
    // Refused before a claim is made, so that a shutdown need not wait for its withdrawal. Most refusals end here; one
    // that comes later is found before the first request.
    scope::may_acquire(&first.engine).map_err(refuse)?;
    let keys = (specs.len() > 1).then_some(specs.len());
    let span = first.engine.telemetry.acquire_started(first.subject(), keys);
    // On the keeper's thread, for a caller whose runtime does not serve. Decided where the acquire begins, and not at
    // each poll.
    let on_keeper = (!first.engine.serves_here()).then(|| Arc::clone(&first.engine));
    // Inside the span, whose trace goes along with the claims.
    let acquire = async move {
        let taken = Acquire::new(&specs, start)?.run().await;
        match taken {
            Err(error) if specs[0].options.resizable && error.kind() == ErrorKind::Conflict => {
                // Boxed, since few acquires come here: the state of a second acquire would double that of each.
                Box::pin(take_resized(specs, start, error)).await
            }
            taken => taken,
        }
    };
    let acquire = acquire.in_span(span);
    let Some(engine) = on_keeper else { return Ok(Box::pin(acquire)) };
    Ok(Box::pin(async move {
        let closed = || Err(engine.error(Operation::Acquire, engine.registry.closed()));
        // The caller's scope goes along: the keeper's thread has none, and a drain looks for it.
        engine.registry.tasks.run(scope::carried(acquire)).await.unwrap_or_else(closed)
    }))
}

/// Takes permits of a semaphore whose stored number differs from the option, by the stored number; as often as that
/// changes.
async fn take_resized(mut specs: Specs, start: Start, mut refused: Error) -> Result<Option<Shares>, Error> {
    let start = match start {
        // The wait that the first attempt used counts. What it took is derived from the error, because `Start::Now` has
        // no moment.
        Start::Now => Start::At(Instant::now() - refused.waited().unwrap_or_default()),
        begun => begun,
    };
    // Each round needs another stored number than before, so that this ends when it stays.
    while let Some(mode) = resized(&specs[0]).await {
        specs[0].options.mode = mode;
        let taken = Acquire::new(&specs, start)?.run().await;
        match taken {
            Err(error) if error.kind() == ErrorKind::Conflict => refused = error,
            taken => return taken,
        }
    }
    let (spec, waited) = (&specs[0], refused.waited().unwrap_or_default());
    // The span was set aside for each attempt, and reports the end here.
    let mut span =
        AcquireSpan::begin(&spec.engine.telemetry, &spec.engine.wait_queue, spec.subject(), Instant::now());
    span.not_acquired(&refused, waited);
    drop(span);
    Err(refused)
}

/// Returns the mode by the number of permits that is stored, if that is another one.
async fn resized(spec: &Spec) -> Option<Mode> {
    let Mode::Permits { of: said, take } = spec.options.mode else { return None };
    // Without an answer there is no number to go by, and the conflict of the attempt stays the error.
    let found = spec.engine.occupancy(&spec.key, spec.options.request_timeout()).await;
    let of = found.ok()?.permits?;
    let mode = Mode::Permits { of, take };
    // The stored number may be less than is taken, for which no wait would ever end.
    (of != said && mode.check().is_ok()).then_some(mode)
}

impl<'a> Acquire<'a> {
    /// Is `true` if the holder that is in the way may be an earlier claim of this acquire, which is being withdrawn. An
    /// acquire that waits need not know: the withdrawal wakes it.
    pub(super) fn may_be_its_own(&self) -> bool {
        let left = &self.engine.acquires.left_claims;
        self.is_again && !self.terms.waits && self.specs.iter().any(|spec| left.has(&spec.key))
    }

    /// Waits until the claims that this acquire took itself are withdrawn, which must not be taken for another
    /// holder's.
    pub(super) fn until_withdrawn(&self) -> impl Future<Output = Result<(), Failure>> + use<'a> {
        let own = self.may_be_its_own();
        let (engine, specs, until) = (self.engine, self.specs, self.limits.until);
        async move {
            if !own {
                return Ok(());
            }
            let withdrawn = async {
                // One key after the other, although any may be withdrawn first: the acquire needs all of them.
                for spec in specs {
                    engine.acquires.left_claims.withdrawn(&spec.key).await;
                }
            };
            // Not `TimedOut` and not `Busy`, which would claim that another holder has the lock.
            match Box::pin(within(engine, until, withdrawn)).await {
                Err(end) if end.kind() == ErrorKind::TimedOut => Err(Failure::unavailable(
                    "what it took before, when nobody polled it, is not withdrawn yet: who has the lock is not known",
                )),
                withdrawn => withdrawn,
            }
        }
    }
}
