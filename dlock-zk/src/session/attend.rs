//! The task that looks after a session while it keeps a lock or has a waiter: it proves that the session lives, and has
//! nodes watched.
//!
//! | event | step of the task |
//! |---|---|
//! | the state of the connection changes | notes it, and makes a proof of life due at once; then as for a look |
//! | a look is due | has the nodes of locks watched that are held for a while, and starts a `beat` if a proof of life is due |
//! | the driver has ended | notes the end, and returns |
//! | an entry wakes it | computes anew when the next look is due |
//! | the session is dropped | returns |
//!
//! A `beat` deletes the nodes of locks that are late, writes a proof of life, extends the deadlines of all trusted
//! locks, and looks at the nodes of those that are suspect or were not seen for a while.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dlock_core::Timestamp;
use dlock_core::backend::sleep;
use tokio::sync::{Notify, oneshot};
use zookeeper::{Error, EventType, SessionState, StateWatcher};

use super::Session;
use super::driver::{Driven, Driver};
use super::kept::{BEATS, Connection, KeptLock, WATCHED_AFTER};
use super::watches::WatchPass;
use crate::config::Config;
use crate::wire::event;

/// The number of times within a session timeout that the node of a lock is looked at.
const LOOKS: u32 = 3;
/// The data that Curator's `Revoker` writes into the node of a lock that it wants released.
const REVOKE: &[u8] = b"__REVOKE__";

/// Follows the state of a session, and looks after it while it keeps a lock or has a waiter. Holds only a weak
/// reference between two events, so that it does not keep the session open.
async fn attend(
    session: Weak<Session>,
    driver: Arc<Driver>,
    mut states: StateWatcher,
    wake: Arc<Notify>,
    over: oneshot::Receiver<()>,
) {
    // Both are made once, before the loop: an end that comes while the task is busy is still there at the next
    // `select!`.
    let (mut over, mut end) = (pin!(over), pin!(driver.until_ended()));
    loop {
        let Some(pause) = session.upgrade().map(|session| session.next_look()) else { return };
        let look = async {
            match pause {
                Some(pause) => sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = &mut over => return,
            state = states.changed() => {
                let Some(session) = session.upgrade() else { return };
                session.note(state);
                session.beat_soon();
            }
            // The end is looked for below, as after any other event.
            () = &mut end => {}
            () = look => {}
            () = wake.notified() => continue,
        }
        let Some(session) = session.upgrade() else { return };
        if session.ended().is_some() {
            return session.note_end();
        }
        session.watch_nodes();
        // Without a connection the request would only queue up. A task of its own, so that a slow answer delays no
        // later look.
        if session.takes_beat() && session.client.state() == SessionState::SyncConnected {
            tokio::spawn(session.beat());
        }
    }
}

impl Session {
    /// Takes over the client of a session that was requested at `opened`, and attends to it. Called on dlock's own
    /// runtime.
    pub(crate) fn start(driven: Driven, opened: Timestamp, config: &Config) -> Arc<Self> {
        let (attended, over) = oneshot::channel();
        let session = Arc::new(Self::new(driven, opened, config, attended));
        // The watcher comes first: the task sees any change after the state that is noted here.
        let states = session.client.state_watcher();
        session.note(session.client.state());
        let (driver, wake) = (Arc::clone(&session.driver), Arc::clone(&session.wake));
        tokio::spawn(attend(Arc::downgrade(&session), driver, states, wake, over));
        session
    }

    /// Returns the time until the next look, or `None` while there is nothing to look after.
    fn next_look(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        if kept.locks.is_empty() && kept.waiting == 0 {
            (kept.beat_at, kept.look_at) = (Timestamp::NEVER, Timestamp::NEVER);
            return None;
        }
        // Entries that were dropped meanwhile are not in it: they only lowered `look_at`, which is set anew here.
        let watch_at = kept.locks.values().map(|lock| lock.watch_at).min();
        kept.look_at = watch_at.unwrap_or(Timestamp::NEVER).min(kept.beat_at);
        Some(kept.look_at.since(now))
    }

    fn beat_soon(&self) {
        // Locks that were made suspect by the change are to be trusted again as soon as the servers confirm them.
        self.kept.lock().beat_at = self.clock.now();
    }

    /// Returns `true` if a proof of life is due. The caller then has to give it.
    fn takes_beat(&self) -> bool {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let due = kept.beat_at <= now && !(kept.locks.is_empty() && kept.waiting == 0);
        if due {
            // Planned before it is given, so that another one follows even if this one fails or hangs.
            kept.beat_at = now + self.timeout / BEATS;
        }
        due
    }

    /// Watches the nodes of locks that have been held for a while.
    fn watch_nodes(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let unwatched = |lock: &&mut KeptLock| lock.watch_at != Timestamp::NEVER;
        if kept.state != Connection::Up {
            // Without a connection no watch can be set: these locks are put off, and watched once it is back.
            for lock in kept.locks.values_mut().filter(unwatched) {
                lock.watch_at = now + WATCHED_AFTER;
            }
            return;
        }
        let again_at = kept.beat_at.max(now) + WATCHED_AFTER;
        for (number, lock) in kept.locks.iter_mut().filter(|(_, lock)| lock.watch_at <= now) {
            // Without a free pass, this lock has no watch: `beat` looks at its node now and then, and a pass is tried
            // for again after the next `beat`.
            lock.watch_at = again_at;
            if let Some(pass) = self.watches.held(&lock.path) {
                lock.watch_at = Timestamp::NEVER;
                tokio::spawn(watch(Arc::downgrade(self), *number, lock.clone(), pass));
            }
        }
    }

    /// Proves that the session lives, and looks at the nodes of locks that are suspect or were not seen for a while.
    async fn beat(self: Arc<Self>) {
        // First, so that a lock that is late is lost whatever the proof below says.
        self.give_up().await;
        // Both are taken before the write: a proof counts from its send, and only over a connection that was not lost
        // since.
        let sent = self.clock.now();
        let (losses, to_see) = {
            let kept = self.kept.lock();
            let limit = self.timeout / LOOKS;
            let due = |lock: &KeptLock| lock.suspect || sent.since(lock.seen) >= limit;
            let to_see = kept.locks.iter().filter(|(_, lock)| due(lock));
            (self.driver.losses(), to_see.map(|(number, lock)| (*number, lock.clone())).collect::<Vec<_>>())
        };
        if let Err(error) = self.proof.write(&self.client).await {
            // Nothing is extended, and nothing is lost yet: the next beat tries again until the deadlines have passed.
            return self.end_if_failed(&error);
        }
        self.note_proof(sent);
        self.prove(sent, losses, None);
        // The answers are no older than the write, which the same session sent before. All are sent before the first
        // answer is waited for.
        let looks: Vec<_> = to_see
            .into_iter()
            .map(|(number, lock)| (self.client.check_stat(&lock.path), number, lock))
            .collect();
        for (look, number, lock) in looks {
            match look.await {
                Ok(stat) if stat.is_some_and(|stat| stat.czxid == lock.czxid) => {
                    self.prove(sent, losses, Some(number));
                }
                // Missing, or another node of this name: the path was deleted, and made anew by a client that knows it.
                Ok(_) => self.lose_deleted(number, &lock.path),
                // The looks that follow would fail as well. Their locks stay as they are until the next beat.
                Err(_) => return,
            }
        }
    }

    /// Extends deadlines after a write that was sent at `sent` was confirmed: the deadlines of all trusted locks or, if
    /// the node of one lock was `seen`, the deadline of that lock, which is trusted from now on.
    fn prove(&self, sent: Timestamp, losses: u64, seen: Option<u64>) {
        let signalling = self.signalling.lock();
        let mut kept = self.kept.lock();
        if self.driver.losses() != losses || kept.state != Connection::Up {
            // The locks are suspect by now, or are about to be. The next proof is theirs.
            return;
        }
        let mut signals = Vec::new();
        match seen {
            Some(number) => {
                if let Some(lock) = kept.locks.get_mut(&number) {
                    (lock.seen, lock.proven_at, lock.suspect) = (sent, sent, false);
                    signals.push(lock.signal.clone());
                }
            }
            None => {
                // What became of the node of a suspect lock while the connection was lost is not known. No write shows
                // that: a look at the node does.
                for lock in kept.locks.values_mut().filter(|lock| !lock.suspect) {
                    lock.proven_at = lock.proven_at.max(sent);
                    signals.push(lock.signal.clone());
                }
            }
        }
        drop(kept);
        for signal in signals {
            signal.trust(sent);
        }
        drop(signalling);
    }

    /// Deletes the nodes of locks whose proof of life is too old, so that other clients get them although their guards
    /// are not dropped yet: the session itself may well have survived.
    async fn give_up(&self) {
        let now = self.clock.now();
        // A little before the engine's own limit, so that no lock has expired for the engine and keeps its node.
        let limit = self.trusted_for() - (self.trusted_for() / 50).max(Duration::from_millis(3));
        let late: Vec<_> = {
            let kept = self.kept.lock();
            let late = kept.locks.iter().filter(|(_, lock)| now.since(lock.proven_at) >= limit);
            late.map(|(number, lock)| (*number, Arc::clone(&lock.path), lock.moves.clone())).collect()
        };
        for (number, path, moves) in late {
            // Before the deletion, after which another client may have the lock at once.
            self.lose(number, "no server confirmed it in time");
            let deleted = match (self.client.delete(&path, None).await, moves) {
                // In this order: the transaction that makes `moved` fails once the first node is gone, so that it
                // cannot follow.
                (Ok(()) | Err(Error::NoNode), Some(moved)) => self.client.delete(&moved, None).await,
                (deleted, _) => deleted,
            };
            match deleted {
                Ok(()) | Err(Error::NoNode) => drop(self.kept.lock().locks.remove(&number)),
                // The next beat tries again.
                Err(error) => self.end_if_failed(&error),
            }
        }
    }
}

/// Follows the node of a lock until the node, its watch or the session is gone.
async fn watch(session: Weak<Session>, number: u64, lock: KeptLock, _pass: WatchPass) {
    loop {
        // A watch does not keep the session open.
        let watched = {
            let Some(session) = session.upgrade() else { return };
            session.client.check_and_watch_stat(&lock.path).await
        };
        let watcher = match watched {
            Ok((Some(stat), watcher)) if stat.czxid == lock.czxid => watcher,
            Ok(_) => {
                if let Some(session) = session.upgrade() {
                    session.lose_deleted(number, &lock.path);
                }
                return;
            }
            // No watch was set; the next look sets another one.
            Err(_) => {
                let Some(session) = session.upgrade() else { return };
                let now = session.clock.now();
                // The entry may be gone by now; otherwise the pass is dropped at the end, and asked for again.
                if let Some(lock) = session.kept.lock().locks.get_mut(&number) {
                    lock.watch_at = now + WATCHED_AFTER;
                }
                return;
            }
        };
        // No reference to the session is held for so long, which is the time of the whole hold as a rule.
        let event = event(watcher).await;
        let Some(session) = session.upgrade() else { return };
        match event {
            EventType::NodeDeleted => return session.lose_deleted(number, &lock.path),
            EventType::NodeDataChanged => {
                // Any client may write to the node. Only Curator's request for a release means something.
                let asked = session.client.get_data(&lock.path).await.is_ok_and(|(data, _)| data == REVOKE);
                if asked {
                    session.release_requested(number);
                }
            }
            EventType::Session => return,
            _ => {}
        }
    }
}
