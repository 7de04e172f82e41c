//! A candidate, and its terms of office.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use super::Election;
use crate::engine::hold::{Condition, Hold};
use crate::engine::looks::Looks;
use crate::engine::refusals::Refusals;
use crate::engine::scope;
use crate::error::{Error, Operation, Result};
use crate::fence::Fence;
use crate::guarded::guard;
use crate::handles::election::Eligibility;
use crate::handles::guard::Guard;
use crate::handles::held::{Ended, Held};
use crate::handles::section::run_held;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The pause after a failure that may pass.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The time for which a candidate lets those of the next better priority go first.
const STEP: Duration = Duration::from_secs(1);
const LAST_PRIORITY: u8 = 60;
/// The time for which a candidate that resigned lets others go first where these are notified; where they poll, it is
/// their pause.
const YIELD_FOR: Duration = Duration::from_millis(100);
const LONGEST_YIELD: Duration = Duration::from_secs(1);

/// A candidate of an [`Election`]: each [`next`](Self::next) waits until it leads. It stands for as long as it is
/// waited for; dropped, it withdraws, and a term that it won goes on until that ends by itself.
///
/// It goes on through outages of the backend, refusals and lost terms. A refusal, such as a password that was rotated,
/// a right that was removed or a table that is missing, is a warning, and the servers are asked again after pauses that
/// grow to 30 s. A campaign ends when the locks are drained or shut down, or when the program itself is wrong, by an
/// invalid key or option or a backend without elections: [`failure`](Self::failure) then returns the reason.
#[derive(Debug)]
#[must_use = "a campaign does nothing until its next term is waited for"]
pub struct Campaign {
    election: Election,
    failure: Option<Error>,
    /// Is `true` if the last term was given up, so that others are to have their turn.
    resigned: Arc<AtomicBool>,
}

impl Campaign {
    pub(super) fn new(election: Election) -> Self {
        Self { election, failure: None, resigned: Arc::default() }
    }

    /// Waits until this candidate leads; `None` when the campaign has ended.
    ///
    /// * While it is not [eligible](Self::eligibility), it waits to be.
    /// * After a term that was resigned or dropped, it first lets the others have their turn: for 100 ms where the
    ///   backend notifies, otherwise for its longest pause between two polls, at most 1 s. After a term that was lost
    ///   it stands at once.
    /// * While an earlier term of this campaign is still held, this waits for its end as for any other's.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any await and called again. The candidate withdraws meanwhile, in the background, and loses
    /// its place among the waiters.
    pub async fn next(&mut self) -> Option<Term> {
        if self.failure.is_some() {
            return None;
        }
        let won = {
            let (stands, refused) = (pin!(self.win()), pin!(scope::refused(self.election.engine())));
            match select(stands, refused).await {
                Either::Left((won, _)) => won,
                Either::Right((failure, _)) => Err(self.election.lock.error(Operation::Acquire, failure)),
            }
        };
        won.map_err(|error| self.failure = Some(error)).ok()
    }

    /// Returns the reason why the campaign has ended: [`ErrorKind::Closed`](crate::ErrorKind::Closed) when the locks
    /// were drained or shut down; otherwise an error that only another program would not have, such as an invalid
    /// option.
    #[must_use]
    pub const fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Consumes the campaign and returns what [`failure`](Self::failure) does.
    #[must_use]
    pub fn into_failure(self) -> Option<Error> {
        self.failure
    }

    /// Returns the switch for whether this candidate may lead.
    #[must_use]
    pub const fn eligibility(&self) -> &Eligibility {
        &self.election.eligibility
    }

    /// Stands until it leads, or can never.
    async fn win(&self) -> Result<Term> {
        let Election { lock, priority, eligibility } = &self.election;
        lock.checked(lock.options())?;
        if *priority > LAST_PRIORITY {
            let what = format!("the priority is {priority}; use 0 (the first to try) to {LAST_PRIORITY}");
            return Err(self.election.refuse(what));
        }
        let mut refusals = Refusals::new(self.election.engine(), lock.site());
        loop {
            eligibility.becomes(true).await;
            let taken = {
                let (stands, ineligible) =
                    (pin!(self.stand(&mut refusals)), pin!(eligibility.becomes(false)));
                match select(stands, ineligible).await {
                    Either::Left((taken, _)) => taken,
                    Either::Right(_) => continue,
                }
            };
            match taken {
                Ok(guard) => {
                    refusals.are_over();
                    // The switch may have gone off at this moment: the guard is then dropped.
                    if eligibility.admit(guard.hold()) {
                        return Ok(Term::new(guard, &self.resigned));
                    }
                }
                Err(error) if error.is_retryable() => self.election.engine().pause(AFTER_FAILURE).await,
                Err(error) if error.kind().is_refusal() => {
                    let length = refusals.pause(error.failure());
                    self.election.engine().pause(length).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn stand(&self, refusals: &mut Refusals<'_>) -> Result<Guard> {
        let Election { lock, priority, .. } = &self.election;
        let engine = self.election.engine();
        if self.resigned.load(Ordering::Acquire) {
            engine.pause(engine.capabilities.time_to_ask(YIELD_FOR, LONGEST_YIELD)).await;
            self.resigned.store(false, Ordering::Release);
        }
        if *priority == 0 {
            // Another candidate may lead for long: that the servers answer again is found out before the wait.
            if refusals.last() {
                if let Some(guard) = lock.try_acquire().await? {
                    return Ok(guard);
                }
                refusals.are_over();
            }
            return lock.acquire().await;
        }
        loop {
            self.vacancy(refusals).await?;
            if let Some(guard) = lock.try_acquire().await? {
                return Ok(guard);
            }
            refusals.are_over();
        }
    }

    /// Resolves when there was no leader for as long as this candidate lets others go first.
    async fn vacancy(&self, refusals: &mut Refusals<'_>) -> Result<()> {
        let Election { lock, priority, .. } = &self.election;
        let patience = STEP * u32::from(*priority);
        let between = (lock.options().lease / 10).clamp(Duration::from_millis(50), STEP);
        let (mut vacant_since, mut looks, engine) = (None, Looks::default(), self.election.engine());
        let key = lock.checked(lock.options())?;
        loop {
            looks.due(engine, key, between).await;
            let asked = engine.timers.now();
            match self.election.leader().await? {
                Some(_) => {
                    refusals.are_over();
                    vacant_since = None;
                }
                None if engine.timers.now() - *vacant_since.get_or_insert(asked) >= patience => {
                    return Ok(());
                }
                None => {}
            }
            looks.ended(engine);
        }
    }
}

/// A term of office: from [`Campaign::next`] until it is lost, [resigned](Self::resign) or dropped.
///
/// Dropping it resigns in the background. It can be lost at any time: the lease ran out while the process was paused
/// or cut off, an operator released it by force, the candidate is not [eligible](Eligibility) any more, the locks were
/// shut down. [`run`](Self::run) then drops its body; code that leads without it asks [`check`](Self::check) before
/// each step that matters, and sends the [`fence`](Self::fence) along with every write.
#[must_use = "the term ends as soon as this is dropped"]
#[clippy::has_significant_drop]
pub struct Term {
    guard: Guard,
    /// Dropped after the guard, whose end it looks at.
    end: End,
}

impl Term {
    fn new(guard: Guard, resigned: &Arc<AtomicBool>) -> Self {
        let end = End { hold: Arc::clone(guard.hold()), resigned: Arc::clone(resigned) };
        Self { guard, end }
    }

    /// Returns the number of this term: its [fence](Self::fence), for logs. `None` on backends without fences.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.fence().map(Fence::get)
    }

    /// Returns the fencing token of this term, higher than those of all terms before it; `None` on backends without
    /// fences.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.guard.fence()
    }

    /// Checks that this process leads at this moment: a local test, no I/O. See [`Guard::check`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the term has ended, for good;
    /// [`ErrorKind::Suspect`](crate::ErrorKind::Suspect) while that is not known.
    pub fn check(&self) -> Result<()> {
        self.guard.check()
    }

    /// Returns how long the term lasts if no renewal succeeds. See [`Guard::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guard.remaining()
    }

    /// Waits until the term is lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Returns a view that can be cloned and given to other tasks. It does not keep the term.
    #[must_use]
    pub fn held(&self) -> Held {
        self.guard.held()
    }

    /// Waits until the term is over, and returns how it ended: lost or resigned. See [`Held::ended`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time.
    pub async fn ended(&self) -> Ended {
        self.guard.ended().await
    }

    /// Runs `body` for as long as the term lasts, and returns what it returned; `None` when the term was lost before,
    /// and the body was dropped at its current await. The loss is looked for before each poll, so that a process that
    /// was stopped for longer than its lease runs no further step.
    ///
    /// The term goes on when the body has returned, until it is resigned or dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body.
    pub fn run<F: Future>(&self, body: F) -> impl Future<Output = Option<F::Output>> + use<'_, F> {
        run_held(self.held(), body)
    }

    /// Gives the term up and waits until the backend confirms it. Where the backend notifies, the next candidate leads
    /// as soon as it is notified.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`]; whatever the error, this process does not lead any more.
    ///
    /// # Cancel safety
    ///
    /// Goes on in the background when dropped.
    pub async fn resign(self) -> Result<()> {
        let Self { guard, end } = self;
        let result = guard.release().await;
        drop(end);
        result
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("number", &self.number()).field("held", &self.held()).finish()
    }
}

/// Notes how a term ended, when it is dropped.
struct End {
    hold: Arc<Hold>,
    resigned: Arc<AtomicBool>,
}

impl Drop for End {
    fn drop(&mut self) {
        if let Ok(Condition::Released) = guard(|| self.hold.condition()) {
            self.resigned.store(true, Ordering::Release);
        }
    }
}
