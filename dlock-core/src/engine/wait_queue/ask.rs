//! The moments at which the first waiter of a key asks for its lock: the decisions, without a clock. Moments and random
//! numbers come in.
//!
//! What is known of a lock belongs to its queue, and not to its first waiter: when that leaves, the next one knows when
//! to ask, and asks no earlier. An [`AskPlan`] is in one of these states:
//!
//! | state | the first waiter | leads to it |
//! |---|---|---|
//! | `Free` | asks at once | [`released`](AskPlan::released), also where the backend reports it; [`gives_up`](AskPlan::gives_up), by a waiter that owes an answer to such news |
//! | `Asked` | asks when it is due, or at a release | [`asks`](AskPlan::asks); [`answered`](AskPlan::answered) sets when it is due |
//! | `HeldHere` | as `Asked`, and need not listen to the backend | [`is_passed_on`](AskPlan::is_passed_on), [`wins`](AskPlan::wins) |
//! | `Yielded` | neither asks nor listens until then, or until a release | [`yields`](AskPlan::yields) |
//!
//! A lock that was not asked for yet is `Free`; one that was asked for before the first waiter joined is `Asked`, and
//! due at once while no pause is known.

use std::time::Duration;

use tokio::time::Instant;

use crate::backend::PauseLimit;

/// The pause after the last request at which a new first waiter asks, where the backend notifies and the waiter before
/// it gave up: for a moment there was no listener, and a notification may have been missed. It doubles each time that
/// it finds the lock held, so that a queue whose waiters give up one after the other polls no more than a queue whose
/// first waiter stays.
const MISSED_AFTER: Duration = Duration::from_millis(20);

/// The moment at which a lock is to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AskAt {
    /// At once: it was released, or nothing is known that a request would have to wait for.
    Once,
    /// Then, unless a release comes before.
    Due(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Free,
    Asked,
    HeldHere,
    /// Until then the lock is left to other processes.
    Yielded(Instant),
}

/// The waiter that asked last, if there was no news of the lock since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Asker {
    /// The first waiter.
    First,
    /// A waiter that was the first before, and has left without the lock.
    Before,
}

/// What is known of the lock of one key, for the waiters of this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AskPlan {
    state: State,
    asked_at: Option<Instant>,
    /// The moment at which the lock is to be asked for without any notification; `None` while that is not known.
    due_at: Option<Instant>,
    polls: PauseLimit,
    /// The next [`MISSED_AFTER`] pause; `None` where the backend does not notify, so that no notification is missed
    /// when the first waiter leaves.
    missed_after: Option<Duration>,
    asker: Option<Asker>,
    /// Is `true` if the first waiter took news as the reason to ask, and has no answer yet.
    owes_an_answer: bool,
}

impl AskPlan {
    /// Plans for a lock that was asked for at this moment, if it was, and of which there was no `news` since. Is
    /// `notified` if the backend reports releases elsewhere.
    pub fn new(polls: PauseLimit, notified: bool, asked_at: Option<Instant>, news: bool) -> Self {
        Self {
            state: if asked_at.is_none() || news { State::Free } else { State::Asked },
            asked_at,
            due_at: None,
            polls,
            missed_after: notified.then_some(MISSED_AFTER),
            asker: None,
            owes_an_answer: false,
        }
    }

    /// Returns when the first waiter asks.
    pub fn ask_at(&self) -> AskAt {
        match (self.state, self.due_at) {
            (State::Free, _) | (_, None) => AskAt::Once,
            (_, Some(due_at)) => AskAt::Due(due_at),
        }
    }

    /// Is `true` if there was news of the lock since it was asked for.
    pub(super) fn has_news(&self) -> bool {
        self.state == State::Free
    }

    /// Is `true` if the first waiter listens to the backend: no release that it reports to this process would do as
    /// well.
    pub fn listens(&self) -> bool {
        matches!(self.state, State::Free | State::Asked)
    }

    /// Is `true` if the lock is left to other processes.
    pub fn is_yielded(&self) -> bool {
        matches!(self.state, State::Yielded(_))
    }

    /// Notes that the lock was released, or may have been.
    pub fn released(&mut self) {
        (self.state, self.asker) = (State::Free, None);
    }

    /// Notes that the lock was released, and is left to other processes until this moment.
    pub fn yields(&mut self, until: Instant) {
        (self.state, self.asker, self.due_at) = (State::Yielded(until), None, Some(until));
    }

    /// Notes that the lock was passed on to the first waiter, by the section before or by a waiter that left.
    pub fn is_passed_on(&mut self) {
        // News that the first waiter owed an answer to led to this.
        (self.state, self.asker, self.owes_an_answer) = (State::HeldHere, None, false);
    }

    /// Notes that the first waiter asks at `now`. Until there is an answer, a waiter that comes to its place asks no
    /// earlier than after the next pause.
    pub fn asks(&mut self, now: Instant) {
        // What was yielded was released here before, which is news as well.
        self.owes_an_answer |= self.has_news() || self.is_yielded();
        (self.state, self.asked_at) = (State::Asked, Some(now));
        self.due_at = Some(now + self.polls.next_at_most());
        // There is no asker after news of the lock, so that only waiters which asked in vain make the pause longer.
        let followed = self.asker.replace(Asker::First) == Some(Asker::Before);
        if let Some(missed_after) = &mut self.missed_after {
            *missed_after =
                if followed { (*missed_after * 2).min(self.polls.at_most()) } else { MISSED_AFTER };
        }
    }

    /// Notes the answer at `now` that the lock has a holder: it is asked for again after this pause at the latest.
    pub fn answered(&mut self, now: Instant, pause: Duration) {
        // A release meanwhile may have left the lock to other processes, which goes before the pause of this answer.
        self.due_at = match self.state {
            State::Yielded(until) => Some(until),
            _ => Some(now + pause),
        };
        self.owes_an_answer = false;
    }

    /// Returns the pause until the next poll, which is longer each time. `fraction` is random, from 0 to 1.
    pub fn next_pause(&mut self, fraction: f64) -> Duration {
        self.polls.pause(fraction)
    }

    /// Makes the next pause shorter: the lock goes from holder to holder, and may be free for moments only.
    pub(super) fn speed_up(&mut self) {
        self.polls.speed_up();
    }

    /// Notes that the first waiter left at `now` with the lock, which this process holds until a release is reported.
    /// The next waiter asks after this pause, if none is.
    pub fn wins(&mut self, now: Instant, pause: Duration) {
        // What was found of the former holder is void, so that the pauses are short again.
        self.polls.begin_anew();
        self.due_at = Some(now + pause);
        self.is_passed_on();
    }

    /// Notes that the first waiter left without the lock. Nothing new is learned of the lock by that.
    pub fn gives_up(&mut self) {
        let owed = std::mem::take(&mut self.owes_an_answer);
        self.asker = self.asker.map(|_| Asker::Before);
        if self.is_yielded() {
            // Whatever was owed is older than that. The next waiter asks when it is over.
            return;
        }
        if owed {
            self.state = State::Free;
        }
        if let (Some(due_at), Some(asked_at), Some(missed_after)) =
            (self.due_at, self.asked_at, self.missed_after)
        {
            // From the last request, not from now: waiters that leave one after the other do not put the next poll off.
            self.due_at = Some(due_at.min(asked_at + missed_after));
        }
    }
}
