//! The simulated store: sessions and queues, as ZooKeeper keeps them.

use std::collections::{BTreeMap, HashSet};

use dlock_core::Token;

use crate::lease::{Answer, Changes, Command, Entry, One};

/// A session as the server knows it.
struct Session {
    /// By the server's clock.
    heard: u64,
    timeout: u64,
    /// The newest connection it was heard on. What comes on an older one is refused: the session has moved.
    generation: u64,
}

/// Which session asks, and over which of its connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) session: u64,
    pub(crate) generation: u64,
    pub(crate) timeout: u64,
}

/// Sessions, and one queue for each key. The first of a queue has the lock, and is the entry of the store.
#[derive(Default)]
pub(crate) struct Queues {
    sessions: BTreeMap<u64, Session>,
    ended: HashSet<u64>,
    waiting: BTreeMap<usize, Vec<(u64, Entry)>>,
    owner: BTreeMap<usize, u64>,
    node: u64,
}

impl Queues {
    /// Carries out a command of a session; `None` when it comes over a connection that the session has left.
    pub(crate) fn carry_out(
        &mut self,
        entries: &mut BTreeMap<usize, Entry>,
        from: From,
        command: &Command,
        time: u64,
        changes: &mut Changes,
    ) -> Option<Answer> {
        if self.ended.contains(&from.session) {
            return Some(Answer::Expired);
        }
        let new = Session { heard: time, timeout: from.timeout, generation: from.generation };
        let session = self.sessions.entry(from.session).or_insert(new);
        if from.generation < session.generation {
            return None;
        }
        (session.heard, session.generation) = (time, from.generation);
        Some(match command {
            Command::Attempt(all) => self.attempt(entries, from.session, &all[0], changes),
            Command::Withdraw(one) | Command::Leave(one, _) => {
                let was = entries.get(&one.key).is_some_and(|entry| entry.token == one.token);
                let waited = self.leave(one.key, one.token);
                if was {
                    self.promote(entries, one.key, changes);
                }
                Answer::Removed(was || waited)
            }
            Command::Renew(_) => Answer::Extended,
            Command::Downgrade(_) => Answer::Gone,
            Command::Inspect(key) => Answer::Held(entries.contains_key(key).then_some(u64::MAX)),
        })
    }

    fn attempt(
        &mut self,
        entries: &mut BTreeMap<usize, Entry>,
        session: u64,
        one: &One,
        changes: &mut Changes,
    ) -> Answer {
        if let Some(entry) = entries.get(&one.key) {
            if entry.token == one.token {
                return Answer::Granted(vec![(entry.fence, 1)]);
            }
            let waiting = self.waiting.entry(one.key).or_default();
            if one.waits && !waiting.iter().any(|(_, entry)| entry.token == one.token) {
                self.node += 1;
                waiting.push((session, entry_of(one, self.node)));
            }
            return Answer::Busy(0, 0);
        }
        self.node += 1;
        let entry = entry_of(one, self.node);
        entries.insert(one.key, entry.clone());
        self.owner.insert(one.key, session);
        changes.granted.push((one.key, entry));
        Answer::Granted(vec![(self.node, 1)])
    }

    fn leave(&mut self, key: usize, token: Token) -> bool {
        let Some(waiting) = self.waiting.get_mut(&key) else { return false };
        let before = waiting.len();
        waiting.retain(|(_, entry)| entry.token != token);
        waiting.len() < before
    }

    /// The first of a queue is gone: the next one has the lock, and is notified.
    fn promote(&mut self, entries: &mut BTreeMap<usize, Entry>, key: usize, changes: &mut Changes) {
        entries.remove(&key);
        self.owner.remove(&key);
        changes.freed.push(key);
        if let Some(waiting) = self.waiting.get_mut(&key)
            && !waiting.is_empty()
        {
            let (session, entry) = waiting.remove(0);
            changes.tell.push((key, entry.process));
            changes.granted.push((key, entry.clone()));
            self.owner.insert(key, session);
            entries.insert(key, entry);
        }
    }

    /// Ends the sessions that were not heard of for too long, with all they have.
    pub(crate) fn tick(&mut self, entries: &mut BTreeMap<usize, Entry>, time: u64, changes: &mut Changes) {
        let silent: Vec<u64> =
            self.sessions.iter().filter(|(_, s)| s.heard + s.timeout <= time).map(|(id, _)| *id).collect();
        for id in silent {
            self.end(entries, id, changes);
        }
    }

    /// Ends a session with all that it has.
    pub(crate) fn end(&mut self, entries: &mut BTreeMap<usize, Entry>, id: u64, changes: &mut Changes) {
        self.sessions.remove(&id);
        self.ended.insert(id);
        for waiting in self.waiting.values_mut() {
            waiting.retain(|(session, _)| *session != id);
        }
        let owned: Vec<usize> =
            self.owner.iter().filter(|(_, session)| **session == id).map(|(key, _)| *key).collect();
        for key in owned {
            self.promote(entries, key, changes);
        }
    }

    /// After a restart every session has its whole timeout to come back.
    pub(crate) fn restart(&mut self, time: u64) {
        self.sessions.values_mut().for_each(|session| session.heard = time);
    }
}

fn entry_of(one: &One, node: u64) -> Entry {
    Entry {
        token: one.token,
        claim: one.claim,
        process: one.process,
        engine: one.engine,
        fence: node,
        fences: 1,
        expires: u64::MAX,
        restored: false,
        lease: one.lease,
        left: false,
    }
}
