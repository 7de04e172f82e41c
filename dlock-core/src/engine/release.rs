//! The release of a hold: its end here, and the end of the lock on the servers.
//!
//! A hold is released with the last [`Share`] of it.
//!
//! ```text
//! held ── close ──▶ closed ──▶ passed on
//!                     │
//!                     ▼
//!                claim taken ── withdraw ──▶ withdrawn
//!                     │                          │
//!                     └─ failed, dropped         └─ not settled ──▶ repeated by the keeper
//! ```
//!
//! | state | has the claim | then |
//! |---|---|---|
//! | closed | the hold, or a renewal under way, which gives it back at once | the hold counts as held no more |
//! | passed on | the first waiter of this process, see [`handoff`](super::handoff) | nothing is asked of the backend |
//! | claim taken | the [`Release`] | one request, which is made again where a failure may pass |
//! | withdrawn | the [`Release`] | the next waiter is notified; nothing is left to do if the answer is settled |
//! | repeated by the keeper | a [`Cleanup`] | it is withdrawn until that is settled, or the lease has ended it |
//!
//! A [`Release`] that is dropped hands what is left to the keeper, whatever its state. A guard that is dropped does no
//! more than that.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::backend::Withdrawal;
use crate::backend::dynamic::DynClaim;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::{Cleanup, claim_of, release_later, withdraw_awaited};
use crate::engine::handoff::{NotHandedOff, hand_off};
use crate::engine::hold::{Carriage, Condition, Hold, ShareKind, Unshared};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::options::Role;
use crate::runtime::timer::within;
use crate::telemetry::{Spanned, Telemetry};

/// A share of a hold. Dropping the last one passes the lock on, or has the keeper release it.
pub(crate) struct Share {
    hold: Option<Arc<Hold>>,
    kind: ShareKind,
}

impl Share {
    /// Makes the share of the owner to which a lock was granted.
    pub(super) const fn first(hold: Arc<Hold>) -> Self {
        Self { hold: Some(hold), kind: ShareKind::Plain }
    }

    /// Makes one more share, unless the lock was released already. Returns beside it how many there are of this kind.
    #[inline]
    pub(super) fn of(hold: Arc<Hold>, kind: ShareKind) -> Option<(Self, u32)> {
        let shares = hold.share(kind)?;
        Some((Self { hold: Some(hold), kind }, shares))
    }

    /// Is `true` if the hold counts this among the guards that were taken by hand.
    #[inline]
    pub(crate) fn is_nested(&self) -> bool {
        self.kind == ShareKind::Nested
    }

    /// Has the hold count this among the guards that were taken by hand. Returns the number of these.
    pub(super) fn nest(&mut self) -> u32 {
        self.kind = ShareKind::Nested;
        self.hold().nest()
    }

    #[inline]
    pub(crate) fn hold(&self) -> &Arc<Hold> {
        match &self.hold {
            Some(hold) => hold,
            None => unreachable!("a share has its hold until it ends"),
        }
    }

    /// Ends the share, and closes the hold if this was the last one. Returns what is left of the release, or its result
    /// where nothing is left to do.
    #[inline(always)]
    pub(crate) fn release(mut self) -> Result<Release, Result<(), Error>> {
        let Some(hold) = self.hold.take() else { unreachable!("a share ends once") };
        match hold.unshare(self.kind) {
            // Other shares go on with the hold, so that nothing is released; but the caller has to learn of a loss.
            Unshared::More => Err(if hold.is_lost() { Err(not_held(&hold)) } else { Ok(()) }),
            Unshared::Carried => Err(carried(&hold)),
            Unshared::Last => Release::begin(hold).map_err(Err),
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        match hold.unshare(self.kind) {
            Unshared::More => {}
            // The lock is the parent's, and so are the locks in memory, which may be taken for good here.
            Unshared::Last | Unshared::Carried if hold.engine.is_in_child() => std::mem::forget(hold),
            Unshared::Last => drop(Release::close(hold)),
            Unshared::Carried => {}
        }
    }
}

/// A closed hold that is being released. Dropping it midway leaves the rest to the keeper.
pub(crate) struct Release {
    hold: Arc<Hold>,
    /// The condition of the hold when it was closed.
    was: Condition,
    claim: Option<Box<dyn DynClaim>>,
    /// The token of the release, kept until nothing is left to do.
    activity: Option<ActivityToken>,
    /// Is `true` if the next waiter of this process has the lock.
    passed_on: bool,
}

impl Release {
    /// Closes the hold. Kept out of the way of a nested guard, whose release is many times shorter.
    #[cold]
    fn begin(hold: Arc<Hold>) -> Result<Self, Error> {
        if let Err(failure) = hold.engine.refuse_in_child() {
            let error = hold.error(Operation::Release, failure);
            // Its drop would close connections that are the parent's.
            std::mem::forget(hold);
            return Err(error);
        }
        Ok(Self::close(hold))
    }

    /// Closes the hold of this process, and passes the lock on if that can be.
    fn close(hold: Arc<Hold>) -> Self {
        // Begun before the hold is closed, which unlists it: a shutdown finds it in the one place or the other.
        let activity = hold.engine.registry.activity.begin();
        let was = hold.close();
        // Nearly all releases pass nothing on, and need no look at the clock to know that. The fences first, which are
        // not shared with others. A waiter that comes after this is woken by the end of the release.
        let is_wanted =
            was == Condition::Held && hold.next_fences().is_some() && hold.engine.wait_queue.has(&hold.key);
        let not_handed_off = match is_wanted {
            true => hand_off(&hold, activity).err(),
            false => Some(NotHandedOff { claim: None, activity }),
        };
        match not_handed_off {
            Some(NotHandedOff { claim, activity }) => {
                Self { hold, was, claim, activity: Some(activity), passed_on: false }
            }
            None => Self { hold, was, claim: None, activity: None, passed_on: true },
        }
    }

    /// Waits until the backend confirms the release.
    pub(crate) async fn finish(self) -> Result<(), Error> {
        let hold = Arc::clone(&self.hold);
        let span = hold.engine.telemetry.release_started(hold.subject());
        // The next section has the claim, and with it what the server would be asked for.
        if self.passed_on {
            Telemetry::passed_on(&span);
            return Ok(());
        }
        let withdrawing = self.withdraw().in_span(span.clone());
        let result = if hold.engine.serves_here() {
            hold.engine.awaited(pin!(withdrawing)).await
        } else {
            // On the keeper's thread, for a caller whose runtime does not serve.
            let closed = |failure| Err(hold.error(Operation::Release, failure));
            // Boxed: rare, and otherwise part of every release's future.
            Box::pin(hold.engine.run(withdrawing)).await.unwrap_or_else(closed)
        };
        hold.engine.telemetry.released(&span, result.as_ref().err());
        result
    }

    async fn withdraw(mut self) -> Result<(), Error> {
        let fail = |hold: &Hold, failure| hold.error(Operation::Release, failure);
        // No claim yet where the hold was not passed on for a reason that came before it was taken.
        if self.claim.is_none() {
            self.claim = claim_of(&self.hold).await.map_err(|failure| fail(&self.hold, failure))?;
        }
        let hold = &self.hold;
        let (answer, asked_again) = match &mut self.claim {
            None => (Ok(Withdrawal::ABSENT), 0),
            Some(claim) => {
                let left = || hold.leave_until().since(hold.engine.clock.now());
                // At once, without a pause: the caller waits, and an answer that was lost with its connection comes by
                // another one.
                let again = |asked| hold.asks_again(asked).then_some(Duration::ZERO);
                withdraw_awaited(hold, claim, left, again).await
            }
        };
        let withdrawn = answer.map_err(|failure| fail(hold, failure))?;
        // The end of the term is announced as soon as an answer is there, also where more of it may arrive.
        if hold.options.role == Some(Role::Leader) {
            hold.engine.announce(&hold.key);
        }
        // Not settled: the drop of this leaves the rest to the keeper, by the token that is still here.
        if withdrawn.settled {
            self.activity = None;
        }
        // After the token is gone: a waiter that is woken by this finds no release under way.
        hold.engine.released(&hold.key, hold.ended_tenure(), withdrawn.others_waiting);
        // After a repetition, "absent" may be the effect of the first request, whose answer was lost.
        let ours = withdrawn.removed || asked_again > 0;
        if self.was == Condition::Lost || !ours { Err(not_held(hold)) } else { Ok(()) }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let Some(activity) = self.activity.take() else { return };
        match self.claim.take() {
            None => release_later(Arc::clone(&self.hold), activity),
            // A request that was under way when this was dropped may still take effect. The keeper withdraws under the
            // same token, which changes nothing once the lock is gone.
            Some(claim) => Cleanup::of_hold(&self.hold, claim, activity).later(),
        }
    }
}

/// Waits for the releases of all locks of a batch, which begin at once. Returns the first error, and logs further ones
/// as those of `first`.
pub(crate) async fn all(
    first: &Hold,
    releases: impl Iterator<Item = impl Future<Output = Result<(), Error>>>,
) -> Result<(), Error> {
    // All at once, and all to their ends: the first error must not leave the other locks to their leases.
    let mut releases: FuturesUnordered<_> = releases.collect();
    let mut result = Ok(());
    while let Some(released) = releases.next().await {
        if result.is_ok() {
            result = released;
        } else if let Err(error) = released {
            first.engine.telemetry.release_of_many_failed(first.subject(), &error);
        }
    }
    result
}

/// Waits at most `limit` for the release of locks that were taken before another lock could not be had; an error is
/// logged as that of `first`. A release that is not confirmed by then goes on in the background.
pub(crate) async fn give_back(
    first: &Hold,
    limit: Duration,
    release: impl Future<Output = Result<(), Error>> + Send + 'static,
) {
    let release = Box::pin(within(limit, release));
    if let Ok(Some(Err(error))) = first.engine.run(release).await {
        first.engine.telemetry.release_of_many_failed(first.subject(), &error);
    }
}

/// Returns the result of the release of a hold that is handed over.
fn carried(hold: &Hold) -> Result<(), Error> {
    match hold.carriage() {
        Carriage::Begun | Carriage::Done => Ok(()),
        Carriage::Failed if hold.is_lost() => Err(not_held(hold)),
        Carriage::Failed => {
            let why = "it could not be handed over, and is released in the background";
            Err(hold.error(Operation::Release, Failure::unknown(why)))
        }
    }
}

fn not_held(hold: &Hold) -> Error {
    let cause = hold.cause();
    let cause = if cause.is_empty() { "the backend no longer had it under our token".into() } else { cause };
    hold.error(Operation::Release, Failure::new(ErrorKind::NotHeld, cause))
}
