//! Many renewals in one statement.
//!
//! ```text
//!     `extend` ---> inbox ---> waiting ---> one statement ---> answered
//!                    |            |  ^
//!                    |            |  +- more than `AT_ONCE`: those whose leases end last stay for the next one
//!                    |            +- given up: dropped
//!                    +- crowded (the statement before had several): up to a fiftieth of a lease for more to come
//! ```
//!
//! The keeper asks for the renewal of every lock that is due at about one time. All that have come in when the
//! connection is free go out together, and where several did, those that come in within a fiftieth of a lease do too:
//! ten thousand locks cost a handful of statements. If more wait than one statement renews, as after an outage, those
//! whose leases end first go first.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::backend::{ClaimRequest, Mode, Renewed, RequestClock, by_then};
use dlock_core::{Failure, Key, Token};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::failure::{closed, copy};

/// A lease that is to be extended.
#[derive(Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) lease: Duration,
    pub(crate) mode: Mode,
    /// The time that the engine waits for the answer.
    limit: Duration,
    /// The moment at which the lease ends.
    ends_at: Instant,
    /// The clock of the request, which waits for the statement before it, and for others to go along with.
    clock: RequestClock,
    answer: oneshot::Sender<Result<Renewed, Failure>>,
}

/// The places in a list that were extended.
#[derive(Debug)]
pub(crate) enum Extended {
    All,
    Some(HashSet<usize>),
}

/// Returns the shortest time that one of these waits.
pub(crate) fn shortest_limit(renewals: &[Renewal]) -> Duration {
    renewals.iter().map(|renewal| renewal.limit).min().unwrap_or_default()
}

/// The side that carries out renewals.
pub(crate) trait Renew: Send + Sync + 'static {
    /// The largest number of rows that one statement changes, so that it does not keep others waiting.
    const AT_ONCE: usize;

    /// Extends the leases that are still in place.
    fn renew(&self, renewals: &[Renewal]) -> impl Future<Output = Result<Extended, Failure>> + Send;
}

/// The inbox for renewals.
#[derive(Debug)]
pub(crate) struct Renewals(mpsc::UnboundedSender<Renewal>);

impl Renewals {
    /// Creates it with the receiver that [`look_after`] empties.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Renewal>) {
        let (renewals, inbox) = mpsc::unbounded_channel();
        (Self(renewals), inbox)
    }

    /// Extends one lease, along with all others that are due. `since` is the moment from which it counts.
    pub(crate) async fn extend(
        &self,
        request: &ClaimRequest,
        clock: &RequestClock,
        since: &mut Instant,
    ) -> Result<Renewed, Failure> {
        // Before it is queued, so that the lease is never counted from later than its statement.
        let ((answer, receiver), sent) = (oneshot::channel(), Instant::now());
        clock.queued();
        let renewal = Renewal {
            key: request.key.clone(),
            token: request.token,
            lease: request.lease,
            mode: request.mode,
            limit: request.request_timeout,
            ends_at: *since + request.lease,
            clock: clock.clone(),
            answer,
        };
        // The worker lives as long as what it renews on, and the keeper's thread.
        self.0.send(renewal).map_err(|_| closed())?;
        let renewed = receiver.await.unwrap_or_else(|_| Err(closed()))?;
        // Only with an answer: after a failure the lease counts from where it did.
        *since = sent;
        Ok(renewed)
    }
}

/// Carries out renewals until `on` is dropped.
pub(crate) fn look_after<R: Renew>(
    on: &Arc<R>,
    inbox: mpsc::UnboundedReceiver<Renewal>,
) -> Result<(), Failure> {
    dlock_core::keeper::runtime()?.spawn(work(Arc::downgrade(on), inbox));
    Ok(())
}

/// The number of waiting renewals that are not kept waiting for more.
const ENOUGH: usize = 500;
/// The longest time for which renewals are kept waiting for more of them.
const PATIENCE: Duration = Duration::from_millis(200);

async fn work<R: Renew>(on: Weak<R>, mut inbox: mpsc::UnboundedReceiver<Renewal>) {
    let (mut waiting, mut crowded) = (Vec::new(), false);
    loop {
        gather(&mut inbox, &mut waiting, crowded).await;
        if waiting.is_empty() {
            return;
        }
        // Renewals that were cancelled have no use for an answer any more.
        waiting.retain(|renewal| !renewal.answer.is_closed());
        // Upgraded for this statement alone: between statements the backend may be dropped, and this ends.
        let Some(on) = on.upgrade() else { return };
        // Sorted only where some have to stay.
        if waiting.len() > R::AT_ONCE {
            waiting.sort_by_key(|renewal| renewal.ends_at);
        }
        let mut renewals: Vec<_> = waiting.drain(..waiting.len().min(R::AT_ONCE)).collect();
        // Last, since it starts the time of their requests: those that stay for the next statement must not be counted
        // yet.
        renewals.retain(|renewal| renewal.clock.written());
        if renewals.is_empty() {
            continue;
        }
        crowded = renewals.len() > 1;
        let answer = on.renew(&renewals).await;
        for (n, renewal) in renewals.into_iter().enumerate() {
            let answer = match &answer {
                Ok(Extended::All) => Ok(Renewed::Extended),
                Ok(Extended::Some(places)) if places.contains(&n) => Ok(Renewed::Extended),
                Ok(_) => Ok(Renewed::Gone),
                Err(failure) => Err(copy(failure)),
            };
            // A renewal that was cancelled meanwhile was carried out nevertheless; the release of its lock follows.
            let _ = renewal.answer.send(answer);
        }
    }
}

/// Waits for renewals, and where they are crowded a little longer for some more. Leaves `waiting` empty once no renewal
/// can be asked for any more.
async fn gather(inbox: &mut mpsc::UnboundedReceiver<Renewal>, waiting: &mut Vec<Renewal>, crowded: bool) {
    // Some that stayed from the statement before wait for nothing: they are late already.
    if waiting.is_empty() {
        // Leaves `waiting` empty only once all senders are gone, with the backend.
        inbox.recv_many(waiting, ENOUGH).await;
        let patience = waiting.iter().map(|renewal| renewal.lease / 50).min().unwrap_or_default();
        let until = Instant::now() + patience.min(PATIENCE);
        // A renewal that comes as the time ends stays in the inbox: `recv_many` loses nothing when it is dropped.
        while crowded
            && waiting.len() < ENOUGH
            && by_then(until, inbox.recv_many(waiting, ENOUGH)).await.is_some_and(|more| more > 0)
        {}
    }
    // All that is there by now, also more than one statement renews: `work` picks the most urgent of them.
    while let Ok(renewal) = inbox.try_recv() {
        waiting.push(renewal);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use dlock_core::Clock;
    use tokio::sync::Semaphore;

    use super::*;

    /// A backend that notes what comes, and lets through as many statements as there are permits.
    struct Noting(Mutex<Vec<Vec<String>>>, Semaphore);

    impl Renew for Noting {
        const AT_ONCE: usize = 3;

        async fn renew(&self, renewals: &[Renewal]) -> Result<Extended, Failure> {
            let mut keys: Vec<_> = renewals.iter().map(|renewal| renewal.key.to_string()).collect();
            keys.sort();
            self.0.lock().unwrap().push(keys);
            self.1.acquire().await.unwrap().forget();
            Ok(Extended::All)
        }
    }

    fn renewal(key: &str, ends_in: u64) -> (Renewal, oneshot::Receiver<Result<Renewed, Failure>>) {
        let (answer, receiver) = oneshot::channel();
        let (lease, limit) = (Duration::from_secs(10), Duration::from_secs(1));
        let ends_at = Instant::now() + Duration::from_secs(ends_in);
        let (key, token) = (Key::new(key).unwrap(), Token::random().unwrap());
        let clock = RequestClock::new(Clock::system());
        (Renewal { key, token, lease, mode: Mode::Exclusive, limit, ends_at, clock, answer }, receiver)
    }

    #[tokio::test(start_paused = true)]
    async fn where_several_came_in_others_are_waited_for_and_one_alone_goes_at_once() {
        let (noting, (to, inbox)) = (Noting(Mutex::default(), Semaphore::new(9)), mpsc::unbounded_channel());
        let noting = Arc::new(noting);
        let working = tokio::spawn(work(Arc::downgrade(&noting), inbox));
        let mut answers = Vec::new();
        for (key, pause) in [("a", 9), ("b", 0), ("c", 9), ("d", 30), ("e", 60), ("f", 200), ("g", 0)] {
            let (renewal, answer) = renewal(key, 10);
            to.send(renewal).unwrap();
            answers.push(answer);
            if pause > 0 {
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        for answer in answers {
            assert_eq!(answer.await.unwrap().unwrap(), Renewed::Extended);
        }
        let seen = std::mem::take(&mut *noting.0.lock().unwrap());
        let expected: [&[&str]; 4] = [&["a"], &["b", "c"], &["d", "e", "f"], &["g"]];
        assert_eq!(seen, expected);
        drop(to);
        working.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn where_more_wait_than_go_at_once_the_leases_that_end_first_go_first() {
        let (noting, (to, inbox)) = (Noting(Mutex::default(), Semaphore::new(0)), mpsc::unbounded_channel());
        let noting = Arc::new(noting);
        let working = tokio::spawn(work(Arc::downgrade(&noting), inbox));
        let mut answers = Vec::new();
        for (key, ends_in) in [("h", 8), ("b", 2), ("g", 7), ("c", 3), ("a", 1), ("f", 6)] {
            let (renewal, answer) = renewal(key, ends_in);
            to.send(renewal).unwrap();
            answers.push(answer);
        }
        noting.1.add_permits(2);
        for answer in answers {
            assert_eq!(answer.await.unwrap().unwrap(), Renewed::Extended);
        }
        let seen = std::mem::take(&mut *noting.0.lock().unwrap());
        assert_eq!(seen, [["a", "b", "c"], ["f", "g", "h"]]);
        drop(to);
        working.await.unwrap();
    }
}
