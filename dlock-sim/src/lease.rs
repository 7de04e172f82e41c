//! The simulated store: leases, as Redis and SQL keep them.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dlock_core::backend::{Attempt, Backend, Claim, ClaimRequest, Mode, Renewed};
use dlock_core::{Clock, Memory, Token};

use crate::session::{From, Queues};
use crate::shared::SharedKeys;
use crate::world::read;

/// Who asks, and for what.
#[derive(Clone)]
pub(crate) struct One {
    pub(crate) key: usize,
    pub(crate) claim: u64,
    pub(crate) process: usize,
    pub(crate) engine: usize,
    pub(crate) token: Token,
    /// In nanoseconds.
    pub(crate) lease: u64,
    /// How many fences it wants.
    pub(crate) fences: u32,
    /// Whether a queue keeps a place for it when the lock is busy.
    pub(crate) waits: bool,
    pub(crate) mode: Mode,
    /// Whether it is to be kept in line.
    pub(crate) fair: bool,
    /// The token under which the lock was left that it takes over.
    pub(crate) takes_over: Option<Token>,
    /// What the engine asked for, for the twin.
    pub(crate) request: Option<Box<ClaimRequest>>,
}

#[derive(Clone)]
pub(crate) enum Command {
    Attempt(Vec<One>),
    Renew(One),
    Downgrade(One),
    Withdraw(One),
    /// A release that leaves the key taken for so many nanoseconds.
    Leave(One, u64),
    Inspect(usize),
}

impl Command {
    /// The key that it is about, or the first of them.
    pub(crate) fn key(&self) -> Option<usize> {
        match self {
            Self::Attempt(all) => all.first().map(|one| one.key),
            Self::Renew(one) | Self::Downgrade(one) | Self::Withdraw(one) | Self::Leave(one, _) => {
                Some(one.key)
            }
            Self::Inspect(key) => (*key != usize::MAX).then_some(*key),
        }
    }
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// With the first fence of each, and how many there are.
    Granted(Vec<(u64, u32)>),
    /// Which one is in the way, and what is left of its lease in nanoseconds.
    Busy(usize, u64),
    /// Which one is in the way, that was left behind, and is there for so many nanoseconds.
    Left(usize, u64),
    Extended,
    Gone,
    Removed(bool),
    /// It was removed, and another process is notified.
    Awaited,
    /// Whether somebody holds it, and for how many nanoseconds its lease runs.
    Held(Option<u64>),
    /// The session that asked has ended.
    Expired,
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) token: Token,
    pub(crate) claim: u64,
    pub(crate) process: usize,
    pub(crate) engine: usize,
    /// The first of its fences.
    pub(crate) fence: u64,
    pub(crate) fences: u32,
    /// By the store's clock.
    pub(crate) expires: u64,
    /// Whether it came back from an old copy, so that its holder may have left long ago.
    pub(crate) restored: bool,
    /// The lease, to find out how late an end is.
    pub(crate) lease: u64,
    /// Whether its holder left it behind.
    pub(crate) left: bool,
}

impl Entry {
    /// Whether this is one of its fences.
    pub(crate) fn has(&self, fence: u64) -> bool {
        (self.fence..self.fence + u64::from(self.fences)).contains(&fence)
    }
}

/// What happened to keys because of a command.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) granted: Vec<(usize, Entry)>,
    pub(crate) freed: Vec<usize>,
    /// The fences of locks that ended with their lease.
    pub(crate) ran_out: Vec<u64>,
    /// Locks that were left, for the first time or once more.
    pub(crate) left: Vec<(usize, Entry)>,
    /// Who is to be told: key and process.
    pub(crate) tell: Vec<(usize, usize)>,
}

/// The server.
pub(crate) struct Store {
    pub(crate) entries: BTreeMap<usize, Entry>,
    copy: BTreeMap<usize, Entry>,
    fence: u64,
    interest: Vec<(usize, usize)>,
    pub(crate) up: bool,
    /// Counts the losses of data.
    pub(crate) epoch: u64,
    twin: Option<Twin>,
    /// Where sessions keep the locks.
    queues: Option<Queues>,
    /// Where several hold a key.
    pub(crate) shared: Option<SharedKeys>,
}

impl Store {
    pub(crate) fn new(twin: bool, sessions: bool, drift: i64) -> Self {
        Self {
            entries: BTreeMap::new(),
            copy: BTreeMap::new(),
            fence: 0,
            interest: Vec::new(),
            up: true,
            epoch: 0,
            twin: (twin && !sessions).then(|| Twin::new(drift)),
            queues: sessions.then(Queues::default),
            shared: None,
        }
    }

    /// Carries out one command, in one step, at `time` of the store's clock; without an answer where the session that
    /// asks has left the connection. The error is a difference to `Memory`.
    pub(crate) fn carry_out(
        &mut self,
        from: Option<From>,
        command: &Command,
        time: u64,
    ) -> Result<(Option<Answer>, Changes), String> {
        let mut changes = Changes::default();
        if let (Some(queues), Some(from)) = (&mut self.queues, from) {
            let answer = queues.carry_out(&mut self.entries, from, command, time, &mut changes);
            return Ok((answer, changes));
        }
        if let Some(shared) = &mut self.shared {
            let answer = shared.carry_out(command, time, &mut changes);
            return Ok((Some(answer), changes));
        }
        let answer = match command {
            Command::Attempt(all) => self.attempt(all, time, &mut changes),
            Command::Renew(one) => match self.entries.get_mut(&one.key) {
                Some(entry) if entry.token == one.token && entry.expires > time => {
                    entry.expires = time + one.lease;
                    Answer::Extended
                }
                _ => Answer::Gone,
            },
            // Only where several hold a key.
            Command::Downgrade(_) => Answer::Gone,
            Command::Withdraw(one) => match self.entries.get(&one.key) {
                Some(entry) if entry.token == one.token => {
                    let live = entry.expires > time;
                    if !live {
                        changes.ran_out.push(entry.fence);
                    }
                    self.free(one.key, &mut changes);
                    let awaited = changes.tell.iter().any(|(_, process)| *process != one.process);
                    if live && awaited { Answer::Awaited } else { Answer::Removed(live) }
                }
                _ => Answer::Removed(false),
            },
            Command::Leave(one, taken_for) => match self.entries.get_mut(&one.key) {
                Some(entry)
                    if entry.expires > time
                        && (entry.token == one.token || entry.token == one.token.left_behind()) =>
                {
                    // What is left already is left for no longer.
                    let most = if entry.left { entry.expires } else { u64::MAX };
                    entry.token = one.token.left_behind();
                    (entry.expires, entry.left) = (most.min(time + taken_for), true);
                    changes.left.push((one.key, entry.clone()));
                    self.tell(one.key, &mut changes);
                    let awaited = changes.tell.iter().any(|(_, process)| *process != one.process);
                    if awaited { Answer::Awaited } else { Answer::Removed(true) }
                }
                _ => Answer::Removed(false),
            },
            Command::Inspect(key) => {
                let left = self.entries.get(key).and_then(|entry| entry.expires.checked_sub(time));
                Answer::Held(left.filter(|left| *left > 0))
            }
        };
        if let Some(twin) = &mut self.twin {
            twin.compare(command, &answer)?;
        }
        Ok((Some(answer), changes))
    }

    /// Ends the sessions that are silent.
    pub(crate) fn tick(&mut self, time: u64) -> Changes {
        let mut changes = Changes::default();
        if let Some(queues) = &mut self.queues {
            queues.tick(&mut self.entries, time, &mut changes);
        }
        changes
    }

    /// A client ends its session on purpose.
    pub(crate) fn end_session(&mut self, session: u64) {
        if let Some(queues) = &mut self.queues {
            queues.end(&mut self.entries, session, &mut Changes::default());
        }
    }

    fn attempt(&mut self, all: &[One], time: u64, changes: &mut Changes) -> Answer {
        if let [one] = all
            && let Some(left) = one.takes_over
        {
            return self.take_over(one, left, time, changes);
        }
        let busy = |one: &One| match self.entries.get(&one.key) {
            Some(entry) if entry.token != one.token && entry.expires > time => Some(entry.expires - time),
            _ => None,
        };
        if let Some((place, left)) = all.iter().enumerate().find_map(|(n, one)| Some((n, busy(one)?))) {
            let interest = (all[place].key, all[place].process);
            if !self.interest.contains(&interest) {
                self.interest.push(interest);
            }
            return match self.entries.get(&all[place].key) {
                Some(entry) if entry.left => Answer::Left(place, left),
                _ => Answer::Busy(place, left),
            };
        }
        Answer::Granted(all.iter().map(|one| self.grant(one, time, changes)).collect())
    }

    /// Gives what was left under this token to the one that brings it.
    fn take_over(&mut self, one: &One, left: Token, time: u64, changes: &mut Changes) -> Answer {
        match self.entries.get(&one.key).filter(|entry| entry.expires > time) {
            Some(entry) if entry.token == one.token || entry.left && entry.token == left => {
                Answer::Granted(vec![self.grant(one, time, changes)])
            }
            Some(entry) if entry.left => Answer::Left(0, entry.expires - time),
            Some(entry) => Answer::Busy(0, entry.expires - time),
            None => Answer::Busy(0, 0),
        }
    }

    /// Gives the lock, which nobody else has. Returns its first fence, and how many there are.
    fn grant(&mut self, one: &One, time: u64, changes: &mut Changes) -> (u64, u32) {
        if let Some(entry) = self.entries.get_mut(&one.key)
            && entry.token == one.token
            && entry.expires > time
        {
            entry.expires = time + one.lease;
            // How many it had reserved is not known any more.
            return (entry.fence, 1);
        }
        // Of the time, so that it grows also when the store forgets.
        let fence = time.max(self.fence + 1);
        self.fence = fence + u64::from(one.fences) - 1;
        let entry = Entry {
            token: one.token,
            claim: one.claim,
            process: one.process,
            engine: one.engine,
            fence,
            fences: one.fences,
            expires: time + one.lease,
            restored: false,
            lease: one.lease,
            left: false,
        };
        if let Some(old) = self.entries.insert(one.key, entry.clone())
            && !old.left
        {
            changes.ran_out.push(old.fence);
        }
        changes.granted.push((one.key, entry));
        (fence, one.fences)
    }

    fn free(&mut self, key: usize, changes: &mut Changes) {
        self.entries.remove(&key);
        changes.freed.push(key);
        self.tell(key, changes);
    }

    /// Has those told who wait for a key.
    fn tell(&mut self, key: usize, changes: &mut Changes) {
        let told = self.interest.extract_if(.., |(of, _)| *of == key);
        changes.tell.extend(told);
    }

    /// Frees a lock as an administrator would.
    pub(crate) fn force(&mut self, key: usize) -> Changes {
        let mut changes = Changes::default();
        if self.entries.contains_key(&key) {
            self.free(key, &mut changes);
        }
        self.twin = None;
        changes
    }

    /// The copy gets what the store has now.
    pub(crate) fn replicate(&mut self) {
        self.copy.clone_from(&self.entries);
    }

    /// Goes on with the copy, or with nothing.
    pub(crate) fn lose(&mut self, with_copy: bool) {
        self.copy.values_mut().for_each(|entry| entry.restored = true);
        self.entries = if with_copy { std::mem::take(&mut self.copy) } else { BTreeMap::new() };
        self.restart(0);
        self.epoch += 1;
        self.twin = None;
    }

    /// Forgets who is to be told of what.
    pub(crate) fn restart(&mut self, time: u64) {
        self.interest.clear();
        if let Some(queues) = &mut self.queues {
            queues.restart(time);
        }
    }
}

/// `Memory`, which has to answer the same.
struct Twin {
    memory: Memory,
    claims: HashMap<Token, <Memory as Backend>::Claim>,
}

impl Twin {
    fn new(drift: i64) -> Self {
        Self { memory: Memory::with_clock(Clock::simulated(move || read(drift))), claims: HashMap::new() }
    }

    fn claim(&mut self, one: &One) -> &mut <Memory as Backend>::Claim {
        self.claims.entry(one.token).or_insert_with(|| {
            let request = one.request.as_ref().expect("the request goes along where there is a twin");
            self.memory.claim((**request).clone())
        })
    }

    fn compare(&mut self, command: &Command, ours: &Answer) -> Result<(), String> {
        let theirs = match command {
            Command::Attempt(all) => {
                // One after the other, since the store has no answer in between.
                if let Answer::Left(place, _) = ours {
                    return match at_once(self.claim(&all[*place]).attempt()) {
                        Some(Ok(Attempt::Busy(busy)))
                            if busy.holder.as_ref().is_some_and(|it| it.left_behind) =>
                        {
                            Ok(())
                        }
                        other => Err(format!("memory says {other:?} to what is left")),
                    };
                }
                if let Answer::Busy(place, _) = ours {
                    let one = &all[*place];
                    match at_once(self.claim(one).attempt()) {
                        Some(Ok(Attempt::Busy(busy))) => {
                            let left = busy.retry_after.map_or(0, |left| left.as_nanos());
                            Answer::Busy(*place, u64::try_from(left).unwrap_or(0))
                        }
                        _ => return Err(format!("memory grants what is busy: {ours:?}")),
                    }
                } else {
                    for one in all {
                        let answer = at_once(self.claim(one).attempt());
                        if !matches!(answer, Some(Ok(Attempt::Granted(_)))) {
                            return Err(format!("memory says {answer:?} to what is granted"));
                        }
                    }
                    ours.clone()
                }
            }
            Command::Renew(one) => match at_once(self.claim(one).renew()) {
                Some(Ok(Renewed::Extended)) => Answer::Extended,
                Some(Ok(Renewed::Gone)) => Answer::Gone,
                other => return Err(format!("memory says {other:?} to a renewal")),
            },
            Command::Withdraw(one) => match at_once(self.claim(one).withdraw()) {
                Some(Ok(withdrawal)) => Answer::Removed(withdrawal.removed),
                other => return Err(format!("memory says {other:?} to a withdrawal")),
            },
            Command::Leave(one, taken_for) => {
                match at_once(self.claim(one).leave(Duration::from_nanos(*taken_for))) {
                    Some(Ok(withdrawal)) => Answer::Removed(withdrawal.removed),
                    other => return Err(format!("memory says {other:?} to what is to be left")),
                }
            }
            Command::Inspect(_) | Command::Downgrade(_) => return Ok(()),
        };
        let ours = if *ours == Answer::Awaited { &Answer::Removed(true) } else { ours };
        if theirs == *ours { Ok(()) } else { Err(format!("the store says {ours:?}, memory says {theirs:?}")) }
    }
}

/// What a future that waits for nothing returns.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
