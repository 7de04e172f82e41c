//! The simulated queues by themselves, one command after the other: a real ZooKeeper has to answer the same. The
//! simulated leases have a twin in some of the runs, see [`crate::lease`].

use dlock_core::Token;
use dlock_core::backend::Mode;

use crate::lease::{Answer, Command, One, Store};
use crate::session::From;

/// A simulated store of sessions and queues, whose clock stands still.
#[allow(missing_debug_implementations, reason = "nobody prints a store")]
pub struct Simulated {
    store: Store,
    /// The number of the session that each process has.
    sessions: Vec<u64>,
    opened: u64,
}

/// One claim, as the store knows it.
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    /// Which process asks.
    pub process: usize,
    /// The number of the key.
    pub key: usize,
    /// The mark of the claim.
    pub token: Token,
    /// Whether it keeps its place where the lock is busy.
    pub waits: bool,
}

/// What a store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The lock is the claim's, with this fence.
    Granted(u64),
    /// Another has it.
    Busy,
    /// The lock is not the claim's.
    Gone,
    /// Something was removed, or there was nothing.
    Removed(bool),
    /// Whether somebody holds the lock.
    Held(bool),
}

impl Simulated {
    /// Creates an empty store, to which so many processes are connected.
    #[must_use]
    pub fn queues(processes: usize) -> Self {
        let mut new = Self { store: Store::new(false, true, 0), sessions: vec![0; processes], opened: 0 };
        (0..processes).for_each(|process| new.open(process));
        new
    }

    fn open(&mut self, process: usize) {
        self.opened += 1;
        self.sessions[process] = self.opened;
    }

    fn carry_out(&mut self, claimed: &Claimed, command: impl FnOnce(One) -> Command) -> Said {
        let one = One {
            key: claimed.key,
            claim: 0,
            process: claimed.process,
            engine: 0,
            token: claimed.token,
            lease: 0,
            fences: 1,
            mode: Mode::Exclusive,
            fair: false,
            waits: claimed.waits,
            takes_over: None,
            request: None,
        };
        let from = From { session: self.sessions[claimed.process], generation: 0, timeout: u64::MAX / 2 };
        // Only a twin differs, and only connections that were left are not answered.
        let answer = self.store.carry_out(Some(from), &command(one), 1).ok().and_then(|(answer, _)| answer);
        match answer {
            Some(Answer::Granted(fences)) => Said::Granted(fences[0].0),
            Some(Answer::Busy(..) | Answer::Left(..)) => Said::Busy,
            Some(Answer::Removed(removed)) => Said::Removed(removed),
            Some(Answer::Awaited) => Said::Removed(true),
            Some(Answer::Held(left)) => Said::Held(left.is_some()),
            Some(Answer::Extended | Answer::Gone | Answer::Expired) | None => Said::Gone,
        }
    }

    /// Asks for the lock.
    pub fn attempt(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, |one| Command::Attempt(vec![one]))
    }

    /// Releases the lock, or leaves the queue.
    pub fn withdraw(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, Command::Withdraw)
    }

    /// Looks whether somebody holds the lock.
    pub fn inspect(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, |one| Command::Inspect(one.key))
    }

    /// Ends the session of a process, which opens another one.
    pub fn end_session(&mut self, process: usize) {
        self.store.end_session(self.sessions[process]);
        self.open(process);
    }
}
