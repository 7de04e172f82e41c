//! The decisions of an acquire after an attempt, without I/O, without a clock, and without anything random.
//!
//! Each row asks that those above it do not apply.
//!
//! | the attempt | and | what follows |
//! |---|---|---|
//! | granted | | it is held |
//! | granted late | the acquire does not wait, or its time is up | ends: timed out |
//! | granted late | it brings a baton | ends: the baton is used up |
//! | granted late | | a pause, then an attempt with a new claim |
//! | busy | it brings a baton, which an earlier attempt may have used | ends: the baton is used up |
//! | busy | it brings a baton | ends: the lock is not there |
//! | busy | it does not wait, and may have met its own claim | asks again once that is withdrawn |
//! | busy | it does not wait, or is a job that was run | ends: busy |
//! | busy | one of many, for the eighth time | ends: they are taken one after the other |
//! | busy | | waits for a change, in the queue |
//! | separately | | ends: they are taken one after the other |
//! | unknown | it was asked about as often as is allowed | ends: unknown |
//! | unknown | | a pause, then an attempt with the same claim |
//! | failed | the acquire does not wait | ends with the failure |
//! | failed | the failure will not pass, unless it is a refusal after the wait began | ends with the failure |
//! | failed | it brings a baton that was taken over and is worthless | ends with the failure |
//! | failed | | a pause, and then its turn in the queue |
//!
//! The part of it that an attempt [leaves](Leaves) on the servers is decided before, from its answer alone.

use std::time::Duration;

use smallvec::SmallVec;

use crate::backend::{Busy, Grant};
use crate::error::Failure;

/// The number of attempts at all of many locks before they are taken one after the other.
pub(super) const MOST_TRIES: u32 = 8;

/// The answer to one attempt.
#[derive(Debug)]
pub enum Answer {
    /// A grant for each lock.
    Granted(SmallVec<[Grant; 1]>),
    /// Another claim has the lock at this place of the list.
    Busy(usize, Busy),
    /// The locks have to be taken one after the other.
    Separately,
    /// Nothing was changed.
    Failed(Failure),
    /// Something may have been changed.
    Unknown(Failure),
}

impl Answer {
    /// Names the answer for spans and metrics.
    pub const fn outcome(&self) -> &'static str {
        match self {
            Self::Granted(_) => "acquired",
            Self::Busy(..) => "busy",
            Self::Separately | Self::Failed(_) => "failed",
            Self::Unknown(_) => "unknown",
        }
    }
}

/// The part of an acquire that the servers may have after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Everything that this attempt and those before it may have taken.
    All,
    /// Everything that earlier attempts may have taken: this attempt took nothing.
    Earlier,
    /// Nothing that stands: another claim has the lock. A request of before may still arrive.
    Nothing,
    /// Something that is of no use: it is withdrawn, and the acquire goes on with new claims.
    Refuse,
}

/// The terms of an acquire, which are fixed when it begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Is `true` if a busy lock is waited for.
    pub waits: bool,
    /// Is `true` if the waiters of this process queue, so that only the first of them asks.
    pub lines: bool,
    /// Is `true` if the acquire brings a baton, which is of no use a second time.
    pub takes_over: bool,
    /// Is `true` if the acquire takes more than one lock.
    pub many: bool,
    /// The number of times that the servers are asked again after unknown outcomes; `None` without a bound.
    pub rechecks: Option<u32>,
}

/// The progress of an acquire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Is `true` if it stands in the queue of the lock that is in the way.
    pub in_line: bool,
    /// Is `true` if it has begun to wait for another holder.
    pub was_busy: bool,
    /// The number of earlier attempts that found a lock busy.
    pub tries: u32,
    /// The number of attempts after unknown outcomes since an outcome was last certain.
    pub unknowns: u32,
    /// Is `true` if an attempt may have taken something that still stands.
    pub may_stand: bool,
}

/// The outcome of an attempt. `T` is the type of the locks that were taken.
#[derive(Debug)]
pub enum Outcome<T> {
    /// The locks were granted in time.
    Granted(T),
    /// The lease had ended before the grant arrived. It was released.
    Late {
        /// Is `true` if the time of the acquire is up.
        is_over: bool,
    },
    /// Another claim has one of the locks.
    Busy(BusyOutcome),
    /// The locks have to be taken one after the other.
    Separately,
    /// Something may have been changed.
    Unknown(Failure),
    /// Nothing was changed.
    Failed(Failure),
}

/// Another claim has the lock.
#[derive(Clone, Copy, Debug, Default)]
pub struct BusyOutcome {
    /// The time after which the lease of its holder ends.
    pub retry_after: Option<Duration>,
    /// Is `true` if that claim may be an earlier one of this acquire, which is being withdrawn.
    pub may_be_own: bool,
    /// Is `true` if a job finds that it was run, which ends its wait: the key that a run has left stays taken for the
    /// window.
    pub is_run: bool,
    /// Is `true` if an earlier attempt may have taken the lock, with a lease that has ended since.
    pub may_have_ended: bool,
}

/// The next step after an attempt.
#[derive(Debug)]
pub enum Next<T> {
    /// The locks are held.
    Held(T),
    /// The acquire ends without them.
    End(End),
    /// Waits until what this acquire took before is withdrawn, and asks again.
    AwaitWithdrawal,
    /// Waits until another attempt may be worth while.
    WaitForChange {
        /// The time after which the lease of the holder ends.
        retry_after: Option<Duration>,
        /// Is `true` if it joins the queue of the lock before.
        joins: bool,
    },
    /// Pauses, and asks again.
    Pause(Pause),
}

/// The end of an acquire without a lock.
#[derive(Debug)]
pub enum End {
    /// The backend cannot take the locks in one step.
    Separately,
    /// The locks were tried for together often enough.
    OneByOne,
    /// Another claim has the lock.
    Busy,
    /// The lock that a baton stands for is not there.
    NotThere,
    /// The baton is of no use any more.
    UsedUp,
    /// A grant came too late, and no time is left.
    TooLate,
    /// An outcome is unknown, and is not asked about again.
    Unknown(Failure),
    /// An attempt failed, and is not made again.
    Failed(Failure),
}

/// The reason for which an acquire pauses before it asks again.
#[derive(Debug)]
pub enum Pause {
    /// A grant came too late: new claims are made.
    NewClaims,
    /// An outcome is unknown: the same claims are asked for.
    Recheck(Failure),
    /// The servers are away.
    Away(Failed),
    /// The servers refuse what they allowed before, and an operator may mend that.
    Refused(Failed),
}

/// An attempt that failed.
#[derive(Debug)]
pub struct Failed {
    /// The failure of the attempt.
    pub failure: Failure,
    /// Is `true` if the acquire joins the queue: servers that cannot answer are asked by the first waiter, and not by
    /// each.
    pub joins: bool,
}

impl Terms {
    /// Decides what an attempt leaves on the servers. `in_flight` is `true` if an earlier one may still arrive there.
    pub fn leaves(&self, answer: &Answer, in_flight: bool) -> Leaves {
        match answer {
            Answer::Granted(_) | Answer::Unknown(_) => Leaves::All,
            // The others of the locks may have been taken all the same, and are not wanted without this one.
            Answer::Busy(..) if in_flight && self.many => Leaves::Refuse,
            Answer::Busy(..) => Leaves::Nothing,
            // A lock that was taken over and withdrawn cannot be taken over again.
            Answer::Failed(failure) if failure.is_worthless() && self.takes_over => Leaves::All,
            Answer::Failed(failure) if failure.is_worthless() => Leaves::Refuse,
            Answer::Separately | Answer::Failed(_) => Leaves::Earlier,
        }
    }

    /// Decides what follows an attempt.
    pub fn after<T>(&self, outcome: Outcome<T>, progress: Progress) -> Next<T> {
        match outcome {
            Outcome::Granted(taken) => Next::Held(taken),
            // A baton is spent by the request that takes the lock over, so that a late grant is not asked for again.
            Outcome::Late { is_over } if is_over || !self.waits => Next::End(End::TooLate),
            Outcome::Late { .. } if self.takes_over => Next::End(End::UsedUp),
            Outcome::Late { .. } => Next::Pause(Pause::NewClaims),
            Outcome::Busy(busy) => self.after_busy(busy, progress),
            Outcome::Separately => Next::End(End::Separately),
            // The bound is looked at before the pause: with a bound of zero nothing is asked about again.
            Outcome::Unknown(failure) if self.rechecks.is_some_and(|most| progress.unknowns >= most) => {
                Next::End(End::Unknown(failure))
            }
            // Also where the acquire does not wait: to end here would leave the lock blocked for a lease.
            Outcome::Unknown(failure) => Next::Pause(Pause::Recheck(failure)),
            Outcome::Failed(failure) => self.after_failure(failure, progress),
        }
    }

    fn after_busy<T>(&self, busy: BusyOutcome, progress: Progress) -> Next<T> {
        if self.takes_over {
            // The earlier attempt may have taken the lock over before its lease ended: the baton is spent, or another
            // has the key.
            return Next::End(if busy.may_have_ended { End::UsedUp } else { End::NotThere });
        }
        if !self.waits && busy.may_be_own {
            return Next::AwaitWithdrawal;
        }
        if !self.waits || busy.is_run {
            return Next::End(End::Busy);
        }
        // `tries` counts the attempts before this one.
        if self.many && progress.tries + 1 >= MOST_TRIES {
            return Next::End(End::OneByOne);
        }
        Next::WaitForChange { retry_after: busy.retry_after, joins: self.lines && !progress.in_line }
    }

    fn after_failure<T>(&self, failure: Failure, progress: Progress) -> Next<T> {
        // A refusal of the first request is the program's to learn of at once. After the wait began, the servers have
        // allowed it before, and an operator may restore that.
        let may_pass = failure.is_transient() || progress.was_busy && failure.kind().is_revocation();
        if !self.waits || !may_pass || self.takes_over && failure.is_worthless() {
            return Next::End(End::Failed(failure));
        }
        // An acquire that may own the lock already must not queue behind waiters that are blocked by it.
        let joins = self.lines && !progress.in_line && !self.many && !progress.may_stand;
        let is_transient = failure.is_transient();
        let failed = Failed { failure, joins };
        Next::Pause(if is_transient { Pause::Away(failed) } else { Pause::Refused(failed) })
    }
}

#[cfg(test)]
mod tests;
