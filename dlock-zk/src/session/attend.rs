//! What a session does while it keeps a lock or waits for one: it proves that it lives, and watches its nodes.

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

/// Locks are looked at on the server this often within a session timeout.
const LOOKS: u32 = 3;
/// What Curator's `Revoker` writes into the node of a lock that it wants.
const REVOKE: &[u8] = b"__REVOKE__";

/// Follows the state of a session and looks after it while it keeps a lock.
async fn attend(
    session: Weak<Session>,
    driver: Arc<Driver>,
    mut states: StateWatcher,
    wake: Arc<Notify>,
    over: oneshot::Receiver<()>,
) {
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
            () = &mut end => {}
            () = look => {}
            () = wake.notified() => continue,
        }
        let Some(session) = session.upgrade() else { return };
        if session.ended().is_some() {
            return session.note_end();
        }
        session.watch_nodes();
        // Without a connection the request would only queue up.
        if session.takes_beat() && session.client.state() == SessionState::SyncConnected {
            tokio::spawn(session.beat());
        }
    }
}

impl Session {
    /// Takes over the client of a session that was asked for at `opened`, and attends to it. Called on dlock's own
    /// runtime.
    pub(crate) fn start(driven: Driven, opened: Timestamp, config: &Config) -> Arc<Self> {
        let (attended, over) = oneshot::channel();
        let session = Arc::new(Self::new(driven, opened, config, attended));
        let states = session.client.state_watcher();
        session.note(session.client.state());
        let (driver, wake) = (Arc::clone(&session.driver), Arc::clone(&session.wake));
        tokio::spawn(attend(Arc::downgrade(&session), driver, states, wake, over));
        session
    }

    /// How long it needs no look. `None` while there is nothing to look after.
    fn next_look(&self) -> Option<Duration> {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        if kept.locks.is_empty() && kept.waiting == 0 {
            (kept.beat_at, kept.look_at) = (Timestamp::NEVER, Timestamp::NEVER);
            return None;
        }
        let watch_at = kept.locks.values().map(|lock| lock.watch_at).min();
        kept.look_at = watch_at.unwrap_or(Timestamp::NEVER).min(kept.beat_at);
        Some(kept.look_at.since(now))
    }

    fn beat_soon(&self) {
        self.kept.lock().beat_at = self.clock.now();
    }

    /// Whether a proof of life is due; if so it is the caller's to give.
    fn takes_beat(&self) -> bool {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let due = kept.beat_at <= now && !(kept.locks.is_empty() && kept.waiting == 0);
        if due {
            kept.beat_at = now + self.timeout / BEATS;
        }
        due
    }

    /// Watches the nodes of locks that are held for a while already.
    fn watch_nodes(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut kept = self.kept.lock();
        let unwatched = |lock: &&mut KeptLock| lock.watch_at != Timestamp::NEVER;
        if kept.state != Connection::Up {
            // What is not watched yet is looked at first once the connection is back.
            for lock in kept.locks.values_mut().filter(unwatched) {
                lock.watch_at = now + WATCHED_AFTER;
            }
            return;
        }
        let again_at = kept.beat_at.max(now) + WATCHED_AFTER;
        for (number, lock) in kept.locks.iter_mut().filter(|(_, lock)| lock.watch_at <= now) {
            // Until others are watched no longer, it is looked at now and then.
            lock.watch_at = again_at;
            if let Some(pass) = self.watches.held(&lock.path) {
                lock.watch_at = Timestamp::NEVER;
                tokio::spawn(watch(Arc::downgrade(self), *number, lock.clone(), pass));
            }
        }
    }

    /// Proves that the session lives, and looks for the locks that were not seen for a while.
    async fn beat(self: Arc<Self>) {
        self.give_up().await;
        let sent = self.clock.now();
        let (losses, to_see) = {
            let kept = self.kept.lock();
            let limit = self.timeout / LOOKS;
            let due = |lock: &KeptLock| lock.suspect || sent.since(lock.seen) >= limit;
            let to_see = kept.locks.iter().filter(|(_, lock)| due(lock));
            (self.driver.losses(), to_see.map(|(number, lock)| (*number, lock.clone())).collect::<Vec<_>>())
        };
        if let Err(error) = self.proof.write(&self.client).await {
            return self.end_if_failed(&error);
        }
        self.note_proof(sent);
        self.prove(sent, losses, None);
        // What the server says now is no older than the write. All are sent before the first answer is waited for.
        let looks: Vec<_> = to_see
            .into_iter()
            .map(|(number, lock)| (self.client.check_stat(&lock.path), number, lock))
            .collect();
        for (look, number, lock) in looks {
            match look.await {
                Ok(stat) if stat.is_some_and(|stat| stat.czxid == lock.czxid) => {
                    self.prove(sent, losses, Some(number));
                }
                Ok(_) => self.lose_deleted(number, &lock.path),
                Err(_) => return,
            }
        }
    }

    /// A write that was sent at `sent` is confirmed: the locks are good for a while longer. One that is suspect is not,
    /// unless it was `seen` itself.
    fn prove(&self, sent: Timestamp, losses: u64, seen: Option<u64>) {
        let signalling = self.signalling.lock();
        let mut kept = self.kept.lock();
        if self.driver.losses() != losses || kept.state != Connection::Up {
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

    /// Deletes the nodes of locks whose proof of life came too late, so that others get them although their guards are
    /// not dropped yet: the session may well have survived.
    async fn give_up(&self) {
        let now = self.clock.now();
        // A little before the engine's own limit, so that no lock is in between.
        let limit = self.trusted_for() - (self.trusted_for() / 50).max(Duration::from_millis(3));
        let late: Vec<_> = {
            let kept = self.kept.lock();
            let late = kept.locks.iter().filter(|(_, lock)| now.since(lock.proven_at) >= limit);
            late.map(|(number, lock)| (*number, Arc::clone(&lock.path), lock.moves.clone())).collect()
        };
        for (number, path, moves) in late {
            self.lose(number, "no server confirmed it in time");
            let deleted = match (self.client.delete(&path, None).await, moves) {
                // Not before the node whose place it may have taken.
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

/// Follows the node of a lock, until it or the session is gone.
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
            // The next look sets another.
            Err(_) => {
                let Some(session) = session.upgrade() else { return };
                let now = session.clock.now();
                if let Some(lock) = session.kept.lock().locks.get_mut(&number) {
                    lock.watch_at = now + WATCHED_AFTER;
                }
                return;
            }
        };
        let event = event(watcher).await;
        let Some(session) = session.upgrade() else { return };
        match event {
            EventType::NodeDeleted => return session.lose_deleted(number, &lock.path),
            EventType::NodeDataChanged => {
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
