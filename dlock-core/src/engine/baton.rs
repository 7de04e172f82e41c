//! Handing a lock over: closing a hold, and leaving its key for the process that presents the baton.
//!
//! ```text
//! Held ── close ──▶ closed, trusted no more ── leave ──▶ left for the baton ── taken over ──▶ another hold
//!                        │                                 │
//!                        └─ failed or dropped: freed       └─ not taken over: its time ends it
//! ```
//!
//! The trust ends before the first request is sent, so that it has ended whenever the key can be taken over. The key
//! is left under [another token](crate::Token::left_behind): nothing that was sent for the hold touches it. The
//! protocol is explored by the model `models/src/baton.rs`.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;

use crate::backend::dynamic::DynClaim;
use crate::backend::requirement::check_handing_over;
use crate::backend::{PauseLimit, Withdrawal};
use crate::baton::Baton;
use crate::clock::Timestamp;
use crate::engine::activity::ActivityToken;
use crate::engine::cleanup::{Cleanup, claim_of, release_later, withdraw_awaited};
use crate::engine::hold::{Carriage, Hold, Uncarried};
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::options::{MAX_LEASE, MIN_LEASE};
use crate::telemetry::Spanned;

/// Hands `holds` over, all or none, and returns a baton for each. The keys stay taken for `at_most`, by default for the
/// lease of each.
pub(crate) async fn hand_over(holds: &[Arc<Hold>], at_most: Option<Duration>) -> Result<Vec<Baton>, Error> {
    let leaving = HandingOver::begin(holds, at_most)?.into_iter().map(HandingOver::leave_in_span);
    // The caller has the batons once all keys are left; until then what was left is retracted when this is dropped.
    let left: Vec<LeftKey> = join_all(leaving).await.into_iter().collect::<Result<_, _>>()?;
    Ok(left.into_iter().map(LeftKey::into_baton).collect())
}

fn refused(hold: &Hold, why: Uncarried) -> Error {
    let (kind, why) = match why {
        Uncarried::Shared => (
            ErrorKind::Conflict,
            "the caller has further guards of it, or bodies or tasks that run under it; hand it over with the last of \
             them",
        ),
        Uncarried::Carried => (ErrorKind::NotHeld, "it is handed over already"),
        Uncarried::Released => (ErrorKind::NotHeld, "it was released"),
    };
    hold.error(Operation::HandOver, Failure::new(kind, why))
}

/// Refuses a hold that cannot be handed over, before anything is changed.
fn check_hold(hold: &Hold, at_most: Duration) -> Result<(), Failure> {
    check_handing_over(hold.mode(), hold.options.fair, &hold.engine.capabilities)?;
    if hold.options.role.is_some() {
        let what = "a leader's term and the lock of a job stay with their owner; hand over a lock of its own";
        return Err(Failure::new(ErrorKind::Unsupported, what));
    }
    if hold.shares.downgrades.load(Ordering::Acquire) {
        let what =
            "it is being made a reader's lock, which the server has not confirmed; hand it over after that";
        return Err(Failure::new(ErrorKind::Conflict, what));
    }
    if !(MIN_LEASE..=MAX_LEASE).contains(&at_most) {
        return Err(Failure::invalid_config(format!(
            "a lock is handed over for {at_most:?} at most; use 50 ms to 24 h"
        )));
    }
    Ok(())
}

/// A hold whose release is the hand-over's. Dropping it returns that to the guard of the hold.
struct Marked<'a> {
    hold: &'a Arc<Hold>,
    activity: Option<ActivityToken>,
}

impl<'a> Marked<'a> {
    fn of(hold: &'a Arc<Hold>) -> Result<Self, Uncarried> {
        // Begun before `close` takes the hold off the registry: a shutdown finds it in the one place or the other.
        let activity = Some(hold.engine.registry.activity.begin());
        hold.carry().map(|()| Self { hold, activity })
    }

    fn close(mut self, at_most: Option<Duration>) -> HandingOver {
        let hold = Arc::clone(self.hold);
        hold.close();
        // A key that `hold_at_least` keeps taken stays so, also where the baton's time is shorter.
        let least = hold.leave_until().since(hold.engine.clock.now());
        let at_most = at_most.unwrap_or(hold.lease()).max(least);
        HandingOver { hold, at_most, claim: None, activity: self.activity.take() }
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        if let Some(activity) = self.activity.take()
            && self.hold.uncarry()
        {
            // Its guard was dropped meanwhile, on another thread.
            self.hold.close();
            release_later(Arc::clone(self.hold), activity);
        }
    }
}

/// A closed hold whose key is being left. Dropping it has the keeper free the key: its baton is with no process.
struct HandingOver {
    hold: Arc<Hold>,
    at_most: Duration,
    claim: Option<Box<dyn DynClaim>>,
    activity: Option<ActivityToken>,
}

/// A key that was left, whose baton the caller does not have yet.
struct LeftKey {
    from: HandingOver,
    baton: Baton,
    withdrawn: Withdrawal,
}

impl HandingOver {
    /// Closes the holds, unless one of them cannot be handed over: then all stay as they are.
    fn begin(holds: &[Arc<Hold>], at_most: Option<Duration>) -> Result<Vec<Self>, Error> {
        for hold in holds {
            let refuse = |failure| hold.error(Operation::HandOver, failure);
            hold.engine.refuse_in_child().map_err(refuse)?;
            hold.check()?;
            check_hold(hold, at_most.unwrap_or(hold.lease())).map_err(refuse)?;
        }
        // If one hold cannot be marked, those before it are dropped, and are as they were.
        let mark = |hold| Marked::of(hold).map_err(|why| refused(hold, why));
        let marked = holds.iter().map(mark).collect::<Result<Vec<_>, _>>()?;
        let handing: Vec<_> = marked.into_iter().map(|marked| marked.close(at_most)).collect();
        // Looked for after the close, which is final: a loss may have come since `check`. The error drops all of them,
        // and what is left of them on the servers is withdrawn, also of those that are sound.
        match handing.iter().find(|one| one.hold.is_lost()) {
            Some(Self { hold, .. }) => {
                Err(hold.error(Operation::HandOver, Failure::new(ErrorKind::Lost, hold.cause())))
            }
            None => Ok(handing),
        }
    }

    async fn leave_in_span(self) -> Result<LeftKey, Error> {
        let hold = Arc::clone(&self.hold);
        let span = hold.engine.telemetry.release_started(hold.subject());
        let leaving = self.leave().in_span(span.clone());
        let left = if hold.engine.serves_here() {
            hold.engine.awaited(pin!(leaving)).await
        } else {
            // On the keeper's thread, for a caller whose runtime does not serve.
            let closed = |failure| Err(hold.error(Operation::HandOver, failure));
            Box::pin(hold.engine.run(leaving)).await.unwrap_or_else(closed)
        };
        hold.engine.telemetry.released(&span, left.as_ref().err());
        left
    }

    async fn leave(mut self) -> Result<LeftKey, Error> {
        let hold = Arc::clone(&self.hold);
        let fail = |failure| hold.error(Operation::HandOver, failure);
        let Some(claim) = claim_of(&hold).await.map_err(fail)? else {
            return Err(fail(Failure::unknown("the claim is gone")));
        };
        let claim = self.claim.insert(claim);
        let token = claim.token().left_behind();
        // From the first request: a repetition lengthens nothing.
        let until = SystemTime::now() + self.at_most;
        let mut backoff = PauseLimit::new(Duration::from_millis(20), Duration::from_secs(1));
        let at_most = self.at_most;
        // Not beyond the deadline: another may have the lock by then, and nothing is left to hand over.
        let again = |asked| {
            let pause = backoff.pause(hold.engine.entropy.fraction());
            let in_time = hold.engine.clock.now() + pause < hold.deadline();
            (hold.hands_over_again(asked) && in_time).then_some(pause)
        };
        let (answer, _) = withdraw_awaited(&hold, claim, || at_most, again).await;
        let withdrawn = answer.map_err(fail)?;
        // The error drops `self`, whose rest is retracted: a request of before may have left the key without an answer.
        if !withdrawn.removed {
            let cause = "the backend no longer had it under our token";
            return Err(fail(Failure::new(ErrorKind::NotHeld, cause)));
        }
        let baton = Baton::new(hold.engine.name, (hold.key.clone(), hold.mode()), token, hold.fence(), until);
        Ok(LeftKey { from: self, baton, withdrawn })
    }
}

impl LeftKey {
    /// Gives the baton to the caller.
    fn into_baton(mut self) -> Baton {
        let hold = Arc::clone(&self.from.hold);
        hold.note_carriage(Carriage::Done);
        let Withdrawal { settled, others_waiting, .. } = self.withdrawn;
        if let Some(activity) = self.from.activity.take()
            && !settled
            && let Some(claim) = self.from.claim.take()
        {
            // A request under the hold's token may still take effect, and is withdrawn; the baton has another token.
            let nothing = Timestamp::from_nanos(0);
            let rest = Cleanup::of_hold(&hold, claim, activity);
            Cleanup { leave_until: nothing, ..rest }.later();
        }
        // The key is taken still, for the baton. But the tenure ends here, and so does what the queue knows of the
        // lock: its first waiter asks, and waits by that answer.
        hold.engine.released(&hold.key, hold.ended_tenure(), others_waiting);
        self.baton
    }
}

impl Drop for HandingOver {
    fn drop(&mut self) {
        let Some(activity) = self.activity.take() else { return };
        self.hold.note_carriage(Carriage::Failed);
        match self.claim.take() {
            // No request was made: the claim is with the hold still, or with a renewal.
            None => release_later(Arc::clone(&self.hold), activity),
            Some(claim) => {
                let rest = Cleanup::of_hold(&self.hold, claim, activity);
                Cleanup { retracts: Some(self.at_most), ..rest }.later();
            }
        }
    }
}
