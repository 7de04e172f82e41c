//! Turning a lock that is held alone into a reader's.
//!
//! In this process the hold counts as a reader's from the moment when that is asked for, since the request may take
//! effect at once. On the server it may be held alone for longer: until the answer is known the request is repeated, a
//! few times while the caller waits for it, and then in the background. All of it runs on the keeper, since a request
//! has the claim, without which nothing is renewed: a caller that is not polled must not keep it.
//!
//! | the mode here | `downgrades` | `downgrades_later` | the server | becomes |
//! |---|---|---|---|---|
//! | exclusive | no | no | has it held alone | shared, with `downgrades`, by [`downgrade`] |
//! | shared | yes | no | is asked while the caller waits, or has refused for good | confirmed, or left to the keeper |
//! | shared | yes | yes | is asked again and again | confirmed; or as above, where it refuses for good |
//! | shared | no | no | lets others read | stays so |

use std::sync::Arc;
use std::time::Duration;

use crate::backend::requirement::{Requirement, check};
use crate::backend::{Mode, PauseLimit, Renewed};
use crate::clock::Timestamp;
use crate::engine::bounds::RequestBounds;
use crate::engine::hold::{Condition, Hold};
use crate::engine::refusals::Refusals;
use crate::error::{Error, ErrorKind, Failure, Operation};
use crate::sync::atomic::Ordering;

/// Has the backend let others read, while the owner goes on to read.
pub(crate) async fn downgrade(hold: &Arc<Hold>) -> Result<(), Error> {
    let refuse = |failure| hold.error(Operation::Downgrade, failure);
    hold.engine.refuse_in_child().map_err(refuse)?;
    hold.check()?;
    // Marked before the request goes out: from now on the hold counts as a reader's, as the server may see it.
    if !prepare(hold).map_err(refuse)? {
        return Ok(());
    }
    // The keeper goes on with it from here, whatever becomes of this future.
    let asking = ask_until_known(Unconfirmed(Some(Arc::clone(hold))));
    let registry = &hold.engine.registry;
    let asked = registry.tasks.run(asking).await.unwrap_or_else(|| Err(registry.closed()));
    asked.map_err(refuse)
}

/// Has the hold count as a reader's, if that can be. Returns whether the backend is to be asked.
fn prepare(hold: &Hold) -> Result<bool, Failure> {
    let unsupported = |what: &'static str| Err(Failure::new(ErrorKind::Unsupported, what));
    let capabilities = &hold.engine.capabilities;
    match hold.mode() {
        Mode::Exclusive => {}
        // The outcome may not be known yet. A reader's lock from the beginning has nothing to ask for.
        Mode::Shared => return Ok(hold.shares.downgrades.load(Ordering::Acquire)),
        Mode::Permits { .. } => return unsupported("permits of a semaphore are neither read nor written"),
    }
    check(&[Requirement::Downgrade], capabilities)?;
    if hold.options.fair && !capabilities.fair {
        return unsupported(
            "readers have no place among the waiters of a fair lock; leave out `fair` for this key",
        );
    }
    if hold.has_session() {
        return unsupported(
            "a session keeps this lock, and shares have leases of their own; leave out the session for this lock \
             (`with_session_kept(false)`)",
        );
    }
    if hold.leave_until() > Timestamp::from_nanos(0) {
        return unsupported("only a lock that is held alone can stay taken; leave out `hold_at_least`");
    }
    // Set before the mode changes: a caller that finds a reader's hold asks for the outcome, too.
    hold.shares.downgrades.store(true, Ordering::Release);
    if !hold.read_only() {
        hold.shares.downgrades.store(false, Ordering::Release);
        let why = "the caller has further guards of it, or bodies or tasks that run under it, which rely on its being \
                   held alone; downgrade the last of them";
        return Err(Failure::new(ErrorKind::Conflict, why));
    }
    Ok(true)
}

/// A hold that counts as a reader's here, which the backend has not confirmed. Dropping it leaves that to the keeper.
struct Unconfirmed(Option<Arc<Hold>>);

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        if let Some(hold) = self.0.take().filter(|hold| hold.shares.downgrades.load(Ordering::Acquire)) {
            ask_later(hold);
        }
    }
}

async fn ask_until_known(mut unconfirmed: Unconfirmed) -> Result<(), Failure> {
    let Some(hold) = unconfirmed.0.clone() else { return Ok(()) };
    let mut asked = 0;
    loop {
        match ask(&hold).await {
            Ok(()) => return Ok(()),
            Err(failure) if failure.is_transient() && hold.asks_again(asked) => asked += 1,
            Err(failure) => {
                // The backend has answered for good: asking again would get the same answer.
                if !(failure.is_transient() || failure.kind().is_revocation()) {
                    unconfirmed.0 = None;
                }
                return Err(failure);
            }
        }
    }
}

/// Asks once.
async fn ask(hold: &Hold) -> Result<(), Failure> {
    let limit = hold.options.request_timeout;
    let Some(lent) = hold.engine.timers.within(limit, hold.claim()).await else {
        return Err(Failure::unavailable(format!("no end of a renewal within {limit:?}")));
    };
    // Also while it is suspect: the answer shows whether the server still has the lock.
    let (Some(mut lent), Condition::Held | Condition::Suspect) = (lent, hold.condition()) else {
        return Err(ended(hold));
    };
    let Some(claim) = lent.claim() else { return Err(ended(hold)) };
    let clock = &hold.engine.clock;
    let sent = clock.now();
    let left = hold.deadline().since(sent);
    let bounds = RequestBounds::of(&**claim, hold.engine.of_requests(), limit.min(left), left);
    let answer = tokio::select! {
        biased;
        // A release must not wait for this; a request that is on its way changes nothing once the token is gone.
        () = hold.ended() => return Err(ended(hold)),
        answer = bounds.answer(claim.downgrade()) => answer.unwrap_or_else(|none| Err(none.into_failure())),
    };
    let sent = bounds.written_at().map_or(sent, |at| at.max(sent));
    match answer {
        Ok(Renewed::Extended) => {
            hold.downgraded(sent);
            hold.engine.registry.contacted(sent);
            // Local waiters that want to read may ask, like those elsewhere.
            hold.engine.wait_queue.released(&hold.key);
            hold.engine.telemetry.downgraded(hold.subject());
            // `downgraded` confirms nothing once the deadline has passed: the answer came too late.
            if hold.condition() == Condition::Lost { Err(ended(hold)) } else { Ok(()) }
        }
        Ok(Renewed::Gone) => {
            hold.gone();
            Err(ended(hold))
        }
        Err(failure) => Err(failure),
    }
}

/// Returns the failure of a hold that is held no longer.
fn ended(hold: &Hold) -> Failure {
    match hold.condition() {
        Condition::Lost => Failure::new(ErrorKind::Lost, hold.cause()),
        _ => Failure::new(ErrorKind::NotHeld, "it was released"),
    }
}

/// Has the keeper ask, again and again, until the outcome is known or the hold has ended.
fn ask_later(hold: Arc<Hold>) {
    // One task at a time: each call that leaves the outcome open comes here.
    if hold.shares.downgrades_later.swap(true, Ordering::AcqRel) {
        return;
    }
    let activity = hold.engine.registry.activity.begin().into_background();
    let engine = Arc::clone(&hold.engine);
    engine.later(async move {
        let mut backoff = PauseLimit::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut refusals = Refusals::new(&hold.engine, hold.site);
        // Read in each round: the caller may ask for the downgrade again, and learn the outcome first.
        while hold.shares.downgrades.load(Ordering::Acquire) {
            let fraction = hold.engine.entropy.fraction();
            let pause = match ask(&hold).await {
                Ok(()) => {
                    refusals.are_over();
                    break;
                }
                Err(failure) if failure.is_transient() => backoff.pause(fraction),
                Err(failure) if failure.kind().is_revocation() => refusals.pause(&failure),
                Err(failure) => {
                    if !matches!(failure.kind(), ErrorKind::Lost | ErrorKind::NotHeld) {
                        hold.engine.telemetry.downgrade_failed(hold.subject(), &failure);
                    }
                    break;
                }
            };
            tokio::select! {
                biased;
                () = hold.ended() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        // Also where the servers have refused for good: `downgrades` stays set then, and a later call may ask again.
        hold.shares.downgrades_later.store(false, Ordering::Release);
        drop(activity);
    });
}
