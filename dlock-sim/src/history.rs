//! The simulated stores by themselves, one command after the other: real servers have to answer the same.

use dlock_core::Token;
use dlock_core::backend::Mode;

use crate::lease::{Answer, Command, One, Store};
use crate::session::From;

/// A simulated store, whose clock goes on only by [`pass`](Self::pass).
#[allow(missing_debug_implementations, reason = "nobody prints a store")]
pub struct Simulated {
    store: Store,
    /// The number of the session that each process has, where sessions keep the locks.
    sessions: Option<Vec<u64>>,
    opened: u64,
    time: u64,
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
    /// Its lease in milliseconds.
    pub lease: u64,
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
    /// The lease was extended.
    Extended,
    /// The lock is not the claim's.
    Gone,
    /// Something was removed, or there was nothing.
    Removed(bool),
    /// Whether somebody holds the lock.
    Held(bool),
}

impl Simulated {
    /// Creates an empty store of leases.
    #[must_use]
    pub fn leases() -> Self {
        Self { store: Store::new(false, false, 0), sessions: None, opened: 0, time: 1 }
    }

    /// Creates an empty store of sessions and queues, to which so many processes are connected.
    #[must_use]
    pub fn queues(processes: usize) -> Self {
        let mut new = Self {
            store: Store::new(false, true, 0),
            sessions: Some(vec![0; processes]),
            opened: 0,
            time: 1,
        };
        (0..processes).for_each(|process| new.open(process));
        new
    }

    fn open(&mut self, process: usize) {
        self.opened += 1;
        if let Some(sessions) = &mut self.sessions {
            sessions[process] = self.opened;
        }
    }

    fn carry_out(&mut self, claimed: &Claimed, command: impl FnOnce(One) -> Command) -> Said {
        let one = One {
            key: claimed.key,
            claim: 0,
            process: claimed.process,
            engine: 0,
            token: claimed.token,
            lease: claimed.lease * 1_000_000,
            fences: 1,
            mode: Mode::Exclusive,
            fair: false,
            waits: claimed.waits,
            takes_over: None,
            request: None,
        };
        let sessions = self.sessions.as_ref();
        let from = sessions.map(|sessions| From {
            session: sessions[claimed.process],
            generation: 0,
            timeout: u64::MAX / 2,
        });
        // Only the twin differs, and only connections that were left are not answered.
        let answer = self.store.carry_out(from, &command(one), self.time).ok().and_then(|(answer, _)| answer);
        match answer {
            Some(Answer::Granted(fences)) => Said::Granted(fences[0].0),
            Some(Answer::Busy(..) | Answer::Left(..)) => Said::Busy,
            Some(Answer::Extended) => Said::Extended,
            Some(Answer::Removed(removed)) => Said::Removed(removed),
            Some(Answer::Awaited) => Said::Removed(true),
            Some(Answer::Held(left)) => Said::Held(left.is_some()),
            Some(Answer::Gone | Answer::Expired) | None => Said::Gone,
        }
    }

    /// Asks for the lock.
    pub fn attempt(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, |one| Command::Attempt(vec![one]))
    }

    /// Extends the lease.
    pub fn renew(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, Command::Renew)
    }

    /// Releases the lock, or leaves the queue.
    pub fn withdraw(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, Command::Withdraw)
    }

    /// Looks whether somebody holds the lock.
    pub fn inspect(&mut self, claimed: &Claimed) -> Said {
        self.carry_out(claimed, |one| Command::Inspect(one.key))
    }

    /// Lets so many milliseconds pass.
    pub fn pass(&mut self, millis: u64) {
        self.time += millis * 1_000_000;
    }

    /// Ends the session of a process, which opens another one.
    pub fn end_session(&mut self, process: usize) {
        if let Some(session) = self.sessions.as_ref().map(|sessions| sessions[process]) {
            self.store.end_session(session);
        }
        self.open(process);
    }
}
