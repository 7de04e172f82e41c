//! The requests of administrators: the holders and waiters of locks, and taking a lock away.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Forced, Mode, Occupancy};
use crate::error::{Failure, Operation, Result};
use crate::holder::Holder;
use crate::key::Key;
use crate::telemetry::{Site, Spanned, Subject, Telemetry};

use super::Locks;

/// The bound of a list, which takes as long as the store is large.
const LISTING: Duration = Duration::from_secs(30);

impl Locks {
    /// Lists all locks that are held on this backend now, by any process, in the order of their keys.
    ///
    /// This is for people and dashboards, not for decisions: by the time the list is read, locks have come and gone. It
    /// reads the whole lock store, and gives up after 30 s.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let _guard = locks.lock("room_7").acquire().await?;
    /// for (key, holder) in locks.holders().await? {
    ///     println!("{key} is held by {holder}");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the backend cannot list its locks
    /// ([`Capabilities::administered`](crate::Capabilities::administered)),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn holders(&self) -> Result<Vec<(Key, Holder)>> {
        let engine = &self.engine;
        let unanswered = Failure::unavailable(format!("no list within {LISTING:?}"));
        let asked = Arc::clone(engine);
        let answer = engine.ask(LISTING, unanswered, async move { asked.backend.holders().await }).await;
        let mut held = answer.map_err(|failure| engine.error(Operation::Inspect, failure))?;
        held.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(held)
    }

    /// Lists the waiters for `key`, in order, without the holder, where the backend keeps the queue. A process has one
    /// place in it for each of its tasks that wait.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the backend does not know its waiters
    /// ([`Capabilities::shows_waiters`](crate::Capabilities::shows_waiters)),
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn waiters(&self, key: impl AsRef<str> + Send) -> Result<Vec<Holder>> {
        let engine = &self.engine;
        let key = Key::new(key).map_err(|failure| engine.error(Operation::Inspect, failure))?;
        let limit = self.defaults.request_timeout();
        let unanswered = Failure::unavailable(format!("no answer within {limit:?}"));
        let (asked, of) = (Arc::clone(engine), key.clone());
        let answer = engine.ask(limit, unanswered, async move { asked.backend.waiters(of).await }).await;
        answer.map_err(|failure| engine.error(Operation::Inspect, failure).of(&key))
    }

    /// Lists all holders of `key` now: its readers, or the holders of its permits; of any other lock the one holder.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// Cancel-safe.
    pub async fn occupancy(&self, key: impl AsRef<str> + Send) -> Result<Occupancy> {
        let engine = &self.engine;
        let key = Key::new(key).map_err(|failure| engine.error(Operation::Inspect, failure))?;
        let answer = engine.occupancy(&key, self.defaults.request_timeout()).await;
        answer.map_err(|failure| engine.error(Operation::Inspect, failure).of(&key))
    }

    /// Sets the number of permits of the semaphore `key`, and returns the number that it had; `None`, and nothing is
    /// changed, where the backend knows of no such semaphore.
    ///
    /// For an operator, before or while programs with the new number replace those with the old one, which get
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) from then on, unless they have the semaphore
    /// [`resizable`](crate::Semaphore::resizable). Permits that are taken stay so: if there are fewer than that, none
    /// is granted until enough have been released.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the backend has no semaphores
    ///   ([`Capabilities::permits`](crate::Capabilities::permits)), or cannot be administered
    ///   ([`Capabilities::administered`](crate::Capabilities::administered)).
    /// * [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig): not 1 to 1 000 000 permits.
    /// * [`ErrorKind::Conflict`](crate::ErrorKind::Conflict): the key is a lock.
    /// * [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): no answer came; the call may be repeated.
    /// * [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    ///   [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the number may be changed or not.
    pub async fn resize_semaphore(&self, key: impl AsRef<str> + Send, permits: u32) -> Result<Option<u32>> {
        let engine = &self.engine;
        let refuse = |failure| engine.error(Operation::Configure, failure);
        let key = Key::new(key).map_err(refuse)?;
        Mode::Permits { of: permits, take: 1 }.check().map_err(|failure| refuse(failure).of(&key))?;
        let limit = self.defaults.request_timeout();
        let unanswered = Failure::unknown(format!("no answer within {limit:?}; resize it again"));
        let (asked, of) = (Arc::clone(engine), key.clone());
        let resize = async move { asked.backend.resize(of, permits).await };
        engine.ask(limit, unanswered, resize).await.map_err(|failure| refuse(failure).of(&key))
    }

    /// Takes the lock of `key` away from its holder, also from another library's, and returns whether it had one.
    ///
    /// For an operator, when a holder hangs and its lease is renewed all the same. **The holder is not stopped by
    /// this.** It learns of the loss at its next renewal, up to a third of its lease later, and until then it and the
    /// next holder may work side by side: only resources that check the [fence](crate::Fence) are protected, since the
    /// next grant has a higher one. Where the connection to a database keeps the locks, it is ended, with all other
    /// locks that are on it. An operator that looks for the holder first takes the lock away by
    /// [`force_release_of`](Self::force_release_of), so that no other holder loses it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let stuck = locks.lock("room_7").acquire().await?;
    /// assert!(locks.force_release("room_7").await?);
    /// let next = locks.lock("room_7").acquire().await?;
    /// assert!(next.fence() > stuck.fence());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) when the backend cannot
    ///   ([`Capabilities::administered`](crate::Capabilities::administered)).
    /// * [`ErrorKind::Unknown`](crate::ErrorKind::Unknown): no answer came, and the lock may be free now. Look for its
    ///   holder before it is done again: it could be another one.
    /// * [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey),
    ///   [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable), and other kinds of the backend.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lock may be taken away or not.
    pub async fn force_release(&self, key: impl AsRef<str> + Send) -> Result<bool> {
        // The holder of that moment has left by itself where others hold the lock.
        Ok(self.force(key.as_ref(), None, "look who holds it").await? != Forced::Free)
    }

    /// Takes the lock of `key` away as [`force_release`](Self::force_release) does, if all of its holders are among
    /// `seen`: those that [`occupancy`](Self::occupancy) or [`inspect`](Self::inspect) returned before, perhaps to show
    /// them to an operator. A later grant is another hold, also to the process that had it before; see
    /// [`Holder::is_same_hold`].
    ///
    /// The server compares in the step that frees the key. Where a session keeps it, which has to be ended for that, it
    /// is looked at directly before, and in the moment between the two the session may release the lock and take it
    /// anew; the lock of no other session is taken away. A quorum compares on each node: a node that had not answered
    /// when it was looked at goes on with its vote until the holder learns of the loss. Where its nodes are so slow
    /// that the holder renews meanwhile, it may keep a majority; that is
    /// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), dlock_core::Error> {
    /// use dlock_core::{Forced, Locks, Memory};
    ///
    /// let locks = Locks::new(Memory::new());
    /// let guard = locks.lock("room_7").acquire().await?;
    /// let seen = locks.occupancy("room_7").await?.holders;
    /// guard.release().await?;
    /// let _next = locks.lock("room_7").acquire().await?;
    /// assert_eq!(locks.force_release_of("room_7", &seen).await?, Forced::HeldByOthers);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As `force_release`. After [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) the call may be repeated: it still
    /// takes the lock from no other holder.
    ///
    /// # Cancel safety
    ///
    /// If dropped, the lock may be taken away or not.
    pub async fn force_release_of<'a>(
        &self,
        key: impl AsRef<str> + Send,
        seen: impl IntoIterator<Item = &'a Holder> + Send,
    ) -> Result<Forced> {
        let seen = seen.into_iter().cloned().collect();
        self.force(key.as_ref(), Some(seen), "do it again").await
    }

    async fn force(&self, key: &str, seen: Option<Vec<Holder>>, if_unknown: &str) -> Result<Forced> {
        let engine = &self.engine;
        let key = Key::new(key).map_err(|failure| engine.error(Operation::Release, failure))?;
        let limit = self.defaults.request_timeout();
        let span = engine.telemetry.release_started(Subject { key: &key, site: Site::default() });
        let forced = async {
            let unanswered = Failure::unknown(format!("no answer within {limit:?}; {if_unknown}"));
            let (asked, of) = (Arc::clone(engine), key.clone());
            let force = async move { asked.backend.force_release(of, seen).await };
            let forced = engine.ask(limit, unanswered, force).await?;
            Telemetry::forced(forced == Forced::Released);
            if forced == Forced::Released {
                // It may have been a term of an election.
                engine.announce(&key);
            }
            Ok(forced)
        };
        forced
            .in_span(span)
            .await
            .map_err(|failure: Failure| engine.error(Operation::Release, failure).of(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Capabilities, ClaimRequest, LockId};
    use crate::{ErrorKind, Memory};

    /// The least backend.
    #[derive(Debug)]
    struct Least(Memory);

    impl Backend for Least {
        type Claim = <Memory as Backend>::Claim;

        fn name(&self) -> &'static str {
            "least"
        }

        fn capabilities(&self) -> Capabilities {
            let mut capabilities = Capabilities::basic();
            (capabilities.administered, capabilities.shows_waiters) = (true, true);
            capabilities
        }

        fn lock_id(&self, key: &Key) -> LockId {
            self.0.lock_id(key)
        }

        fn claim(&self, request: ClaimRequest) -> Self::Claim {
            self.0.claim(request)
        }

        async fn inspect(&self, key: &Key) -> Result<Option<Holder>, Failure> {
            self.0.inspect(key).await
        }
    }

    #[tokio::test]
    async fn a_backend_that_cannot_says_so_with_its_name_and_is_asked_nothing() {
        let memory = Memory::new();
        let locks = Locks::new(Least(memory.clone()));
        memory.faults().set_unavailable(true);
        let (list, force) = ("list the holders of its locks", "take a lock away from its holder");
        let errors = [
            (locks.holders().await.unwrap_err(), list),
            (locks.waiters("k").await.unwrap_err(), "tell who waits for a lock"),
            (locks.force_release("k").await.unwrap_err(), force),
            (locks.force_release_of("k", &[]).await.unwrap_err(), force),
            (locks.resize_semaphore("k", 2).await.unwrap_err(), "change the number of permits"),
        ];
        for (error, what) in errors {
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let says = error.to_string();
            assert!(
                says.contains("on least: ") && says.contains(&format!("this backend cannot {what}")),
                "{says}"
            );
        }
        let shown = locks.capabilities();
        assert!(!shown.administered && !shown.shows_waiters, "whatever the backend says itself");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backend_that_hangs_is_not_waited_for_without_end() {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        memory.faults().set_hanging(true);
        assert_eq!(locks.holders().await.unwrap_err().kind(), ErrorKind::Unavailable);
        let error = locks.force_release("k").await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unknown, Some("k")));
        assert!(error.to_string().contains("look who holds it"), "{error}");
    }

    #[tokio::test]
    async fn a_release_by_force_whose_answer_is_lost_is_unknown_and_made() {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        let _guard = locks.lock("k").acquire().await.unwrap();
        memory.faults().drop_replies(1);
        assert_eq!(locks.force_release("k").await.unwrap_err().kind(), ErrorKind::Unknown);
        assert!(locks.inspect("k").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_release_of_what_was_seen_whose_answer_is_lost_may_be_made_again() {
        let memory = Memory::new();
        let locks = Locks::new(memory.clone());
        let _guard = locks.lock("k").acquire().await.unwrap();
        let seen = locks.occupancy("k").await.unwrap().holders;
        memory.faults().drop_replies(1);
        let error = locks.force_release_of("k", &seen).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unknown, Some("k")));
        assert!(error.to_string().contains("do it again") || error.to_string().contains("lost"), "{error}");
        let _next = locks.lock("k").acquire().await.unwrap();
        assert_eq!(locks.force_release_of("k", &seen).await.unwrap(), Forced::HeldByOthers);
        assert_eq!(memory.held(), 1);
    }

    #[tokio::test]
    async fn holders_are_listed_in_the_order_of_their_keys() {
        let locks = Locks::new(Memory::new());
        let mut guards = Vec::new();
        for key in ["b", "a", "C", "aa"] {
            guards.push(locks.lock(key).acquire().await.unwrap());
        }
        let held = locks.holders().await.unwrap();
        assert_eq!(held.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["C", "a", "aa", "b"]);
    }
}
