//! A holder in the way whose session is over: its lock is taken away from it, and asked for again.
//!
//! | the holder that is in the way | what follows |
//! |---|---|
//! | no session keeps its lock; the key was left, or is this process's | as for any lock |
//! | its record is not found by this process, see [`Namespace`](crate::engine::session) | as for any lock |
//! | its session may be live | as for any lock, and another attempt when more is known of it |
//! | its session is over | the lock is taken away from this hold, and asked for at once |
//! | as above, and that failed | another attempt soon |

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Acquire;
use super::decide::Answer;
use crate::backend::{Busy, Forced};
use crate::engine::Engine;
use crate::engine::session::watch::Look;
use crate::engine::session::{Found, SessionId};
use crate::error::Failure;
use crate::guarded::tell;
use crate::holder::Holder;
use crate::key::Key;

/// The pause after a lock could not be taken away from a holder whose session is over.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The bound of a look at a record.
const LONGEST_LOOK: Duration = Duration::from_secs(5);

impl Acquire<'_> {
    /// Asks once more where the session of the holder is over, after the lock was taken away from it. While that is not
    /// known, the acquire asks again when it may be.
    pub(super) async fn past_dead_holder(&mut self, mut answer: Answer) -> Result<Answer, Failure> {
        let Answer::Busy(place, busy) = &mut answer else { return Ok(answer) };
        let Some((holder, id)) = kept_by_session(busy) else { return Ok(answer) };
        let engine = self.engine;
        let is_found =
            engine.sessions.namespace(&*engine.backend).is_some_and(|namespace| id.is_in(namespace));
        if !is_found || engine.sessions.is_own(&id) {
            return Ok(answer);
        }
        let found = engine.sessions.watching.find(&id, engine.clock.now());
        let ask_in = match found {
            Found::New => {
                engine.later(watch(Arc::downgrade(engine), id));
                found.ask_in()
            }
            Found::KnownIn(_) => found.ask_in(),
            Found::Over => {
                let (key, limit) = (self.specs[*place].key.clone(), self.limits.request_timeout);
                // Boxed: few acquires come here.
                if Box::pin(free(engine, key, holder, limit)).await {
                    return self.ask().await;
                }
                AFTER_FAILURE
            }
        };
        busy.retry_after = Some(busy.retry_after.map_or(ask_in, |left| left.min(ask_in)));
        Ok(answer)
    }
}

/// Returns the holder that is in the way, if a session keeps its lock.
fn kept_by_session(busy: &Busy) -> Option<(Holder, SessionId)> {
    // A key that was left has no holder, and stays taken whatever becomes of its last one.
    let holder = busy.holder.as_deref().filter(|holder| !holder.left_behind)?;
    let id = SessionId::parse(holder.session.as_deref()?)?;
    Some((holder.clone(), id))
}

/// Takes `key` away from a holder whose session is over. Returns whether it may be free now.
///
/// # Cancel safety
///
/// If dropped, the lock is taken away or not.
async fn free(engine: &Arc<Engine>, key: Key, holder: Holder, limit: Duration) -> bool {
    let unanswered = Failure::unknown(format!("no answer within {limit:?}"));
    let (asked, of) = (Arc::clone(engine), key.clone());
    let force = async move { asked.backend.force_release(of, Some(vec![holder])).await };
    match engine.ask(limit, unanswered, force).await {
        Ok(forced) => {
            tell(|| tracing::debug!(target: "dlock", ?forced, "the session of the holder was over"));
            if forced == Forced::Released {
                // It may have been a term of an election.
                engine.announce(&key);
            }
            // Another holder that came in between is found by the next attempt.
            true
        }
        Err(failure) => {
            let what = "a lock could not be taken away from a holder whose session is over";
            tell(|| tracing::debug!(target: "dlock", { dlock.failure = %failure }, "{what}"));
            false
        }
    }
}

/// Looks at a record once.
async fn look(engine: &Arc<Engine>, record: &Key, limit: Duration) -> Look {
    match engine.inspect(record, limit).await {
        Ok(Some(holder)) => return Look::There(holder.expires_in),
        Ok(None) => {}
        Err(_) => return Look::Failed,
    }
    // A replica may have answered, which lags behind. A server is asked that locks may be taken away at: if nobody was
    // seen, nothing is.
    let unanswered = Failure::unavailable(format!("no answer within {limit:?}"));
    let (asked, of) = (Arc::clone(engine), record.clone());
    let confirm = async move { asked.backend.force_release(of, Some(Vec::new())).await };
    match engine.ask(limit, unanswered, confirm).await {
        Ok(Forced::Free) => Look::Absent,
        Ok(_) => Look::There(None),
        Err(_) => Look::Failed,
    }
}

/// Looks at the record of a session until that is over, or no acquire meets it any more.
async fn watch(engine: Weak<Engine>, id: SessionId) {
    let Ok(record) = id.record() else { return };
    loop {
        // Not kept while this sleeps: the engine may be dropped.
        let Some(here) = engine.upgrade() else { return };
        if here.registry.is_closed() {
            return here.sessions.watching.forget(&id);
        }
        let look = look(&here, &record, (id.lease() / 2).min(LONGEST_LOOK)).await;
        let clock = here.clock.clone();
        let Some(next) = here.sessions.watching.looked(&id, look, clock.now()) else { return };
        drop(here);
        clock.sleep_until(next).await;
    }
}
